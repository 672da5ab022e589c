"""Tests of calibration without bins: could these outcomes have come from these confidences?

Under the hypothesis that each prediction is right with probability equal to its confidence c, correct − c has mean 0
and variance c (1 − c), and its sums behave like Brownian motion. The p-value is then the chance of a statistic at least
this large. Confidences of exactly 0 or 1 have no variance: if all are such, p is 1 if every prediction came out as
stated, else 0.

All this is asymptotic, and what counts is the variance Σ c (1 − c), not the number of samples: it is about how many
mistakes a calibrated model with confidences near 1 makes. In simulations of calibrated predictions with a variance of 3
or more, p-values were below 0.01 in at most 2 % of draws; with 0.5 in 1.7 %, and with 0.1 in 7 to 10 %.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.metrics.base import MetricClaims, metric
from temperance.metrics.batch import Columns, narrow
from temperance.metrics.statistic import Additive
from temperance.metrics.stats import TopLabels, top_labels
from temperance.numerics import prefix_sums

# The chance that Brownian motion on [0, 1] stays within this is below 1e-50.
SURELY_EXCEEDED = 0.1

TEST: MetricClaims = {
    "range": (-math.inf, math.inf),
    "lower_is_better": None,
    "whole_weights": True,
    "interval": "none",
}
P_VALUE: MetricClaims = {**TEST, "range": (0, 1), "perfect": 1.0}

# ----------------------------------------------------------------------------------------------- cumulative differences


@metric(top_labels, title="KS", range=(0, 1), percent=True, interval="distance")
def ks(samples: TopLabels) -> float:
    """Kolmogorov–Smirnov calibration error: the largest cumulative gap in order of confidence.

    max_m |(1/n) Σ_{i≤m} (correct_i − c_i)|, lowest confidence first (Gupta et al., 2021). No bins, no settings. Samples
    of equal confidence are added together, so their order does not matter.

    >>> round(ks([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.166667
    """
    return float(_walk(samples).abs().max())


@metric(top_labels, title="KS p-value", **P_VALUE)
def ks_p_value(samples: TopLabels) -> float:
    """How likely a KS error this large is if the confidences are right: small is evidence of miscalibration.

    KS divided by the standard deviation sqrt(Σ c (1 − c)) / n, compared with the largest absolute value of Brownian
    motion on [0, 1] (Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, 2022). Asymptotic: trust it where Σ c (1 − c), the
    variance of the number of right predictions, is at least 3.
    """
    return brownian_maximum_tail(_standardised(float(_walk(samples).abs().max()), samples))


@metric(top_labels, title="Kuiper", range=(0, 1), percent=True, interval="distance")
def kuiper(samples: TopLabels) -> float:
    """Kuiper calibration error: the largest gap over any range of confidences.

    The highest minus the lowest of the sums in `ks`, including 0: the largest |Σ (correct_i − c_i)| / n over the
    samples between two confidences (Tygert, 2022). At least KS, and at most twice KS.

    >>> round(kuiper([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.266667
    """
    walk = _walk(samples)
    return float(walk.max() - walk.min())


@metric(top_labels, title="Kuiper p-value", **P_VALUE)
def kuiper_p_value(samples: TopLabels) -> float:
    """How likely a Kuiper error this large is if the confidences are right: small is evidence of miscalibration.

    Like `ks_p_value`, with the range (highest minus lowest value) of Brownian motion on [0, 1] (Feller, 1951), and as
    asymptotic.
    """
    walk = _walk(samples)
    return brownian_range_tail(_standardised(float(walk.max() - walk.min()), samples))


def _walk(samples: TopLabels) -> Tensor:
    """(1/n) Σ (correct − c) over the samples up to each distinct confidence, and 0 before the first."""
    (gaps, n), confidence = samples.gaps(), samples.ordered.confidence
    sums = prefix_sums(gaps)
    ends = torch.ones(len(sums), dtype=torch.bool, device=sums.device)
    ends[1:-1] = confidence[1:] != confidence[:-1]
    return sums[ends] / n


def _standardised(gap: float, samples: TopLabels) -> float:
    """A gap of the walk divided by the standard deviation of its end point."""
    return _ratio(gap, math.sqrt(float(_variance(samples.confidence).sum())) / len(samples))


def _variance(confidence: Tensor) -> Tensor:
    # Rows may sum to a little more than 1, so confidences may exceed it.
    return (confidence * (1 - confidence)).clamp_min(0)


def _ratio(difference: float, deviation: float) -> float:
    """A difference in standard deviations: 0 if there is none, infinite if the deviation is 0."""
    if difference == 0:
        return 0.0
    return difference / deviation if deviation > 0 else math.copysign(math.inf, difference)


def brownian_maximum_tail(x: float) -> float:
    """The chance that the largest absolute value of Brownian motion on [0, 1] exceeds x.

    Two series of the same function; each is used where a few terms suffice.
    """
    if x < SURELY_EXCEEDED:
        return 1.0
    if x < 1.5:
        odd = (1, 3, 5, 7)
        terms = ((-1) ** i / m * math.exp(-((m * math.pi / x) ** 2) / 8) for i, m in enumerate(odd))
        return 1 - 4 / math.pi * math.fsum(terms)
    return 4 * math.fsum((-1) ** i * _normal_tail((2 * i + 1) * x) for i in range(4))


def brownian_range_tail(x: float) -> float:
    """The chance that the highest minus the lowest value of Brownian motion on [0, 1] exceeds x (Feller, 1951).

    Two series of the same function; each is used where a few terms suffice.
    """
    if x < SURELY_EXCEEDED:
        return 1.0
    if x < 2:
        angles = (m * math.pi for m in (1, 3, 5, 7))
        return 1 - 8 * math.fsum((1 / x**2 + 1 / a**2) * math.exp(-((a / x) ** 2) / 2) for a in angles)
    return 8 * math.fsum((-1) ** (m - 1) * m * _normal_tail(m * x) for m in range(1, 7))


def _normal_tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


# -------------------------------------------------------------------------------------------------------- Spiegelhalter


@dataclass(frozen=True)
class ScoreSums(Additive):
    """The two parts of Spiegelhalter's statistic: the sum of (correct − c)(1 − 2c), and its variance. ()"""

    score: Tensor
    variance: Tensor


@narrow
def score_sums(batch: Columns) -> ScoreSums:
    """The excess of the Brier score over its expectation under the confidences, and its variance."""
    slope = 1 - 2 * batch.confidence
    score = (batch.correct.double() - batch.confidence) * slope
    return ScoreSums(batch.sum(score), batch.sum(slope.square() * _variance(batch.confidence)))


@metric(score_sums, title="Spiegelhalter z", **TEST)
def spiegelhalter_z(sums: ScoreSums) -> float:
    """Spiegelhalter's z: by how many standard deviations the top-label Brier score differs from its expectation.

    Σ (correct − c)(1 − 2c) / sqrt(Σ (1 − 2c)² c (1 − c)) (Spiegelhalter, 1986): about standard normal if confidences
    are right; where they are above one half, positive is over-confident. Without variance (every c is 0, 1/2 or 1) it
    is 0 if the score equals its expectation, else infinite. Errors in both directions can cancel.

    >>> round(spiegelhalter_z([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.725866
    """
    return _ratio(float(sums.score), math.sqrt(float(sums.variance)))


@metric(score_sums, title="Spiegelhalter p-value", **P_VALUE)
def spiegelhalter_p_value(sums: ScoreSums) -> float:
    """How likely a Spiegelhalter z this far from 0, on either side, is if the confidences are right.

    From the normal distribution, so trust it where Σ c (1 − c) is at least 3, as `ks_p_value`.
    """
    return 2 * _normal_tail(abs(_ratio(float(sums.score), math.sqrt(float(sums.variance)))))
