"""Images in files, decoded when they are needed.

Threads decode them, not processes. Pillow releases Python's lock while it decodes and resizes, so threads are as fast
(8 of either decode some 1,300 photographs a second on 16 cores). They also start at once and copy nothing, and a broken
image raises an ordinary error in the caller.
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
from temperance.errors import InputError, optional
from temperance.files import reading
from temperance.progress import Progress, no_progress

# Batches that are decoded ahead of the one in use, in addition to the images that the workers are decoding.
BATCHES_AHEAD = 2


@dataclass(frozen=True, eq=False)
class Files:
    """A part in files: RGB images of one size.

    With `resize` an image is scaled until its shorter side fits, and the middle of the longer side is kept. Without it,
    an image of another size is refused. The order of the samples does not depend on the number of workers.
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
        return (*self.size, 3)

    def to(self, device: Device) -> Files:
        return self

    def take(self, index: Tensor) -> Files:
        return replace(self, paths=tuple(self.paths[i] for i in index.tolist()), labels=self.labels[index.cpu()])

    def batches(self, order: Tensor, size: int, *, device: Device, moves: Moves | None = None) -> Iterator[ImageBatch]:
        check_moves(moves, len(self))
        order = order.cpu()
        # If the caller stops early, this closes the generator at once, and its threads with it.
        with closing(self._decoded(order.tolist(), ahead=BATCHES_AHEAD * size)) as images:
            for start in range(0, len(order), size):
                index = order[start : start + size]
                pixels = torch.stack([next(images) for _ in index]).to(device)
                pixels = pixels if moves is None else moved(pixels, moves.take(index))
                yield ImageBatch(pixels, self.labels[index].to(device), index.to(device))

    def in_memory(self, progress: Progress = no_progress) -> Images:
        """All images, decoded once."""
        pixels = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for i, image in enumerate(self._decoded(range(len(self)), ahead=1000)):
            pixels[i] = image
            if i % 500 == 499 or i + 1 == len(self):
                progress(i + 1, len(self), "decoding images")
        return Images(pixels, self.labels)

    def _decoded(self, order: range | list[int], ahead: int) -> Generator[Tensor]:
        """The images of these samples, some of them decoded ahead."""
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
            # This also runs when the caller stops early or an image is broken.
            pool.shutdown(cancel_futures=True)

    def _decode(self, i: int) -> Tensor:
        path = self.paths[i]
        with reading(path), pillow().open(path) as image:
            height, width = self.size
            if not self.resize and image.size != (width, height):
                raise InputError(
                    f"the image is {image.size[0]} × {image.size[1]} pixels and the first one is "
                    f"{width} × {height}; give one size for all, for instance size={min(self.size)}",
                    flags={f"size={min(self.size)}": f"--size {min(self.size)}"},
                )
            return torch.from_numpy(np.array(_fitted(_rgb(image), height, width)))


def pillow(purpose: str = "reading image files") -> ModuleType:
    """Pillow's Image module; without Pillow, the error says how to install it."""
    with optional("Pillow", "images", purpose):
        import PIL.Image
    return PIL.Image


def image_size(path: str) -> tuple[int, int]:
    """Height and width of the image in a file."""
    with reading(path), pillow().open(path) as image:
        width, height = image.size
    return height, width


def default_workers() -> int:
    """As many threads as there are cores to run on, up to 16."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 16)


def _rgb(image: Any) -> Any:
    """An image of any mode as RGB."""
    if image.mode == "F":
        raise InputError("the image holds floating-point numbers; save it with 8 bits a channel")
    if image.mode.startswith("I"):
        # Pillow would cut 16-bit values at 255, and the image would be white.
        image = pillow().fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if "transparency" in image.info:
        # Through RGBA, so that Pillow does not warn. Transparent pixels show the colour behind them, as elsewhere.
        image = image.convert("RGBA")
    return image.convert("RGB")


def _fitted(image: Any, height: int, width: int) -> Any:
    """An image resized in proportion until it covers height × width, and cropped to its middle."""
    if image.size == (width, height):
        return image
    scale = max(width / image.size[0], height / image.size[1])
    w, h = (max(part, round(scale * whole)) for part, whole in zip((width, height), image.size, strict=True))
    left, top = (w - width) // 2, (h - height) // 2
    return image.resize((w, h), pillow().Resampling.BILINEAR).crop((left, top, left + width, top + height))
