"""Predictions in .safetensors: a tensor for each key; class names, and the names of groups, as JSON in the metadata.

Tensors are numbers, so groups are indices into the list `group_names`; without that list, a group is its number.
"""

import json
import math
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor

from temperance.arrays import to_tensor
from temperance.errors import InputError
from temperance.files import reading, save_tensors
from temperance.predictions.checks import MARK, Described, Wanted, as_class_names, names_from_json
from temperance.predictions.core import Extras, Origin, Predictions
from temperance.predictions.dense import in_shape, weights_of_samples
from temperance.predictions.keyed import extras_of, find_set, keyed_label, open_set

# NumPy's letters for the kinds of number that safetensors has; its types are written like F32, BF16, I64, BOOL.
KINDS = {"F": "f", "BF": "f", "I": "i", "U": "u", "BOOL": "b", "C": "c"}


class SafetensorsFile:
    """A file of tensors; it is opened for each piece and closed again, because pages of an open map count as memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with safe_open(path, framework="pt") as file:
            self._keys = list(file.keys())
            self.metadata: dict[str, str] = file.metadata() or {}

    def keys(self) -> list[str]:
        return self._keys

    def describe(self, key: str) -> Described:
        with safe_open(self.path, framework="pt") as file:
            found = file.get_slice(key)
            dtype = found.get_dtype()
            letters = "".join(takewhile(str.isalpha, dtype))
            return Described(tuple(found.get_shape()), KINDS.get(letters, "V"), dtype)

    def class_names(self) -> tuple[str, ...] | None:
        names = self._listed("class_names")
        return None if names is None else as_class_names(names)

    def text(self, key: str) -> str | None:
        return self.metadata.get(key) or None

    def whole(self, key: str) -> Tensor:
        """A whole tensor, whatever its shape."""
        with safe_open(self.path, framework="pt") as file:
            found: Tensor = file.get_tensor(key)
        return found

    def pieces(self, key: str, rows: int) -> Iterator[Tensor]:
        n = self.describe(key).shape[0]
        for start in range(0, n, rows):
            with safe_open(self.path, framework="pt") as file:
                piece: Tensor = file.get_slice(key)[start : start + rows]
            yield piece

    def groups(self, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        names = self._listed("group_names") if self._has_names(key) else None
        for piece in self.pieces(key, rows):
            numbers = piece.numpy()
            if names is None:
                yield numbers
            elif int(numbers.min()) >= 0 and int(numbers.max()) < len(names):
                yield np.array(names)[numbers]
            else:
                raise InputError(f"{key} must lie in 0 … {len(names) - 1}, the indices of the list group_names")

    def _has_names(self, key: str) -> bool:
        """Are `group_names` those of this key? They are those of `groups`, or of a key that is in its place."""
        usual = {prefix + name for prefix in ("", "val_", "test_") for name in ("groups", "group")}
        return key in usual or usual.isdisjoint(self._keys)

    def _listed(self, name: str) -> list[str] | None:
        return names_from_json(name, self.metadata[name]) if name in self.metadata else None


def read(path: Path, wanted: Wanted) -> Predictions:
    """Open the predictions in a .safetensors file."""
    file = SafetensorsFile(path)
    if "temperance" in file.metadata:
        raise InputError("this is a calibrator, not predictions; name the file of predictions here")
    return open_set(file, wanted)


def extras(origin: Origin) -> Extras:
    """The tensors that are not predictions, as NumPy arrays."""
    with reading(origin.path):
        return extras_of(SafetensorsFile(origin.path), origin.wanted)


def write(path: Path, predictions: Predictions, extras: Extras) -> None:
    """Write predictions and their extras as a .safetensors file."""
    tensors = _tensors(predictions)
    metadata = _mark(predictions)
    if predictions.groups is not None and not predictions.multilabel:
        groups = predictions.groups[:: math.prod(predictions.space)]
        names, places = np.unique(groups, return_inverse=True)
        tensors["groups"] = torch.from_numpy(places.astype(np.int64))
        metadata["group_names"] = json.dumps(names.tolist())
    if predictions.weights is not None:
        tensors["weights"] = weights_of_samples(predictions, predictions.weights).cpu().contiguous()
    if predictions.class_names is not None:
        metadata["class_names"] = json.dumps(predictions.class_names)
    for name, array in extras.items():
        if array.dtype.kind not in "fiub":
            raise InputError(f"a .safetensors holds numbers only, and {name} is {array.dtype}; write .npz or .parquet")
        tensors[name] = to_tensor(array, name).contiguous()
    save_tensors(path, tensors, metadata)


def rewrite(origin: Origin, path: Path, predictions: Predictions) -> None:
    """Write a copy of a .safetensors file with new predictions: every other tensor and all metadata stay."""
    tensors = _tensors(predictions)
    labels = tensors.pop(keyed_label(predictions), None)
    with reading(origin.path):
        file = SafetensorsFile(origin.path)
        keys = find_set(file.keys(), origin.wanted)
        for key, name in keys.carried(file.keys()).items():
            if key == keys.labels and labels is not None and origin.wanted.renumbers:
                tensors[name] = labels
            elif key != keys.scores:
                tensors[name] = file.whole(key)
    metadata = {key: text for key, text in file.metadata.items() if key != keys.prefix + MARK}
    save_tensors(path, tensors, metadata | _mark(predictions))


def _tensors(predictions: Predictions) -> dict[str, Tensor]:
    tensors = {predictions.kind: in_shape(predictions, predictions.written(predictions.scores)).contiguous()}
    if predictions.has_labels:
        tensors[keyed_label(predictions)] = in_shape(predictions, predictions.whole.labels).contiguous()
    return tensors


def _mark(predictions: Predictions) -> dict[str, str]:
    return {} if predictions.calibrated_by is None else {MARK: predictions.calibrated_by}
