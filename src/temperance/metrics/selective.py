"""Selective prediction: how the error falls when the least confident predictions are left out.

Sort the samples by a confidence score, most confident first. Keeping the first m of n is a coverage of m / n, and the
mean loss of those m is the selective risk. Every metric here, and the plot, reads the curve of risk against coverage.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Self, cast

import torch
from torch import Tensor

from temperance.arrays import ArrayLike
from temperance.errors import InputError
from temperance.metrics.base import metric
from temperance.metrics.batch import Batch, batches
from temperance.metrics.scores import SCORES
from temperance.metrics.statistic import RankedSamples
from temperance.numerics import is_whole
from temperance.settings import NameOf, NonNegative, PositiveFraction, check_settings, settings_of
from temperance.sorting import stable_order, stable_sort

LOSSES: dict[str, Callable[[Batch], Tensor]] = {
    "zero-one": lambda batch: ~batch.correct,
    "nll": lambda batch: batch.nll,
}
ScoreName = Annotated[str, NameOf("a score", SCORES.__getitem__)]
LossName = Literal["zero-one", "nll"]
Ties = Literal["stable", "mean"]


@dataclass(frozen=True)
class Ranked(RankedSamples):
    """Each sample's confidence score and its loss, a boolean if it is 0 or 1. (n,)"""

    score: Tensor
    loss: Tensor
    weights: Tensor | None = None

    def _sorted(self) -> Self:
        # The most confident last, which takes less memory. Read backwards, equal scores keep the order of the data.
        if self.loss.dtype == torch.bool and self.weights is None:
            return type(self)(*stable_sort(self.score, self.loss, last_first=True))
        return self.select(self.order())

    def order(self) -> Tensor:
        return stable_order(-self.score).flip(0)

    def settled(self) -> Self:
        """With whole weights, each row repeated by its weight, so that none is kept in part; else the rows."""
        return self.repeated() if self.weights is not None and is_whole(self.weights) else self


def ranked(batch: Batch, *, score: ScoreName = "msp", loss: LossName = "zero-one") -> Ranked:
    """Each sample's confidence score and its loss: 1 for a wrong prediction ("zero-one"), or its NLL ("nll").

    score  what ranks the samples: "msp" (largest probability), "margin" or "negative-entropy"
    loss   "zero-one": 1 for a wrong prediction; "nll": the log-loss
    """
    return Ranked(SCORES[score].of_batch(batch), LOSSES[loss](batch), batch.weights)


@dataclass(frozen=True)
class RiskCoverage:
    """The risk–coverage curve, from the most confident sample alone to all of them. (n,) each

    coverage    share of the samples kept, 1/n, 2/n … 1, or of their weight
    risk        mean loss of those kept
    threshold   confidence score of the last one kept
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor

    @classmethod
    def of(cls, samples: Ranked, *, ties: Ties = "stable") -> "RiskCoverage":
        """The curve of a statistic. Equal scores keep the data's order; `ties="mean"` averages over their orders.

        With whole weights it has a point for each sample counted, else one for each row.
        """
        samples = samples.settled()
        kept = _kept(samples)
        return cls(kept / kept[-1], _risk(samples, ties), samples.ordered.score.flip(0))

    def coverage_at(self, threshold: float) -> float:
        """The share of samples that score at least `threshold`."""
        kept = self._kept(threshold)
        return float(self.coverage[kept - 1]) if kept else 0.0

    def selective_risk(self, threshold: float) -> float:
        """The mean loss of the samples that score at least `threshold`; NaN if there are none."""
        kept = self._kept(threshold)
        return float(self.risk[kept - 1]) if kept else math.nan

    def _kept(self, threshold: float) -> int:
        return int((self.threshold >= threshold).sum())


def _risk(samples: Ranked, ties: str) -> Tensor:
    """The mean loss of the most confident sample alone, of the most confident two, and so on. (n,)"""
    loss, weights = samples.ordered.loss, samples.ordered.weights
    total = (loss if weights is None else loss * weights).flip(0).cumsum(0, dtype=torch.float64)
    kept = _kept(samples)  # not earlier: with millions of rows each of these takes much memory
    if ties == "mean":
        total = _straight_within_ties(total, kept, samples.ordered.score.flip(0))
    return total.div_(kept)


def _kept(samples: Ranked) -> Tensor:
    """How many samples are kept at each point of the curve, 1 … n, or their weight. (n,)"""
    weights = samples.ordered.weights
    if weights is not None:
        return weights.flip(0).cumsum(0)
    return torch.arange(1, len(samples) + 1, dtype=torch.float64, device=samples.score.device)


def _mean(samples: Ranked, values: Tensor) -> Tensor:
    """The weighted mean of a value of each sample, most confident first. ()"""
    weights = samples.ordered.weights
    return values.mean() if weights is None else (values * weights.flip(0)).sum() / weights.sum()


def _straight_within_ties(total: Tensor, kept: Tensor, threshold: Tensor) -> Tensor:
    """The cumulative loss when each sample's loss is replaced by the mean of those with its score."""
    _, group, size = torch.unique_consecutive(threshold, return_inverse=True, return_counts=True)
    last = size.cumsum(0) - 1
    after, end = total[last], kept[last]
    before, start = (torch.cat([each.new_zeros(1), each[:-1]]) for each in (after, end))
    # Multiply before dividing, so that the last of a group stays exact.
    straight: Tensor = before[group] + (after - before)[group] * (kept - start[group]) / (end - start)[group]
    return straight


def risk_coverage_curve(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    score: ScoreName = "msp",
    loss: LossName = "zero-one",
    ties: Ties = "stable",
    from_logits: bool = False,
    ignore_index: int | None = None,
    weights: ArrayLike | None = None,
) -> RiskCoverage:
    """Selective risk at every coverage, as plotted; the mean of `risk` is `aurc`.

    >>> curve = risk_coverage_curve([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    >>> curve.risk
    tensor([0.0000, 0.5000, 0.3333], dtype=torch.float64)
    >>> curve.coverage_at(0.75), curve.selective_risk(0.75)
    (0.6666666666666666, 0.5)
    """
    chosen = {"score": score, "loss": loss, "ties": ties}
    check_settings("risk_coverage_curve", settings_of(risk_coverage_curve), chosen)
    parts = batches(probs, labels, from_logits=from_logits, ignore_index=ignore_index, weights=weights)
    return RiskCoverage.of(cast(Ranked, aurc.stats_of(parts, score=score, loss=loss)), ties=ties)


@metric(ranked, title="AURC", range=(0, math.inf), headline=10, percent=True, of_decisions=True)
def aurc(samples: Ranked, *, area: Literal["mean", "trapezoid"] = "mean", ties: Ties = "stable") -> float:
    """Area under the risk–coverage curve: the error of the most confident predictions, averaged over all coverages.

    AURC = (1/n) Σ_m (1/m) Σ_{i≤m} loss_(i), most confident first (Geifman et al., 2019). It rewards accuracy as well as
    a good order of the confidences; for the order alone see `eaurc`. Equal scores keep the order of the data by
    default, so if many confidences are exactly 1, shuffling changes the value; `ties="mean"` averages over their
    orders. `area="trapezoid"` is the trapezoidal area from coverage 1/n to 1, divided by its width, as in
    torch-uncertainty. `loss="nll"` uses the log-loss instead of the error.

    area  "mean" over the samples, or "trapezoid"
    ties  "stable": equal scores keep the order of the data; "mean": the average over their orders

    >>> round(aurc([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.277778
    """
    risk = _risk(samples, ties)
    if area == "trapezoid" and len(risk) > 1:
        width = _kept(samples).diff()
        return float(((risk[1:] + risk[:-1]) * width).sum() / width.sum()) / 2
    return float(_mean(samples, risk))


@metric(ranked, title="E-AURC", range=(0, math.inf), headline=11, percent=True, of_decisions=True)
def eaurc(samples: Ranked, *, optimum: Literal["asymptotic", "exact"] = "asymptotic", ties: Ties = "stable") -> float:
    """Excess AURC: the area above that of a perfect order of the confidences.

    E-AURC = AURC − (e + (1 − e) ln(1 − e)) at error rate e (Geifman et al., 2019). The subtracted area is that of every
    wrong prediction coming last, for n → ∞. At small n a perfect order still measures a little above 0;
    `optimum="exact"` subtracts the perfect area of these n samples, and is required for `loss="nll"`.

    optimum  "asymptotic": the perfect area for n → ∞; "exact": that of these n samples
    ties     "stable": equal scores keep the order of the data; "mean": the average over their orders

    >>> round(eaurc([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.214755
    >>> round(eaurc([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], optimum="exact"), 6)
    0.166667
    """
    area = _mean(samples, _risk(samples, ties))
    if optimum == "exact":
        perfect = Ranked(-samples.loss.double(), samples.loss, samples.weights)
        best = _mean(perfect, _risk(perfect, "stable"))
    elif bool(((samples.loss == 0) | (samples.loss == 1)).all()):
        right = 1 - _mean(samples, samples.ordered.loss.double().flip(0))
        best = 1 - right + torch.special.xlogy(right, right)
    else:
        raise InputError('optimum="asymptotic" holds for the zero-one loss only; pass optimum="exact"')
    return max(float(area - best), 0.0)


@metric(ranked, title="AUGRC", range=(0, math.inf), percent=True, of_decisions=True)
def augrc(samples: Ranked, *, ties: Ties = "stable") -> float:
    """Area under the generalised risk–coverage curve: the mean share of samples that are kept and wrong.

    AUGRC = (1/n) Σ_m (1/n) Σ_{i≤m} loss_(i), most confident first (Traub et al., 2024). AURC divides by the number
    kept, so the few most confident samples weigh most; here an error is weighted by its rank. The paper's program takes
    the trapezoidal area from coverage 0 with equal scores averaged, which is `ties="mean"` minus (error rate) / 2n.

    ties  "stable": equal scores keep the order of the data; "mean": the average over their orders

    >>> round(augrc([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.222222
    """
    curve = RiskCoverage.of(samples, ties=ties)
    return float(_mean(samples, curve.risk * curve.coverage))


@metric(ranked, title="failure AUROC", range=(0, 1), lower_is_better=False, perfect=None, percent=True)
def failure_auroc(samples: Ranked) -> float:
    """How often a right prediction is more confident than a wrong one: 50 % is no better than chance.

    The area under the ROC curve of confidence, as a test for wrong predictions; equal confidences count by half. It
    measures the order of the confidences alone, so no calibrator that keeps the order changes it. It is NaN if all
    predictions are right, or all are wrong.

    >>> failure_auroc([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1])
    0.5
    """
    loss, weights = samples.ordered.loss.double(), samples.ordered.weights
    if not bool(((loss == 0) | (loss == 1)).all()):
        raise InputError('failure_auroc tells right predictions from wrong ones; leave out loss="nll"')
    _, group = torch.unique_consecutive(samples.ordered.score, return_inverse=True)
    weight = torch.ones_like(loss) if weights is None else weights
    wrong, right = (torch.bincount(group, weight * each) for each in (loss, 1 - loss))
    below = wrong.cumsum(0) - wrong / 2  # the wrong ones that are less confident
    return float((right * below).sum() / (right.sum() * wrong.sum()))


@metric(ranked, title="risk at coverage", range=(0, math.inf), percent=True, of_decisions=True)
def risk_at_coverage(samples: Ranked, *, coverage: PositiveFraction = 0.9, ties: Ties = "stable") -> float:
    """The error when only the most confident predictions are kept, by default 90 % of them.

    The selective risk at the smallest coverage that is at least `coverage`. A threshold on the confidence cannot
    separate equal scores; see `ties` in `aurc`.

    coverage  share of the predictions that is kept
    ties      "stable": equal scores keep the order of the data; "mean": the average over their orders

    >>> risk_at_coverage([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], coverage=0.5)
    0.5
    """
    curve = RiskCoverage.of(samples, ties=ties)
    return float(curve.risk[torch.searchsorted(curve.coverage, coverage)])


@metric(
    ranked, title="coverage at risk", range=(0, 1), lower_is_better=False, perfect=1.0, percent=True, of_decisions=True
)
def coverage_at_risk(samples: Ranked, *, risk: NonNegative = 0.05, ties: Ties = "stable") -> float:
    """The share of predictions that can be kept with an error of at most 5 %, or another risk.

    The largest coverage whose selective risk is at most `risk`, 0 if there is none. Risk is not monotone in coverage,
    so smaller coverages may be worse. It is chosen on the data it is measured on, so it is not a guarantee.

    risk  largest error that is accepted
    ties  "stable": equal scores keep the order of the data; "mean": the average over their orders

    >>> round(coverage_at_risk([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.333333
    """
    curve = RiskCoverage.of(samples, ties=ties)
    allowed = curve.coverage[curve.risk <= risk]
    return float(allowed[-1]) if len(allowed) else 0.0
