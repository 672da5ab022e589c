"""A small data set of real images, on which a small network trains in a minute without a GPU: `trainings.SMALL`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.files import atomic_write

SIZE = 5000  # images of the training part, and of the validation part
SHRINK = 2  # height and width are divided by it


def write_small(source: Path, target: Path) -> None:
    """Write a tenth of CIFAR-10's training part, another tenth for validation, and its test part, all in half the size.

    source  an .npz as `temperance train` reads it
    """
    with np.load(source) as file:
        chosen = np.random.default_rng(0).permutation(len(file["train_labels"]))[: 2 * SIZE]
        rows = {"train": ("train", chosen[:SIZE]), "val": ("train", chosen[SIZE:]), "test": ("test", slice(None))}
        arrays: dict[str, Any] = {
            f"{part}_{kind}": np.ascontiguousarray(file[f"{of}_{kind}"][which])
            for part, (of, which) in rows.items()
            for kind in ("images", "labels")
        }
    arrays |= {name: _shrunk(images) for name, images in arrays.items() if name.endswith("_images")}
    with atomic_write(target) as temporary, temporary.open("wb") as opened:
        np.savez(opened, **arrays)


def _shrunk(images: npt.NDArray[np.uint8]) -> Any:
    """Images (n, height, width, channels) in which each square of pixels has become its mean."""
    n, height, width, channels = images.shape
    squares = images.reshape(n, height // SHRINK, SHRINK, width // SHRINK, SHRINK, channels)
    return squares.mean((2, 4)).round().astype(np.uint8)
