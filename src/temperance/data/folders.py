"""Data sets of image files: a folder for each class, and Tiny-ImageNet's own layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from temperance.data.files import Files, image_size, pillow
from temperance.data.images import Source
from temperance.errors import FileError, InputError
from temperance.files import reading
from temperance.predictions.checks import excerpt

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))

# A function of paths and labels that makes a part.
Maker = Callable[[list[str], list[int]], Files]


def is_tiny_imagenet(folder: Path) -> bool:
    return (folder / "wnids.txt").is_file() and (folder / "val" / "val_annotations.txt").is_file()


def read_tiny_imagenet(folder: Path, *, size: int | None, workers: int) -> Source:
    """Tiny-ImageNet as its authors publish it: 200 classes, 500 training and 50 validation images of each.

    The official test images have no labels. So the official validation part is the test part here, and validation
    images are held out of the training part, by default 50 of each class, as in ACLS.
    """
    classes = _class_folders(folder / "train")
    make = _maker(size, workers, folder / "train" / classes[0])
    annotations = folder / "val" / "val_annotations.txt"
    with reading(annotations):
        rows = [line.split("\t") for line in annotations.read_text().splitlines() if line]
        number = {name: i for i, name in enumerate(classes)}
        if unknown := {row[1] for row in rows} - set(classes):
            raise InputError(f"the class {min(unknown)} has no folder in {folder / 'train'}")
        paths = [str(folder / "val" / "images" / row[0]) for row in rows]
        test = make(paths, [number[row[1]] for row in rows])
    train = _by_class(folder / "train", classes, make)
    return Source("tiny-imagenet", train, None, test, _words(folder, classes), split="stratified")


def read_image_folder(folder: Path, *, size: int | None, workers: int) -> Source:
    """A folder with train/CLASS/…, and, if they are there, val/CLASS/… and test/CLASS/…."""
    classes = _class_folders(folder / "train")
    make = _maker(size, workers, folder / "train" / classes[0])
    train = _by_class(folder / "train", classes, make)
    others: dict[str, Files | None] = {"val": None, "test": None}
    for name in others:
        if not (folder / name).is_dir():
            continue
        if unknown := set(_class_folders(folder / name)) - set(classes):
            raise FileError(
                f"{folder / name} has a folder {min(unknown)!r}, but {folder / 'train'} has none of that name: a class "
                "that is never trained on cannot be predicted"
            )
        others[name] = _by_class(folder / name, classes, make)
    return Source(folder.resolve().name, train, others["val"], others["test"], tuple(classes))


def _maker(size: int | None, workers: int, first: Path) -> Maker:
    """A function that makes parts whose images have the given size, or that of the first image in a folder."""
    pillow()
    sides = (size, size) if size is not None else image_size(_images(first)[0])

    def make(paths: list[str], labels: list[int]) -> Files:
        return Files(tuple(paths), torch.tensor(labels, dtype=torch.int64), sides, size is not None, workers)

    return make


def _class_folders(folder: Path) -> list[str]:
    """The names of the class folders, in alphabetical order."""
    try:
        found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise FileError(f"{folder} cannot be read: {error.strerror}") from error
    if not found:
        raise FileError(f"{folder} has no folders in it; put the images of each class into a folder of its name")
    return found


def _by_class(folder: Path, classes: list[str], make: Maker) -> Files:
    """The images of every class that has a folder here."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        if (folder / name).is_dir():
            found = _images(folder / name)
            paths += found
            labels += [label] * len(found)
    return make(paths, labels)


def _images(folder: Path) -> list[str]:
    """The image files in a class folder and the folders in it, in alphabetical order."""
    found = sorted(str(file) for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.name[0] != ".")
    if not found:
        raise FileError(f"{folder} has no images in it ({excerpt(sorted(SUFFIXES))}); add some or remove the folder")
    return found


def _words(folder: Path, classes: list[str]) -> tuple[str, ...]:
    """The name of each class: the first of its words, with its WordNet number if two classes share it."""
    path = folder / "words.txt"
    if not path.exists():
        return tuple(classes)
    with reading(path):
        words = dict(line.split("\t", 1) for line in path.read_text().splitlines() if "\t" in line)
    names = [words.get(name, name).split(",")[0].strip() for name in classes]
    times = Counter(names)
    return tuple(name if times[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, classes, strict=True))
