"""The lowest confidence from which the error of predictions stays below a limit, with a stated probability.

Predictions below a threshold t are left to someone else. The error R(t) of the others on new samples is unknown; m of n
samples reach t, and e of these are wrong. For a fixed t, e is binomial given m, so P(Bin(m, risk) ≤ e) is a p-value of
R(t) ≥ risk. The thresholds are fixed before any sample is seen, so none is chosen for its luck. They are tested from
the highest down. The probability to be wrong, 1 − level, is shared among a few of them, the starts. A test that rejects
passes its share on to the next threshold, one that fails loses it (the fallback procedure of Wiens, 2003). So the
promise holds for all thresholds that are found, together: of all sets of samples that could have been drawn, at most
1 − level would give any threshold whose error is not below the risk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.metrics.selective import RiskCoverage

# From nearly certain down to 0, in steps of 0.05 in the log-odds; rounded, so that people can write them. Every
# thirtieth is a start.
LOG_ODDS = torch.arange(12, -4.01, -0.05, dtype=torch.float64)
THRESHOLDS = torch.cat([LOG_ODDS.sigmoid().mul(1e6).round() / 1e6, torch.zeros(1)])
STARTS = range(0, len(LOG_ODDS), 30)


@dataclass(frozen=True)
class Rule:
    """Abstain below a threshold. Without one that keeps the error below the risk, the next four are NaN or 0.

    group      the group of samples that it is for; empty for all
    risk       the limit of the error
    threshold  the lowest confidence of a prediction that is used
    coverage   the share of samples that reach it
    error      the share of these that are wrong, here
    kept       how many samples reach it
    n          how many samples there are
    needed     how many would be enough for a promise if none were wrong; with fewer there is never one
    """

    group: str
    risk: float
    threshold: float
    coverage: float
    error: float
    kept: int
    n: int
    needed: int

    @property
    def found(self) -> bool:
        """Is there such a threshold?"""
        return not math.isnan(self.threshold)


def counts(confidence: Tensor, correct: Tensor) -> Tensor:
    """How many samples reach each of THRESHOLDS, and how many of these are wrong. (2, number of thresholds)"""
    highest = torch.searchsorted(-THRESHOLDS, -confidence.double())  # the place of the highest that each reaches
    each = (torch.bincount(places, minlength=len(THRESHOLDS)) for places in (highest, highest[~correct]))
    return torch.stack(list(each)).cumsum(1)


def curve_of(counted: Tensor) -> RiskCoverage:
    """The risk–coverage curve at those of THRESHOLDS that samples reach."""
    reached = counted[0] > 0
    kept, wrong = counted[:, reached].double()
    return RiskCoverage(kept / kept[-1], wrong / kept, THRESHOLDS[reached])


def rule_for(counted: Tensor, risk: float, allowed: float, group: str = "") -> Rule:
    """The lowest threshold whose test rejects that the error is too high; `allowed` is the probability to be wrong."""
    from scipy.special import betaincc  # the binomial distribution of scipy.stats takes three times as long to import

    kept, wrong = counted.numpy()
    n, needed = int(kept[-1]), fewest(risk, allowed)
    left, lowest = 0.0, -1
    for i, p_value in enumerate(betaincc(wrong + 1.0, kept - wrong, risk)):
        left += allowed / len(STARTS) * (i in STARTS)
        if left and p_value <= left:  # a p-value can round to 0
            lowest = i
        else:
            left = 0.0
    if lowest < 0:
        return Rule(group, risk, math.nan, math.nan, math.nan, 0, n, needed)
    used = int(kept[lowest])
    return Rule(group, risk, float(THRESHOLDS[lowest]), used / n, int(wrong[lowest]) / used, used, n, needed)


def fewest(risk: float, allowed: float) -> int:
    """How many predictions without a mistake a promise takes."""
    return math.ceil(math.log(allowed / len(STARTS)) / math.log1p(-risk))
