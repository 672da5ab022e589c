"""What can be repaired after training and what cannot: a proper score of the confidence, split in two.

Replace every confidence by the accuracy of predictions like it, as the best non-decreasing function of the confidence
(isotonic regression) says. What the score gains is its calibration part; what it still costs is its refinement part.
This is the CORP decomposition (Dimitriadis, Gneiting and Jordan, 2021) for the event that the predicted class is
right, with the score's uncertainty and discrimination left together as refinement = uncertainty − discrimination.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR
from temperance.isotonic import isotonic
from temperance.metrics.base import metric
from temperance.metrics.stats import TopLabels, top_labels

# The total score of predictions in groups: of the probability said in each, how many were right, and how many wrong.
GroupScore = Callable[[Tensor, Tensor, Tensor], Tensor]


def brier_total(said: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Σ (probability − event)²."""
    return (right * (1 - said).square() + wrong * said.square()).sum()


def nll_total(said: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """−Σ ln(probability of what happened), with a floor as everywhere."""
    return -(right * said.clamp(LOG_FLOOR, 1).log() + wrong * (1 - said).clamp(LOG_FLOOR, 1).log()).sum()


def split(samples: TopLabels, total: GroupScore) -> tuple[float, float]:
    """The mean score as (calibration, refinement), which sum to it."""
    # Equal confidences must get equal values, so they are pooled before the regression.
    confidence, group, count = torch.unique(samples.confidence, return_inverse=True, return_counts=True)
    hits, n = samples.correct.double(), float(len(group))
    if samples.weights is not None:
        hits, n = hits * samples.weights, float(samples.weights.sum())
        count = torch.bincount(group, samples.weights)
    right = torch.bincount(group, hits, minlength=len(count))
    wrong = count - right
    repaired = isotonic(right / count, count).clamp(0, 1)
    refinement = float(total(repaired, right, wrong)) / n
    return max(float(total(confidence, right, wrong)) / n - refinement, 0.0), refinement


@metric(top_labels, title="Brier, calibration part", range=(0, 1), interval="distance")
def brier_calibration(samples: TopLabels) -> float:
    """What the confidence's Brier score would gain from the best repair after training that keeps its order.

    The mean of (confidence − correct)² minus the same after isotonic regression of correct on confidence. Near 0 there
    is nothing left for temperature scaling and its like to do. The regression is fitted to the samples it is measured
    on, so a calibrated model measures a little above 0, the more so the fewer samples; but no bins need choosing.

    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    >>> round(brier_calibration(p, [0, 1, 0, 1]), 6), round(brier_refinement(p, [0, 1, 0, 1]), 6)
    (0.15, 0.125)
    """
    return split(samples, brier_total)[0]


@metric(top_labels, title="Brier, refinement part", range=(0, 0.25))
def brier_refinement(samples: TopLabels) -> float:
    """What the confidence's Brier score would still cost after that repair: right and wrong predictions look alike.

    The mean of (recalibrated confidence − correct)², from 0 (every wrong prediction is less confident than every right
    one) to 1/4. No recalibration that keeps the order lowers it; a better model or a better confidence score does. With
    `brier_calibration` it sums to the Brier score of the event that the prediction is right, which is not the
    k-class `brier`.
    """
    return split(samples, brier_total)[1]


@metric(top_labels, title="NLL, calibration part", range=(0, float("inf")), interval="distance")
def nll_calibration(samples: TopLabels) -> float:
    """What the confidence's log-loss would gain from the best repair after training that keeps its order.

    As `brier_calibration`, with −ln(probability of what happened): confident mistakes weigh far more. Probabilities
    below 1e-12 count as 1e-12, so a mistake costs at most 27.6, also from logits.
    """
    return split(samples, nll_total)[0]


@metric(top_labels, title="NLL, refinement part", range=(0, 1))
def nll_refinement(samples: TopLabels) -> float:
    """What the confidence's log-loss would still cost after that repair: right and wrong predictions look alike.

    As `brier_refinement`, with −ln(probability of what happened); at most ln 2 = 0.69. With `nll_calibration` it sums
    to the log-loss of the event that the prediction is right, which is not the k-class `nll`.
    """
    return split(samples, nll_total)[1]
