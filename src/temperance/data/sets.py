"""Reading a data set of images: from a file, a folder, an archive or by its name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F

from temperance.data.arrays import read_digits, read_npz
from temperance.data.cifar import find_cifar, read_cifar, read_cifar_archive
from temperance.data.download import NAMED, default_cache, find_set
from temperance.data.files import Files, default_workers
from temperance.data.folders import is_tiny_imagenet, read_image_folder, read_tiny_imagenet
from temperance.data.images import Images, Part, Source
from temperance.data.longtail import long_tailed
from temperance.data.splits import SPLITS, hold_out
from temperance.errors import FileError, InputError
from temperance.files import PathLike
from temperance.predictions.checks import excerpt
from temperance.progress import Progress, no_progress
from temperance.settings import Bounds, CountOrZero, of_kind, one_of

SET_NAMES = (*NAMED, "digits")

# Image files are decoded once and kept if they take no more than this. Tiny-ImageNet takes 1.4 GB.
MEMORY_BYTES = 2 << 30

# If files are not kept in memory, mean and standard deviation are measured on this many of them.
FILES_MEASURED = 5000

IMAGES_AT_ONCE = 1000


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set of images: parts to train on, to fit calibrators on, and to test on."""

    name: str
    train: Part
    val: Part
    test: Part
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # by channel, of the training pixels in [0, 1]
    std: tuple[float, ...]

    @property
    def k(self) -> int:
        """The number of classes."""
        return len(self.class_names)


def read_images(
    source: PathLike,
    *,
    val_fraction: float | None = None,
    split: str | None = None,
    split_seed: int | None = None,
    val_from: str = "train",
    test_fraction: float | None = None,
    size: int | None = None,
    long_tail: float | None = None,
    download: bool = False,
    cache: PathLike | None = None,
    in_memory: bool | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> ImageData:
    """Read a data set of images.

    source         an .npz with train_images, train_labels, test_images, test_labels, and perhaps val_images,
                   val_labels and class_names; a folder with train/CLASS/…, and perhaps val/CLASS/… and test/CLASS/…;
                   the official files of CIFAR-10 or CIFAR-100 (Python or binary version, unpacked or as .tar.gz); the
                   folder of Tiny-ImageNet; or a name: "cifar10", "cifar100", "tiny-imagenet" or "digits"
    val_fraction   what to hold out for validation if the set has no validation part: a fraction or a number of
                   images; by default a tenth of the training part, or half of the test part
    split          how: see `hold_out`; by default "random", and for Tiny-ImageNet "stratified"
    split_seed     by default 0, and for a published split the seed that its program uses
    val_from       "train", or "test": for networks that were trained on all training images
    test_fraction  what to hold out for testing if the set has no test part, always with seed 0,
                   so that networks trained on different splits are tested on the same images
    size           height and width for all images: they are scaled until their shorter side fits, and the middle of
                   the longer one is kept; by default they stay as they are, and image files must be of one size
    long_tail      keep a long-tailed subset of the training part, of this ratio, drawn with seed 0; the literature
                   validates on half of it: val_fraction=0.5
    download       download a named set if it is not in the cache
    cache          the folder of downloaded sets, by default ~/.cache/temperance
    in_memory      decode all image files now; by default if they take no more than 2 GB
    workers        threads that decode image files; 0 for none besides the caller
    progress       called with (done, steps, what) during long steps

    >>> data = read_images("digits")
    >>> len(data.train), len(data.val), len(data.test), data.k, data.train.shape
    (1293, 144, 360, 10, (8, 8, 1))
    """
    if split is not None:
        one_of("split", split, SPLITS)
    one_of("val_from", val_from, ("train", "test"))
    if size is not None:
        of_kind("size", size, Annotated[int, Bounds(1, 100_000)])
    if workers is not None:
        of_kind("workers", workers, CountOrZero)
    found = _find(
        source,
        size=size,
        cache=default_cache() if cache is None else Path(cache),
        download=download,
        workers=default_workers() if workers is None else workers,
        progress=progress,
    )
    _check(found, source)
    split = split or found.split
    train, test = _train_and_test(found, source, split, test_fraction)
    if long_tail is not None:
        train = train.take(long_tailed(train.labels, long_tail))
    if found.val is not None:
        val = found.val
    elif val_from == "train":
        train, val = _held_out(train, 0.1 if val_fraction is None else val_fraction, split, split_seed)
    else:
        test, val = _held_out(test, 0.5 if val_fraction is None else val_fraction, split, split_seed)
    train, val, test = _of_one_size((train, val, test), size, in_memory, progress)
    mean, std = _mean_and_std(train)
    return ImageData(found.name, train, val, test, found.class_names, mean, std)


def _find(
    source: PathLike, *, size: int | None, cache: Path, download: bool, workers: int, progress: Progress
) -> Source:
    """The data set that a path or a name means."""
    if source == "digits":
        return read_digits()
    is_named = isinstance(source, str) and source in NAMED
    path = find_set(str(source), cache, download=download, progress=progress) if is_named else Path(source)
    if path.is_dir():
        if cifar := find_cifar(path):
            return read_cifar(*cifar)
        for folder in (path, path / "tiny-imagenet-200"):
            if is_tiny_imagenet(folder):
                return read_tiny_imagenet(folder, size=size, workers=workers)
        if (path / "train").is_dir():
            return read_image_folder(path, size=size, workers=workers)
        names = sorted(entry.name for entry in path.iterdir())
        raise FileError(
            f"{path} holds no known data set: expected a folder train with a folder of images for each class, or the "
            f"official files of CIFAR or Tiny-ImageNet; it has {excerpt(names)}"
        )
    if not path.exists():
        raise FileError(f"{path} does not exist; name a file or folder, or one of {', '.join(SET_NAMES)}")
    if path.suffix == ".npz":
        return read_npz(path)
    if path.name.endswith((".tar.gz", ".tgz")):
        return read_cifar_archive(path, progress)
    raise FileError(
        f"{path} is not a known data set: expected a folder, an .npz or a .tar.gz of CIFAR; unpack a .zip and "
        "name the folder"
    )


def _check(found: Source, source: PathLike) -> None:
    """Refuse parts that do not fit each other."""
    k = len(found.class_names)
    parts = {"training": found.train, "validation": found.val, "test": found.test}
    for name, part in parts.items():
        if part is None:
            continue
        low, high = int(part.labels.min()), int(part.labels.max())
        if low < 0 or high >= k:
            raise InputError(
                f"{source}: labels must lie in 0 … {k - 1} for {k} classes; the {name} part has "
                f"{low if low < 0 else high}"
            )
        if part.shape != found.train.shape:
            raise InputError(
                f"{source}: all images must have one shape; the training part has {found.train.shape}, the "
                f"{name} part {part.shape}"
            )
    there = torch.bincount(found.train.labels, minlength=k)
    if not bool(there.all()):
        missing = int((there == 0).nonzero()[0])
        hint = "; do the labels begin at 1?" if missing == 0 else ""
        raise InputError(f"{source}: no training image is of class {found.class_names[missing]!r}{hint}")


def _train_and_test(found: Source, source: PathLike, split: str, test_fraction: float | None) -> tuple[Part, Part]:
    if found.test is not None:
        if test_fraction is not None:
            raise InputError(f"{source} has a test part of its own; leave test_fraction out")
        return found.train, found.test
    if test_fraction is None:
        rename = ", or rename the validation part to test, to test on it" if found.val is not None else ""
        raise InputError(
            f"{source} has no test part; give test_fraction, for instance 0.2, to hold one out of the training "
            f"part{rename}",
            flags={"give test_fraction, for instance 0.2,": "write test_fraction = 0.2 in a file for --config"},
        )
    return _held_out(found.train, test_fraction, split, seed=0)


def _held_out(part: Part, amount: float, split: str, seed: int | None) -> tuple[Part, Part]:
    """The samples of a part that stay, and those that are held out."""
    kept, held = hold_out(part.labels, amount, split=split, seed=seed)
    return part.take(kept), part.take(held)


def _of_one_size(
    parts: tuple[Part, Part, Part], size: int | None, in_memory: bool | None, progress: Progress
) -> tuple[Part, Part, Part]:
    """The parts with images of the requested size; files are decoded now if memory allows."""
    needed = sum(len(part) * math.prod(part.shape) for part in parts)
    decode = needed <= MEMORY_BYTES if in_memory is None else in_memory

    def ready(part: Part) -> Part:
        if isinstance(part, Files):
            return part.in_memory(progress) if decode else part
        return _resized(part, size) if isinstance(part, Images) and size is not None else part

    train, val, test = map(ready, parts)
    return train, val, test


def _resized(images: Images, size: int) -> Images:
    """Images scaled until their shorter side fits, and the middle of the longer side."""
    h, w, c = images.shape
    if (h, w) == (size, size):
        return images
    height, width = (max(size, round(side * size / min(h, w))) for side in (h, w))
    top, left = (height - size) // 2, (width - size) // 2
    pixels = torch.empty(len(images), size, size, c, dtype=torch.uint8)
    for start in range(0, len(images), IMAGES_AT_ONCE):
        some = slice(start, start + IMAGES_AT_ONCE)
        x = images.pixels[some].permute(0, 3, 1, 2).float()
        x = F.interpolate(x, (height, width), mode="bilinear", antialias=True)[
            ..., top : top + size, left : left + size
        ]
        pixels[some] = x.round().clamp(0, 255).byte().permute(0, 2, 3, 1)
    return Images(pixels, images.labels)


def _mean_and_std(part: Part) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels by channel, counted exactly."""
    order = torch.arange(len(part))
    if isinstance(part, Files):
        order = order[:: math.ceil(len(order) / FILES_MEASURED)]
    counts = torch.zeros(part.shape[2], 256, dtype=torch.int64)
    for batch in part.batches(order, IMAGES_AT_ONCE, device="cpu"):
        for channel, count in zip(batch.pixels.unbind(3), counts, strict=True):
            count += torch.bincount(channel.reshape(-1), minlength=256)
    share = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ values
    # A channel that never changes is divided by one step of 1/255 instead of zero.
    std = (share * (values - mean[:, None]) ** 2).sum(1).sqrt().clamp_min(1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())
