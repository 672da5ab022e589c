"""Streams: rows that are read again for each pass, so that a calibrator can be fitted to more than memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from temperance.arrays import as_labels, as_scores, blocks, checked_logits, flatten
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, plural
from temperance.threads import one_thread

# Blocks of logits (n, k) or (n, k, *space) and labels. Each `iter` starts over.
Source = Iterable[tuple[Any, Any]]

# At most this many values of a stream are kept in memory: rows evenly spaced over all of it.
MOST_VALUES = 1 << 22


@dataclass(frozen=True)
class Streamed:
    """A stream of rows, and what the first pass found: the number of rows per class (k,), and a sample of the rows.

    every         one row in this many was kept; 1 if all were
    ignore_index  rows with this label are left out
    """

    source: Source
    counts: Tensor
    logits: Tensor
    labels: Tensor
    every: int
    ignore_index: int | None = None
    change: Callable[[Tensor], Tensor] = lambda rows: rows

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def k(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Float64 logits and int64 labels, in blocks that stay in cache."""
        for logits, labels in _checked(self.source, self.ignore_index):
            for rows, y, _ in blocks(logits, labels):
                yield self.change(rows.double()), y

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Streamed:
        """The same stream with this change applied to every row."""
        return replace(self, logits=change(self.logits), change=change)

    @classmethod
    def of(cls, source: Source, most_values: int = MOST_VALUES, ignore_index: int | None = None) -> Streamed:
        """Read a stream once: check every row, count labels, and keep rows evenly spaced over all of it."""
        if iter(source) is source:
            raise InputError("a stream is read several times: pass an iterable that can be, such as a list of blocks")
        kept: list[tuple[Tensor, Tensor]] = []
        counts, every, first = torch.zeros(0, dtype=torch.int64), 1, 0
        for logits, labels in _checked(source, ignore_index):
            k = logits.shape[1]
            counts = counts if len(counts) else torch.zeros(k, dtype=torch.int64)
            if k != len(counts):
                raise InputError(
                    f"all blocks of a stream must have the same number of classes; got {len(counts)} and {k}"
                )
            counts += torch.bincount(labels, minlength=k)
            some = slice(-first % every, None, every)
            kept.append((logits[some].double(), labels[some]))
            first += len(labels)
            while sum(rows.numel() for rows, _ in kept) > most_values:
                # Kept rows are those whose index is a multiple of `every`; keep every second of them.
                together = torch.cat([rows for rows, _ in kept]), torch.cat([y for _, y in kept])
                kept, every = [(together[0][::2].clone(), together[1][::2].clone())], 2 * every
        if not kept:
            raise InputError("a stream must have labelled rows; this one has none")
        logits, labels = torch.cat([rows for rows, _ in kept]), torch.cat([y for _, y in kept])
        return cls(source, counts, logits, labels, every, ignore_index)


def _checked(source: Source, ignore_index: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (n, k) and labels (n,) of each block, without ignored rows; errors count rows over all blocks."""
    first = 0
    for block in source:
        if len(block) != 2:
            raise InputError(
                "a block of a stream must be a pair of logits and labels, without weights; "
                f"got {plural(len(block), 'part')}"
            )
        given, truth = block
        scores = as_scores(given, "logits").cpu()
        labels = as_labels(truth, scores, ignore_index=ignore_index, first_row=first).reshape(-1)
        logits = checked_logits(flatten(scores), from_logits=True, first_row=first)
        first += len(labels)
        if ignore_index is not None:
            labelled = labels != ignore_index
            logits, labels = logits[labelled], labels[labelled]
        if len(labels):
            yield logits, labels


class StreamCalibrator(Calibrator):
    """A calibrator that can also be fitted to a stream; a method implements `_fit_stream`."""

    def _fit_stream(self, stream: Streamed) -> None:
        """Like `_fit`, from rows that are read again for each pass."""
        raise NotImplementedError

    def fit_stream(self, source: Source, *, ignore_index: int | None = None, most_values: int = MOST_VALUES) -> Self:
        """Learn from blocks of logits and labels, in several passes: `source` is iterated again for each.

        Blocks may be dense, and rows with the label `ignore_index` are left out, as in `fit`. Memory does not grow with
        the number of rows: at most `most_values` logits are held at once. A stream of up to that many is fitted as by
        `fit`. Beyond that the result equals that of `fit` as closely as both find the optimum; isotonic maps and bins
        treat log-odds that differ by less than 1/1024 as equal.

        >>> from temperance.calibrators import Temperature
        >>> logits = [[4.0, 0.0], [0.0, 4.0]] * 50
        >>> blocks = [(logits, [0, 1] * 50), (logits, [1, 1] * 50)]
        >>> round(float(Temperature().fit_stream(blocks).temperature), 4)
        3.641
        """
        self.check_settings()
        with torch.no_grad(), one_thread():
            stream = Streamed.of(source, most_values, ignore_index)
            if stream.every == 1:
                return self.fit(stream.logits, stream.labels)
            self._check_fit(stream.logits, stream.labels)
            self._forget()
            self._fit_stream(stream)
            self._keep("n_classes", torch.tensor(stream.k))
            self._keep_reference(stream.logits, stream.labels)
        return self.set_prior(self.prior)._noted(stream.counts)
