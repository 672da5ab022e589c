"""Predictions in .safetensors: a tensor for each key; class names, and the names of groups, as JSON in the metadata.

Tensors are numbers, so groups are stored as places in the list `group_names`; without that list, a group is its number.
"""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from temperance.errors import InputError
from temperance.predictions.checks import Described, Labels, as_class_names, names_from_json
from temperance.predictions.core import Predictions
from temperance.predictions.keyed import open_set

# NumPy's letters for the kinds of number that safetensors has; its types are written like F32, BF16, I64, BOOL.
KINDS = {"F": "f", "BF": "f", "I": "i", "U": "u", "BOOL": "b", "C": "c"}


class SafetensorsFile:
    """A file of tensors; it is opened for each piece and closed again, since pages of an open map count as memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with safe_open(path, framework="pt") as file:
            self._keys = list(file.keys())
            self._metadata: dict[str, str] = file.metadata() or {}

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

    def pieces(self, key: str, rows: int) -> Iterator[Tensor]:
        n = self.describe(key).shape[0]
        for start in range(0, n, rows):
            with safe_open(self.path, framework="pt") as file:
                piece: Tensor = file.get_slice(key)[start : start + rows]
            yield piece

    def groups(self, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        names = self._listed("group_names")
        for piece in self.pieces(key, rows):
            numbers = piece.numpy()
            if names is None:
                yield numbers
            elif int(numbers.min()) >= 0 and int(numbers.max()) < len(names):
                yield np.array(names)[numbers]
            else:
                raise InputError(f"{key} must lie in 0 … {len(names) - 1}, the places in the list group_names")

    def _listed(self, name: str) -> list[str] | None:
        return names_from_json(name, self._metadata[name]) if name in self._metadata else None


def read(path: Path, split: str | None, labels: Labels) -> Predictions:
    """Open the predictions in a .safetensors file."""
    return open_set(SafetensorsFile(path), split, labels)


def write(path: Path, predictions: Predictions) -> None:
    """Write predictions as a .safetensors file."""
    tensors = {"logits" if predictions.from_logits else "probs": predictions.scores.contiguous()}
    metadata = {}
    if predictions.has_labels:
        tensors["labels"] = predictions.labels.contiguous()
    if predictions.groups is not None:
        names, places = np.unique(predictions.groups, return_inverse=True)
        tensors["groups"] = torch.from_numpy(places.astype(np.int64))
        metadata["group_names"] = json.dumps(names.tolist())
    if predictions.class_names is not None:
        metadata["class_names"] = json.dumps(predictions.class_names)
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        # The library wraps the system's errors, a full disk among them, in its own kind.
        raise OSError(str(error)) from error
