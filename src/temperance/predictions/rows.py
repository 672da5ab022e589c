"""Rows of predictions in memory, and how the values of a file or an array become them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_scores, as_weights, combination_names, flatten, to_tensor
from temperance.errors import InputError
from temperance.predictions.checks import Text, Wanted
from temperance.predictions.labels import label_numbers, label_rows, no_labels

Values = Tensor | npt.NDArray[Any]

# The floats that NumPy has too.
NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


class Chunk(NamedTuple):
    """Some rows: scores (rows, k), labels (rows,) as int64; groups as text and weights (rows,) where given.

    Groups are one column (rows,), or c columns (rows, c); then the name of a row's group is that of the combination.
    Where the predictions have no labels, these are all −1, which is not a class: every metric refuses it.
    """

    scores: Tensor
    labels: Tensor
    group_columns: Text | None
    weights: Tensor | None = None

    @property
    def groups(self) -> Text | None:
        """The name of each row's group; of several columns, that of the combination, such as "Female & White"."""
        columns = self.group_columns
        return columns if columns is None or columns.ndim == 1 else combination_names(columns)

    def slice(self, start: int, stop: int) -> Chunk:
        """The rows from `start` up to `stop`, without a copy."""
        groups = None if self.group_columns is None else self.group_columns[start:stop]
        weights = None if self.weights is None else self.weights[start:stop]
        return Chunk(self.scores[start:stop], self.labels[start:stop], groups, weights)

    def take(self, index: npt.NDArray[np.int64]) -> Chunk:
        """The rows of `index`, in its order."""
        rows = torch.from_numpy(index).to(self.scores.device)
        groups = None if self.group_columns is None else self.group_columns[index]
        weights = None if self.weights is None else self.weights[rows]
        return Chunk(self.scores[rows], self.labels[rows], groups, weights)

    @staticmethod
    def join(parts: Sequence[Chunk]) -> Chunk:
        """The rows of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        groups = [part.group_columns for part in parts if part.group_columns is not None]
        weights = [part.weights for part in parts if part.weights is not None]
        return Chunk(
            torch.cat([part.scores for part in parts]),
            torch.cat([part.labels for part in parts]),
            np.concatenate(groups) if groups else None,
            torch.cat(weights) if weights else None,
        )


def in_memory(held: Chunk) -> Callable[[int], Iterator[Chunk]]:
    """A reader of rows that are in memory."""

    def read(rows: int) -> Iterator[Chunk]:
        for start in range(0, len(held.scores), rows):
            yield held.slice(start, start + rows)

    return read


def regrouped(chunks: Iterator[Chunk], rows: int) -> Iterator[Chunk]:
    """The same rows in chunks of this size, so that results do not depend on how they were read."""
    taker = Taker(chunks)
    while len((chunk := taker.take(rows)).labels):
        yield chunk


class Taker:
    """Takes any number of rows at a time out of chunks of other sizes."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks, self._held = chunks, list[Chunk]()

    def take(self, n: int) -> Chunk:
        """The next n rows, or those that are left."""
        while sum(len(chunk.labels) for chunk in self._held) < n:
            following = next(self._chunks, None)
            if following is None:
                break
            self._held.append(following)
        held = Chunk.join(self._held)
        self._held = [held.slice(n, len(held.labels))]
        return held.slice(0, n)


@dataclass(frozen=True)
class Meaning:
    """What a set's values mean: logits or probabilities, of all classes or of the positive one, and the class names."""

    name: str  # what errors call the scores; it ends in "logits" or "probs"
    class_names: tuple[str, ...] | None
    wanted: Wanted

    @property
    def from_logits(self) -> bool:
        return self.name.endswith("logits")

    def chunk(
        self,
        scores: Values,
        labels: Values | None,
        groups: Sequence[npt.NDArray[Any]],
        first_row: int,
        weights: Values | None = None,
    ) -> Chunk:
        """Checked rows, one for each sample, pixel or label of a sample; `first_row` is the index of the first one.

        All pixels of an image have its groups. All labels of a sample have its weight, and the group of each is its
        name.
        """
        one_score = self.wanted.one_score
        given = as_scores(self._two_columns(scores, first_row) if one_score else scores, self.name)
        rows = flatten(given)
        if labels is None:
            numbers = no_labels(len(rows))
        else:
            truth = labels.reshape(-1) if one_score else label_rows(labels, tuple(given.shape))
            numbers = label_numbers(truth, rows, self.class_names, self.wanted, first_row=first_row)
        counted = None
        if weights is not None:
            each = to_tensor(weights, "weights").reshape(-1)
            if self.wanted.multilabel:
                each = each.repeat_interleave(len(rows) // max(len(each), 1))
            counted = as_weights(each, (len(rows),), first_row=first_row).to(rows.device)
        parts: Text | None = None
        if self.wanted.multilabel:
            parts = np.tile(label_texts(self.class_names, scores.shape[1]), len(scores))
        elif groups:
            parts = side_by_side(groups).repeat(len(rows) // len(groups[0]), axis=0)
        return Chunk(rows, numbers.to(rows.device), parts, counted)

    def _two_columns(self, scores: Values, first_row: int) -> Tensor:
        """Scores of both classes, from those of the positive one. (rows, 2)"""
        column = to_tensor(scores, self.name).reshape(-1)
        column = column.to(torch.promote_types(column.dtype, torch.float32))
        if self.from_logits:
            return torch.stack([torch.zeros_like(column), column], dim=1)
        outside = (column < 0) | (column > 1)
        if self.wanted.answers or self.wanted.multilabel:
            outside |= column.isnan()  # it is not in a class, which the check of probabilities would name
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            of_class = not self.wanted.answers and not self.wanted.multilabel
            what = f"{self.name}{' of the positive class' * of_class}"
            logits = f"logits{' or decision-function scores' * of_class}, pass from_logits=True; if they are "
            remedy = f"If these are {'' if self.wanted.answers else logits}percent, divide them by 100"
            raise InputError(
                f"{what} must lie between 0 and 1; row {first_row + row} has {float(column[row]):.6g}. {remedy}",
                row=first_row + row,
                flags={"pass from_logits=True": "store them under the name logits, or name them with --logits"},
            )
        return torch.stack([1 - column, column], dim=1)


def side_by_side(groups: Sequence[npt.NDArray[Any]]) -> Text:
    """One column of groups as text (n,), several as (n, c)."""
    columns = [each.astype(np.str_) for each in groups]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def label_texts(names: tuple[str, ...] | None, n_labels: int) -> Text:
    """The names of the labels that a sample can have, or their numbers. (L,)"""
    return np.array(names or tuple(map(str, range(n_labels))), np.str_)


def row_numbers(index: ArrayLike, n: int) -> npt.NDArray[np.int64]:
    """Which of n rows an index means: their numbers, or a mask that is true there."""
    given = to_tensor(index, "index").cpu().numpy()
    if given.dtype == np.bool_ and given.shape == (n,):
        given = given.nonzero()[0]
    if given.ndim != 1 or given.dtype.kind not in "iu" or not len(given):
        raise InputError(
            f"index must be row numbers, at least one, or a mask of shape {(n,)} that is true somewhere; got "
            f"{given.dtype} of shape {given.shape}"
        )
    if given.min() < 0 or given.max() >= n:
        raise InputError(f"index must lie in 0 … {n - 1}; got {given.min()} … {given.max()}")
    return given.astype(np.int64)


def as_numpy(values: Tensor) -> npt.NDArray[Any]:
    """A tensor as a NumPy array; bfloat16 and float8, which NumPy does not have, become float32."""
    has_type = not values.is_floating_point() or values.dtype in NUMPY_FLOATS
    found: npt.NDArray[Any] = (values if has_type else values.float()).detach().cpu().numpy()
    return found


def in_array(row: int) -> str:
    """Where a row is in an array, by its index."""
    return f"row {row}"


def in_file(row: int) -> str:
    """Where a row is in a file of arrays."""
    return f"row {row} (counting from 0)"


@contextmanager
def placed(place: Callable[[int], str]) -> Iterator[None]:
    """Inside this block, an error about a row says where that row is."""
    try:
        yield
    except InputError as error:
        if error.row is None:
            raise
        raise InputError(str(error).replace(f"row {error.row}", place(error.row), 1), flags=error.flags) from error
