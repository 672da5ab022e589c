"""Several labels per sample: the statistics of each label and of all together, in one pass.

A row is one label of one sample. The labels of a sample go together, so intervals resample samples: every row of a
sample is in the same part. A statistic is gathered for each part of each label. The parts of one label, and the sums of
all labels' parts, are then what other predictions have too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from temperance.jobs.statistics import Group
from temperance.metrics.batch import Batch
from temperance.metrics.bins import Cells, SparseBins
from temperance.metrics.evidence import Evidence
from temperance.metrics.gather import FEWEST_PARTS, N_PARTS, Gatherer, Parts, Request
from temperance.metrics.significance import LINEAR_ROWS
from temperance.metrics.statistic import Additive, Running, Samples, Statistic
from temperance.metrics.tally import Tally, tally_by
from temperance.predictions import Predictions
from temperance.predictions.checks import Text

# Numbers in all parts of a statistic together, for all labels.
PART_VALUES = 1 << 22

# A resample has at least this many parts; with fewer it would vary too much.
FEWEST_DRAWN = 100


@dataclass(frozen=True)
class SampleLabels:
    """Which sample and which label each row is about."""

    names: tuple[str, ...]
    n_samples: int
    _label: Tensor | None  # (n,) where some rows are left out; otherwise every sample has every label
    _sample: Tensor | None

    @classmethod
    def of(cls, data: Predictions) -> SampleLabels:
        """The samples and labels of these rows."""
        names = data.label_names
        if data.space:
            return cls(names, data.n // len(names), None, None)
        sample = data.samples_of_rows()
        order = np.argsort(names)
        sorted_names = np.array(names, np.str_)[order]
        label = [order[np.searchsorted(sorted_names, cast(Text, chunk.groups))] for chunk in data.chunks()]
        return cls(names, int(sample.max()) + 1, torch.from_numpy(np.concatenate(label)), sample)

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The label and the sample of some rows."""
        if self._label is None or self._sample is None:
            row = torch.arange(start, stop)
            return row % len(self.names), row // len(self.names)
        return self._label[start:stop], self._sample[start:stop]


@dataclass(frozen=True)
class LabelStatistics:
    """The statistics of all rows, under None, and of each label; with a tally by label and bin. (L, n_bins)"""

    groups: dict[str | None, Group]
    tally: Tally
    n_samples: int


def gathered_by_label(
    found: Iterator[Batch],
    data: Predictions,
    requests: Sequence[Request],
    generator: torch.Generator | None,
    n_bins: int,
) -> LabelStatistics:
    """Each metric's statistic of all rows and of each label; with a generator, of parts that whole samples are in."""
    pairs = SampleLabels.of(data)
    n_labels, first = len(pairs.names), next(found)
    n_parts = _n_parts(requests, first, pairs) if generator is not None else 1
    part_of_sample = torch.randperm(pairs.n_samples, generator=generator) % n_parts
    gatherer = Gatherer(requests, data.n, in_parts=True, as_came=True, dealt=n_labels * n_parts)
    seen, row_parts, tallies, evidence = 0, [], Running(), Running()
    for batch in chain([first], found):
        label, sample = pairs.rows(seen, seen + len(batch))
        seen += len(batch)
        batch.part = (label * n_parts + part_of_sample[sample]).to(batch.labels.device)
        row_parts.append(batch.part)
        gatherer.add(batch)
        label = label.to(batch.labels.device)
        tallies.add(tally_by(batch, label, n_labels, n_bins))
        evidence.add(Evidence.of_each(batch.correct, batch.weights, label, n_labels))
    tally, of_each = cast(Tally, tallies.total), cast(Evidence, evidence.total)
    split = _Split(n_labels, n_parts, torch.cat(row_parts), seen, pairs.n_samples)
    several = [split.of(parts.stats) for parts in gatherer.results()]
    groups: dict[str | None, Group] = {None: Group(seen, tuple(whole for whole, _ in several), gatherer.evidence)}
    for j, (name, *parts) in enumerate(zip(pairs.names, *(labels for _, labels in several), strict=True)):
        of_label = Tally(*(tensor[j].sum(0, keepdim=True) for tensor in tally.tensors().values()))
        if n := int(of_label.count):  # otherwise nobody knows whether the label applies to any sample
            groups[name] = Group(n, tuple(parts), of_each.of_entry(j), of_label)
    return LabelStatistics(groups, tally, pairs.n_samples)


def _n_parts(requests: Sequence[Request], batch: Batch, pairs: SampleLabels) -> int:
    """How many parts the samples are assigned to, so that those of all labels fit into memory."""
    row = batch.select(slice(0, 1))
    sizes = [metric.of_batch(row, **metric.own_stats_options(options)) for metric, options in requests]
    largest = max((each.fixed_values for each in sizes if isinstance(each, Additive)), default=1)
    most = max(PART_VALUES // (len(pairs.names) * max(largest, 1)), FEWEST_PARTS)
    return min(N_PARTS, pairs.n_samples, most)


@dataclass(frozen=True)
class _Split:
    """How statistics of all parts of all labels become those of all rows and of each label."""

    n_labels: int
    n_parts: int
    row_part: Tensor
    n_rows: int
    n_samples: int

    def of(self, stats: Statistic) -> tuple[Parts, list[Parts]]:
        """The statistic of all rows, and of each label."""
        if isinstance(stats, SparseBins):
            return self._of_sparse(stats)
        if isinstance(stats, Additive):
            shape = (self.n_labels, self.n_parts)
            of_labels = stats.mapped(lambda tensor: tensor.reshape(*shape, *tensor.shape[1:]))
            labels = zip(*of_labels.tensors().values(), strict=True)
            return Parts(of_labels.whole(), self.n_parts), [Parts(type(stats)(*each), self.n_parts) for each in labels]
        order = (self.row_part // self.n_parts).argsort(stable=True)
        ends = torch.bincount(self.row_part // self.n_parts, minlength=self.n_labels).cumsum(0).tolist()
        rows = cast(Samples, stats).select(order)
        part = (self.row_part % self.n_parts)[order]
        few = self._drawn(self.n_samples)
        labels_of = [
            Parts(rows.select(slice(start, end)), self.n_parts, part[start:end], few)
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return Parts(stats, self.n_parts, self.row_part % self.n_parts, self._drawn(self.n_rows)), labels_of

    def _drawn(self, n_rows: int) -> int:
        """How many parts a resample has, where rows are kept: fewer than all if there are many rows."""
        return min(self.n_parts, max(FEWEST_DRAWN, self.n_parts * LINEAR_ROWS // n_rows))

    def _of_sparse(self, stats: SparseBins) -> tuple[Parts, list[Parts]]:
        size = stats.per_part
        part, place = stats.cell // size, stats.cell % size
        sums = [[each] for each in (stats.count, stats.confidence, stats.hits)]
        whole = SparseBins(*Cells.merge([part % self.n_parts * size + place], *sums), stats.shape)
        edges = torch.searchsorted(part, torch.arange(self.n_labels + 1, device=part.device) * self.n_parts).tolist()
        labels = []
        for j, (start, end) in enumerate(pairwise(edges)):
            of_label = stats.occupied().of(torch.arange(start, end, device=part.device))
            cells = of_label._replace(cell=of_label.cell - j * self.n_parts * size)
            labels.append(Parts(SparseBins(*cells, stats.shape), self.n_parts))
        return Parts(whole, self.n_parts), labels
