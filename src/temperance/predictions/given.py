"""Files, arrays and `Predictions` of a caller, all as `Predictions`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from temperance.arrays import ArrayLike, as_labels, as_scores, flatten, to_tensor
from temperance.errors import InputError
from temperance.predictions.checks import ColumnNames, Positive, Wanted
from temperance.predictions.core import Predictions, as_positive
from temperance.predictions.disk import read_predictions
from temperance.predictions.frames import column_names, of_table

# A set that brings its own labels.
Set = Predictions | str | Path


def as_predictions(
    given: Set | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    ignore_index: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> Predictions:
    """A file, a `Predictions`, or probabilities (with `from_logits=True` logits) and labels, as `Predictions`."""
    if isinstance(given, Set):
        if labels is not None or from_logits or ignore_index is not None:
            raise InputError(
                "a file or a Predictions brings its own labels, all of which count, and says whether it holds logits"
            )
        if not isinstance(given, Predictions):
            return read_predictions(given, positive=positive, normalise=normalise, columns=columns)
        if positive is not None or normalise or columns is not None:
            raise InputError(
                "a Predictions says what it holds; give positive=, normalise= and columns= to what makes it"
            )
        return given
    # With labels beside it, a DataFrame is an array.
    names = column_names(given) if labels is None else None
    if names is not None:
        if from_logits or ignore_index is not None:
            raise InputError("a table brings its own labels, and its columns say whether it holds logits")
        wanted = Wanted(positive=as_positive(positive), columns=ColumnNames.of(columns))
        return of_table(given, names, wanted, normalise=normalise)
    if columns is not None:
        raise InputError("columns= names the columns of a file or a table; arrays have none")
    if labels is None:
        raise InputError("arrays need labels: pass probs and labels")
    name = "logits" if from_logits else "probs"
    scores = to_tensor(given, name)
    if scores.ndim > 2 or ignore_index is not None:
        scores, labels = _rows(scores, labels, name, ignore_index, binary=positive is not None)
    return Predictions.of(scores, labels, from_logits=from_logits, positive=positive, normalise=normalise)


def _rows(
    scores: Tensor, labels: ArrayLike, name: str, ignore_index: int | None, *, binary: bool
) -> tuple[Tensor, Tensor]:
    """Dense predictions as rows, those with an ignored label left out."""
    if binary:
        rows, truth = scores.reshape(-1, 1), to_tensor(labels, "labels").reshape(-1).to(scores.device)
        if len(rows) != len(truth):
            raise InputError(f"labels must be one for each of the {len(rows)} scores; there are {len(truth)}")
    else:
        scores = as_scores(scores, name)
        rows, truth = flatten(scores), as_labels(labels, scores, ignore_index=ignore_index, name=name).reshape(-1)
    if ignore_index is None:
        return rows, truth
    kept = truth != ignore_index
    if not bool(kept.any()):
        raise InputError(f"every label is ignore_index={ignore_index}: there is nothing to measure")
    return rows[kept], truth[kept]


def as_sides(
    fit: Set | ArrayLike, labels: Set | ArrayLike | None, test: Set | tuple[ArrayLike, ArrayLike] | None, **how: Any
) -> tuple[Set, Set | None]:
    """The set to fit on and, if there is one, the set to measure on; `how` says what arrays are.

    They are two sets (`labels` is then the second one), or arrays with their labels and perhaps a pair of them as test.
    """
    if isinstance(labels, Set):
        if test is not None:
            raise InputError("there are two sets to measure on; give one")
        labels, test = None, labels
    if test is not None and not isinstance(test, Set | tuple):
        raise InputError("test must be a file, a Predictions or a pair of arrays, (probs, labels)")
    if isinstance(test, tuple):
        if len(test) != 2:
            raise InputError(f"test must be a pair of arrays, (probs, labels); got {len(test)} things")
        test = as_predictions(*test, **how)
    if isinstance(fit, str | Path) and labels is None:
        # Which part of a file is fitted depends on what else there is; it is read where that is known.
        return fit, test
    return as_predictions(fit, labels, **(how if not isinstance(fit, Set) else {})), test
