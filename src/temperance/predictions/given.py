"""The files, arrays, tables and `Predictions` that callers pass, all as `Predictions`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from temperance.arrays import ArrayLike, as_array
from temperance.errors import InputError
from temperance.predictions.checks import ColumnNames, Positive, Wanted, as_positive
from temperance.predictions.core import Predictions
from temperance.predictions.dense import labelled
from temperance.predictions.disk import read_predictions
from temperance.predictions.frames import column_names, of_table

# The options that say how a file is read.
READING = ("positive", "normalise", "columns", "ignore_index", "answers", "multilabel")

# A set that brings its own labels.
Set = Predictions | str | Path


def as_predictions(
    given: Set | ArrayLike | Mapping[str, Any],
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    ignore_index: int | None = None,
    columns: Mapping[str, str] | None = None,
    weights: ArrayLike | None = None,
    answers: bool = False,
    multilabel: bool = False,
) -> Predictions:
    """A file, a `Predictions`, or probabilities (with `from_logits=True` logits) and labels, as `Predictions`."""
    if isinstance(given, Set):
        if weights is not None:
            raise InputError(
                "a file or a Predictions brings its own weights: store them under the name weights, or name their "
                'column with columns={"weight": NAME}; Predictions.of takes weights='
            )
        if labels is not None or from_logits:
            raise InputError("a file or a Predictions brings its own labels, and says whether it holds logits")
        if not isinstance(given, Predictions):
            return read_predictions(
                given,
                positive=positive,
                normalise=normalise,
                columns=columns,
                ignore_index=ignore_index,
                answers=answers,
                multilabel=multilabel,
            )
        if positive is not None or normalise or columns is not None or answers or multilabel:
            raise InputError(
                "a Predictions knows what it holds; give positive=, normalise=, columns=, answers= and multilabel= "
                "when you make it"
            )
        return given if ignore_index is None else labelled(given, ignore_index)
    # A DataFrame that comes with labels is an array of scores.
    names = column_names(given) if labels is None else None
    if names is not None:
        if from_logits or weights is not None:
            raise InputError("a table brings its own labels and weights, and its columns say whether it holds logits")
        wanted = Wanted(
            positive=as_positive(positive),
            columns=ColumnNames.of(columns),
            ignore_index=ignore_index,
            answers=answers,
            multilabel=multilabel,
        )
        return of_table(given, names, wanted, normalise=normalise)
    if isinstance(given, Mapping):
        raise InputError("a dictionary of arrays brings its own labels, under the name label")
    if columns is not None:
        raise InputError("columns= names the columns of a file or a table; arrays have none")
    if labels is None:
        if isinstance(given, list | tuple) and any(isinstance(each, Set) for each in given):
            raise InputError(
                "these are several sets, and here is room for one: give them to evaluate_each or compare_each, or name "
                "the files of one set by their folder or a pattern"
            )
        raise InputError("arrays need labels: pass probs and labels")
    return Predictions.of(
        given,
        labels,
        from_logits=from_logits,
        positive=positive,
        normalise=normalise,
        class_names=None if answers or positive is not None else _names_for(labels, given),
        ignore_index=ignore_index,
        weights=weights,
        answers=answers,
        multilabel=multilabel,
    )


def _names_for(labels: ArrayLike, scores: object) -> list[str] | None:
    """The names that labels of text are matched to, if the scores are a DataFrame: those of its columns."""
    columns = getattr(scores, "columns", None) if hasattr(scores, "to_numpy") else None
    if columns is None or not all(isinstance(name, str) for name in columns) or isinstance(labels, Tensor):
        return None
    return list(columns) if as_array(labels, "labels").dtype.kind == "U" else None


def as_sides(
    fit: Set | ArrayLike,
    labels: Set | ArrayLike | None,
    test: Set | tuple[ArrayLike, ...] | None,
    *,
    weights: ArrayLike | None = None,
    **how: Any,
) -> tuple[Set, Set | None]:
    """The set to fit on and, if there is one, the set to measure on; `how` says how they are read.

    Callers give two sets (the second as `labels`), or arrays and their labels, perhaps with another pair as `test`.
    """
    if isinstance(labels, Set):
        if test is not None:
            raise InputError("there are two sets to measure on; give one")
        labels, test = None, labels
    if test is not None and not isinstance(test, Set | tuple):
        raise InputError("test must be a file, a Predictions or a pair of arrays, (probs, labels)")
    # A Predictions knows what it holds, so options for reading arrays and files must be meant for the other set.
    none_else = isinstance(fit, Predictions) and (test is None or isinstance(test, Predictions))
    own = how if none_else else {"ignore_index": how["ignore_index"]}
    no_arrays = isinstance(fit, Set) and not isinstance(test, tuple)
    if isinstance(test, tuple):
        if len(test) not in (2, 3):
            raise InputError(f"test must be two arrays, (probs, labels), or three with weights; got {len(test)}")
        test = as_predictions(*test[:2], weights=test[2] if len(test) == 3 else None, **how)
    elif isinstance(test, Predictions):
        test = as_predictions(test, **own)
    if isinstance(fit, str | Path) and labels is None and weights is None and not (how["from_logits"] and no_arrays):
        # Which part of a file is fitted depends on the other set, so the file is read later, where that is known.
        return fit, test
    return as_predictions(fit, labels, weights=weights, **(own if isinstance(fit, Predictions) else how)), test
