"""Predictions, with labels where they are known, in memory or left in their file until they are needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_scores, to_tensor
from temperance.errors import FileError, InputError, at_least, seed_number
from temperance.predictions.checks import Text, as_class_names, check_set, described, label_numbers, no_labels

# A chunk of predictions takes about this much memory (in float64), unless the caller says how many rows it wants.
CHUNK_BYTES = 1 << 25

# Scores that are hashed at a time, in float64.
HASHED_VALUES = 1 << 17


class Chunk(NamedTuple):
    """Some rows: scores (rows, k), labels (rows,) as int64, and groups (rows,) as text where there are any.

    Where the predictions have no labels, these are all −1, which is no class: whatever measures refuses it.
    """

    scores: Tensor
    labels: Tensor
    groups: Text | None

    def slice(self, start: int, stop: int) -> Chunk:
        """The rows from `start` up to `stop`, without a copy."""
        groups = None if self.groups is None else self.groups[start:stop]
        return Chunk(self.scores[start:stop], self.labels[start:stop], groups)

    def take(self, index: npt.NDArray[np.int64]) -> Chunk:
        """The rows of `index`, in its order."""
        rows = torch.from_numpy(index).to(self.scores.device)
        return Chunk(self.scores[rows], self.labels[rows], None if self.groups is None else self.groups[index])

    @staticmethod
    def join(parts: Sequence[Chunk]) -> Chunk:
        """The rows of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        groups = [part.groups for part in parts if part.groups is not None]
        return Chunk(
            torch.cat([part.scores for part in parts]),
            torch.cat([part.labels for part in parts]),
            np.concatenate(groups) if groups else None,
        )


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits or probabilities of n samples over k classes, from memory or from a file, with labels if they are known.

    Opening a file checks its shapes and types only. `chunks()` goes through the rows without ever holding all of them;
    `scores`, `labels` and `groups` load them once and keep them. Values are checked where they are used: by the metrics
    and calibrators.

    >>> predictions = Predictions.of([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], class_names=["cat", "dog"])
    >>> predictions
    Predictions(source='memory', split=None, from_logits=False, n=3, k=2, has_labels=True, has_groups=False)
    >>> [len(labels) for scores, labels, groups in predictions.chunks(rows=2)]
    [2, 1]
    """

    source: str
    split: str | None
    from_logits: bool
    n: int
    k: int
    has_labels: bool
    has_groups: bool
    class_names: tuple[str, ...] | None = field(repr=False)
    _read: Callable[[int], Iterator[Chunk]] = field(repr=False)

    @classmethod
    def of(
        cls,
        probs: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        from_logits: bool = False,
        class_names: Iterable[str] | None = None,
        groups: npt.ArrayLike | None = None,
    ) -> Predictions:
        """Predictions from arrays: (n, k) probabilities (or logits), (n,) labels, (n,) groups of text or integers.

        New predictions have no labels; they can be calibrated and written, and searched for unfamiliar data.
        """
        name = "logits" if from_logits else "probs"
        names = None if class_names is None else as_class_names(class_names)
        scores = to_tensor(probs, name)
        truth = labels if labels is None or isinstance(labels, Tensor) else _array(labels, "labels")
        parts = None if groups is None else _array(groups, "groups")
        check_set(
            name,
            described(scores),
            None if truth is None else described(truth),
            None if parts is None else described(parts),
            names,
        )
        numbers = (no_labels(len(scores)) if truth is None else label_numbers(truth, names)).to(scores.device)
        return cls._of_chunk(
            Chunk(as_scores(scores, name), numbers, None if parts is None else parts.astype(np.str_)),
            source="memory",
            split=None,
            from_logits=from_logits,
            has_labels=truth is not None,
            class_names=names,
        )

    @classmethod
    def _of_chunk(
        cls,
        held: Chunk,
        *,
        source: str,
        split: str | None,
        from_logits: bool,
        has_labels: bool,
        class_names: tuple[str, ...] | None,
    ) -> Predictions:
        n, k = held.scores.shape

        def read(rows: int) -> Iterator[Chunk]:
            for start in range(0, n, rows):
                yield held.slice(start, start + rows)

        return cls(source, split, from_logits, n, k, has_labels, held.groups is not None, class_names, read)

    def _part(self, held: Chunk, split: str | None) -> Predictions:
        """Some of the rows, which are in memory."""
        return self._of_chunk(
            held,
            source=self.source,
            split=split,
            from_logits=self.from_logits,
            has_labels=self.has_labels,
            class_names=self.class_names,
        )

    def chunks(self, rows: int | None = None) -> Iterator[Chunk]:
        """The predictions in order as (scores, labels, groups), at most `rows` rows at a time, or about 32 MB."""
        if rows is None:
            rows = max(1, CHUNK_BYTES // (8 * self.k))
        at_least("rows", rows, 1)
        return self._counted(self._read(rows))

    def _counted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        seen = 0
        for chunk in chunks:
            seen += len(chunk.labels)
            yield chunk
        if seen != self.n:
            raise FileError(
                f"{self.source} gave {seen} rows instead of {self.n}: it was changed meanwhile; read it again"
            )

    @cached_property
    def _whole(self) -> Chunk:
        return Chunk.join(list(self.chunks(self.n)))

    @property
    def scores(self) -> Tensor:
        """All logits or probabilities. (n, k)"""
        return self._whole.scores

    @property
    def labels(self) -> Tensor:
        """All labels, as int64 class numbers. (n,)"""
        self.need_labels()
        return self._whole.labels

    @property
    def groups(self) -> Text | None:
        """The name of each sample's group, where there are groups. (n,)"""
        return self._whole.groups if self.has_groups else None

    def need_labels(self) -> None:
        """Refuse to go on without labels."""
        if not self.has_labels:
            raise InputError(f"the predictions of {self.source} have no labels, which this needs; give them too")

    def select(self, index: ArrayLike, *, split: str | None = None) -> Predictions:
        """Some of the rows, kept in memory: those of `index`, in its order, or those where a mask is true.

        `split` names the part; without it, it keeps the name of the whole.
        """
        wanted = self._row_numbers(index)
        order = wanted.argsort(kind="stable")
        ascending, picked, first = wanted[order], [], 0
        for chunk in self.chunks():
            low, high = np.searchsorted(ascending, (first, first + len(chunk.labels)))
            if low < high:
                picked.append(chunk.take(ascending[low:high] - first))
            first += len(chunk.labels)
        return self._part(Chunk.join(picked).take(order.argsort()), self.split if split is None else split)

    def _row_numbers(self, index: ArrayLike) -> npt.NDArray[np.int64]:
        given = to_tensor(index, "index").cpu().numpy()
        if given.dtype == np.bool_ and given.shape == (self.n,):
            given = given.nonzero()[0]
        if given.ndim != 1 or given.dtype.kind not in "iu" or not len(given):
            raise InputError(
                f"index must be row numbers, at least one, or a mask of shape {(self.n,)} that is true somewhere; "
                f"got {given.dtype} of shape {given.shape}"
            )
        if given.min() < 0 or given.max() >= self.n:
            raise InputError(f"index must lie in 0 … {self.n - 1}; got {given.min()} … {given.max()}")
        return given.astype(np.int64)

    def split_at(self, row: int) -> tuple[Predictions, Predictions]:
        """The rows before `row` and those from it on: an honest split when the order is by time."""
        at_least("row", row, 1)
        if row >= self.n:
            raise InputError(f"row must lie in 1 … {self.n - 1}, so that both parts have a row; got {row}")
        return (
            self._part(self._whole.slice(0, row), f"rows 0–{row - 1}"),
            self._part(self._whole.slice(row, self.n), f"rows {row}–{self.n - 1}"),
        )

    def halves(self, seed: int = 0) -> tuple[Predictions, Predictions]:
        """Two random halves without a common row: one to fit, one to measure what was fitted.

        Drawn by `numpy.random.default_rng(seed).permutation(n)`; the first half is the smaller where n is odd.
        """
        seed_number(seed)
        if self.n < 2:
            raise InputError("there is one row, which cannot be halved; at least two are needed")
        order = np.random.default_rng(seed).permutation(self.n)
        return (
            self._part(self._whole.take(order[: self.n // 2]), "first half"),
            self._part(self._whole.take(order[self.n // 2 :]), "second half"),
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of scores, labels and groups: equal for equal values, whatever the file format or the float type."""
        for _ in self.hashed(self.chunks(max(1, HASHED_VALUES // self.k))):
            pass
        known: str = self.__dict__["fingerprint"]
        return known

    def hashed(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """The same chunks, which must be all there are: after the last one the fingerprint is known."""
        if "fingerprint" in self.__dict__:
            yield from chunks
            return
        scores, labels, groups = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        for chunk in chunks:
            for rows in torch.split(chunk.scores, max(1, HASHED_VALUES // self.k)):
                scores.update(rows.cpu().double().contiguous().numpy().astype("<f8", copy=False).data)
            labels.update(chunk.labels.cpu().contiguous().numpy().astype("<i8", copy=False).data)
            if chunk.groups is not None:
                # The length in front tells "a", "bc" from "ab", "c".
                text = "".join(f"{len(name)}:{name}" for name in chunk.groups.tolist())
                groups.update(text.encode("utf-8", "surrogatepass"))
            yield chunk
        content = {
            "shape": [self.n, self.k],
            "scores": "logits" if self.from_logits else "probs",
            "sha256": [
                scores.hexdigest(),
                labels.hexdigest() if self.has_labels else None,
                groups.hexdigest() if self.has_groups else None,
            ],
        }
        self.__dict__["fingerprint"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _array(values: ArrayLike, name: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be one value for each row; these differ in length") from None
    if array.dtype.kind == "O" and all(isinstance(value, str | int | np.integer) for value in array.flat):
        # A column of a data frame: text, or numbers kept as objects.
        array = np.array(array.tolist())
    return array
