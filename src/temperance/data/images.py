"""Images and their labels in memory, in batches, with random crops and flips.

Images stay uint8 (n, height, width, channels), a quarter of the size of float32, until `normalised` prepares them for a
network. The crop and flip of a sample depend only on its index, not on its position in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.arrays import ArrayLike, shape_of, to_tensor
from temperance.errors import InputError
from temperance.settings import CountOrZero, of_kind

Device = str | torch.device

# Bytes that are gathered and moved at once: 64 batches of CIFAR, because one batch is too small to be efficient.
BYTES_AT_ONCE = 64 * 128 * 32 * 32 * 3


class ImageBatch(NamedTuple):
    """A few samples of a part, on the requested device."""

    pixels: Tensor  # uint8 (b, h, w, c)
    labels: Tensor  # int64 (b,)
    indices: Tensor  # int64 (b,): which samples of the part


class Moves(NamedTuple):
    """One random crop and flip for each sample of a part."""

    top: Tensor  # int64 (n,), 0 … 2·pad
    left: Tensor  # int64 (n,), 0 … 2·pad
    flip: Tensor  # bool (n,)
    pad: int  # width of the black border that is cropped again, in pixels

    def take(self, index: Tensor) -> Moves:
        """The moves of these samples."""
        index = index.to(self.top.device)
        return Moves(self.top[index], self.left[index], self.flip[index], self.pad)


def draw_moves(n: int, *, pad: int = 4, flip: bool = True, generator: torch.Generator) -> Moves:
    """Draw where each of n samples is cropped and whether it is flipped, with a CPU generator.

    An image is given a black border of `pad` pixels and cropped to its size at one of (2·pad + 1)² places; half of
    them are flipped.
    """
    of_kind("pad", pad, CountOrZero)
    top, left = torch.randint(2 * pad + 1, (2, n), generator=generator)
    flipped = torch.rand(n, generator=generator) < 0.5
    return Moves(top, left, flipped if flip else torch.zeros_like(flipped), pad)


def moved(pixels: Tensor, moves: Moves) -> Tensor:
    """Images cropped and flipped, each by its own move, in a single gather. (b, h, w, c) → (b, h, w, c)"""
    b, h, w, c = pixels.shape
    device, pad = pixels.device, moves.pad
    top, left, flip = (each.to(device, non_blocking=True)[:, None] for each in (moves.top, moves.left, moves.flip))
    steps = torch.arange(w, device=device)
    rows = top + torch.arange(h, device=device)
    columns = left + torch.where(flip, steps.flip(0), steps)
    # Whole pixels are selected by one number each, which takes half the time of indexing by image, row and column.
    first = torch.arange(b, device=device)[:, None] * (h + 2 * pad)
    chosen = (first + rows)[:, :, None] * (w + 2 * pad) + columns[:, None, :]
    padded = F.pad(pixels, (0, 0, pad, pad, pad, pad))
    return padded.reshape(-1, c).index_select(0, chosen.reshape(-1)).reshape(b, h, w, c)


def normalised(pixels: Tensor, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]) -> Tensor:
    """Images as a network reads them: float32 (n, channels, height, width), channels-last in memory.

    (pixel / 255 − mean) / std, with mean and standard deviation by channel of pixels in [0, 1]. Given as tensors on the
    pixels' device they cost no copy.

    >>> normalised(torch.tensor([[[[0], [255]]]], dtype=torch.uint8), [0.5], [0.25])
    tensor([[[[-2.,  2.]]]])
    """
    shift = 255 * torch.as_tensor(mean, dtype=torch.float32, device=pixels.device)
    scale = 255 * torch.as_tensor(std, dtype=torch.float32, device=pixels.device)
    return ((pixels.float() - shift) / scale).permute(0, 3, 1, 2)


class Part(Protocol):
    """One part of a data set: samples to train on or to predict."""

    @property
    def labels(self) -> Tensor:
        """Class numbers. int64 (n,)"""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""

    def __len__(self) -> int: ...

    def to(self, device: Device) -> Self:
        """The part with its tensors on this device; files stay where they are."""

    def take(self, index: Tensor) -> Self:
        """These samples, in this order."""

    def batches(self, order: Tensor, size: int, *, device: Device, moves: Moves | None = None) -> Iterator[ImageBatch]:
        """The samples of `order`, in that order, `size` at a time (the last batch may be smaller).

        With moves, one for each sample of the part, a sample is cropped and flipped by its own.
        """


@dataclass(frozen=True, eq=False)
class Source:
    """The parts of a data set as its files have them; a part that is None is held out of the training part."""

    name: str
    train: Part
    val: Part | None
    test: Part | None
    class_names: tuple[str, ...]
    split: str = "random"  # how the set is usually split


@dataclass(frozen=True, eq=False)
class Images:
    """A part in memory."""

    pixels: Tensor  # uint8 (n, h, w, c)
    labels: Tensor  # int64 (n,)

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8:
            raise InputError(
                f"images must be uint8 (n, height, width, channels); got {self.pixels.dtype} {shape_of(self.pixels)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise InputError(
                f"labels must be int64 ({len(self.pixels)},) to fit {len(self.pixels)} images; "
                f"got {self.labels.dtype} {shape_of(self.labels)}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        _, h, w, c = self.pixels.shape
        return h, w, c

    def to(self, device: Device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))

    def take(self, index: Tensor) -> Images:
        index = index.to(self.pixels.device)
        return Images(self.pixels[index], self.labels[index])

    def batches(self, order: Tensor, size: int, *, device: Device, moves: Moves | None = None) -> Iterator[ImageBatch]:
        check_moves(moves, len(self))
        at_once = size * max(1, BYTES_AT_ONCE // (size * math.prod(self.shape)))
        for start in range(0, len(order), at_once):
            index = order[start : start + at_once]
            some = self.take(index).to(device)
            pixels = some.pixels if moves is None else moved(some.pixels, moves.take(index))
            parts = (torch.split(each, size) for each in (pixels, some.labels, index.to(device)))
            yield from map(ImageBatch, *parts)


def check_moves(moves: Moves | None, n: int) -> None:
    """Refuse moves that were drawn for another number of samples."""
    if moves is not None and len(moves.top) != n:
        raise InputError(f"moves must be drawn for the {n} samples of the part; these are for {len(moves.top)}")


def as_images(pixels: ArrayLike, labels: ArrayLike) -> Images:
    """Arrays as checked images: pixels uint8 (n, h, w, c), or (n, h, w) for grey ones; labels are class numbers."""
    given = to_tensor(pixels, "images")
    if given.ndim == 3:
        given = given[..., None]
    numbers = to_tensor(labels, "labels")
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise InputError(f"labels must be class numbers; got {numbers.dtype}")
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    return Images(given.contiguous(), numbers.long())
