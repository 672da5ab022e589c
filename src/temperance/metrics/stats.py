"""Statistics that add: those of two sets of rows sum to those of both together.

Every metric is a value of one of these. So files in chunks, streams, several processes, bootstrap resamples and plots
all share one source, and a picture cannot disagree with a number. Counts are int64 and sums float64: a float32 count
stops at 16,777,216.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from temperance.errors import InputError, at_least, one_of
from temperance.metrics.batch import Batch, narrow
from temperance.numerics import bin_sums


@dataclass(frozen=True)
class Statistic:
    """Named tensors that describe a set of rows, and how two sets combine."""

    def __add__(self, other: Self) -> Self:
        return type(self).combine([self, other])

    @classmethod
    def combine(cls, parts: Sequence[Self]) -> Self:
        """The statistic of all parts together."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, to store or to send to another process."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def _fields_of(cls, parts: Sequence[Self]) -> list[list[Tensor]]:
        if any(type(part) is not cls for part in parts):
            raise InputError(f"only statistics of one kind add; got {', '.join(type(p).__name__ for p in parts)}")
        return [[getattr(part, f.name) for part in parts] for f in dataclasses.fields(cls)]


@dataclass(frozen=True)
class Additive(Statistic):
    """A statistic of fixed size: its tensors sum."""

    @classmethod
    def combine(cls, parts: Sequence[Self]) -> Self:
        fields = cls._fields_of(parts)
        shapes = {tuple(tensor.shape) for tensor in fields[0]}
        if len(shapes) > 1:
            raise InputError(f"statistics of other n_bins or other classes do not add: shapes {sorted(shapes)}")
        return cls(*(functools.reduce(torch.add, tensors) for tensors in fields))

    @classmethod
    def weighted(cls, parts: Sequence[Self], weights: Tensor) -> list[Self]:
        """For each row of `weights` (resamples, parts) the sum in which a part counts as often as its weight says."""
        summed = []
        for tensors in cls._fields_of(parts):
            stacked = torch.stack(tensors)
            flat = weights.to(torch.float64) @ stacked.reshape(len(parts), -1).to(torch.float64)
            summed.append(flat.to(stacked.dtype).reshape(len(weights), *stacked.shape[1:]))
        return [cls(*fields) for fields in zip(*summed, strict=True)]


@dataclass(frozen=True)
class Samples(Statistic):
    """Rows that are kept whole, for metrics that need their order: it grows with the data."""

    @classmethod
    def combine(cls, parts: Sequence[Self]) -> Self:
        return cls(*(torch.cat(tensors) for tensors in cls._fields_of(parts)))

    def select(self, index: Tensor) -> Self:
        """Some of the rows, in the order of `index`."""
        return type(self)(*(tensor[index] for tensor in self.tensors().values()))

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))


# ---------------------------------------------------------------------------------------------------------------- bins


@dataclass(frozen=True)
class Bins(Additive):
    """Samples by confidence bin: how many, the sum of their confidence, how often the event happened. (..., n_bins)

    The last dimension is the bin; a leading one, where there is one, is the class.
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


def bin_edges(n_bins: int) -> Tensor:
    """Edges of equal-width bins, each as close to i / n_bins as a float64 can be (linspace is not)."""
    return torch.arange(n_bins + 1, dtype=torch.float64) / n_bins


def bin_index(confidence: Tensor, n_bins: int, closed: str) -> Tensor:
    """The equal-width bin of each confidence, in int32: (lo, hi] if `closed` is "right", [lo, hi) if "left"."""
    scaled = confidence.double() * n_bins
    # int() cuts off what is behind the point. For (lo, hi] that is done from above; ceil() would wake torch's threads.
    index = n_bins - 1 - (n_bins - scaled).int() if closed == "right" else scaled.int()
    # A float32 times n_bins is exact in float64. Other products are rounded, so values beside an edge are looked up
    # among the edges themselves; a search for all is slower.
    if confidence.dtype != torch.float32 or n_bins > 1 << 14:
        near = (scaled.round().sub_(scaled).abs_() < 1e-9).nonzero().squeeze(1)
        if len(near):
            edges = bin_edges(n_bins).to(confidence.device)
            found = torch.searchsorted(edges, confidence[near].double(), right=closed == "left", out_int32=True)
            index[near] = found - 1
    return index.clamp_(0, n_bins - 1)


def _binned(index: Tensor, confidence: Tensor, hits: Tensor, shape: tuple[int, ...]) -> Bins:
    size = torch.Size(shape).numel()
    # Misses and hits side by side: to count both at once takes less time than to pick out the hits.
    missed, hit = torch.bincount(index.add(hits, alpha=size), minlength=2 * size).reshape(2, *shape)
    return Bins(missed + hit, torch.bincount(index, confidence, minlength=size).reshape(shape), hit)


@narrow
def top_label_bins(batch: Batch, *, n_bins: int = 15, closed: str = "right") -> Bins:
    """Samples by the confidence of their predicted class; the event is that it is right. (n_bins,)"""
    _check_binning(n_bins, closed)
    quick = bin_sums(batch.own_confidence, batch.correct, bin_edges(n_bins), closed=closed)
    if quick is not None:
        return Bins(*quick)
    return _binned(bin_index(batch.own_confidence, n_bins, closed), batch.confidence, batch.correct, (n_bins,))


def predicted_class_bins(batch: Batch, *, n_bins: int = 15, closed: str = "right") -> Bins:
    """As `top_label_bins`, separately for each predicted class. (k, n_bins)"""
    _check_binning(n_bins, closed)
    index = batch.prediction * n_bins + bin_index(batch.own_confidence, n_bins, closed)
    return _binned(index, batch.confidence, batch.correct, (batch.k, n_bins))


def class_bins(batch: Batch, *, n_bins: int = 15, closed: str = "right") -> Bins:
    """For each class all samples by its probability; the event is that it is the label. (k, n_bins)

    At most n_bins probabilities of a row can be above the first edge, so only those are binned one by one; the first
    bin is what is left of the column.
    """
    _check_binning(n_bins, closed)
    probs = batch.probs if batch.from_logits else batch.scores
    # A little below the first edge, so that rounding cannot misplace a value: bin_index decides.
    flat = (probs > (1 - 1e-6) / n_bins).reshape(-1).nonzero().squeeze(1)
    value = probs.reshape(-1)[flat].double()
    index = (flat % batch.k) * n_bins + bin_index(value, n_bins, closed)
    shape = (batch.k, n_bins)
    count = torch.bincount(index, minlength=batch.k * n_bins).reshape(shape)
    # bincount forgets the type of its weights when there are none.
    confidence = torch.bincount(index, value, minlength=batch.k * n_bins).double().reshape(shape)
    count[:, 0] += len(batch) - count.sum(1)
    confidence[:, 0] += probs.sum(0, dtype=torch.float64) - confidence.sum(1)
    label_index = batch.labels * n_bins + bin_index(batch.label_prob, n_bins, closed)
    return Bins(count, confidence, torch.bincount(label_index, minlength=batch.k * n_bins).reshape(shape))


def _check_binning(n_bins: int, closed: str) -> None:
    at_least("n_bins", n_bins, 1)
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


def summed(values: Tensor) -> Sums:
    """Per-sample values as a count and a sum."""
    return Sums(torch.tensor(len(values), device=values.device), values.sum(dtype=torch.float64))


# ------------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class TopLabels(Samples):
    """Each sample's confidence and whether its prediction was right. (n,)"""

    confidence: Tensor
    correct: Tensor


@narrow
def top_labels(batch: Batch) -> TopLabels:
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
