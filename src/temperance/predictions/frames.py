"""Tables in memory as predictions: DataFrames, Arrow tables, Hugging Face data sets, dictionaries of arrays.

They are recognised by their interface (column names, and columns by name), so no library is imported for them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.errors import InputError
from temperance.predictions.checks import Wanted, check_groups, described, excerpt
from temperance.predictions.columns import find_columns
from temperance.predictions.core import Predictions
from temperance.predictions.rows import side_by_side


def column_names(given: object) -> list[str] | None:
    """The names of a table's columns; None for anything else."""
    if isinstance(given, Mapping):
        return [str(name) for name in given]
    names = getattr(given, "column_names", None)
    if names is None and hasattr(given, "to_numpy"):
        names = getattr(given, "columns", None)
    if names is None or isinstance(names, dict):
        return None
    return [str(name) for name in names]


def of_table(given: Any, names: list[str], wanted: Wanted, *, normalise: bool = False) -> Predictions:
    """The predictions in a table: columns `logits_0`, `logits_1`, … or lists `logits`, and `label`, perhaps `group`."""
    columns = find_columns(names, wanted)
    if not len(given[columns.scores[0]]):
        raise InputError("the table has no rows; at least one is needed")
    scores = [_column(given, name) for name in columns.scores]
    if not wanted.one_score and columns.is_list and scores[0].ndim < 2:
        raise InputError(
            f"the column {columns.scores[0]} must hold a list of numbers in each row; got {scores[0].dtype}. "
            "If it is the score of a binary classifier's positive class, pass positive=1"
        )
    truth = None if columns.labels is None else _column(given, columns.labels)
    if columns.label_columns:
        truth = np.stack([_column(given, name) for name in columns.label_columns], axis=1)
    class_names = columns.class_names
    if class_names is None and isinstance(given, Mapping) and "class_names" in names:  # as in a .npz
        class_names = tuple(np.asarray(given["class_names"]).tolist())
    groups = [_column(given, name) for name in columns.groups]
    check_groups(map(described, groups), len(scores[0]), columns.name)
    found = Predictions.of(
        scores[0] if len(scores) == 1 and not wanted.multilabel else np.stack(scores, axis=1),
        truth,
        from_logits=columns.from_logits,
        positive=wanted.positive,
        answers=wanted.answers,
        multilabel=wanted.multilabel,
        normalise=normalise,
        ignore_index=wanted.ignore_index,
        class_names=class_names,
        groups=side_by_side(groups) if groups else None,
        weights=None if columns.weights is None else _column(given, columns.weights),
    )
    return replace(found, grouped_by=columns.groups)


def _column(given: Any, name: str) -> npt.NDArray[Any]:
    """A column as an array: (n,), or (n, k) for one of lists."""
    column = given[name]
    rows_of_lists = _arrow_lists(column)
    if rows_of_lists is not None:
        return rows_of_lists
    values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column[:])
    if values.dtype.kind not in "OT":
        return np.asarray(values)
    rows = values.tolist()
    missing = next((row for row, value in enumerate(rows) if _is_missing(value)), None)
    if missing is not None:
        raise InputError(f"the column {excerpt([name])} has no value in row {missing}", row=missing)
    if isinstance(rows[0], str):
        return np.array(rows, np.str_)
    lengths = [np.size(value) for value in rows]
    odd = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is not None:
        raise InputError(
            f"each row of {name} must be a list of {lengths[0]} numbers, as in the first; row {odd} has {lengths[odd]}",
            row=odd,
        )
    return np.array([np.asarray(value) for value in rows])


def _is_missing(value: object) -> bool:
    """None, NaN, or the value that stands for a missing one in pandas, which is equal to nothing."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _arrow_lists(column: Any) -> npt.NDArray[Any] | None:
    """Arrow's column of lists of one length, or Ray's of tensors, without a Python object for each row. (n, k)"""
    found = []
    for chunk in getattr(column, "chunks", ()):
        if hasattr(chunk, "value_lengths") and not chunk.null_count and not chunk.flatten().null_count:
            lengths = chunk.value_lengths().unique()
            if len(lengths) == 1:
                found.append(chunk.flatten().to_numpy(zero_copy_only=False).reshape(len(chunk), -1))
        elif hasattr(chunk, "storage"):
            found.append(chunk.to_numpy(zero_copy_only=False))
    whole = found and len(found) == len(column.chunks) and len({rows.shape[1:] for rows in found}) == 1
    return np.concatenate(found) if whole and found[0].ndim == 2 and found[0].dtype.kind in "fiu" else None
