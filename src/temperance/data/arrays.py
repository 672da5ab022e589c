"""Images that come as arrays: NumPy's .npz, and scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.data.images import Images, Source, as_images
from temperance.data.splits import hold_out
from temperance.errors import InputError, optional
from temperance.files import reading
from temperance.predictions.checks import as_class_names, excerpt
from temperance.predictions.labels import looked_up

DIGITS_TESTED = 360  # a fifth


def read_npz(path: Path) -> Source:
    """Images and labels of the train part, and of val and test if they are there."""
    with reading(path), np.load(path) as arrays:
        names = as_class_names(arrays["class_names"].tolist()) if "class_names" in arrays else None
        train = _part(arrays, "train", names)
        if train is None:
            raise InputError(
                f"an .npz of images must hold train_images and train_labels; it has {excerpt(arrays.files)}"
            )
        val, test = _part(arrays, "val", names), _part(arrays, "test", names)
    if names is None:
        names = tuple(str(i) for i in range(int(train.labels.max()) + 1))
    return Source(path.stem, train, val, test, names)


def _part(arrays: Mapping[str, npt.NDArray[Any]], part: str, names: tuple[str, ...] | None) -> Images | None:
    keys = f"{part}_images", f"{part}_labels"
    if not any(key in arrays for key in keys):
        return None
    for key, other in (keys, keys[::-1]):
        if key not in arrays:
            raise InputError(f"{other} needs {key}, too")
    pixels, labels = (arrays[key] for key in keys)
    if not len(pixels):
        raise InputError(f"{keys[0]} is empty")
    if pixels.dtype != np.uint8:
        raise InputError(
            f"{keys[0]} must be uint8 from 0 to 255; got {pixels.dtype}. If its values lie in [0, 1], save "
            "(255 * images).round().astype('uint8')"
        )
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3) and pixels.shape[3] not in (1, 3):
        raise InputError(
            f"{keys[0]} must have shape (n, height, width, channels); got {pixels.shape}, which looks like channels "
            "first: save images.transpose(0, 2, 3, 1)"
        )
    if labels.dtype.kind == "U":
        labels = looked_up(labels.reshape(-1), names or ()).numpy()
    return as_images(pixels, labels)


def read_digits() -> Source:
    """The 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn; a fifth of them is the test part."""
    with optional("scikit-learn", "analysis", "the set digits"):
        from sklearn.datasets import load_digits
    found = load_digits()
    images = as_images((found.images * (255 / 16)).round().astype(np.uint8), found.target)
    train, test = (images.take(index) for index in hold_out(images.labels, DIGITS_TESTED))
    return Source("digits", train, None, test, tuple(str(i) for i in range(10)))
