"""Dense predictions: arrays whose rows are pixels, (n, k, *space), or the labels of samples, (n, L); ignored rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

from temperance.errors import InputError
from temperance.predictions.rows import Chunk, regrouped
from temperance.settings import of_kind, plain

if TYPE_CHECKING:
    from temperance.predictions.core import Predictions

Numbers = npt.NDArray[np.int64]


def image_numbers(images: int, space: tuple[int, ...]) -> Callable[[], Numbers] | None:
    """The index of each row's image; None where rows are samples of their own."""
    return (lambda: np.repeat(np.arange(images), math.prod(space))) if space else None


def position(space: tuple[int, ...], place: Callable[[int], str]) -> Callable[[int], str]:
    """A function that says where a row is: the index of its pixel or label, or what `place` says for a sample."""
    if not space:
        return place

    def found(row: int) -> str:
        image, pixel = divmod(row, math.prod(space))
        return f"position {(image, *(int(i) for i in np.unravel_index(pixel, space)))}"

    return found


def in_shape(predictions: Predictions, values: Tensor) -> Tensor:
    """Scores (rows, k), labels or weights (rows,) in the shape of the arrays that they were read from."""
    shape = (len(values) // math.prod(predictions.space), *predictions.space)
    return values.reshape(shape) if values.ndim == 1 else values.reshape(*shape, -1).movedim(-1, 1)


def weights_of_samples(predictions: Predictions, weights: Tensor) -> Tensor:
    """Weights (rows,) in the shape of the file: one for each pixel, or one for all labels of a sample."""
    shaped = in_shape(predictions, weights)
    return shaped[:, 0] if predictions.multilabel else shaped


def line_chunks(predictions: Predictions, lines: int) -> Iterator[Chunk]:
    """Chunks of the lines of a table, one for each sample: of several labels, scores and labels are (lines, L)."""
    if not predictions.multilabel:
        yield from predictions.chunks(lines)
        return
    n_labels = math.prod(predictions.space)
    for chunk in predictions.chunks(max(1, lines // n_labels) * n_labels):
        scores, labels = (in_shape(predictions, each) for each in (predictions.written(chunk.scores), chunk.labels))
        weights = None if chunk.weights is None else weights_of_samples(predictions, chunk.weights)
        yield Chunk(scores, labels, None, weights)


def labelled(predictions: Predictions, ignore_index: int) -> Predictions:
    """The rows whose label is not `ignore_index`, at least one. Their `origin` is dropped: a copy would lack rows."""
    of_kind("ignore_index", plain(ignore_index), int)
    found = without(predictions, ignore_index)
    refuse_none(found, ignore_index)
    return dataclasses.replace(found, origin=None, shards=())


def refuse_none(found: Predictions, ignore_index: int) -> None:
    """Refuse predictions whose rows are all ignored."""
    if not found.n:
        with found.located():
            raise InputError(
                f"every label is ignore_index={ignore_index}: there is nothing to measure",
                flags={f"is ignore_index={ignore_index}": f"is {ignore_index}, which --ignore-index leaves out"},
            )


def without(predictions: Predictions, ignore_index: int) -> Predictions:
    """The rows, perhaps none, whose label is not `ignore_index`; found while reading, so that memory does not grow."""
    predictions.need_labels()

    def kept() -> Numbers:
        found, first = [], 0
        for chunk in predictions.chunks():
            found.append(first + _kept_rows(chunk, ignore_index))
            first += len(chunk.labels)
        return np.concatenate(found)

    def read(rows: int) -> Iterator[Chunk]:
        return regrouped((chunk.take(_kept_rows(chunk, ignore_index)) for chunk in predictions.chunks(rows)), rows)

    n = sum(len(_kept_rows(chunk, ignore_index)) for chunk in predictions.chunks())
    images = predictions._images
    return dataclasses.replace(
        predictions,
        n=n,
        space=(),
        _read=read,
        _place=lambda row: predictions._place(int(kept()[row])),
        _images=None if images is None else lambda: images()[kept()],
    )


def _kept_rows(chunk: Chunk, ignore_index: int) -> Numbers:
    """The indices of a chunk's rows that are not ignored."""
    return np.flatnonzero((chunk.labels != ignore_index).cpu().numpy())
