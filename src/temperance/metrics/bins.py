"""Bins of confidence: the statistic behind calibration errors and reliability diagrams.

Counts are int64 and sums float64: a float32 count stops at 16,777,216. With weights a count is their sum, in float64.
With many classes most bins are empty; then only occupied bins are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.metrics.statistic import Additive, in_bytes, in_slabs, weighted
from temperance.numerics import bin_edges

# At most this many bins are laid out for a picture.
DRAWN_BINS = 1 << 24

# Sparse bins are collected until there are this many bytes of them, then combined.
WAITING_BYTES = 1 << 20

# The rounding error of a difference of two sums of weights, relative to the sums.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Bins(Additive):
    """Samples by confidence bin: how many, the sum of their confidence, how often the event happened. (..., n_bins)

    The last dimension is the bin. The one before it, if any, is the class.
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
        return self.count.double() / unless_empty(self.n)[..., None]

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
        return (self.hits - self.confidence) / unless_empty(self.count)

    @property
    def edges(self) -> Tensor:
        """(n_bins + 1,)"""
        return bin_edges(self.count.shape[-1])

    def by_class(self, values: Tensor) -> Tensor:
        """A value per bin, summed over the bins of each class. (k,)"""
        return values.sum(-1)


def unless_empty(count: Tensor) -> Tensor:
    """A count to divide by: 1 where it is 0. A sum of weights may lie in between."""
    return torch.where(count > 0, count, 1) if count.is_floating_point() else count.clamp_min(1)


def above_rounding(left: Tensor, n: Tensor) -> Tensor:
    """Where a remainder of n is more than rounding error: sums of weights are rounded, counts are exact."""
    return left > ROUNDING * n if left.is_floating_point() else torch.ones_like(left, dtype=torch.bool)


class Cells(NamedTuple):
    """Some bins: the number of each, its count, confidence and hits. (m,) each"""

    cell: Tensor
    counts: Tensor  # not `count`, which is a method of tuples
    confidence: Tensor
    hits: Tensor

    @classmethod
    def merge(
        cls, cell: Sequence[Tensor], counts: Sequence[Tensor], confidence: Sequence[Tensor], hits: Sequence[Tensor]
    ) -> Cells:
        """The distinct cells of several sets in ascending order, with the sums over each."""
        distinct, place = torch.unique(torch.cat(tuple(cell)), return_inverse=True)

        def summed(values: Sequence[Tensor]) -> Tensor:
            return torch.bincount(place, torch.cat(tuple(values)).double(), minlength=len(distinct)).to(values[0].dtype)

        return cls(distinct, summed(counts), summed(confidence), summed(hits))

    def of(self, chosen: Tensor) -> Cells:
        """The chosen cells."""
        return Cells(*(values[chosen] for values in self))


@dataclass(frozen=True)
class OccupiedBins(Bins):
    """The occupied bins in one row, from which a metric is computed if most bins are empty; they do not add. (m,)"""

    of_class: Tensor
    k: int

    def by_class(self, values: Tensor) -> Tensor:
        return torch.bincount(self.of_class, values.double(), minlength=self.k)


@dataclass(frozen=True)
class SparseBins(Additive):
    """Like `Bins`, for when most bins, parts included, are empty: only occupied ones are stored.

    cell                     (m,) bin numbers in ascending order, by part, class and bin
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
        return cls(*cls._all_cells(several), several[0].shape)

    @classmethod
    def _all_cells(cls, several: Sequence[Self]) -> Cells:
        cell, count, confidence, hits, *_ = cls._fields_of(several)
        return Cells.merge(cell, count, confidence, hits)

    def absorb(self, others: Sequence[Self]) -> Self:
        return type(self).combine([self, *others])

    @property
    def worth_waiting_for(self) -> int:
        # A quarter of the current size: each cell is then combined few times, and little memory is held.
        return max(WAITING_BYTES, self.cell.nbytes)

    @property
    def form(self) -> tuple[int, ...]:
        return tuple(self.shape.tolist())

    @property
    def fixed_values(self) -> int:
        return 0

    def most_bytes(self, n_parts: int) -> int:
        return 8 * n_parts * (len(Cells._fields) * self.per_part + self.fixed_values)

    @property
    def per_part(self) -> int:
        """The number of bins of one part, including empty ones."""
        return math.prod(self.form)

    def occupied(self) -> Cells:
        """The occupied bins."""
        return Cells(self.cell, self.count, self.confidence, self.hits)

    def whole(self) -> Self:
        return type(self)(*self._cells_of_all_parts(), self.shape)

    def _cells_of_all_parts(self) -> Cells:
        return Cells.merge([self.cell % self.per_part], [self.count], [self.confidence], [self.hits])

    def resampled(self, weights: Tensor) -> Iterator[Self]:
        yield from (type(self)(*cells, self.shape) for cells in self._resampled_cells(weights))

    def _resampled_cells(self, weights: Tensor) -> Iterator[Cells]:
        from scipy.sparse import csr_array  # here, because it takes a while to import

        cell, place = torch.unique(self.cell % self.per_part, return_inverse=True)
        at = place.cpu().numpy(), (self.cell // self.per_part).cpu().numpy()
        values = (self.count, self.confidence, self.hits)
        matrices = [csr_array((v.double().cpu().numpy(), at), shape=(len(cell), weights.shape[1])) for v in values]
        for drawn in in_slabs(weights, len(cell)):
            sums = [torch.from_numpy((matrix @ drawn.T.numpy()).T) for matrix in matrices]
            for count, confidence, hits in zip(*sums, strict=True):
                yield Cells(
                    cell, *(s.to(v.device, v.dtype) for s, v in zip((count, confidence, hits), values, strict=True))
                )

    def settled(self) -> OccupiedBins:
        cells = self.occupied()
        k = self.form[0] if len(self.form) > 1 else 1
        return OccupiedBins(cells.counts, cells.confidence, cells.hits, cells.cell // self.form[-1], k)

    def dense(self) -> Bins:
        """Every bin, for a picture. (n_bins,) or (k, n_bins)"""
        if self.per_part > DRAWN_BINS:
            size = " × ".join(f"{size:,}" for size in self.form)
            taken = in_bytes(24 * self.per_part)
            raise InputError(
                f"{size} bins are too many for a picture: they would take {taken}. Choose a smaller n_bins",
                flags={"n_bins": "--n-bins"},
            )
        cell, *values = self.occupied()
        count, confidence, hits = (
            v.new_zeros(self.per_part).index_copy_(0, cell, v).reshape(self.form) for v in values
        )
        return Bins(count, confidence, hits)


@dataclass(frozen=True)
class SparseClassBins(SparseBins):
    """Sparse bins of all probabilities of a row, nearly all of which are in the first bin of their class.

    Only those above it, and the labels, have cells. The first bin is the total minus the others.

    part   (q,) the parts that have samples, in ascending order
    rows   (q,) the number of their samples
    total  (q, k) the sum of each class's probability
    """

    part: Tensor
    rows: Tensor
    total: Tensor

    @classmethod
    def combine(cls, several: Sequence[Self]) -> Self:
        part = torch.unique(torch.cat([each.part for each in several]))
        first = several[0]
        rows, total = first.rows.new_zeros(len(part)), first.total.new_zeros(len(part), first.form[0])
        for each in several:
            each._add_to(part, rows, total)
        return cls(*cls._all_cells(several), several[0].shape, part, rows, total)

    def absorb(self, others: Sequence[Self]) -> Self:
        if not bool(torch.isin(torch.cat([each.part for each in others]), self.part).all()):
            return super().absorb(others)
        for each in others:
            each._add_to(self.part, self.rows, self.total)
        return type(self)(*self._all_cells([self, *others]), self.shape, self.part, self.rows, self.total)

    def _add_to(self, part: Tensor, rows: Tensor, total: Tensor) -> None:
        """Add this to the sums of a larger set of parts, in place."""
        place = torch.searchsorted(part, self.part)
        rows.index_add_(0, place, self.rows)
        total.index_add_(0, place, self.total)

    @property
    def fixed_values(self) -> int:
        return self.form[0]

    def whole(self) -> Self:
        rows, total = (tensor.sum(0, keepdim=True) for tensor in (self.rows, self.total))
        return type(self)(*self._cells_of_all_parts(), self.shape, self.part.new_zeros(1), rows, total)

    def resampled(self, weights: Tensor) -> Iterator[Self]:
        cells, only = self._resampled_cells(weights), self.part.new_zeros(1)
        for drawn in in_slabs(weights.to(self.cell.device)[:, self.part], self.form[0]):
            for rows, total in zip(weighted(drawn, self.rows), weighted(drawn, self.total), strict=True):
                yield type(self)(*next(cells), self.shape, only, rows[None], total[None])

    def occupied(self) -> Cells:
        # The first bins of all classes, then the others.
        k, n_bins = self.form
        given = super().occupied()
        first = given.of(given.cell % n_bins == 0)
        others = given.of(given.cell % n_bins != 0)
        of_class = others.cell // n_bins
        count = self.rows - torch.bincount(of_class, others.counts.double(), minlength=k).to(self.rows.dtype)
        confidence = self.total[0] - torch.bincount(of_class, others.confidence, minlength=k)
        some = above_rounding(count, self.rows)
        count, confidence = count * some, confidence * some
        hits = torch.zeros_like(count).index_copy_(0, first.cell // n_bins, first.hits)
        every = Cells(torch.arange(k, device=count.device) * n_bins, count, confidence, hits)
        return Cells(*(torch.cat(pair) for pair in zip(every, others, strict=True)))


def bin_index(confidence: Tensor, n_bins: int, closed: str) -> Tensor:
    """The equal-width bin of each confidence, in int32: (lo, hi] if `closed` is "right", [lo, hi) if "left"."""
    scaled = confidence.double() * n_bins
    # int() truncates. For (lo, hi] that is done from above; ceil() would wake torch's threads.
    index = n_bins - 1 - (n_bins - scaled).int() if closed == "right" else scaled.int()
    # A float32 times n_bins is exact in float64. Other products are rounded, so values near an edge are compared with
    # the edge itself.
    if confidence.dtype != torch.float32 or n_bins > 1 << 14:
        nearest = scaled.round()
        near = ((nearest - scaled).abs_() < 1e-9 + 1e-15 * n_bins).nonzero().squeeze(1)
        if len(near):
            edge, value = nearest[near], confidence[near].double()
            below = value <= edge / n_bins if closed == "right" else value < edge / n_bins
            index[near] = edge.int() - below.int()
    return index.clamp_(0, n_bins - 1)
