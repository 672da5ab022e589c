"""Predictions in .npy, an array for each file, and in .pt or .pth, a dictionary of tensors. Neither is written."""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import to_tensor
from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import CONFIDENCE, ColumnNames, Described, Wanted, as_class_names, described
from temperance.predictions.core import Extras, Origin, Predictions
from temperance.predictions.keyed import extras_of, open_set

SUFFIXES = (".npy", ".pt", ".pth")
ONLY_READ = f"{', '.join(SUFFIXES)} files can be read but not written; write .npz or .safetensors"


class HeldArrays:
    """Named arrays, in memory or memory-mapped."""

    def __init__(self, path: Path, arrays: Mapping[str, Any]) -> None:
        self.path, self._arrays = path, arrays

    def keys(self) -> list[str]:
        return list(self._arrays)

    def describe(self, key: str) -> Described:
        return described(self.whole(key))

    def class_names(self) -> tuple[str, ...] | None:
        names = self._arrays.get("class_names")
        return None if names is None else as_class_names(names)

    def text(self, key: str) -> str | None:
        return str(self._arrays[key]) if key in self._arrays else None

    def pieces(self, key: str, rows: int) -> Iterator[Tensor | npt.NDArray[Any]]:
        array = self.whole(key)
        for start in range(0, len(array), rows):
            piece = array[start : start + rows]
            yield piece if isinstance(piece, Tensor) else np.array(piece)

    def groups(self, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        yield from map(np.asarray, self.pieces(key, rows))

    def whole(self, key: str) -> Tensor | npt.NDArray[Any]:
        """A whole array or text, whatever its shape."""
        value = self._arrays[key]
        if isinstance(value, Tensor | np.ndarray):
            return value
        texts = value if isinstance(value, list) else [value]
        is_text = all(isinstance(entry, str) for entry in texts)
        return np.array(value, np.str_) if is_text else to_tensor(value, key)


def read(path: Path, wanted: Wanted) -> Predictions:
    """Open the predictions in a .npy, .pt or .pth file."""
    if path.suffix.lower() != ".npy":
        return open_set(HeldArrays(path, _load(path)), wanted)
    own = wanted.columns
    kind = wanted.own_kind if own.scores else next((kind for kind in wanted.kinds if path.stem.endswith(kind)), None)
    truth = wanted.label_names[-1]
    if kind is None and wanted.answers:
        raise InputError(
            f"call it {CONFIDENCE}.npy, or name it: columns={{'probs': {path.stem!r}}}",
            flags={f"columns={{'probs': {path.stem!r}}}": f"--probs {path.stem}"},
        )
    if kind is None:
        raise InputError(
            f"call it logits.npy or probs.npy, or say which it is: columns={{'logits': {path.stem!r}}}",
            flags={f"columns={{'logits': {path.stem!r}}}": f"--logits {path.stem}"},
        )
    arrays = {kind: _array(path)}
    named = [(truth, own.label)] * (wanted.labels != "ignored") + [("weights", own.weight)]
    others = {key: file for key, file in named if file is not None}
    files: list[str] = []
    if own.group is not None:
        files = [own.group] if Path(own.group).exists() else [name.strip() for name in own.group.split(",")]
        others |= {file: file for file in files}
    for key, file in others.items():
        with reading(file):
            arrays[key] = _array(Path(file))
    if truth not in arrays and wanted.labels == "required":
        what = "which answers are right is" if wanted.answers else "the labels are"
        raise InputError(
            f"{what} in another file; name it: columns={{'label': '{truth}.npy'}}",
            flags={f"columns={{'label': '{truth}.npy'}}": f"--label {truth}.npy"},
        )
    return replace(
        open_set(HeldArrays(path, arrays), replace(wanted, columns=ColumnNames(group=own.group))),
        origin=Origin(path, wanted),
        grouped_by=tuple(Path(file).stem for file in files),
    )


def _array(path: Path) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _load(path: Path) -> Mapping[str, Any]:
    """The dictionary in the file. Only tensors and plain values are unpickled, so no code in the file runs."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            "it holds Python objects, which could run any code; save tensors: "
            "torch.save({'logits': logits, 'labels': labels}, path)"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"expected a dictionary of tensors, {{'logits': …, 'labels': …}}; got {type(found).__name__}")
    return {str(name): value for name, value in found.items()}


def extras(origin: Origin) -> Extras:
    """The arrays that are not predictions."""
    if origin.path.suffix.lower() == ".npy":
        return {}
    with reading(origin.path):
        return extras_of(HeldArrays(origin.path, _load(origin.path)), origin.wanted)


def write(path: Path, predictions: Predictions, extras: Extras) -> None:
    """Refused: an array has no room for labels or the name of a calibrator."""
    raise InputError(ONLY_READ)


def rewrite(origin: Origin, path: Path, predictions: Predictions) -> None:
    """Refused, as by `write`."""
    write(path, predictions, {})
