"""The statistics behind the metrics: bins, sums, and rows that are kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Literal, Self, Unpack

import torch
from torch import Tensor

from temperance.compiled import bin_sums
from temperance.metrics.base import Metric, MetricClaims, metric
from temperance.metrics.batch import NARROW, Batch, Columns, narrow
from temperance.metrics.bins import Bins, Cells, SparseBins, SparseClassBins, above_rounding, bin_index
from temperance.metrics.statistic import Additive, RankedSamples, Samples
from temperance.numerics import bin_edges, true_places
from temperance.settings import Bounds
from temperance.sorting import stable_order, stable_sort

# Up to this many bins, parts included, are stored even if most are empty.
DENSE_BINS = 1 << 17

# Finer edges would be as close together as float64 numbers.
NBins = Annotated[int, Bounds(1, 1 << 30)]
Side = Literal["right", "left"]

# ---------------------------------------------------------------------------------------------------------------- bins


@narrow
def top_label_bins(batch: Columns, *, n_bins: NBins = 15, closed: Side = "right") -> Bins | SparseBins:
    """Samples by the confidence of their predicted class; the event is that it is right. (n_bins,)

    n_bins  number of bins of equal width
    closed  which edge belongs to a bin: "right" is (lo, hi], "left" is [lo, hi)
    """
    if batch.part is None and batch.weights is None and n_bins <= DENSE_BINS:
        quick = bin_sums(batch.own_confidence, batch.correct, bin_edges(n_bins), closed=closed)
        if quick is not None:
            return Bins(*quick)
    return _binned(batch, bin_index(batch.own_confidence, n_bins, closed), (n_bins,))


def predicted_class_bins(batch: Batch, *, n_bins: NBins = 15, closed: Side = "right") -> Bins | SparseBins:
    """Like `top_label_bins`, separately for each predicted class. (k, n_bins)

    n_bins  number of bins of equal width
    closed  which edge belongs to a bin: "right" is (lo, hi], "left" is [lo, hi)
    """
    index = batch.prediction * n_bins + bin_index(batch.own_confidence, n_bins, closed)
    return _binned(batch, index, (batch.k, n_bins))


def _binned(batch: Columns, index: Tensor, shape: tuple[int, ...]) -> Bins | SparseBins:
    """Samples by bin: `index` (n,) numbers the bins of this shape."""
    size = math.prod(shape)
    if batch.n_parts * size > DENSE_BINS:
        hits = batch.correct.long()
        values = (batch.weighed(each) for each in (torch.ones_like(hits), batch.confidence, hits))
        cells = Cells.merge([batch.parts * size + index], *([each] for each in values))
        return SparseBins(*cells, torch.tensor(shape, device=index.device))
    # Counting misses and hits side by side takes less time than picking out the hits.
    both = batch.tally(index.add(batch.correct, alpha=size), 2 * size)
    missed, hits = both[..., :size], both[..., size:]
    of_parts = both.shape[:-1]
    count, confidence = missed + hits, batch.tally(index, size, batch.confidence)
    return Bins(*(values.reshape(*of_parts, *shape) for values in (count, confidence, hits)))


def class_bins(batch: Batch, *, n_bins: NBins = 15, closed: Side = "right") -> Bins | SparseClassBins:
    """For each class, all samples by its probability; the event is that the class is the label. (k, n_bins)

    At most n_bins probabilities of a row can be above the first edge, so only those are binned one by one. The first
    bin is the rest of the column.

    n_bins  number of bins of equal width
    closed  which edge belongs to a bin: "right" is (lo, hi], "left" is [lo, hi)
    """
    k, size = batch.k, batch.k * n_bins
    probs = batch.probs if batch.from_logits else batch.scores
    # A little below the first edge, so that rounding cannot misplace a value: bin_index decides.
    flat = true_places(probs > (1 - 1e-6) / n_bins)
    value = probs.reshape(-1)[flat].double()
    row = flat // k
    cell = batch.parts[row] * size + flat % k * n_bins + bin_index(value, n_bins, closed)
    of_label = probs.gather(1, batch.labels[:, None]).squeeze(1)
    label_cell = batch.parts * size + batch.labels * n_bins + bin_index(of_label, n_bins, closed)
    if batch.n_parts * size > DENSE_BINS:
        return _sparse_class_bins(batch, n_bins, probs, row, cell, value, label_cell)
    count = torch.bincount(cell, None if batch.weights is None else batch.weights[row], minlength=batch.n_parts * size)
    confidence = torch.bincount(cell, batch.weighed(value, row), minlength=batch.n_parts * size)
    hits = torch.bincount(label_cell, batch.weights, minlength=batch.n_parts * size)
    count, confidence, hits = (values.reshape(-1, k, n_bins) for values in (count, confidence, hits))
    # Without rows bincount returns int64.
    count, confidence = count if batch.weights is None else count.double(), confidence.double()
    n = batch.count.reshape(-1, 1)
    others, total = count.sum(-1), _row_sums(batch, probs, batch.parts, batch.n_parts)
    some = above_rounding(n - others, n)
    count[..., 0] += (n - others) * some
    confidence[..., 0] += (total - confidence.sum(-1)) * some
    return Bins(count, confidence, hits) if batch.part is not None else Bins(count[0], confidence[0], hits[0])


def _sparse_class_bins(
    batch: Batch, n_bins: int, probs: Tensor, row: Tensor, cell: Tensor, value: Tensor, label_cell: Tensor
) -> SparseClassBins:
    counts, hits = batch.weighed(torch.ones_like(cell), row), batch.weighed(torch.ones_like(label_cell))
    cells = Cells.merge(
        [cell, label_cell],
        [counts, torch.zeros_like(hits)],
        [batch.weighed(value, row), torch.zeros_like(hits).double()],
        [torch.zeros_like(counts), hits],
    )
    part, place, rows = torch.unique(batch.parts, return_inverse=True, return_counts=True)
    if batch.weights is not None:
        rows = torch.bincount(place, batch.weights)
    shape = torch.tensor([batch.k, n_bins], device=probs.device)
    return SparseClassBins(*cells, shape, part, rows, _row_sums(batch, probs, place, len(part)))


def _row_sums(batch: Batch, rows: Tensor, part: Tensor, n_parts: int) -> Tensor:
    """The sum of the rows of each part. (n_parts, k) float64"""
    if batch.weights is not None:
        rows = rows * batch.weights[:, None]
    if n_parts == 1:
        return rows.sum(0, keepdim=True, dtype=torch.float64)
    return rows.new_zeros(n_parts, rows.shape[1], dtype=torch.float64).index_add_(0, part, rows.double())


# ---------------------------------------------------------------------------------------------------------------- sums


@dataclass(frozen=True)
class Sums(Additive):
    """A count and the sum of a per-sample value: over all samples (), or for each class (k,)."""

    count: Tensor
    total: Tensor

    @property
    def mean(self) -> Tensor:
        """NaN where there is no sample."""
        return self.total / self.count


def mean_metric(*, title: str, **claims: Unpack[MetricClaims]) -> Callable[[Callable[..., Tensor]], Metric]:
    """Register a metric that is the mean of a per-sample value (n,), which the decorated function returns."""

    def register(of_samples: Callable[..., Tensor]) -> Metric:
        @wraps(of_samples)
        def sums(batch: Columns, **options: Any) -> Sums:
            return Sums(batch.count, batch.sum(of_samples(batch, **options)))

        def mean(found: Sums) -> float:
            return float(found.mean)

        mean.__name__, mean.__doc__, mean.__module__ = of_samples.__name__, of_samples.__doc__, of_samples.__module__
        if of_samples in NARROW:
            narrow(sums)
        return metric(sums, title=title, **claims)(mean)

    return register


# ------------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class TopLabels(RankedSamples):
    """Each sample's confidence and whether its prediction was right. (n,)"""

    confidence: Tensor
    correct: Tensor
    weights: Tensor | None = None

    def _sorted(self) -> Self:
        """By confidence, lowest first; equal ones keep their order."""
        if self.weights is not None:
            return self.select(self.order())
        return type(self)(*stable_sort(self.confidence, self.correct))

    def order(self) -> Tensor:
        return stable_order(self.confidence)

    def gaps(self) -> tuple[Tensor, float]:
        """Correct minus confidence in order of confidence, times the weights, and what all samples count. (n,)"""
        confidence, correct, weights = self.ordered.confidence, self.ordered.correct, self.ordered.weights
        gaps = correct.double() - confidence
        return (gaps, float(len(gaps))) if weights is None else (gaps * weights, float(weights.sum()))


@narrow
def top_labels(batch: Columns) -> TopLabels:
    """Each sample's confidence and whether its prediction was right."""
    return TopLabels(batch.confidence, batch.correct, batch.weights)


@dataclass(frozen=True)
class FullRows(Samples):
    """Each sample's probabilities and label. (n, k) and (n,)"""

    probs: Tensor
    labels: Tensor
    weights: Tensor | None = None


def full_rows(batch: Batch) -> FullRows:
    """Each sample's probabilities and label."""
    return FullRows(batch.probs, batch.labels, batch.weights)
