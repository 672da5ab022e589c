"""Predictions in NumPy's .npz: an array for each key, class names as text.

Members, compressed or not, are read as a stream, so that only a chunk of rows is ever held, and their checksums are
verified at the end. (A memory map would count every page read as used memory, cannot serve compressed
members, and kills the process when another one shortens the file.) Nothing is ever unpickled.
"""

import io
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt
import torch

from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import MARK, Described, Wanted, as_class_names
from temperance.predictions.core import WRITTEN_ROWS, Extras, Origin, Predictions
from temperance.predictions.dense import in_shape, weights_of_samples
from temperance.predictions.keyed import extras_of, find_set, keyed_label, open_set
from temperance.predictions.rows import as_numpy

# Deflated data never expands by more than this factor; a member that claims to is damaged.
DEFLATE_LIMIT = 1032

# NumPy accepts headers of up to 10,000 bytes, but first reads as many as the header claims to have.
HEADER_BYTES = 1 << 14

HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Member(NamedTuple):
    """An array in the archive: how it is laid out, and the stream at its first value."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    stream: IO[bytes]


class NpzFile:
    """An archive of arrays; it is opened for each pass over one of them and closed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ZipFile(path) as archive:
            self._members = {name.removesuffix(".npy"): name for name in archive.namelist()}

    def keys(self) -> list[str]:
        return list(self._members)

    def describe(self, key: str) -> Described:
        with self._open(key) as member:
            return Described(member.shape, member.dtype.kind, str(member.dtype))

    def class_names(self) -> tuple[str, ...] | None:
        if "class_names" not in self._members:
            return None
        found = self.describe("class_names")
        if found.kind != "U" or len(found.shape) != 1:
            raise InputError(f"class_names must be a list of text; got {found.dtype} of shape {found.shape}")
        return as_class_names(name for piece in self.pieces("class_names", rows=1024) for name in piece.tolist())

    def text(self, key: str) -> str | None:
        if key not in self._members:
            return None
        found = self.whole(key)
        if found.dtype.kind != "U" or found.size != 1:
            raise InputError(f"{key} must be one text; got {found.dtype} of shape {found.shape}")
        return str(found.reshape(-1)[0]) or None

    def whole(self, key: str) -> npt.NDArray[Any]:
        """A whole array, whatever its shape."""
        with self._open(key) as member:
            return _take(member, member.shape, order="F" if member.is_fortran else "C")

    def pieces(self, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        with self._open(key) as member:
            n = member.shape[0]
            if member.is_fortran:
                # Column after column: no row is complete before the last column is read.
                whole = _take(member, member.shape, order="F")
                yield from (whole[start : start + rows] for start in range(0, n, rows))
            else:
                for start in range(0, n, rows):
                    yield _take(member, (min(rows, n - start), *member.shape[1:]), order="C")

    groups = pieces

    @contextmanager
    def _open(self, key: str) -> Iterator[Member]:
        with ZipFile(self.path) as archive:
            info = archive.getinfo(self._members[key])
            _check_size(info, self.path.stat().st_size)
            with archive.open(info) as stream:
                head = io.BytesIO(stream.read(HEADER_BYTES))
            shape, is_fortran, dtype = _read_header(head, key)
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != info.file_size - head.tell():
                raise ValueError(f"{key} declares shape {shape}, which is not the size of its data")
            # Opened again instead of rewound: rewinding would skip the checksum.
            with archive.open(info) as stream:
                stream.read(head.tell())
                yield Member(shape, is_fortran and len(shape) > 1, dtype, stream)


def _read_header(head: IO[bytes], key: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """An array's shape, whether it is in Fortran order, and its type."""
    read_header = HEADER_READERS.get(npy.read_magic(head))
    if read_header is None:
        raise ValueError(f"{key} has an unknown .npy version")
    with warnings.catch_warnings():
        # NumPy and Python warn about odd headers; everything that matters is checked.
        warnings.simplefilter("ignore")
        shape, is_fortran, dtype = read_header(head)
    if dtype.hasobject:
        raise InputError(
            f"{key} is an array of Python objects; reading it means unpickling, which can run any code and is refused. "
            f"Save it as numbers, or as text: {key}.astype(str)"
        )
    return shape, is_fortran, dtype


def _check_size(info: ZipInfo, archive_size: int) -> None:
    """Refuse declared sizes that cannot be true, before memory is allocated for them."""
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is compressed in a way that NumPy does not write")
    expansion = DEFLATE_LIMIT if info.compress_type == ZIP_DEFLATED else 1
    if info.compress_size > archive_size or info.file_size > expansion * info.compress_size:
        raise ValueError(f"{info.filename} declares {info.file_size} bytes, more than the file can hold")


def _take(member: Member, shape: tuple[int, ...], order: Any) -> npt.NDArray[Any]:
    size = math.prod(shape) * member.dtype.itemsize
    data = member.stream.read(size)
    if len(data) != size:
        raise ValueError("the data ends too early")
    return np.frombuffer(data, member.dtype).reshape(shape, order=order)


def read(path: Path, wanted: Wanted) -> Predictions:
    """Open the predictions in a .npz file."""
    return open_set(NpzFile(path), wanted)


def extras(origin: Origin) -> Extras:
    """The arrays that are not predictions."""
    with reading(origin.path):
        return extras_of(NpzFile(origin.path), origin.wanted)


def write(path: Path, predictions: Predictions, extras: Extras) -> None:
    """Write predictions and their extras as a .npz file."""
    _save(path, _arrays(predictions) | _named(predictions) | extras)


def write_pair(path: Path, val: Predictions, test: Predictions) -> None:
    """Write a validation and a test set as one .npz file."""
    _save(path, _arrays(val, "val_") | _arrays(test, "test_") | _named(test))


def rewrite(origin: Origin, path: Path, predictions: Predictions) -> None:
    """Write a copy of a .npz file with new predictions: every other member stays, byte for byte and in its place."""
    mark = predictions.calibrated_by
    with reading(origin.path), ZipFile(origin.path) as old, ZipFile(path, "w") as new:
        keys = find_set(NpzFile(origin.path).keys(), origin.wanted)
        members = {info.filename.removesuffix(".npy"): info for info in old.infolist()}
        for key, name in keys.carried(members).items():
            info = members[key]
            if key == keys.scores:
                _add_scores(new, predictions.kind, predictions, info.compress_type)
            elif key == keys.labels and origin.wanted.renumbers:
                _add(new, name, _labels(origin), info.compress_type)
            elif key != keys.prefix + MARK:
                copied = ZipInfo(info.filename.replace(key, name, 1))
                copied.compress_type = info.compress_type
                with old.open(info) as source, new.open(copied, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target)
        for name, array in ({} if "class_names" in members else _named(predictions)).items():
            _add(new, name, array)  # text labels need them
        if mark is not None:
            _add(new, MARK, np.array(mark))


def _labels(origin: Origin) -> npt.NDArray[Any]:
    """The labels of a binary classifier as the class numbers 0 and 1."""
    found = read(origin.path, origin.wanted)
    return as_numpy(in_shape(found, torch.cat([chunk.labels for chunk in found.chunks()])))


def _arrays(predictions: Predictions, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
    """The scores, and labels, groups, weights and the calibrator's name where there are any."""
    arrays = {prefix + predictions.kind: as_numpy(in_shape(predictions, predictions.written(predictions.scores)))}
    if predictions.has_labels:
        arrays[prefix + keyed_label(predictions)] = as_numpy(in_shape(predictions, predictions.whole.labels))
    if predictions.groups is not None and not predictions.multilabel:
        arrays[f"{prefix}groups"] = predictions.groups[:: math.prod(predictions.space)]
    if predictions.weights is not None:
        arrays[f"{prefix}weights"] = as_numpy(weights_of_samples(predictions, predictions.weights))
    if predictions.calibrated_by is not None:
        arrays[prefix + MARK] = np.array(predictions.calibrated_by)
    return arrays


def _named(predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
    return {} if predictions.class_names is None else {"class_names": np.array(predictions.class_names)}


def _save(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    # As numpy.savez does, which cannot save arrays of some names, "file" among them.
    with ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            _add(archive, name, array)


def _add_scores(archive: ZipFile, name: str, predictions: Predictions, compression: int) -> None:
    """Write scores as they are read, so that only some rows, or whole images, are ever held."""
    pixels = math.prod(predictions.space)
    chunks = predictions.chunks(max(1, WRITTEN_ROWS // pixels) * pixels)
    pieces = (as_numpy(in_shape(predictions, predictions.written(chunk.scores))) for chunk in chunks)
    first = next(pieces)
    shape = (predictions.n // pixels, *first.shape[1:])
    header = {"descr": npy.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
    info = ZipInfo(f"{name}.npy")
    info.compress_type = compression
    with archive.open(info, "w", force_zip64=True) as stream:
        npy.write_array_header_1_0(stream, header)
        for piece in chain([first], pieces):
            stream.write(np.ascontiguousarray(piece, first.dtype).data)


def _add(archive: ZipFile, name: str, array: npt.NDArray[Any], compression: int = ZIP_STORED) -> None:
    info = ZipInfo(f"{name}.npy")
    info.compress_type = compression
    with archive.open(info, "w", force_zip64=True) as stream:
        npy.write_array(stream, array, allow_pickle=False)
