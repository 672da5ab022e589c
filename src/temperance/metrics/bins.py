"""Bins of confidence: the statistic behind calibration errors and reliability diagrams.

Counts are int64 and sums float64: a float32 count stops at 16,777,216. Where there are so many bins that most are
empty, because there are many classes, only those that hold a sample are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.metrics.statistic import SLAB_VALUES, Additive, in_bytes, weighted

# Up to this many bins are laid out for a picture.
DRAWN_BINS = 1 << 24

# Sparse bins are not combined before this many bytes have come.
WAITING_BYTES = 1 << 20


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

    cell: Tensor
    count: Tensor
    confidence: Tensor
    hits: Tensor
    shape: Tensor

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        *fields, shapes = cls._fields_of(several)
        return cls(*merged_cells(*map(torch.cat, fields)), shapes[0])

    @property
    def form(self) -> tuple[int, ...]:
        return tuple(self.shape.tolist())

    def absorb(self, others: Sequence[Self]) -> Self:
        return type(self).combine([self, *others])

    @property
    def worth_waiting_for(self) -> int:
        # As much as there is, so that each cell takes part in few combinations.
        return max(WAITING_BYTES, 4 * self.cell.nbytes)

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

    def _all_cells(self) -> tuple[Tensor, ...]:
        return merged_cells(self.cell % self.per_part, self.count, self.confidence, self.hits)

    def _resampled_cells(self, weights: Tensor) -> Iterator[tuple[Tensor, ...]]:
        from scipy.sparse import csr_array  # here, because it takes a while to import

        part = (self.cell // self.per_part).cpu()
        cell, place = torch.unique(self.cell % self.per_part, return_inverse=True)
        at, shape = (place.cpu().numpy(), part.numpy()), (len(cell), weights.shape[1])
        values = (self.count, self.confidence, self.hits)
        matrices = [csr_array((v.double().cpu().numpy(), at), shape=shape) for v in values]
        for chosen in weights.double().split(max(1, SLAB_VALUES // max(len(cell), 1))):
            sums = [torch.from_numpy((matrix @ chosen.T.numpy()).T) for matrix in matrices]
            for each in zip(*sums, strict=True):
                yield cell, *(s.to(v.device, v.dtype) for s, v in zip(each, values, strict=True))

    def settled(self) -> OccupiedBins:
        return self._occupied(self.cell, self.count, self.confidence, self.hits)

    def _occupied(self, cell: Tensor, *values: Tensor) -> OccupiedBins:
        *classes, n_bins = self.shape.tolist()
        return OccupiedBins(*values, cell // n_bins, *(classes or [1]))

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
        parts = torch.unique(torch.cat([each.part for each in several]))
        k = several[0].total.shape[1]
        return cls._added(several, parts, torch.zeros_like(parts), several[0].total.new_zeros(len(parts), k))

    def absorb(self, others: Sequence[Self]) -> Self:
        if bool(torch.isin(torch.cat([each.part for each in others]), self.part).all()):
            return self._added(others, self.part, self.rows, self.total, self)
        return type(self).combine([self, *others])

    @classmethod
    def _added(cls, several: Sequence[Self], part: Tensor, rows: Tensor, total: Tensor, *first: Self) -> Self:
        """All of them together; `rows` and `total` take in those of several, and hold those of the first."""
        for each in several:
            place = torch.searchsorted(part, each.part)
            rows.index_add_(0, place, each.rows)
            total.index_add_(0, place, each.total)
        fields = cls._fields_of([*first, *several])[:4]
        return cls(*merged_cells(*map(torch.cat, fields)), several[0].shape, part, rows, total)

    @property
    def fixed_values(self) -> int:
        return self.total.shape[1]

    def whole(self) -> Self:
        rows, total = (tensor.sum(0, keepdim=True) for tensor in (self.rows, self.total))
        return type(self)(*self._all_cells(), self.shape, self.part.new_zeros(1), rows, total)

    def resampled(self, weights: Tensor) -> Iterator[Self]:
        cells, first = self._resampled_cells(weights), self.part.new_zeros(1)
        for chosen in weights.to(self.cell.device, torch.float64).split(max(1, SLAB_VALUES // self.total.shape[1])):
            drawn = chosen[:, self.part]
            for rows, total in zip(weighted(drawn, self.rows), weighted(drawn, self.total), strict=True):
                yield type(self)(*next(cells), self.shape, first, rows[None], total[None])

    def settled(self) -> OccupiedBins:
        return self._occupied(*self._with_first_bins())

    def dense(self) -> Bins:
        return self._laid_out(*self._with_first_bins())

    def _with_first_bins(self) -> tuple[Tensor, ...]:
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
        return tuple(torch.cat([a, b[other]]) for a, b in zip(firsts, others, strict=True))


def merged_cells(cell: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """The distinct cells in ascending order, and for each the sums of its values, in their types."""
    distinct, place = torch.unique(cell, return_inverse=True)
    sums = (torch.bincount(place, v.double(), minlength=len(distinct)).to(v.dtype) for v in values)
    return distinct, *sums


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
