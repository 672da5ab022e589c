"""CIFAR-10 and CIFAR-100 as their authors publish them: the Python and the binary version, unpacked or not.

The Python version consists of pickles, which can run any code when they are read. `_PlainUnpickler` makes nothing but
dictionaries, lists, numbers, bytes and arrays of bytes, and refuses everything else.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.data.download import check_md5
from temperance.data.images import Images, Source, as_images
from temperance.errors import FileError, InputError
from temperance.files import reading
from temperance.progress import Progress, no_progress

Bytes = npt.NDArray[np.uint8]

SIDE = 32
PIXELS = 3 * SIDE * SIDE


def _numbered(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.format(i) for i in range(1, 6))


@dataclass(frozen=True)
class CifarLayout:
    """The files of one of the official versions."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str  # file of the class names
    k: int
    label_bytes: int = 0  # in front of each image of the binary version; the last one is the label

    @property
    def is_binary(self) -> bool:
        return self.test.endswith(".bin")

    @property
    def key(self) -> str:
        """What the labels are called in a pickle."""
        return "labels" if self.k == 10 else "fine_labels"

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


LAYOUTS = (
    CifarLayout("cifar10", "cifar-10-batches-py", _numbered("data_batch_{}"), "test_batch", "batches.meta", 10),
    CifarLayout("cifar100", "cifar-100-python", ("train",), "test", "meta", 100),
    CifarLayout(
        "cifar10", "cifar-10-batches-bin", _numbered("data_batch_{}.bin"), "test_batch.bin", "batches.meta.txt", 10, 1
    ),
    CifarLayout("cifar100", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", 100, 2),
)


def find_cifar(folder: Path) -> tuple[Path, CifarLayout] | None:
    """The folder with official files, which is this one or inside it, and their layout."""
    for layout in LAYOUTS:
        for found in (folder, folder / layout.folder):
            if all((found / name).is_file() for name in layout.files):
                return found, layout
    return None


def read_cifar(folder: Path, layout: CifarLayout) -> Source:
    """A data set from its official files."""
    files = {}
    for name in layout.files:
        with reading(folder / name):
            files[name] = (folder / name).read_bytes()
    return _parsed(files, layout, lambda name: folder / name)


def read_cifar_archive(path: Path, progress: Progress = no_progress) -> Source:
    """A data set from its official archive, verified by its MD5 sum."""
    archive = check_md5(path, progress)
    layout = next((layout for layout in LAYOUTS if layout.folder == archive.folder), None)
    if layout is None:
        raise FileError(f"{path} cannot be read as it is; unpack it and name the folder")
    wanted = {f"{layout.folder}/{name}": name for name in layout.files}
    files = {}
    # One pass from front to back: the compressed stream cannot be entered in the middle.
    with reading(path), tarfile.open(path, "r|*") as members:
        for member in members:
            file = members.extractfile(member) if member.name in wanted else None
            if file is not None:
                files[wanted[member.name]] = file.read()
        if missing := set(layout.files) - set(files):
            raise InputError(f"the archive has no {', '.join(sorted(missing))} in {layout.folder}")
    return _parsed(files, layout, lambda _: path)


def _parsed(files: Mapping[str, bytes], layout: CifarLayout, path_of: Callable[[str], Path]) -> Source:
    """The data set in these files; `path_of` gives the path of each one, for error messages."""

    def part(*names: str) -> Images:
        pieces = []
        for name in names:
            with reading(path_of(name)):
                pieces.append((_binary if layout.is_binary else _pickled)(files[name], layout))
        pixels, labels = (np.concatenate(each) for each in zip(*pieces, strict=True))
        # Stored channel by channel, row by row.
        return as_images(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels)

    with reading(path_of(layout.names)):
        class_names = _class_names(files[layout.names], layout)
    return Source(layout.name, part(*layout.train), None, part(layout.test), class_names)


def _binary(data: bytes, layout: CifarLayout) -> tuple[Bytes, Bytes]:
    """Pixels and labels of a file of the binary version, in which each image is label bytes, then pixels."""
    row = layout.label_bytes + PIXELS
    if len(data) % row:
        raise InputError(f"its {len(data)} bytes are not a whole number of images of {row} bytes; fetch it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1]


def _pickled(data: bytes, layout: CifarLayout) -> tuple[Bytes, Bytes]:
    """Pixels and labels of a file of the Python version."""
    found = _unpickled(data)
    pixels, labels = found.get(b"data"), found.get(layout.key.encode())
    if not isinstance(pixels, _Array) or not isinstance(labels, list):
        raise InputError(f"it must hold data and {layout.key}; it has {', '.join(map(repr, found)) or 'nothing'}")
    return pixels.values.reshape(-1, PIXELS), np.array(labels, np.uint8)


def _class_names(data: bytes, layout: CifarLayout) -> tuple[str, ...]:
    if layout.is_binary:
        names = data.decode().split()
    else:
        names = [name.decode() for name in _unpickled(data)[f"{layout.key[:-1]}_names".encode()]]
    if len(names) != layout.k:
        raise InputError(f"it must hold {layout.k} class names; it has {len(names)}")
    return tuple(names)


def _unpickled(data: bytes) -> dict[bytes, Any]:
    found = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    if not isinstance(found, dict):
        raise InputError(f"it must hold a dictionary; it holds a {type(found).__name__}")
    return found


class _Array:
    """Stands in for NumPy's array in a pickle and accepts only bytes; NumPy would accept any type and size."""

    def __init__(self, *_: object) -> None:
        self.values: Bytes = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _ByteType) or is_fortran:
            raise InputError("its arrays must hold bytes in row order")
        self.values = np.frombuffer(data, np.uint8).reshape(shape)


class _ByteType:
    """Stands in for NumPy's dtype in a pickle and accepts only bytes."""

    def __init__(self, name: object, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise InputError(f"its arrays must hold bytes; got the type {name!r}")

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order: a byte has only one."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {"_reconstruct": _Array, "ndarray": _Array, "dtype": _ByteType}
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in stand_ins:
            return stand_ins[name]
        raise InputError(f"it asks for {module}.{name}, which no official file does; fetch it again")
