"""Predictions, with labels where they are known, in memory or left in their file until they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_array, as_labels, checked_logits, to_tensor
from temperance.errors import FileError, InputError
from temperance.predictions.checks import (
    ANSWER_CLASSES,
    CONFIDENCE,
    CORRECT,
    LABEL_CLASSES,
    Positive,
    Text,
    Wanted,
    as_class_names,
    as_positive,
    binary_names,
    check_set,
    columns_of,
    described,
)
from temperance.predictions.dense import image_numbers, labelled, position
from temperance.predictions.fingerprint import HASHED_VALUES, Fingerprint
from temperance.predictions.rounding import MOST_DECIMALS, decimals_of, unrounded
from temperance.predictions.rows import Chunk, Meaning, in_array, in_memory, label_texts, placed, row_numbers
from temperance.settings import Count, Seed, of_kind

# A chunk of predictions takes about this much memory (in float64), unless the caller says how many rows it wants.
CHUNK_BYTES = 1 << 25

# Rows that are written to a file at a time.
WRITTEN_ROWS = 1 << 16

# The source of predictions that were never in a file.
ARRAYS = "arrays"

# What a file holds besides its predictions, as NumPy arrays, to be written in another format.
Extras = dict[str, npt.NDArray[Any]]


class Origin(NamedTuple):
    """The file that predictions were read from, and how. A writer carries over everything else that it holds."""

    path: Path
    wanted: Wanted


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits or probabilities of n samples over k classes, from memory or from a file, with labels if they are known.

    Opening a file checks its shapes and types only. `chunks()` goes through the rows without ever holding them all;
    `scores`, `labels`, `groups` and `weights` load them once and keep them. Values are checked where they are used: by
    the metrics, and by `logits()` and `labels`, which calibrators get.

    >>> predictions = Predictions.of([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], class_names=["cat", "dog"])
    >>> predictions
    Predictions(source='arrays', split=None, from_logits=False, n=3, k=2, has_labels=True, has_groups=False)
    >>> [len(chunk.labels) for chunk in predictions.chunks(rows=2)]
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
    calibrated_by: str | None = field(default=None, repr=False)
    decimals: int | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)
    _place: Callable[[int], str] = field(default=in_array, repr=False)
    shards: tuple[Predictions, ...] = field(default=(), repr=False)  # the files that a folder is made of
    has_weights: bool = field(default=False, repr=False)
    space: tuple[int, ...] = field(default=(), repr=False)  # (h, w) where rows are all pixels of arrays (n, k, h, w)
    _images: Callable[[], npt.NDArray[np.int64]] | None = field(default=None, repr=False)  # the image of each row
    other_split: str | None = field(default=None, repr=False)  # the other set of a file with both
    answers: bool = field(default=False, repr=False)  # probabilities that an answer is wrong and that it is right
    multilabel: bool = field(default=False, repr=False)  # rows are the labels of samples: one applies, or does not
    half_of: str | None = field(default=None, repr=False)  # the fingerprint of the set that these are a random half of
    grouped_by: tuple[str, ...] = field(default=(), repr=False)  # the names of the columns of groups

    @classmethod
    def of(
        cls,
        probs: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        from_logits: bool = False,
        positive: Positive | None = None,
        normalise: bool = False,
        class_names: Iterable[str] | None = None,
        groups: npt.ArrayLike | None = None,
        weights: ArrayLike | None = None,
        ignore_index: int | None = None,
        answers: bool = False,
        multilabel: bool = False,
    ) -> Predictions:
        """Predictions from arrays: (n, k) probs or logits, (n,) labels, (n,) or (n, c) groups, text or integers.

        Predictions of every pixel are (n, k, *space) with labels (n, *space); each pixel becomes a row. Predictions
        without labels can be calibrated, written and compared with unfamiliar data.

        positive      for a binary classifier: `probs` is one column, the score of this label; usually positive=1
        normalise     accept probabilities that were rounded; see `normalised`
        weights       (n,) how much each sample counts
        ignore_index  leave out rows with this label
        answers       `probs` is one column, the confidence in each answer, and `labels` say which answers are right
        multilabel    a sample can have several labels: `probs` (n, L) are the probabilities that each applies, `labels`
                      (n, L) are 1 where it does and 0 elsewhere, and `class_names` are the names of the L labels

        >>> Predictions.of([0.9, 0.6, 0.95], [True, True, False], answers=True).kind
        'confidence'
        """
        if answers and from_logits:
            raise InputError("answers have a confidence between 0 and 1, not logits; leave out from_logits")
        if answers and class_names is not None:
            raise InputError("answers have no classes; leave out class_names")
        if multilabel and groups is not None:
            raise InputError("the groups of several labels are the labels themselves; leave out groups")
        wanted = Wanted(
            positive=as_positive(positive), ignore_index=ignore_index, answers=answers, multilabel=multilabel
        )
        names = binary_names(None if class_names is None else as_class_names(class_names), wanted)
        meaning = Meaning(CONFIDENCE if answers else "logits" if from_logits else "probs", names, wanted)
        scores = to_tensor(probs, meaning.name)
        truth = labels if labels is None or isinstance(labels, Tensor) else as_array(labels, "labels")
        parts = [] if groups is None else columns_of(as_array(groups, "groups"))
        counted = None if weights is None else to_tensor(weights, "weights")
        images, k, space = check_set(
            meaning.name,
            described(scores),
            None if truth is None else described(truth),
            [described(each) for each in parts],
            names,
            wanted,
            None if counted is None else described(counted),
        )
        held = meaning.chunk(scores, truth, parts, 0, counted)
        found = cls(
            ARRAYS,
            None,
            from_logits,
            len(held.labels),
            k,
            truth is not None,
            held.groups is not None,
            names,
            in_memory(held),
            _place=position(space, in_array),
            has_weights=counted is not None,
            space=space,
            _images=image_numbers(images, space),
            answers=answers,
            multilabel=multilabel,
            grouped_by=tuple(f"column {i + 1}" for i in range(len(parts))),
        )
        found = found if ignore_index is None else labelled(found, ignore_index)
        return found.normalised() if normalise else found

    def _part(self, held: Chunk, split: str | None, rows: npt.NDArray[np.int64]) -> Predictions:
        """Some of the rows, already in memory; `rows` are their indices."""
        images = self._images
        return dataclasses.replace(
            self,
            split=split,
            n=len(rows),
            origin=None,
            shards=(),
            space=(),
            _read=in_memory(held),
            _place=lambda row: self._place(int(rows[row])),
            _images=None if images is None else lambda: images()[rows],
        )

    def calibrated(self, probs: Callable[[Tensor, Text | None], Tensor], by: str) -> Predictions:
        """The same samples with the probabilities that a calibrator makes from logits and groups; `by` is its name.

        Rows of a file are calibrated as they are read. Rows in memory are calibrated now.
        """

        def calibrated(chunk: Chunk, first_row: int) -> Tensor:
            logits = checked_logits(chunk.scores, from_logits=self.from_logits, first_row=first_row)
            return probs(logits, chunk.group_columns)

        read = self._reader(calibrated)
        return dataclasses.replace(
            self,
            from_logits=False,
            calibrated_by=by if self.calibrated_by is None else f"{self.calibrated_by}, {by}",
            decimals=None,
            shards=tuple(shard.calibrated(probs, by) for shard in self.shards),
            _read=in_memory(Chunk.join(list(read(self.n)))) if self.source == ARRAYS else read,
        )

    def normalised(self) -> Predictions:
        """The same predictions with probabilities that sum to 1 again, after they were rounded.

        First the number of `decimals` is found; where all numbers are 0 or 1, they show none, and it is the most. Then
        zeros are replaced by a number so small that those of a row add up to at most half a unit of the last decimal,
        and each row is divided by its sum.
        """
        if self.from_logits:
            with self.located():
                raise InputError(
                    "normalise is for probabilities, and these are logits; leave it out",
                    flags={"normalise": "--normalise"},
                )
        return self._rounded_to(max(decimals_of(chunk.scores) for chunk in self.chunks()) or MOST_DECIMALS)

    def _rounded_to(self, decimals: int) -> Predictions:
        """`normalised`, with a known number of decimals, which for a folder is that of all its files."""
        return dataclasses.replace(
            self,
            decimals=decimals,
            shards=tuple(shard._rounded_to(decimals) for shard in self.shards),
            _read=self._reader(lambda chunk, first_row: unrounded(chunk.scores, decimals, first_row=first_row)),
        )

    def _reader(self, changed: Callable[[Chunk, int], Tensor]) -> Callable[[int], Iterator[Chunk]]:
        """A reader of the same rows with other scores; `changed` gets a chunk and the index of its first row."""

        def read(rows: int) -> Iterator[Chunk]:
            first = 0
            with self.located():
                for chunk in self.chunks(rows):
                    yield chunk._replace(scores=changed(chunk, first))
                    first += len(chunk.labels)

        return read

    def chunks(self, rows: int | None = None) -> Iterator[Chunk]:
        """The predictions in order as (scores, labels, groups, weights), at most `rows` at a time, or about 32 MB."""
        if rows is None:
            rows = max(1, CHUNK_BYTES // (8 * self.k))
        of_kind("rows", rows, Count)
        return self._counted(self._read(rows))

    def _counted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        seen = 0
        for chunk in chunks:
            seen += len(chunk.labels)
            yield chunk
        if seen != self.n:
            raise FileError(f"{self.source} gave {seen} rows instead of {self.n}: the file has changed; read it again")

    @cached_property
    def whole(self) -> Chunk:
        """All rows, as they are."""
        return Chunk.join(list(self.chunks(self.n)))

    @property
    def of_pixels(self) -> bool:
        """Is each row a pixel of an image, or a token of a text, rather than a sample of its own?"""
        return self._images is not None and not self.multilabel

    @property
    def one_score(self) -> bool:
        """Does a row have one probability: that an answer is right, or that a label applies?"""
        return self.answers or self.multilabel

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """Of several labels, the name of each, or its number."""
        if self.class_names is not None:
            return self.class_names
        if self.space:
            return tuple(label_texts(None, self.space[0]).tolist())
        last = max(int(name) for chunk in self.chunks() for name in np.unique(chunk.groups))  # type: ignore[arg-type]
        return tuple(label_texts(None, last + 1).tolist())

    def samples_of_rows(self) -> Tensor:
        """Of several labels, the number of each row's sample, from 0 on. (n,)"""
        assert self._images is not None
        return torch.from_numpy(np.unique(self._images(), return_inverse=True)[1].reshape(-1))

    @cached_property
    def n_counted(self) -> int:
        """How many samples, pixels or answers these are; `n` rows are more where a sample can have several labels."""
        if not self.multilabel or self._images is None:
            return self.n
        return self.n // self.space[0] if self.space else len(np.unique(self._images()))

    @property
    def row_name(self) -> str:
        """What a row is, in a sentence."""
        return "pixel" if self.of_pixels else "answer" if self.answers else "sample"

    @property
    def kind(self) -> str:
        """What the scores are called in files: logits, probs, or the confidence of answers."""
        return CONFIDENCE if self.answers else "logits" if self.from_logits else "probs"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of what a calibrator of these predictions tells apart: the classes, or the two of one score."""
        return LABEL_CLASSES if self.multilabel else ANSWER_CLASSES if self.answers else self.class_names

    @property
    def label_name(self) -> str:
        """What a label is called in tables."""
        return CORRECT if self.answers else "label"

    def written(self, scores: Tensor) -> Tensor:
        """Scores as files hold them: (rows, k), or where a row has one score (rows,)."""
        return scores[:, 1] if self.one_score else scores

    @property
    def scores(self) -> Tensor:
        """All logits or probabilities. (n, k)"""
        return self.whole.scores

    @property
    def labels(self) -> Tensor:
        """All labels, as int64 class numbers, checked. (n,)"""
        self.need_labels()
        with self.located():
            return as_labels(self.whole.labels, self.scores, name=self.kind)

    @property
    def groups(self) -> Text | None:
        """The name of each sample's group, where there are groups; of several columns, that of the combination. (n,)"""
        return self.whole.groups if self.has_groups else None

    @property
    def weights(self) -> Tensor | None:
        """How much each sample counts, where there are weights. (n,)"""
        with self.located():
            return self.whole.weights

    def logits(self) -> Tensor:
        """All logits, or log-probabilities where these are probabilities, checked: what calibrators take. (n, k)"""
        with self.located():
            return checked_logits(self.scores, from_logits=self.from_logits)

    @property
    def subject(self) -> str:
        """These predictions as the subject of a sentence, with their file if they come from one."""
        what = "the answers" if self.answers else "the predictions"
        return what if self.source == ARRAYS else f"{what} in {self.source}"

    @contextmanager
    def located(self) -> Iterator[None]:
        """Inside this block, an error about these values names their file and where the row is in it."""
        try:
            with placed(self._place):
                yield
        except InputError as error:
            if self.source == ARRAYS:
                raise
            raise FileError(f"{self.source}: {error}", flags=error.flags) from error

    def need_labels(self) -> None:
        """Refuse predictions without labels."""
        if not self.has_labels:
            raise InputError(f"{self.subject} have no labels, but labels are needed here; give them too")

    def need_groups(self, why: str = "") -> None:
        """Refuse predictions without groups; `why` says what they are for."""
        if not self.has_groups:
            remedy = 'name them with columns={"group": NAME}'
            raise InputError(
                f"{why}{self.subject} have no groups: store them under the name groups, one per sample, or {remedy}",
                flags={remedy: "name the column with --group NAME"},
            )

    def need_classes(self) -> None:
        """Refuse predictions that have one score in each row, and no classes."""
        if self.one_score:
            have = "only a confidence" if self.answers else "several labels"
            raise InputError(f"{self.subject} have {have}, but probabilities of classes are needed here; give those")

    def need_one_label(self) -> None:
        """Refuse several labels for each sample."""
        if self.multilabel:
            raise InputError(
                f"{self.subject} have several labels for each sample, but this needs one: give the scores of one "
                "label as those of a binary classifier"
            )

    def select(self, index: ArrayLike, *, split: str | None = None) -> Predictions:
        """Some of the rows, in memory: those at `index`, in its order, or those where a mask is true.

        `split` names the part; by default it keeps its name.
        """
        wanted = row_numbers(index, self.n)
        order = wanted.argsort(kind="stable")
        ascending, picked, first = wanted[order], [], 0
        for chunk in self.chunks():
            low, high = np.searchsorted(ascending, (first, first + len(chunk.labels)))
            if low < high:
                picked.append(chunk.take(ascending[low:high] - first))
            first += len(chunk.labels)
        return self._part(Chunk.join(picked).take(order.argsort()), self.split if split is None else split, wanted)

    def halves(self, seed: int = 0) -> tuple[Predictions, Predictions]:
        """Two random halves without a common row: one to fit, one to measure what was fitted.

        Drawn by `numpy.random.default_rng(seed).permutation(n)`; the first half is the smaller where n is odd. Where
        rows are pixels, these are halves of the images: the pixels of one image are alike. Where they are labels of
        samples, these are halves of the samples.
        """
        of_kind("seed", seed, Seed)
        images = None if self._images is None else self._images()
        order = np.random.default_rng(seed).permutation(self.n if images is None else np.unique(images))
        if len(order) < 2:
            what = "row" if images is None else "image" if self.of_pixels else "sample"
            raise InputError(f"one {what} cannot be halved; at least two are needed")
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        if images is not None:
            first, second = (np.flatnonzero(np.isin(images, half)) for half in (first, second))
        named = {"a random half": first, "the other half": second}
        parts = (self._part(self.whole.take(rows), name, rows) for name, rows in named.items())
        one, other = (dataclasses.replace(part, half_of=self.fingerprint) for part in parts)
        return one, other

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all values: equal for equal values, whatever the file format or the float type."""
        for _ in self.hashed(self.chunks(max(1, HASHED_VALUES // self.k))):
            pass
        known: str = self.__dict__["fingerprint"]
        return known

    def hashed(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """All chunks, unchanged; after the last one the fingerprint is known."""
        if "fingerprint" in self.__dict__:
            yield from chunks
            return
        found = Fingerprint()
        for chunk in chunks:
            found.update(chunk)
            yield chunk
        self.__dict__["fingerprint"] = found.of(self)
