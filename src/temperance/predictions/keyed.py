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
from temperance.predictions.checks import Described, Labels, check_set, label_numbers, no_labels, shown
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
    labels: str | None
    groups: str | None


def find_set(keys: Iterable[str], split: str | None, wanted: Labels) -> SetKeys:
    """The keys of the named set; without a name the only one, or "test" where there is a val_ and a test_ set."""
    known = list(keys)
    if split is None:
        splits = [s for s in (None, "test", "val") if any(_prefix(s) + what in known for what in ("logits", "probs"))]
        split = splits[0] if splits else None
    prefix = _prefix(split)
    scores = [prefix + what for what in ("logits", "probs") if prefix + what in known]
    if len(scores) == 2:
        raise InputError(f"there is both {scores[0]} and {scores[1]}; keep one")
    labels = prefix + "labels" if prefix + "labels" in known and wanted != "ignored" else None
    if not scores or (labels is None and wanted == "required"):
        truth = f" and {prefix}labels" if wanted == "required" else ""
        names = ("logits", "labels") if wanted == "required" else ("logits",)
        pairs = "" if prefix else ", or " + ", ".join(f"{part}_{name}" for part in ("val", "test") for name in names)
        raise InputError(f"expected {prefix}logits (or {prefix}probs){truth}{pairs}; found {shown(known)}")
    groups = prefix + "groups" if prefix + "groups" in known else None
    return SetKeys(split, scores[0] == prefix + "logits", scores[0], labels, groups)


def _prefix(split: str | None) -> str:
    return f"{split}_" if split else ""


def open_set(file: ArrayFile, split: str | None, wanted: Labels) -> Predictions:
    """One set of predictions of an open file; its rows stay there until they are asked for."""
    keys = find_set(file.keys(), split, wanted)
    names = file.class_names()
    scores = file.describe(keys.scores)
    groups = None if keys.groups is None else file.describe(keys.groups)
    truth = None if keys.labels is None else file.describe(keys.labels)
    check_set(keys.scores, scores, truth, groups, names)
    n, k = scores.shape

    def read(rows: int) -> Iterator[Chunk]:
        first = 0
        with reading(file.path):
            parts = zip(
                file.pieces(keys.scores, rows),
                repeat(None) if keys.labels is None else file.pieces(keys.labels, rows),
                repeat(None) if keys.groups is None else file.groups(keys.groups, rows),
                strict=False,
            )
            for values, labels, group in parts:
                yield Chunk(
                    as_scores(values, keys.scores),
                    no_labels(len(values)) if labels is None else label_numbers(labels, names, first),
                    None if group is None else group.astype(np.str_),
                )
                first += len(values)

    has = {"has_labels": truth is not None, "has_groups": groups is not None}
    return Predictions(str(file.path), keys.split, keys.from_logits, n, k, **has, class_names=names, _read=read)
