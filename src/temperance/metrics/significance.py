"""How far to trust a measured value: bootstrap intervals, and a paired test between two sets of predictions.

Statistics add, so a resample of the data is a weighted sum of the statistics of its parts. The rows are assigned at
random to a few hundred parts, the statistic of each is computed once, and a resample costs one row of a matrix
product, whatever the size of the data. Metrics that keep their rows are resampled row by row; where that would be slow
the resamples are smaller than the data and the interval is shrunk by the square root of the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import ArrayLike
from temperance.metrics.base import IntervalKind, Metric, need_metric
from temperance.metrics.batch import Batch, batches
from temperance.metrics.bins import Bins
from temperance.metrics.evidence import Evidence
from temperance.metrics.gather import Gatherer, Parts, Request
from temperance.metrics.statistic import Additive, RankedSamples, Samples, Statistic
from temperance.settings import AtLeastTwo, OpenFraction, Seed, of_kind

# The most rows of a resample, and the most numbers. If rows are so long (the probabilities of thousands of classes)
# that a resample would have too few of them, there is no interval.
LINEAR_ROWS = 20_000
QUADRATIC_ROWS = 1_000
DRAWN_VALUES = 1 << 21
FEWEST_ROWS = 500

# Where whole parts of rows that are kept are drawn, every resample looks at all rows. With many rows there are fewer
# resamples, but not fewer than these.
DRAWN_ROWS = 20_000_000
FEWEST_RESAMPLES = 100

# Resamples say nothing about a bin with fewer samples, nor about an error if such bins make up more than this share.
FEWEST_IN_BIN = 10
MOST_FROM_THIN_BINS = 1 / 3

ROUNDING = 1e-12  # resamples that differ by less are equal

# The power of a distance to which noise adds its variance. A kernel whose width is the error itself, σ, lets through
# noise of variance 1 / (n σ). For pure noise that is σ², so σ³ = 1 / n.
POWERS: dict[IntervalKind, int] = {"distance": 2, "smooth distance": 3}


@dataclass(frozen=True)
class Interval:
    """A value, and bounds between which the true one lies with probability `level`; NaN if there are none."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Difference:
    """The metric of the first predictions minus that of the second, on the same samples."""

    value: float
    low: float
    high: float
    level: float
    p_value: float

    def untested(self) -> Difference:
        """The same value where samples cannot tell whether it is chance."""
        return replace(self, low=math.nan, high=math.nan, p_value=1.0)


def interval(
    metric: Metric,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool = False,
    ignore_index: int | None = None,
    weights: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = 500,
    seed: int = 0,
    **options: Any,
) -> Interval:
    """A metric with its bootstrap interval, if it can have one; see `Draws.interval`."""
    _check(metric, level, n_resamples, seed)
    generator = torch.Generator().manual_seed(seed)
    found = list(batches(probs, labels, from_logits=from_logits, ignore_index=ignore_index, weights=weights))
    (parts,) = deal(found, sum(map(len, found)), [(metric, options)], generator)
    value = metric.value(parts.whole, **options)
    if not evidence_of(found).enough or not can_be_bounded(metric, parts):
        return Interval(value, math.nan, math.nan, level)
    draws = resample(metric, parts, n_resamples, generator, **options)
    return bounded(metric, parts, value, draws, level)


def difference(
    metric: Metric,
    probs_a: ArrayLike,
    probs_b: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool = False,
    ignore_index: int | None = None,
    weights: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = 500,
    seed: int = 0,
    **options: Any,
) -> Difference:
    """Metric of a minus metric of b on the same samples, with its interval and the p-value of no difference.

    Both are resampled with the same rows, so common variation cancels: two methods can differ significantly although
    their intervals overlap. If neither has enough right and enough wrong predictions, whatever resampling finds could
    be chance: the p-value is 1, and there is no interval.
    """
    _check(metric, level, n_resamples, seed)
    values, draws, evidence = [], [], []
    for probs in (probs_a, probs_b):
        generator = torch.Generator().manual_seed(seed)
        found = list(batches(probs, labels, from_logits=from_logits, ignore_index=ignore_index, weights=weights))
        evidence.append(evidence_of(found))
        (parts,) = deal(found, sum(map(len, found)), [(metric, options)], generator)
        values.append(metric.value(parts.whole, **options))
        draws.append(resample(metric, parts, n_resamples, generator, paired=True, **options))
    by = draws[0].minus(draws[1]).difference(values[0] - values[1], level)
    return by if evidence[0].enough_with(evidence[1]) else by.untested()


def _check(metric: object, level: float, n_resamples: int, seed: int) -> None:
    """Refuse what cannot be resampled, before anything is measured."""
    need_metric(metric)
    of_kind("level", level, OpenFraction)
    of_kind("n_resamples", n_resamples, AtLeastTwo)
    of_kind("seed", seed, Seed)


@dataclass(frozen=True)
class Draws:
    """A metric's values on resamples, each `share` of the data's size."""

    values: Tensor
    share: float

    def minus(self, other: Draws) -> Draws:
        """Differences, where both were drawn with the same rows."""
        return Draws(self.values - other.values, self.share)

    def _deviations(self, value: float) -> Tensor:
        # Smaller resamples have a larger bias, so they show how the value varies but not how biased it is.
        centre = value if self.share == 1 else float(self.values.nanmean())
        return (self.values - centre) * math.sqrt(self.share)

    def interval(self, value: float, bounds: tuple[float, float], level: float, *, power: int = 0) -> Interval:
        """The interval of a mean, or of a distance from 0, clipped to its range; it contains the measured value.

        A mean has the basic (reflected) bootstrap. Noise adds to a distance: v² ≈ t² + noise for the true t, and
        d² ≈ v² + noise for a resample's d. So the square, or another `power`, is bounded, by 2 v² − mean(d²) and the
        spread of d². Resamples that do not differ, such as those of one sample, give no bounds.
        """
        of_kind("level", level, OpenFraction)
        known = self.values[~self.values.isnan()]
        if len(known) < 2 or float(known.max() - known.min()) < ROUNDING:
            return Interval(value, math.nan, math.nan, level)
        low, high = self._of_power(value, level, power) if power else self._reflected(value, level)
        return Interval(value, min(max(low, bounds[0]), value), max(min(high, bounds[1]), value), level)

    def difference(self, value: float, level: float) -> Difference:
        """The symmetric bootstrap interval of a difference, and how often chance alone gives one as large.

        The interval contains 0 if and only if the p-value is at least 1 - level, given enough resamples.
        """
        of_kind("level", level, OpenFraction)
        sizes = self._deviations(value).abs()
        extreme = int((sizes >= abs(value)).sum())
        known = sizes[~sizes.isnan()].sort(descending=True).values
        rank = max(1, math.ceil((1 - level) * (1 + len(known)) - ROUNDING) - 1)
        reach = float(known[rank - 1]) if len(known) else math.nan
        return Difference(value, value - reach, value + reach, level, (1 + extreme) / (1 + len(self.values)))

    def _of_power(self, value: float, level: float, power: int) -> tuple[float, float]:
        found = self.values[~self.values.isnan()] ** power
        noise = self.share * (float(found.mean()) - value**power)  # a resample of half the size has twice the noise
        spread = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(self.share) * float(found.std())
        low, high = (max(value**power - noise + sign * spread, 0.0) ** (1 / power) for sign in (-1, 1))
        return low, high

    def _reflected(self, value: float, level: float) -> tuple[float, float]:
        found = np.sort(self._deviations(value).cpu().numpy())  # NaN comes last
        found = found[: len(found) - int(np.isnan(found).sum())]
        if not len(found):
            return math.nan, math.nan
        # Quantiles by hand: those of torch and NumPy take ten times as long for a few hundred values.
        down, up = np.interp((len(found) - 1) * np.array([1 - level, 1 + level]) / 2, np.arange(len(found)), found)
        return value - float(up), value - float(down)


def evidence_of(found: Sequence[Batch]) -> Evidence:
    """How many predictions are right and wrong, or are worth."""
    return Evidence.combine([Evidence.of(batch.correct, batch.weights) for batch in found])


def bounded(metric: Metric, parts: Parts, value: float, draws: Draws, level: float) -> Interval:
    """A metric's value with its interval, if it can have one."""
    of_kind("level", level, OpenFraction)
    if not can_be_bounded(metric, parts):
        return Interval(value, math.nan, math.nan, level)
    return draws.interval(value, metric.range, level, power=POWERS.get(metric.interval, 0))


def can_be_bounded(metric: Metric, *several: Parts) -> bool:
    """Do resamples show how uncertain this metric, or its mean over several sets, is, and in reasonable time?

    Not if much of an error comes from bins of a few samples: these are as far off in every resample as in the data.
    """
    first = several[0].whole
    if metric.interval == "none" or (isinstance(first, Samples) and _most_rows(metric, first) < FEWEST_ROWS):
        return False
    if metric.interval == "mean" or isinstance(first, Samples) or not isinstance(first.settled(), Bins):
        return True
    bins = [(parts, cast(Bins, parts.whole.settled())) for parts in several]
    error = torch.cat([(each.hits - each.confidence).abs().reshape(-1) for _, each in bins])
    samples = torch.cat([_samples_in(each, parts).reshape(-1) for parts, each in bins])
    return float(error[samples < FEWEST_IN_BIN].sum()) <= MOST_FROM_THIN_BINS * float(error.sum())


def _samples_in(bins: Bins, parts: Parts) -> Tensor:
    """How many samples each bin has; with weights, how many of equal weight would tell as much, (Σw)² / Σw².

    The weights are those of parts, so this is at most the number of parts.
    """
    if not bins.count.is_floating_point() or not parts.n_parts:
        return bins.count
    squares = torch.zeros_like(bins.count)
    for part in cast(Additive, parts.stats).resampled(torch.eye(parts.n_parts)):
        squares += cast(Bins, part.settled()).count.square()
    return bins.count.square() / squares.clamp_min(torch.finfo(squares.dtype).tiny)


def deal(
    found: Iterable[Batch], n: int, requests: Sequence[Request], generator: torch.Generator | None = None
) -> list[Parts]:
    """The statistics of each metric for parts of the rows, assigned at random; together they are all of the data."""
    gatherer = Gatherer(requests, n, in_parts=True, as_came=True, generator=generator)
    for batch in found:
        gatherer.add(batch)
    return gatherer.results()


def resample(
    metric: Metric,
    parts: Parts,
    n_resamples: int,
    generator: torch.Generator | None = None,
    *,
    paired: bool = False,
    **options: Any,
) -> Draws:
    """The metric's values on bootstrap resamples.

    With `paired`, generators in the same state draw the same rows, whatever was predicted for them. Without it, metrics
    that keep their rows are faster: the rows are sorted once for all resamples.
    """
    of_kind("n_resamples", n_resamples, AtLeastTwo)
    drawn: Iterable[Statistic]
    if isinstance(parts.stats, Samples) and parts.row_part is not None:
        affordable = min(n_resamples, max(FEWEST_RESAMPLES, DRAWN_ROWS // len(parts.stats)))
        weights = part_weights(parts.n_parts, affordable, generator, parts.n_drawn)
        drawn, share = _whole_parts(parts.stats, parts.row_part, weights), parts.n_drawn / parts.n_parts
    elif isinstance(parts.stats, Samples):
        rows = parts.stats
        size = min(len(rows), _most_rows(metric, rows))
        share = size / len(rows)
        drawn = (rows.redrawn(size, generator, paired=paired) for _ in range(n_resamples))
    elif isinstance(parts.stats, Additive):
        drawn, share = parts.stats.resampled(part_weights(parts.n_parts, n_resamples, generator)), 1.0
    return Draws(torch.tensor(list(metric.values(drawn, **options)), dtype=torch.float64), share)


def _most_rows(metric: Metric, rows: Samples) -> int:
    """The most rows of a resample."""
    most = QUADRATIC_ROWS if metric.quadratic else LINEAR_ROWS
    return min(most, max(1, 8 * DRAWN_VALUES * len(rows) // rows.nbytes))


def _whole_parts(rows: Samples, row_part: Tensor, weights: Tensor) -> Iterator[Samples]:
    """For each row of `weights` (resamples, parts), the rows of all parts, each as often as its part was drawn."""
    if isinstance(rows, RankedSamples):
        order = rows.order()
        rows, row_part = rows.select_in_order(order), row_part[order]
    every = torch.arange(len(rows), device=row_part.device)
    for drawn in weights.long().to(row_part.device):
        index = every.repeat_interleave(drawn[row_part])
        if len(index):
            yield rows.select_in_order(index) if isinstance(rows, RankedSamples) else rows.select(index)


def part_weights(n_parts: int, n_resamples: int, generator: torch.Generator | None, n_drawn: int = 0) -> Tensor:
    """How often each part is drawn in each resample, which has `n_drawn` parts, or all. (n_resamples, n_parts)"""
    chosen = torch.randint(n_parts, (n_resamples, n_drawn or n_parts), generator=generator)
    weights = torch.zeros(n_resamples, n_parts, dtype=torch.float64)
    return weights.scatter_add_(1, chosen, torch.ones(chosen.shape, dtype=torch.float64))
