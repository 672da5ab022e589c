"""What the pictures show, as plain numbers: the Matplotlib figures and the HTML pages draw the same ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from temperance.errors import InputError
from temperance.metrics.bins import Bins
from temperance.metrics.classwise import class_errors, class_over, class_under
from temperance.metrics.selective import RiskCoverage
from temperance.metrics.tally import clopper_pearson

LEVEL = 0.95  # of the interval around each bin's accuracy
MOST_BARS = 50  # in one picture; finer bins are merged
GAP_WIDTH = 0.5  # of a gap, as a share of its bin: the bar of the accuracy stays visible behind it


# ---------------------------------------------------------------------------------------------------------------- bins


@dataclass(frozen=True)
class Bar:
    """A bin that is not empty: what the model said, what happened, and the interval of the accuracy.

    With weights the count is their sum, and there is no interval (NaN).
    """

    left: float
    right: float
    count: float
    confidence: float
    accuracy: float
    low: float
    high: float

    @property
    def over(self) -> bool:
        """Is the mean confidence above the accuracy?"""
        return self.confidence > self.accuracy

    @property
    def chance(self) -> bool:
        """Could the gap be chance? It could if the interval of the accuracy contains the mean confidence."""
        return self.low <= self.confidence <= self.high


def bars(bins: Bins) -> list[Bar]:
    """The bins that are not empty, in order; neighbours are merged where there are more than `MOST_BARS`."""
    merged = merged_bins(bins)
    bar_of = torch.arange(len(bins.count)) // merged
    count, confidence, hits = (
        t.new_zeros(int(bar_of[-1]) + 1).index_add_(0, bar_of.to(t.device), t)
        for t in (bins.count, bins.confidence, bins.hits)
    )
    edges = [*bins.edges[:-1:merged].tolist(), 1.0]
    low, high = [count * math.nan] * 2 if bins.is_weighted else clopper_pearson(hits, count, LEVEL)
    columns = (t.tolist() for t in (count, confidence / count, hits.double() / count, low, high))
    return [
        Bar(left, right, *values)
        for left, right, *values in zip(edges[:-1], edges[1:], *columns, strict=True)
        if values[0]
    ]


def merged_bins(bins: Bins) -> int:
    """The number of neighbouring bins that a bar stands for."""
    return math.ceil(len(bins.count) / MOST_BARS)


# ------------------------------------------------------------------------------------------------------------- classes


@dataclass(frozen=True)
class ClassError:
    """One class: how many samples carry its label, the sum of its probabilities, and its calibration error."""

    name: str
    labels: float
    predicted: float
    error: float
    over: float
    under: float


def worst_classes(bins: Bins, names: Sequence[str] | None = None, most: int | None = None) -> list[ClassError]:
    """The classes with the largest calibration errors, the largest first: all of them, or at most `most`."""
    k = len(bins.count)
    if names is not None and len(names) != k:
        raise InputError(f"there must be a name for each class; got {len(names)} names for {k} classes")
    errors = class_errors(bins)
    chosen = errors.argsort(descending=True, stable=True)[:most]
    columns = (bins.hits.sum(-1), bins.confidence.sum(-1), errors, class_over(bins), class_under(bins))
    rows = zip(chosen.tolist(), *(t[chosen].tolist() for t in columns), strict=True)
    return [ClassError(str(j) if names is None else names[j], *values) for j, *values in rows]


@dataclass(frozen=True)
class ClassChange:
    """One class: how many samples carry its label, and its calibration error before and after."""

    name: str
    labels: float
    before: float
    after: float

    @property
    def change(self) -> float:
        """Negative is better."""
        return self.after - self.before


def class_changes(before: Bins, after: Bins, names: Sequence[str]) -> list[ClassChange]:
    """How the calibration error of every class changed, the most improved first."""
    columns = (before.hits.sum(-1), class_errors(before), class_errors(after))
    changes = [ClassChange(*row) for row in zip(names, *(column.tolist() for column in columns), strict=True)]
    return sorted(changes, key=lambda entry: entry.change)


# ------------------------------------------------------------------------------------------------------- risk, coverage


def thinned(curve: RiskCoverage, most: int = 400) -> RiskCoverage:
    """At most `most` points of the curve, evenly spaced in coverage, with both ends."""
    n = len(curve.coverage)
    chosen = torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long()
    return RiskCoverage(curve.coverage[chosen], curve.risk[chosen], curve.threshold[chosen])


def highest_risk(curve: RiskCoverage) -> float:
    """The top of the risk axis: above the whole curve except its first fiftieth, which rests on few samples."""
    settled = curve.risk[len(curve.risk) // 50 :]
    return 1.15 * float(settled.max()) or 0.01
