"""Files of named arrays (.npz and .safetensors): which arrays are one set of predictions, and its rows in chunks."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from temperance.arrays import as_scores
from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import Described, check_set, label_numbers, shown
from temperance.predictions.core import Chunk, Predictions


class ArrayFile(Protocol):
    """What a format has to offer: the keys, a description of each array, and its rows, piece after piece."""

    path: Path

    def keys(self) -> list[str]: ...

    def describe(self, key: str) -> Described: ...

    def class_names(self) -> tuple[str, ...] | None: ...

    def pieces(self, key: str, rows: int) -> Iterator[Tensor | npt.NDArray[Any]]:
        """The array in order, `rows` rows at a time; the last piece may be shorter."""
        ...

    def groups(self, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        """The same for groups, as text or integers."""
        ...


class SetKeys(NamedTuple):
    """The keys of one set of predictions."""

    split: str | None
    from_logits: bool
    scores: str
    labels: str
    groups: str | None


def find_set(keys: Iterable[str], split: str | None) -> SetKeys:
    """The keys of the named set; without a name the only one, or "test" where there is a val_ and a test_ set."""
    known = list(keys)
    if split is None:
        splits = [s for s in (None, "test", "val") if any(_prefix(s) + what in known for what in ("logits", "probs"))]
        split = splits[0] if splits else None
    prefix = _prefix(split)
    scores = [prefix + what for what in ("logits", "probs") if prefix + what in known]
    if len(scores) == 2:
        raise InputError(f"there is both {scores[0]} and {scores[1]}; keep one")
    if not scores or prefix + "labels" not in known:
        pairs = "" if prefix else ", or val_logits, val_labels, test_logits, test_labels"
        raise InputError(f"expected {prefix}logits (or {prefix}probs) and {prefix}labels{pairs}; found {shown(known)}")
    groups = prefix + "groups" if prefix + "groups" in known else None
    return SetKeys(split, scores[0] == prefix + "logits", scores[0], prefix + "labels", groups)


def _prefix(split: str | None) -> str:
    return f"{split}_" if split else ""


def open_set(file: ArrayFile, split: str | None) -> Predictions:
    """One set of predictions of an open file; its rows stay there until they are asked for."""
    keys = find_set(file.keys(), split)
    names = file.class_names()
    scores = file.describe(keys.scores)
    groups = None if keys.groups is None else file.describe(keys.groups)
    check_set(keys.scores, scores, file.describe(keys.labels), groups, names)
    n, k = scores.shape

    def read(rows: int) -> Iterator[Chunk]:
        first = 0
        with reading(file.path):
            parts = zip(
                file.pieces(keys.scores, rows),
                file.pieces(keys.labels, rows),
                repeat(None) if keys.groups is None else file.groups(keys.groups, rows),
                strict=False,
            )
            for values, labels, group in parts:
                yield Chunk(
                    as_scores(values, keys.scores),
                    label_numbers(labels, names, first),
                    None if group is None else group.astype(np.str_),
                )
                first += len(labels)

    return Predictions(str(file.path), keys.split, keys.from_logits, n, k, groups is not None, names, read)
