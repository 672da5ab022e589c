"""Files of named arrays (.npz and .safetensors): which arrays are one set of predictions, and its rows in chunks."""

import math
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt
from torch import Tensor

from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import (
    CONFIDENCE,
    CORRECT,
    MARK,
    ColumnNames,
    Described,
    Wanted,
    binary_names,
    check_set,
    excerpt,
    only_one,
)
from temperance.predictions.core import Extras, Origin, Predictions
from temperance.predictions.dense import image_numbers, position
from temperance.predictions.rows import Chunk, Meaning, as_numpy, in_file, placed, regrouped

# The two sets that a file may hold, each with the other one.
OTHER: dict[str | None, str] = {"val": "test", "test": "val"}


class ArrayFile(Protocol):
    """An open file: its keys, a description of each array, and the rows of each array, piece by piece."""

    path: Path

    def keys(self) -> list[str]: ...

    def describe(self, key: str) -> Described: ...

    def class_names(self) -> tuple[str, ...] | None: ...

    def text(self, key: str) -> str | None:
        """A single text, if there is one under this key."""
        ...

    def whole(self, key: str) -> Tensor | npt.NDArray[Any]:
        """A whole array, whatever its shape."""
        ...

    def pieces(self, key: str, rows: int) -> Iterator[Tensor | npt.NDArray[Any]]:
        """The array in order, `rows` rows at a time; the last piece may be shorter."""
        ...

    def groups(self, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
        """The groups in order, as text or integers, `rows` rows at a time."""
        ...


class SetKeys(NamedTuple):
    """The keys of one set of predictions."""

    split: str | None
    kind: str
    scores: str
    labels: str | None
    groups: tuple[str, ...]
    weights: str | None

    @property
    def prefix(self) -> str:
        return _prefix(self.split)

    @property
    def name(self) -> str:
        """What errors call the scores."""
        return self.prefix + self.kind

    @property
    def of_set(self) -> set[str]:
        """The keys that hold the predictions themselves, and not those of which each combination is a group."""
        named = (self.labels, self.weights, *(self.groups if len(self.groups) == 1 else ()))
        return {self.scores, self.prefix + MARK, "class_names", *(key for key in named if key)}

    def carried(self, keys: Iterable[str]) -> dict[str, str]:
        """The name of each key in a file that has only this set; keys of the other set are left out."""
        known = list(keys)
        other = OTHER.get(self.split)
        mine = [key for key in known if other is None or not key.startswith(_prefix(other))]
        plain = {key: key.removeprefix(self.prefix) for key in mine}
        found = {key: name if name == key or name not in known else key for key, name in plain.items()}
        new = CONFIDENCE if self.kind == CONFIDENCE else "probs"
        for key, name in found.items():
            if name == new and key != self.scores:
                raise InputError(f"{key} collides with the new {new}; rename or remove it")
        return found


def find_set(keys: Iterable[str], wanted: Wanted) -> SetKeys:
    """The keys of the named set; without a name the only one, or "test" where there is a val_ and a test_ set."""
    known = list(keys)
    split = wanted.split
    if split is None:
        splits = [each for each in (None, "test", "val") if _has_scores(known, each, wanted)]
        split = splits[0] if splits else None
    prefix = _prefix(split)
    own = wanted.columns.under(prefix, known)
    scores = _own_scores(known, own) or only_one(known, *(prefix + kind for kind in wanted.kinds))
    labels = None
    if wanted.labels != "ignored":
        labels = own.named(known, "label") or only_one(known, *(prefix + name for name in wanted.label_names))
    is_required = wanted.labels == "required"
    if scores is not None and labels is None and is_required:
        expected = f"expected {prefix}{wanted.label_names[-1]} beside {scores}; found {excerpt(known)}"
        if prefix:
            raise InputError(expected)
        own_name = '. Name yours with columns={"label": NAME}'
        raise InputError(f"{expected}{own_name}", flags={own_name: ". Name yours with --label NAME"})
    if scores is None:
        kind, *others = wanted.kinds
        truth = f" and {prefix}{wanted.label_names[-1]}" if is_required else ""
        names = (kind, wanted.label_names[-1]) if is_required else (kind,)
        pairs = "" if prefix else ", or " + ", ".join(f"{part}_{name}" for part in ("val", "test") for name in names)
        other = "".join(f" (or {prefix}{each})" for each in others)
        expected = f"expected {prefix}{kind}{other}{truth}{pairs}; found {excerpt(known)}"
        if {CONFIDENCE, CORRECT} <= set(known) and not wanted.answers and wanted.labels != "ignored":
            remedy = "pass answers=True"
            raise InputError(f"{expected}. If these are a model's answers, {remedy}", flags={remedy: "add --answers"})
        if prefix:
            raise InputError(expected)
        own_names = '. Name yours with columns={"probs": NAME' + ', "label": NAME' * is_required + "}"
        flag = f". Name yours with --probs NAME{' --label NAME' * is_required}"
        if not wanted.answers:
            own_names, flag = f'{own_names}, or "logits"', f"{flag}, or --logits"
        raise InputError(f"{expected}{own_names}", flags={own_names: flag})
    kind = wanted.own_kind if own.scores is not None else scores.removeprefix(prefix)
    # Of several labels, the labels are the groups.
    groups = () if wanted.multilabel else own.groups(known, f"{prefix}groups", f"{prefix}group")
    weights = own.named(known, "weight") or only_one(known, f"{prefix}weights", f"{prefix}weight")
    return SetKeys(split, kind, scores, labels, groups, weights)


def _has_scores(known: Iterable[str], split: str | None, wanted: Wanted) -> bool:
    names = wanted.kinds if wanted.columns.scores is None else (wanted.columns.scores,)
    return any(_prefix(split) + name in known for name in names)


def _own_scores(known: list[str], own: ColumnNames) -> str | None:
    """The key of the scores that the caller named."""
    if own.scores is None:
        return None
    found = own.matching(known)
    if len(found) > 1:
        raise InputError(f"{own.kind} must be one array (n, k) here; {own.scores!r} matches {excerpt(found)}; name one")
    return found[0]


def _prefix(split: str | None) -> str:
    return f"{split}_" if split else ""


def keyed_label(predictions: Predictions) -> str:
    """The key of the labels in a new file."""
    return predictions.label_name if predictions.answers else "labels"


def extras_of(file: ArrayFile, wanted: Wanted) -> Extras:
    """The arrays that are not predictions, as NumPy arrays."""
    keys = find_set(file.keys(), wanted)
    others = ((key, name) for key, name in keys.carried(file.keys()).items() if key not in keys.of_set)
    found = {name: file.whole(key) for key, name in others}
    return {name: as_numpy(array) if isinstance(array, Tensor) else array for name, array in found.items()}


def open_set(file: ArrayFile, wanted: Wanted) -> Predictions:
    """One set of predictions of an open file; its rows stay in the file until they are needed."""
    keys = find_set(file.keys(), wanted)
    names = binary_names(file.class_names(), wanted)
    truth, counted = (None if key is None else file.describe(key) for key in (keys.labels, keys.weights))
    groups = [file.describe(key) for key in keys.groups]
    n, k, space = check_set(keys.name, file.describe(keys.scores), truth, groups, names, wanted, counted)
    meaning = Meaning(keys.name, names, wanted)
    other = OTHER.get(keys.split)
    place = position(space, in_file)

    def pieces(samples: int) -> Iterator[Chunk]:
        first = 0
        with reading(file.path), placed(place):
            parts = zip(
                file.pieces(keys.scores, samples),
                repeat(None) if keys.labels is None else file.pieces(keys.labels, samples),
                zip(*(file.groups(key, samples) for key in keys.groups), strict=True) if groups else repeat(()),
                repeat(None) if keys.weights is None else file.pieces(keys.weights, samples),
                strict=False,
            )
            for values, labels, group, weights in parts:
                yield meaning.chunk(values, labels, group, first, weights)
                first += len(values) * math.prod(space)

    def read(rows: int) -> Iterator[Chunk]:
        # Images, and samples with several labels, are read whole, at least one at a time, and then split into chunks.
        return regrouped(pieces(max(1, rows // math.prod(space))), rows) if space else pieces(rows)

    return Predictions(
        str(file.path),
        keys.split,
        meaning.from_logits,
        n * math.prod(space),
        k,
        has_labels=truth is not None,
        has_groups=bool(groups) or wanted.multilabel,
        class_names=names,
        calibrated_by=file.text(keys.prefix + MARK),
        origin=Origin(file.path, wanted),
        _read=read,
        _place=place,
        has_weights=counted is not None,
        space=space,
        _images=image_numbers(n, space),
        other_split=other if other and _has_scores(file.keys(), other, wanted) else None,
        answers=wanted.answers,
        multilabel=wanted.multilabel,
        grouped_by=tuple(key.removeprefix(keys.prefix) for key in keys.groups),
    )
