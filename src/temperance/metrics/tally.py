"""Tallies of predictions and their outcomes, and a test of them: could this many hits be chance?

If a model's confidence is right, the hits of any set of its predictions are a sum of independent events, each with
probability equal to its confidence c: a Poisson-binomial variable with mean Σc and variance Σc(1 − c). Four sums are
enough to test that, and they add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from temperance.metrics.batch import Batch
from temperance.metrics.bins import bin_index
from temperance.metrics.gain import holm
from temperance.metrics.statistic import Additive

BINS = 15  # as the default of ECE
MOST_BINS = 100  # with more, few would have enough samples for a test
DRAWS = 1999  # simulated errors of a calibrated model
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Tally(Additive):
    """The number of predictions, the sums of their confidence and its square, and how many were right. (...)"""

    count: Tensor
    confidence: Tensor
    squares: Tensor
    hits: Tensor

    @property
    def mean_confidence(self) -> Tensor:
        """Mean confidence; NaN without a prediction. (...)"""
        return self.confidence / self.count

    @property
    def accuracy(self) -> Tensor:
        """Accuracy; NaN without a prediction. (...)"""
        return self.hits.double() / self.count

    @property
    def gap(self) -> Tensor:
        """Mean confidence minus accuracy, 0 without a prediction: positive is over-confident. (...)"""
        return (self.confidence - self.hits) / self.count.clamp_min(1)

    @property
    def variance(self) -> Tensor:
        """The variance of the hits, if confidence is right. (...)"""
        # Rows may sum to a little more than 1, so confidences may exceed it.
        return (self.confidence - self.squares).clamp_min(0)

    def closer(self, by: float) -> Self:
        """The entries if every confidence were nearer to the accuracy by at most this, as before rounding."""
        shift = -self.gap.clamp(-by, by)
        confidence = self.confidence + shift * self.count
        squares = self.squares + shift * (self.confidence + confidence)
        return replace(self, confidence=confidence, squares=squares)

    def total(self) -> Self:
        """The sum of all entries. ()"""
        return self.mapped(torch.sum)

    def of(self, index: Tensor | slice) -> Self:
        """Some of the entries."""
        return self.mapped(lambda tensor: tensor[index])

    def beside(self, other: Self) -> Self:
        """The entries of both, concatenated."""
        both = zip(self.tensors().values(), other.tensors().values(), strict=True)
        return type(self)(*(torch.cat(pair) for pair in both))


def confidence_tally(batch: Batch, n_bins: int = BINS) -> Tally:
    """Predictions by their confidence, in the bins of ECE. (n_bins,)"""
    return _tallied(batch, bin_index(batch.own_confidence, n_bins, "right"), n_bins)


def class_tally(batch: Batch) -> Tally:
    """Predictions by predicted class. (k,)"""
    return _tallied(batch, batch.prediction, batch.k)


def tally_by(batch: Batch, of_row: Tensor, size: int, n_bins: int = BINS) -> Tally:
    """Predictions by a number below `size` that each row has, and by confidence. (size, n_bins)"""
    found = _tallied(batch, of_row * n_bins + bin_index(batch.own_confidence, n_bins, "right"), size * n_bins)
    return found.mapped(lambda tensor: tensor.reshape(size, n_bins))


def _tallied(batch: Batch, index: Tensor, size: int) -> Tally:
    confidence = batch.confidence
    sums = (torch.bincount(index, each, minlength=size) for each in (confidence, confidence.square()))
    outcomes = torch.bincount(2 * index + batch.correct, minlength=2 * size).view(size, 2)
    return Tally(*(each.cpu() for each in (outcomes.sum(1), *sums, outcomes[:, 1])))


def tallied(found: Iterable[Batch], into: list[Tally], n_bins: int = BINS) -> Iterator[Batch]:
    """Pass the batches on unchanged, and tally them in `into`, by confidence and by class."""
    for batch in found:
        new = [confidence_tally(batch, min(n_bins, MOST_BINS)), class_tally(batch)]
        into[:] = [old + more for old, more in zip(into, new, strict=True)] if into else new
        yield batch


def positive_tally(by_class: Tally) -> Tally:
    """The probability of class 1 of two, for every sample; a hit is a sample of class 1. (1,)"""
    negative, positive = by_class.of(slice(0, 1)), by_class.of(slice(1, 2))
    return Tally(
        negative.count + positive.count,
        negative.count - negative.confidence + positive.confidence,
        negative.count - 2 * negative.confidence + negative.squares + positive.squares,
        negative.count - negative.hits + positive.hits,
    )


def p_values(tally: Tally) -> Tensor:
    """The p-value of each entry: how likely hits at least this far off are if confidence is right. (...)

    Twice the smaller tail. The tail of a Poisson-binomial variable is close to that of a binomial one of the same mean
    and variance, which can be matched to the hits or to the misses. Its skewness lies between those of the two, so the
    larger of the two tails is taken. Where the exact p-value is at most 0.1, this one was never below it by more than a
    relative 1e-4, for any number of samples; larger ones, which decide nothing, may be a few percent too small. Without
    predictions the p-value is 1.
    """
    n, confidence = tally.count.double(), tally.confidence
    many, few = _tails(n, confidence, tally.squares, tally.hits)
    few_misses, many_misses = reversed(_tails(n, n - confidence, n - 2 * confidence + tally.squares, n - tally.hits))
    tail = torch.minimum(torch.maximum(many, few_misses), torch.maximum(few, many_misses))
    return (2 * tail).clamp_max(1)


def _tails(n: Tensor, mean: Tensor, squares: Tensor, events: Tensor) -> tuple[Tensor, Tensor]:
    """The chances of at least and at most this many events, from the sums of their probabilities and their squares."""
    from scipy.special import betainc

    # Rounding can make sums slightly negative; the matching number of trials is at most n.
    mean = mean.clamp_min(0)
    trials = torch.where(mean > 0, mean.square() / squares.clamp_min(TINY), n).minimum(n).clamp_min(TINY)
    rate = (mean / trials).clamp_max(1)

    def at_least(x: Tensor) -> Tensor:
        inside = (x > 0) & (x < trials + 1)
        shape = (torch.where(inside, x, 1), torch.where(inside, trials - x + 1, 1), rate)
        found = torch.as_tensor(betainc(*(each.numpy() for each in shape)))
        return torch.where(inside, found, (x <= 0).double())

    return at_least(events.double()), 1 - at_least(events + 1.0)


def significant(tally: Tally, level: float) -> Tensor:
    """Which entries are off by more than chance, corrected for the number of non-empty entries. (m,)"""
    tested = tally.count > 0
    found = torch.zeros_like(tested)
    found[tested] = torch.tensor(holm(p_values(tally)[tested].tolist())) <= level
    return found


def calibration_error(by_confidence: Tally) -> float:
    """ECE, over the bins of `confidence_tally`."""
    return float((by_confidence.confidence - by_confidence.hits).abs().sum() / by_confidence.count.sum())


def error_by_chance(by_confidence: Tally, level: float) -> float:
    """The ECE that a calibrated model with these confidences exceeds with a chance of `level`, by simulation."""
    full = by_confidence.of(by_confidence.count > 0)
    shape = (DRAWS, len(full.count))
    count, rate = full.count.double().expand(shape), full.mean_confidence.clamp(0, 1).expand(shape)
    hits = torch.binomial(count, rate, generator=torch.Generator().manual_seed(0))
    errors = (hits - full.confidence).abs().sum(1).sort(descending=True).values / full.count.sum()
    return float(errors[round(level * (DRAWS + 1)) - 1]) + 1e-9  # rounding must not decide a tie


def accuracy_bounds(tally: Tally, level: float) -> tuple[float, float]:
    """An interval of the accuracy that is valid for any n."""
    low, high = clopper_pearson(tally.hits.sum(), tally.count.sum(), level)
    return float(low), float(high)


def clopper_pearson(hits: Tensor, count: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The exact interval of frequencies, valid for any n; from 0 to 1 for n = 0 (Clopper and Pearson, 1934).

    >>> clopper_pearson(torch.tensor([0, 5]), torch.tensor([10, 10]), 0.95)
    (tensor([0.0000, 0.1871], dtype=torch.float64), tensor([0.3085, 0.8129], dtype=torch.float64))
    """
    from scipy.special import betaincinv

    tail, right, wrong = (1 - level) / 2, hits.cpu().numpy(), (count - hits).cpu().numpy()
    low = betaincinv(right.clip(1), wrong + 1.0, tail)
    high = betaincinv(right + 1.0, wrong.clip(1), 1 - tail)
    low, high = (torch.as_tensor(each, dtype=torch.float64, device=hits.device) for each in (low, high))
    return low.masked_fill(hits == 0, 0.0), high.masked_fill(hits == count, 1.0)


def samples_needed(tally: Tally, error: float, level: float) -> int:
    """How many predictions like these detect a mean `error` in four of five tests at `level`, to two digits."""
    from scipy.special import ndtri

    # If the model is never in doubt, the variance comes from its mistakes.
    of_one = max(float(tally.variance.sum() / tally.count.sum()), error * (1 - error))
    needed = ((float(ndtri(1 - level / 2)) + float(ndtri(0.8))) / error) ** 2 * of_one
    step = int(10 ** max(math.floor(math.log10(needed)) - 1, 0))
    return math.ceil(needed / step) * step
