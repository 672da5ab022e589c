"""One pass over predictions for any number of metrics, in bounded memory.

Metrics with the same statistic share it, and only what some metric needs is computed. For intervals, rows are assigned
at random to parts, and there is a statistic for each part; if one is large, there are fewer parts.

A statistic that adds takes at most `STATISTIC_BYTES`. One that keeps rows takes at most `KEPT_BYTES` plus `ROW_BYTES`
for each row, which is enough if it keeps a few numbers per row. Anything larger is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from temperance.arrays import no_weight
from temperance.errors import InputError
from temperance.metrics.base import Metric
from temperance.metrics.batch import NARROW, Batch, Columns
from temperance.metrics.evidence import Evidence
from temperance.metrics.statistic import Additive, RankedSamples, Running, Statistic, in_bytes

N_PARTS = 500  # that rows are assigned to
FEWEST_PARTS = 40  # with fewer an interval says little
SPREAD = 8  # how many batches of a long file contribute to each part

PART_VALUES = 1 << 20  # numbers in all parts of a statistic together
SETS_VALUES = 1 << 24  # in all parts of all sets that are gathered at the same time
STATISTIC_BYTES = 1 << 28
KEPT_BYTES = 1 << 30
ROW_BYTES = 16

# Rows whose columns are joined before narrow statistics are computed from them.
JOINED_ROWS = 1 << 17

Request = tuple[Metric, dict[str, Any]]


def statistic_key(metric: Metric, options: dict[str, Any]) -> tuple[Any, ...]:
    """A key that is equal for metrics that share a statistic."""
    return metric.of_batch, tuple(sorted(metric.own_stats_options(options).items()))


@dataclass(frozen=True)
class Parts:
    """A statistic for each part of the data; of all rows at once if `n_parts` is 0."""

    stats: Statistic
    n_parts: int
    row_part: Tensor | None = None  # (n,) the part of each row that is kept, if whole parts are drawn
    n_drawn: int = 0  # how many parts a resample of these rows has

    @cached_property
    def whole(self) -> Statistic:
        """The statistic of all parts together."""
        return self.stats.whole() if self.n_parts and isinstance(self.stats, Additive) else self.stats


class Gatherer:
    """Gathers the statistics of the requested metrics from batches.

    n          how many rows there will be
    in_parts   assign the rows to parts, for intervals; metrics that keep their rows need none
    as_came    keep rows in the order of the data, for paired tests
    of_block   these rows are one block of many: the statistics of all blocks have equally many parts, so that they add
    dealt      the rows are already assigned to this many parts
    sets       how many sets of rows, such as groups, are gathered at the same time and share the memory
    """

    def __init__(
        self,
        requests: Sequence[Request],
        n: int,
        *,
        in_parts: bool,
        as_came: bool = False,
        of_block: bool = False,
        generator: torch.Generator | None = None,
        dealt: int = 0,
        sets: int = 1,
    ) -> None:
        self._keys = [statistic_key(*request) for request in requests]
        self._names = {key: metric.name for key, (metric, _) in reversed(list(zip(self._keys, requests, strict=True)))}
        self._metrics = [metric for metric, _ in requests]
        self._gathered = {key: Running(n) for key in self._keys}
        self._n_parts: dict[Any, int] = {}
        self._n, self._in_parts, self._as_came, self._generator = n, in_parts, as_came, generator
        self._most_parts, self._dealt = N_PARTS if of_block else min(n, N_PARTS), dealt
        self.n_seen, self._offset = 0, 0  # rows so far
        self._evidence = Running()
        if of_block and in_parts:
            # Short blocks must not all start with the same part.
            self._offset = int(torch.randint(N_PARTS, (), generator=generator))
        self._part_values, self._joined_rows = min(PART_VALUES, SETS_VALUES // sets), JOINED_ROWS // sets
        self._waiting: list[Columns] = []

    def add(self, batch: Batch) -> None:
        """Add rows."""
        self.n_seen += len(batch)
        self._evidence.add(Evidence.of(batch.correct, batch.weights))
        for metric in self._metrics:
            metric.check_weights(batch)
        if not self._n_parts:
            first = batch.select(slice(0, 1))
            self._n_parts = {key: self._parts_for(key, first) for key in self._gathered}
        if self._in_parts and not self._dealt:
            self._deal(batch)
        for key in self._gathered:
            if key[0] not in NARROW:
                self._take(key, batch)
        if any(key[0] in NARROW for key in self._gathered):
            self._join(batch)

    def results(self) -> list[Parts]:
        """The statistic of each metric."""
        if not self._n_parts:
            raise no_weight()
        self._flush()
        found = {key: Parts(self._total(key), self._n_parts[key]) for key in self._n_parts}
        return [found[key] for key in self._keys]

    @property
    def evidence(self) -> Evidence:
        """How many rows are right and wrong, or are worth."""
        return cast(Evidence, self._evidence.total)

    def _total(self, key: Any) -> Statistic:
        found = self._gathered.pop(key).total
        return found.ordered if isinstance(found, RankedSamples) and not self._as_came else found

    def _parts_for(self, key: Any, row: Batch) -> int:
        """How many parts a statistic can have; 0 if its rows are not assigned to parts."""
        of_batch, options = key
        found = of_batch(row, **dict(options))
        if not isinstance(found, Additive):
            self._refuse_above(KEPT_BYTES + ROW_BYTES * self._n, key, found.nbytes * self._n)
            return 0
        parts = self._dealt or min(self._most_parts, max(self._part_values // max(found.fixed_values, 1), FEWEST_PARTS))
        self._refuse_above(STATISTIC_BYTES, key, 8 * found.fixed_values * (parts if self._in_parts else 1))
        return parts if self._in_parts else 0

    def _deal(self, batch: Batch) -> None:
        """Assign each row to a part; if there are many batches, the rows of one go to few parts."""
        n = len(batch)
        pieces = min(N_PARTS, n, max(1, math.ceil(N_PARTS * SPREAD * n / max(self._n, 1))))
        piece = torch.randperm(n, generator=self._generator) % pieces
        batch.part = ((self._offset + piece) % N_PARTS).to(batch.labels.device)
        self._offset += pieces

    def _join(self, batch: Batch) -> None:
        """Collect rows for narrow statistics, from several short batches or one long batch."""
        self._waiting.append(Columns.joined([batch]))  # without the scores
        if sum(map(len, self._waiting)) >= self._joined_rows:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        joined, self._waiting = Columns.joined(self._waiting), []
        for key in self._gathered:
            if key[0] in NARROW:
                self._take(key, joined)

    def _take(self, key: Any, batch: Columns) -> None:
        of_batch, options = key
        part, n_parts = batch.part, self._n_parts[key]
        batch.deal(part if n_parts else None, n_parts)
        found, running = of_batch(batch, **dict(options)), self._gathered[key]
        batch.part = part
        running.add(found)
        if isinstance(found, Additive) and running.nbytes > STATISTIC_BYTES / 8:
            # Refuse it as soon as it is clear that it will be too large.
            expected = min(running.nbytes * self._n // self.n_seen, found.most_bytes(max(n_parts, 1)))
            self._refuse_above(2 * STATISTIC_BYTES, key, expected)
            self._refuse_above(STATISTIC_BYTES, key, running.nbytes, expected)

    def _refuse_above(self, most: int, key: Any, size: int, expected: int = 0) -> None:
        if size > most:
            remedies = ["choose a smaller n_bins" if "n_bins" in dict(key[1]) else "measure fewer rows"]
            remedies += ["do without intervals (bootstrap=0)"] if self._in_parts and self._n_parts.get(key) != 0 else []
            raise InputError(
                f"{self._names[key]} would need about {in_bytes(max(size, expected))} of memory for {self._n:,} rows, "
                f"which is too much. Leave it out, {', or '.join(remedies)}",
                flags={"n_bins": "--n-bins", "bootstrap=0": "--bootstrap 0"},
            )
