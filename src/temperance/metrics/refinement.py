"""What can be corrected after training and what cannot: a proper score of the confidence, split in two.

Isotonic regression of correctness on confidence, the best non-decreasing map, replaces every confidence by the accuracy
of predictions like it. What the score gains is its calibration part; what remains is its refinement part. This is the
CORP decomposition (Dimitriadis, Gneiting and Jordan, 2021) for the event that the predicted class is right, with
refinement = uncertainty − discrimination.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR
from temperance.isotonic import isotonic
from temperance.metrics.base import metric
from temperance.metrics.stats import TopLabels, top_labels

# The total score of groups of predictions, from the probability stated in each and the numbers of right and wrong ones.
GroupScore = Callable[[Tensor, Tensor, Tensor], Tensor]


def brier_total(said: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Σ (probability − event)²."""
    return (right * (1 - said).square() + wrong * said.square()).sum()


def nll_total(said: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """−Σ ln(probability of what happened), with the same floor as everywhere."""
    return -(right * said.clamp(LOG_FLOOR, 1).log() + wrong * (1 - said).clamp(LOG_FLOOR, 1).log()).sum()


def split(samples: TopLabels, total: GroupScore) -> tuple[float, float]:
    """The mean score as (calibration, refinement), whose sum it is."""
    # Equal confidences must get equal values, so they are pooled before the regression.
    confidence, group, count = torch.unique(samples.confidence, return_inverse=True, return_counts=True)
    hits, n = samples.correct.double(), float(len(group))
    if samples.weights is not None:
        hits, n = hits * samples.weights, float(samples.weights.sum())
        count = torch.bincount(group, samples.weights)
    right = torch.bincount(group, hits, minlength=len(count))
    wrong = count - right
    corrected = isotonic(right / count, count).clamp(0, 1)
    refinement = float(total(corrected, right, wrong)) / n
    return max(float(total(confidence, right, wrong)) / n - refinement, 0.0), refinement


@metric(top_labels, title="Brier, calibration part", range=(0, 1), interval="distance")
def brier_calibration(samples: TopLabels) -> float:
    """The part of the confidence's Brier score that the best order-preserving recalibration would remove.

    The mean of (confidence − correct)² minus the same after isotonic regression of correct on confidence. Near 0 there
    is nothing left for temperature scaling and similar methods to do. The regression is fitted to the samples it is
    measured on, so a calibrated model measures a little above 0, more so with fewer samples; but it needs no bins.

    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    >>> round(brier_calibration(p, [0, 1, 0, 1]), 6), round(brier_refinement(p, [0, 1, 0, 1]), 6)
    (0.15, 0.125)
    """
    return split(samples, brier_total)[0]


@metric(top_labels, title="Brier, refinement part", range=(0, 0.25))
def brier_refinement(samples: TopLabels) -> float:
    """The part of the confidence's Brier score that recalibration cannot remove: right and wrong look alike.

    The mean of (recalibrated confidence − correct)², from 0 (every wrong prediction is less confident than every right
    one) to 1/4. No order-preserving recalibration lowers it; a better model or a better confidence score does. With
    `brier_calibration` it sums to the Brier score of the event that the prediction is right, which is not the
    k-class `brier`.
    """
    return split(samples, brier_total)[1]


@metric(top_labels, title="NLL, calibration part", range=(0, math.inf), interval="distance")
def nll_calibration(samples: TopLabels) -> float:
    """The part of the confidence's log-loss that the best order-preserving recalibration would remove.

    Like `brier_calibration`, with −ln(probability of what happened): confident mistakes weigh far more. Probabilities
    are clamped to at least 1e-12, so a mistake costs at most 27.6, even from logits.
    """
    return split(samples, nll_total)[0]


@metric(top_labels, title="NLL, refinement part", range=(0, 1))
def nll_refinement(samples: TopLabels) -> float:
    """The part of the confidence's log-loss that recalibration cannot remove: right and wrong look alike.

    Like `brier_refinement`, with −ln(probability of what happened); at most ln 2 = 0.69. With `nll_calibration` it sums
    to the log-loss of the event that the prediction is right, which is not the k-class `nll`.
    """
    return split(samples, nll_total)[1]
