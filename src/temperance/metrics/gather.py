"""One pass over predictions for any number of metrics, in bounded memory.

Metrics with the same statistic share it, and nothing is computed that no metric asked for. For intervals the rows are
dealt at random to parts, and statistics are kept for each part.

Memory: a statistic that does not keep its rows takes at most `STATISTIC_BYTES`; where its size for one part is large
there are fewer parts. What would take more is refused. Statistics that keep a few numbers for each row may take
`ROW_BYTES` for each besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from temperance.errors import InputError
from temperance.metrics.base import Metric
from temperance.metrics.batch import NARROW, Batch, Columns
from temperance.metrics.statistic import Additive, RankedSamples, Running, Statistic, in_bytes

N_PARTS = 500
FEWEST_PARTS = 40  # with fewer an interval says little
SPREAD = 8  # how many batches of a long file contribute to each part

PART_VALUES = 1 << 20  # numbers that all parts of a statistic have together
STATISTIC_BYTES = 1 << 28
ROW_BYTES = 16

# Rows whose columns are joined before narrow statistics look at them.
JOINED_ROWS = 1 << 17

Request = tuple[Metric, dict[str, Any]]


@dataclass(frozen=True)
class Parts:
    """A statistic for each of some parts of the data; of all rows at once where `n_parts` is 0."""

    stats: Statistic
    n_parts: int

    @cached_property
    def whole(self) -> Statistic:
        """The statistic of all parts together."""
        return self.stats.whole() if self.n_parts and isinstance(self.stats, Additive) else self.stats


class Gatherer:
    """Takes batches in and gathers the statistics of the metrics that are asked for.

    n          how many rows there will be
    in_parts   deal the rows to parts, for intervals; metrics that keep their rows need none
    as_came    rows that are kept stay in the order of the data, for paired tests
    """

    def __init__(
        self,
        requests: Sequence[Request],
        n: int,
        *,
        in_parts: bool,
        as_came: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        self._keys = [
            (metric.of_batch, tuple(sorted(metric.own_stats_options(options).items()))) for metric, options in requests
        ]
        self._names = {key: metric.name for key, (metric, _) in reversed(list(zip(self._keys, requests, strict=True)))}
        self._gathered = {key: Running(n) for key in self._keys}
        self._n_parts: dict[Any, int] = {}
        self._n, self._in_parts, self._as_came, self._generator = n, in_parts, as_came, generator
        self._seen = self._offset = self._waiting_rows = 0
        self._waiting: list[Columns] = []

    def add(self, batch: Batch) -> None:
        """Take in more rows."""
        self._seen += len(batch)
        if not self._n_parts:
            first = batch.select(slice(0, 1))
            self._n_parts = {key: self._parts_for(key, first) for key in self._gathered}
        if self._in_parts:
            self._deal(batch)
        for key in self._gathered:
            if key[0] not in NARROW:
                self._take(key, batch)
        if any(key[0] in NARROW for key in self._gathered):
            self._waiting.append(Columns.join([batch]))
            self._waiting_rows += len(batch)
        if self._waiting_rows >= JOINED_ROWS:
            self._flush()

    def results(self) -> list[Parts]:
        """For each metric its statistic."""
        self._flush()
        found = {key: Parts(self._total(key), self._n_parts[key]) for key in self._n_parts}
        return [found[key] for key in self._keys]

    def _total(self, key: Any) -> Statistic:
        found = self._gathered.pop(key).total
        return found.ordered if isinstance(found, RankedSamples) and not self._as_came else found

    def _parts_for(self, key: Any, row: Batch) -> int:
        """How many parts a statistic can have; 0 for one that is not dealt."""
        of_batch, options = key
        found = of_batch(row, **dict(options))
        if not self._in_parts or not isinstance(found, Additive):
            return 0
        most = min(N_PARTS, self._n)
        parts = min(most, max(PART_VALUES // max(found.fixed_values, 1), FEWEST_PARTS))
        self._check(key, 8 * parts * found.fixed_values)
        return parts

    def _deal(self, batch: Batch) -> None:
        """Give each row a part: rows of a batch go to few parts where there are many batches."""
        n = len(batch)
        pieces = min(N_PARTS, n, max(1, math.ceil(N_PARTS * SPREAD * n / max(self._n, 1))))
        piece = torch.randperm(n, generator=self._generator) % pieces
        batch.part = ((self._offset + piece) % N_PARTS).to(batch.labels.device)
        self._offset += pieces

    def _flush(self) -> None:
        if self._waiting:
            joined = Columns.join(self._waiting)
            self._waiting, self._waiting_rows = [], 0
            for key in self._gathered:
                if key[0] in NARROW:
                    self._take(key, joined)

    def _take(self, key: Any, batch: Columns) -> None:
        of_batch, options = key
        part, n_parts = batch.part, self._n_parts[key]
        batch.deal(part if n_parts else None, n_parts)
        self._gathered[key].add(of_batch(batch, **dict(options)))
        batch.part = part
        taken = self._gathered[key].nbytes
        self._check(key, taken if taken <= STATISTIC_BYTES else math.ceil(taken * self._n / self._seen))

    def _check(self, key: Any, size: int) -> None:
        if size > STATISTIC_BYTES + ROW_BYTES * self._n:
            parts = self._n_parts.get(key)
            remedy = "Take a smaller n_bins" if "n_bins" in dict(key[1]) else "Measure fewer rows"
            without = " or do without its interval (bootstrap 0)" if self._in_parts and parts != 0 else ""
            raise InputError(
                f"{self._names[key]} would need about {in_bytes(size)} of memory for these {self._n:,} rows, "
                f"more than {in_bytes(STATISTIC_BYTES)}. {remedy}{without}, or leave this metric out"
            )
