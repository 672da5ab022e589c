"""The statistics that metrics are values of: bins, sums, and rows that are kept.

Counts are int64 and sums float64: a float32 count stops at 16,777,216.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from temperance.errors import InputError, at_least, one_of
from temperance.metrics.batch import Batch, Columns, narrow
from temperance.metrics.statistic import SLAB_VALUES, Additive, RankedSamples, Samples, in_bytes, weighted
from temperance.numerics import bin_sums, stable_sort, true_places

# Up to this many bins, parts included, are kept even where they are empty.
DENSE_BINS = 1 << 17

# Up to this many bins are laid out for a picture.
DRAWN_BINS = 1 << 24

# Finer edges would be as close to each other as float64 numbers.
MOST_BINS = 1 << 30

# ---------------------------------------------------------------------------------------------------------------- bins


@dataclass(frozen=True)
class Bins(Additive):
    """Samples by confidence bin: how many, the sum of their confidence, how often the event happened. (..., n_bins)

    The last dimension is the bin. The one before it, where there is one, is the class.
    """

    count: Tensor
    confidence: Tensor
    hits: Tensor

    @property
    def n(self) -> Tensor:
        """Samples in all bins. (...)"""
        return self.count.sum(-1)

    @property
    def weight(self) -> Tensor:
        """Each bin's share of the samples. (..., n_bins)"""
        return self.count.double() / self.n.clamp_min(1)[..., None]

    @property
    def mean_confidence(self) -> Tensor:
        """NaN where a bin is empty. (..., n_bins)"""
        return self.confidence / self.count

    @property
    def frequency(self) -> Tensor:
        """How often the event happened; NaN where a bin is empty. (..., n_bins)"""
        return self.hits.double() / self.count

    @property
    def gap(self) -> Tensor:
        """Frequency minus mean confidence, 0 in an empty bin: negative is over-confident. (..., n_bins)"""
        return (self.hits - self.confidence) / self.count.clamp_min(1)

    @property
    def edges(self) -> Tensor:
        """(n_bins + 1,)"""
        return bin_edges(self.count.shape[-1])

    def by_class(self, values: Tensor) -> Tensor:
        """A value per bin, summed over the bins of each class. (k,)"""
        return values.sum(-1)


# Numbers of bins, and of the samples in each: how many, the sum of their confidence, how often the event happened. (m,)
Cells = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class OccupiedBins(Bins):
    """The bins that hold a sample, in one row: what a value is computed from where most are empty. (m,)

    It does not add.
    """

    of_class: Tensor
    k: int

    def by_class(self, values: Tensor) -> Tensor:
        return torch.bincount(self.of_class, values.double(), minlength=self.k)


@dataclass(frozen=True)
class SparseBins(Additive):
    """As `Bins`, for so many bins, parts included, that most are empty: only those that hold a sample are kept.

    cell                     (m,) which bins, in ascending order; those of a class or a part follow each other
    count, confidence, hits  (m,)
    shape                    of the bins of one part: (n_bins,) or (k, n_bins)
    """

    has_fixed_size: ClassVar[bool] = False

    cell: Tensor
    count: Tensor
    confidence: Tensor
    hits: Tensor
    shape: Tensor

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        *fields, shapes = cls._fields_of(several)
        return cls(*_gathered(*map(torch.cat, fields)), shapes[0])

    @property
    def form(self) -> tuple[int, ...]:
        return tuple(self.shape.tolist())

    @property
    def per_part(self) -> int:
        """The number of bins of one part."""
        return int(self.shape.prod())

    @property
    def fixed_values(self) -> int:
        return 0

    def whole(self) -> Self:
        return type(self)(*self._all_cells(), self.shape)

    def resampled(self, weights: Tensor) -> Iterator[Self]:
        yield from (type(self)(*cells, self.shape) for cells in self._resampled_cells(weights))

    def _all_cells(self) -> Cells:
        return _gathered(self.cell % self.per_part, self.count, self.confidence, self.hits)

    def _resampled_cells(self, weights: Tensor) -> Iterator[Cells]:
        from scipy.sparse import csr_array  # here, because it takes a while to import

        part = (self.cell // self.per_part).cpu()
        cell, place = torch.unique(self.cell % self.per_part, return_inverse=True)
        at, shape = (place.cpu().numpy(), part.numpy()), (len(cell), weights.shape[1])
        values = (self.count, self.confidence, self.hits)
        matrices = [csr_array((v.double().cpu().numpy(), at), shape=shape) for v in values]
        for chosen in torch.split(weights.double(), max(1, SLAB_VALUES // max(len(cell), 1))):
            sums = [torch.from_numpy((matrix @ chosen.T.numpy()).T) for matrix in matrices]
            for each in zip(*sums, strict=True):
                count, confidence, hits = (s.to(v.device, v.dtype) for s, v in zip(each, values, strict=True))
                yield cell, count, confidence, hits

    def settled(self) -> OccupiedBins:
        return self._occupied(self.cell, self.count, self.confidence, self.hits)

    def _occupied(self, cell: Tensor, count: Tensor, confidence: Tensor, hits: Tensor) -> OccupiedBins:
        *classes, n_bins = self.shape.tolist()
        return OccupiedBins(count, confidence, hits, cell // n_bins, classes[0] if classes else 1)

    def dense(self) -> Bins:
        """Every bin, for a picture. (n_bins,) or (k, n_bins)"""
        return self._laid_out(self.cell, self.count, self.confidence, self.hits)

    def _laid_out(self, cell: Tensor, *values: Tensor) -> Bins:
        if self.per_part > DRAWN_BINS:
            size = " × ".join(f"{size:,}" for size in self.shape.tolist())
            raise InputError(
                f"{size} bins are too many for a picture: they would take {in_bytes(24 * self.per_part)}. "
                f"Choose a smaller n_bins"
            )
        laid_out = (v.new_zeros(self.per_part).index_copy_(0, cell, v).reshape(self.shape.tolist()) for v in values)
        return Bins(*laid_out)


@dataclass(frozen=True)
class SparseClassBins(SparseBins):
    """Sparse bins of all probabilities of a row: nearly all of them are in the first bin of their class.

    Those above it have cells of their own, as have the labels. The first bin is what is left of all samples.

    part   (q,) the parts that have samples
    rows   (q,) how many
    total  (q, k) the sum of each class's probability
    """

    part: Tensor
    rows: Tensor
    total: Tensor

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        *fields, shapes, part, rows, total = cls._fields_of(several)
        parts, place = torch.unique(torch.cat(part), return_inverse=True)
        all_rows = torch.zeros_like(parts).index_add_(0, place, torch.cat(rows))
        all_total = total[0].new_zeros(len(parts), total[0].shape[1])
        for at, each in zip(torch.split(place, [len(p) for p in part]), total, strict=True):
            all_total.index_add_(0, at, each)
        return cls(*_gathered(*map(torch.cat, fields)), shapes[0], parts, all_rows, all_total)

    @property
    def fixed_values(self) -> int:
        return self.total.shape[1]

    def whole(self) -> Self:
        rows, total = (tensor.sum(0, keepdim=True) for tensor in (self.rows, self.total))
        return type(self)(*self._all_cells(), self.shape, self.part.new_zeros(1), rows, total)

    def resampled(self, weights: Tensor) -> Iterator[Self]:
        cells, first = self._resampled_cells(weights), self.part.new_zeros(1)
        slab = max(1, SLAB_VALUES // self.total.shape[1])
        for chosen in torch.split(weights.to(self.cell.device, torch.float64), slab):
            drawn = chosen[:, self.part]
            for rows, total in zip(weighted(drawn, self.rows), weighted(drawn, self.total), strict=True):
                yield type(self)(*next(cells), self.shape, first, rows[None], total[None])

    def settled(self) -> OccupiedBins:
        return self._occupied(*self._with_first_bins())

    def dense(self) -> Bins:
        return self._laid_out(*self._with_first_bins())

    def _with_first_bins(self) -> Cells:
        """Every cell that holds a sample, the first of each class before the others."""
        k, n_bins = self.shape.tolist()
        other = self.cell % n_bins != 0
        of_class = self.cell // n_bins
        count, confidence = (
            whole - torch.bincount(of_class[other], values[other].double(), minlength=k).to(values.dtype)
            for whole, values in ((self.rows, self.count), (self.total[0], self.confidence))
        )
        hits = self.hits.new_zeros(k).index_copy_(0, of_class[~other], self.hits[~other])
        first = torch.arange(k, device=of_class.device) * n_bins
        firsts, others = (first, count, confidence, hits), (self.cell, self.count, self.confidence, self.hits)
        cell, count, confidence, hits = (torch.cat([a, b[other]]) for a, b in zip(firsts, others, strict=True))
        return cell, count, confidence, hits


def _gathered(cell: Tensor, count: Tensor, confidence: Tensor, hits: Tensor) -> Cells:
    """The distinct cells in ascending order, and for each the sums of its values, in their types."""
    distinct, place = torch.unique(cell, return_inverse=True)
    counted, summed, hit = (
        torch.bincount(place, values.double(), minlength=len(distinct)).to(values.dtype)
        for values in (count, confidence, hits)
    )
    return distinct, counted, summed, hit


def bin_edges(n_bins: int) -> Tensor:
    """Edges of equal-width bins, each as close to i / n_bins as a float64 can be (linspace is not)."""
    return torch.arange(n_bins + 1, dtype=torch.float64) / n_bins


def bin_index(confidence: Tensor, n_bins: int, closed: str) -> Tensor:
    """The equal-width bin of each confidence, in int32: (lo, hi] if `closed` is "right", [lo, hi) if "left"."""
    scaled = confidence.double() * n_bins
    # int() cuts off the fraction. For (lo, hi] that is done from above; ceil() would wake torch's threads.
    index = n_bins - 1 - (n_bins - scaled).int() if closed == "right" else scaled.int()
    # A float32 times n_bins is exact in float64. Other products are rounded, so values beside an edge are compared with
    # the edge itself.
    if confidence.dtype != torch.float32 or n_bins > 1 << 14:
        nearest = scaled.round()
        near = ((nearest - scaled).abs_() < 1e-9 + 1e-15 * n_bins).nonzero().squeeze(1)
        if len(near):
            edge, value = nearest[near], confidence[near].double()
            below = value <= edge / n_bins if closed == "right" else value < edge / n_bins
            index[near] = edge.int() - below.int()
    return index.clamp_(0, n_bins - 1)


@narrow
def top_label_bins(batch: Columns, *, n_bins: int = 15, closed: str = "right") -> Bins | SparseBins:
    """Samples by the confidence of their predicted class; the event is that it is right. (n_bins,)"""
    _check_binning(n_bins, closed)
    if batch.part is None and n_bins <= DENSE_BINS:
        quick = bin_sums(batch.own_confidence, batch.correct, bin_edges(n_bins), closed=closed)
        if quick is not None:
            return Bins(*quick)
    return _binned(batch, bin_index(batch.own_confidence, n_bins, closed), (n_bins,))


def predicted_class_bins(batch: Batch, *, n_bins: int = 15, closed: str = "right") -> Bins | SparseBins:
    """As `top_label_bins`, separately for each predicted class. (k, n_bins)"""
    _check_binning(n_bins, closed)
    index = batch.prediction * n_bins + bin_index(batch.own_confidence, n_bins, closed)
    return _binned(batch, index, (batch.k, n_bins))


def _binned(batch: Columns, index: Tensor, shape: tuple[int, ...]) -> Bins | SparseBins:
    """Samples by the bin of each, (n,) numbers of bins of this shape."""
    size = torch.Size(shape).numel()
    if batch.n_parts * size > DENSE_BINS:
        cell = index.long() if batch.part is None else batch.part * size + index
        hits = batch.correct.long()
        cells = _gathered(cell, torch.ones_like(hits), batch.confidence, hits)
        return SparseBins(*cells, torch.tensor(shape, device=cell.device))
    # Misses and hits side by side: to count both at once takes less time than to pick out the hits.
    both = batch.tally(index.add(batch.correct, alpha=size), 2 * size)
    missed, hit = both.reshape(*both.shape[:-1], 2, *shape).unbind(-1 - len(shape))
    confidence = batch.tally(index, size, batch.confidence).reshape(hit.shape)
    return Bins(missed + hit, confidence, hit)


def class_bins(batch: Batch, *, n_bins: int = 15, closed: str = "right") -> Bins | SparseClassBins:
    """For each class all samples by its probability; the event is that it is the label. (k, n_bins)

    At most n_bins probabilities of a row can be above the first edge, so only those are binned one by one. The first
    bin is what is left of the column.
    """
    _check_binning(n_bins, closed)
    k, device = batch.k, batch.labels.device
    probs = batch.probs if batch.from_logits else batch.scores
    # A little below the first edge, so that rounding cannot misplace a value: bin_index decides.
    flat = true_places(probs > (1 - 1e-6) / n_bins)
    value = probs.reshape(-1)[flat].double()
    of_label = probs.gather(1, batch.labels[:, None]).squeeze(1)
    cell = flat % k * n_bins + bin_index(value, n_bins, closed)
    label_cell = batch.labels * n_bins + bin_index(of_label, n_bins, closed)
    size = k * n_bins
    if batch.part is not None:
        cell += batch.part[flat // k] * size
        label_cell += batch.part * size
    if batch.n_parts * size > DENSE_BINS:
        nothing, one = torch.zeros_like(label_cell), torch.ones_like(label_cell)
        cells = _gathered(
            torch.cat([cell, label_cell]),
            torch.cat([torch.ones_like(cell), nothing]),
            torch.cat([value, nothing.double()]),
            torch.cat([torch.zeros_like(cell), one]),
        )
        part = torch.zeros_like(batch.labels) if batch.part is None else batch.part
        parts, place, rows = torch.unique(part, return_inverse=True, return_counts=True)
        shape = torch.tensor([k, n_bins], device=device)
        return SparseClassBins(*cells, shape, parts, rows, _row_sums(probs, place, len(parts)))
    of_parts = () if batch.part is None else (batch.n_parts,)
    count, confidence, hits = (
        torch.bincount(index, weights, minlength=batch.n_parts * size).reshape(*of_parts, k, n_bins)
        for index, weights in ((cell, None), (cell, value), (label_cell, None))
    )
    # bincount forgets the type of its weights when there are none.
    confidence = confidence.double()
    total = _row_sums(probs, torch.zeros_like(batch.labels) if batch.part is None else batch.part, batch.n_parts)
    count[..., 0] += batch.count[..., None] - count.sum(-1)
    confidence[..., 0] += total.reshape(*of_parts, k) - confidence.sum(-1)
    return Bins(count, confidence, hits)


def _row_sums(rows: Tensor, part: Tensor, n_parts: int) -> Tensor:
    """The rows of each part, added up. (n_parts, k) float64"""
    if n_parts == 1:
        return rows.sum(0, keepdim=True, dtype=torch.float64)
    return rows.new_zeros(n_parts, rows.shape[1], dtype=torch.float64).index_add_(0, part, rows.double())


def _check_binning(n_bins: int, closed: str) -> None:
    at_least("n_bins", n_bins, 1)
    if n_bins > MOST_BINS:
        raise InputError(f"n_bins must be at most {MOST_BINS:,}; got {n_bins:,}")
    one_of("closed", closed, ("right", "left"))


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


def summed(batch: Columns, values: Tensor) -> Sums:
    """Per-sample values as a count and a sum."""
    return Sums(batch.count, batch.sum(values))


# ------------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class TopLabels(RankedSamples):
    """Each sample's confidence and whether its prediction was right. (n,)"""

    confidence: Tensor
    correct: Tensor

    def _sorted(self) -> Self:
        """By confidence, the lowest first; equal ones as they came."""
        return type(self)(*stable_sort(self.confidence, self.correct))


@narrow
def top_labels(batch: Columns) -> TopLabels:
    """Each sample's confidence and whether its prediction was right."""
    return TopLabels(batch.confidence, batch.correct)


@dataclass(frozen=True)
class FullRows(Samples):
    """Each sample's probabilities and label. (n, k) and (n,)"""

    probs: Tensor
    labels: Tensor


def full_rows(batch: Batch) -> FullRows:
    """Each sample's probabilities and label."""
    return FullRows(batch.probs, batch.labels)
