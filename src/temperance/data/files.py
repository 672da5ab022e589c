"""Pictures in files, decoded when they are needed.

Threads do it, not processes: Pillow lets go of Python's lock while it decodes and resizes, so that threads are as fast
(on 16 cores 8 of either decode some 1,300 photographs a second), start at once, copy nothing, and a broken picture is
an ordinary error of the caller.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.data.images import Device, ImageBatch, Images, Moves, check_moves, moved
from temperance.errors import InputError, MissingExtraError
from temperance.files import reading
from temperance.progress import Progress, no_progress

# Samples that are decoded ahead of the batch in use, beside those that the workers have in hand.
BATCHES_AHEAD = 2


@dataclass(frozen=True, eq=False)
class Files:
    """Pictures in files, as RGB of one size.

    With `resize` the shorter side of a picture is made to fit and the middle of the longer one is kept; without it a
    picture of another size is refused. The same samples come in the same order whatever the number of workers.
    """

    paths: tuple[str, ...]
    labels: Tensor  # int64 (n,)
    size: tuple[int, int]  # height, width
    resize: bool
    workers: int  # threads that decode; with 0 the caller decodes

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every picture."""
        return (*self.size, 3)

    def to(self, device: Device) -> Files:
        """The same: files stay where they are."""
        return self

    def take(self, index: Tensor) -> Files:
        """These files, in this order."""
        return replace(self, paths=tuple(self.paths[i] for i in index.tolist()), labels=self.labels[index.cpu()])

    def batches(self, order: Tensor, size: int, *, device: Device, moves: Moves | None = None) -> Iterator[ImageBatch]:
        """The samples of `order`, `size` at a time, cropped and flipped by their moves: see `Part.batches`."""
        check_moves(moves, len(self))
        order = order.cpu()
        # Closed at once when the caller stops early, and the threads with it.
        with closing(self._decoded(order.tolist(), ahead=BATCHES_AHEAD * size)) as pictures:
            for start in range(0, len(order), size):
                index = order[start : start + size]
                pixels = torch.stack([next(pictures) for _ in index]).to(device)
                pixels = pixels if moves is None else moved(pixels, moves.take(index))
                yield ImageBatch(pixels, self.labels[index].to(device), index.to(device))

    def in_memory(self, progress: Progress = no_progress) -> Images:
        """All pictures, decoded once."""
        pixels = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for i, picture in enumerate(self._decoded(range(len(self)), ahead=1000)):
            pixels[i] = picture
            if i % 500 == 499 or i + 1 == len(self):
                progress(i + 1, len(self), "decoding pictures")
        return Images(pixels, self.labels)

    def _decoded(self, order: range | list[int], ahead: int) -> Generator[Tensor]:
        """The pictures of these samples, some of them decoded ahead."""
        if not self.workers:
            yield from (self._decode(i) for i in order)
            return
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        waiting: deque[Future[Tensor]] = deque()
        try:
            for i in order:
                waiting.append(pool.submit(self._decode, i))
                if len(waiting) > ahead + self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # Also when the caller stops early, or a picture is broken.
            pool.shutdown(cancel_futures=True)

    def _decode(self, i: int) -> Tensor:
        path = self.paths[i]
        with reading(path), pillow().open(path) as picture:
            height, width = self.size
            if not self.resize and picture.size != (width, height):
                raise InputError(
                    f"the picture is {picture.size[0]} × {picture.size[1]} pixels and the first one is "
                    f"{width} × {height}; give the size that all are to have, for instance size={min(self.size)}"
                )
            return torch.from_numpy(np.array(_fitted(_rgb(picture), height, width)))


def pillow() -> ModuleType:
    """Pillow's Image module, or the sentence that says how to get it."""
    try:
        import PIL.Image
    except ImportError:
        raise MissingExtraError("Pillow", "images", "reading image files") from None
    return PIL.Image


def picture_size(path: str) -> tuple[int, int]:
    """Height and width of the picture in a file."""
    with reading(path), pillow().open(path) as picture:
        width, height = picture.size
    return height, width


def default_workers() -> int:
    """As many threads as there are cores to run on, up to 16."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 16)


def _rgb(picture: Any) -> Any:
    """A picture as RGB, whatever it was."""
    if picture.mode == "F":
        raise InputError("the picture holds floating-point numbers; save it with 8 bits a channel")
    if picture.mode.startswith("I"):
        # Pillow would cut 16-bit values at 255, and the picture would be white.
        picture = pillow().fromarray((np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if "transparency" in picture.info:
        # By way of RGBA Pillow does not warn; what is transparent shows the colour behind it, as elsewhere.
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def _fitted(picture: Any, height: int, width: int) -> Any:
    """A picture resized, its sides in proportion, to cover height × width, and the middle of it."""
    if picture.size == (width, height):
        return picture
    scale = max(width / picture.size[0], height / picture.size[1])
    w, h = (max(part, round(scale * whole)) for part, whole in zip((width, height), picture.size, strict=True))
    left, top = (w - width) // 2, (h - height) // 2
    return picture.resize((w, h), pillow().Resampling.BILINEAR).crop((left, top, left + width, top + height))
