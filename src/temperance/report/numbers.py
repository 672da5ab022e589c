"""What the pictures show, as plain numbers: the Matplotlib figures and the HTML page both draw these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.metrics.bins import Bins
from temperance.metrics.classwise import class_errors, class_over, class_under
from temperance.metrics.selective import RiskCoverage

LEVEL = 0.95  # of the interval around each bin's accuracy


@dataclass(frozen=True)
class Bar:
    """One bin that is not empty: what the model said, what happened, and between which bounds that is certain."""

    left: float
    right: float
    count: int
    confidence: float
    accuracy: float
    low: float
    high: float

    @property
    def over(self) -> bool:
        """Is the model surer than it is right?"""
        return self.confidence > self.accuracy

    @property
    def chance(self) -> bool:
        """Could the gap be chance: does the interval of the accuracy hold the confidence?"""
        return self.low <= self.confidence <= self.high


def bars(bins: Bins) -> list[Bar]:
    """The bins that are not empty, in order."""
    edges = bins.edges.tolist()
    low, high = wilson(bins.hits, bins.count)
    columns = (t.tolist() for t in (bins.count, bins.mean_confidence, bins.frequency, low, high))
    return [
        Bar(left, right, *values)
        for left, right, *values in zip(edges[:-1], edges[1:], *columns, strict=True)
        if values[0]
    ]


def wilson(hits: Tensor, count: Tensor, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """Wilson's score interval of a frequency, right also at 0 and 1 and for few samples; NaN where there is none.

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n), Wilson (1927).

    >>> low, high = wilson(torch.tensor([0, 5]), torch.tensor([10, 10]))
    >>> low, high
    (tensor([0.0000, 0.2366], dtype=torch.float64), tensor([0.2775, 0.7634], dtype=torch.float64))
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    n = count.double()
    p = hits / n
    centre = p + z**2 / (2 * n)
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt()
    scale = 1 + z**2 / n
    # At 0 and 1 rounding could leave the frequency itself a hair outside.
    return torch.minimum((centre - half) / scale, p).clamp_min(0), torch.maximum((centre + half) / scale, p).clamp_max(
        1
    )


@dataclass(frozen=True)
class ClassError:
    """One class: how often it was the label, how often its probabilities add up to, and its calibration error."""

    name: str
    labels: int
    predicted: float
    error: float
    over: float
    under: float


def worst_classes(bins: Bins, names: Sequence[str] | None = None) -> list[ClassError]:
    """Every class, the largest calibration error first."""
    k = len(bins.count)
    names = [str(j) for j in range(k)] if names is None else names
    if len(names) != k:
        raise InputError(f"there must be a name for each class; got {len(names)} names for {k} classes")
    errors = class_errors(bins)
    columns = (bins.hits.sum(-1), bins.confidence.sum(-1), errors, class_over(bins), class_under(bins))
    found = [ClassError(*values) for values in zip(names, *(t.tolist() for t in columns), strict=True)]
    return [found[j] for j in errors.argsort(descending=True, stable=True).tolist()]


@dataclass(frozen=True)
class ClassChange:
    """One class: how often it was the label, and its calibration error before and after."""

    name: str
    labels: int
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


def class_changes(before: Bins, after: Bins, names: Sequence[str]) -> list[ClassChange]:
    """Every class, the most improved first and the most worsened last."""
    columns = (before.hits.sum(-1), class_errors(before), class_errors(after))
    found = [ClassChange(*values) for values in zip(names, *(t.tolist() for t in columns), strict=True)]
    return sorted(found, key=lambda entry: entry.change)


def thinned(curve: RiskCoverage, most: int = 400) -> RiskCoverage:
    """At most that many points of the curve, evenly spaced in coverage, with both ends."""
    n = len(curve.coverage)
    chosen = torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long()
    return RiskCoverage(curve.coverage[chosen], curve.risk[chosen], curve.threshold[chosen])


def highest_risk(curve: RiskCoverage) -> float:
    """The top of the risk axis: above all of the curve but its first fiftieth, which hangs on a few samples."""
    settled = curve.risk[len(curve.risk) // 50 :]
    return 1.15 * float(settled.max()) or 0.01
