"""Files, arrays and `Predictions` of a caller, all as `Predictions`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_labels, as_scores, as_weights, flatten, to_tensor
from temperance.errors import InputError
from temperance.predictions.checks import ColumnNames, Positive, Wanted
from temperance.predictions.core import Predictions, as_positive
from temperance.predictions.disk import read_predictions
from temperance.predictions.frames import column_names, of_table
from temperance.predictions.rows import in_array

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
) -> Predictions:
    """A file, a `Predictions`, or probabilities (with `from_logits=True` logits) and labels, as `Predictions`."""
    if isinstance(given, Set):
        if weights is not None:
            raise InputError(
                "a file or a Predictions brings its own weights: store them under the name weights, or name their "
                'column with columns={"weight": NAME}; Predictions.of takes weights='
            )
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
        if from_logits or ignore_index is not None or weights is not None:
            raise InputError("a table brings its own labels and weights, and its columns say whether it holds logits")
        wanted = Wanted(positive=as_positive(positive), columns=ColumnNames.of(columns))
        return of_table(given, names, wanted, normalise=normalise)
    if isinstance(given, Mapping):
        raise InputError("a dictionary of arrays brings its own labels, under the name label")
    if columns is not None:
        raise InputError("columns= names the columns of a file or a table; arrays have none")
    if labels is None:
        raise InputError("arrays need labels: pass probs and labels")
    name = "logits" if from_logits else "probs"
    scores = to_tensor(given, name)
    what: dict[str, Any] = {"from_logits": from_logits, "positive": positive, "normalise": normalise}
    if scores.ndim <= 2 and ignore_index is None:
        return Predictions.of(scores, labels, weights=weights, **what)
    if weights is not None:
        weights = as_weights(weights, (scores.shape[0], *scores.shape[2:])).reshape(-1)
    rows, truth = _rows(scores, labels, name, binary=positive is not None, ignore_index=ignore_index)
    kept = (truth != ignore_index).nonzero().flatten() if ignore_index is not None else torch.arange(len(truth))
    if not len(kept):
        raise InputError(f"every label is ignore_index={ignore_index}: there is nothing to measure")
    counted = None if weights is None else weights[kept.cpu()]
    found = Predictions.of(rows[kept], truth[kept], weights=counted, **what)
    return dataclasses.replace(found, _place=lambda row: in_array(int(kept[row])))


def _rows(
    scores: Tensor, labels: ArrayLike, name: str, *, binary: bool, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Dense predictions and their labels as rows."""
    if not binary:
        scores = as_scores(scores, name)
        return flatten(scores), as_labels(labels, scores, ignore_index=ignore_index, name=name).reshape(-1)
    rows, truth = scores.reshape(-1, 1), to_tensor(labels, "labels").reshape(-1).to(scores.device)
    if len(rows) != len(truth):
        raise InputError(f"labels must be one for each of the {len(rows)} scores; there are {len(truth)}")
    return rows, truth


def as_sides(
    fit: Set | ArrayLike,
    labels: Set | ArrayLike | None,
    test: Set | tuple[ArrayLike, ...] | None,
    *,
    weights: ArrayLike | None = None,
    **how: Any,
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
        if len(test) not in (2, 3):
            raise InputError(f"test must be two arrays, (probs, labels), or three with weights; got {len(test)} things")
        test = as_predictions(*test[:2], weights=test[2] if len(test) == 3 else None, **how)
    if isinstance(fit, str | Path) and labels is None and weights is None:
        # Which part of a file is fitted depends on what else there is; it is read where that is known.
        return fit, test
    return as_predictions(fit, labels, weights=weights, **(how if not isinstance(fit, Set) else {})), test
