"""Calibration error of the predicted class, over confidence bins.

Bins are (lo, hi] by default, as in Guo et al. (2017) and most research code; netcal, relplot and torchmetrics use
[lo, hi) (`closed="left"`). Edges are exact, and a confidence of exactly 0 or 1 belongs to the first or last bin.
"""

import math

import torch
from torch import Tensor

from temperance.metrics.base import metric
from temperance.metrics.bins import Bins
from temperance.metrics.stats import predicted_class_bins, top_label_bins
from temperance.settings import Count


@metric(top_label_bins, title="ECE", range=(0, 1), headline=5, percent=True, interval="distance")
def ece(bins: Bins) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy.

    ECE = Σ_b n_b / n · |accuracy(b) − confidence(b)| over `n_bins` bins of equal width; empty bins contribute nothing.
    It is biased upwards: even a calibrated model measures above zero, more so with fewer samples or more bins.

    >>> round(ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=5), 6)
    0.2
    """
    return float((bins.weight * bins.gap.abs()).sum())


@metric(top_label_bins, title="confidence gap", range=(-1, 1), lower_is_better=None, headline=4, percent=True)
def confidence_gap(bins: Bins) -> float:
    """Mean confidence minus accuracy: positive is over-confident, negative under-confident.

    Near zero it does not mean calibrated: over-confidence in one place can hide under-confidence in another.

    >>> round(confidence_gap([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 6)
    0.35
    """
    return float((bins.confidence.sum() - bins.hits.sum()) / bins.n)


@metric(top_label_bins, title="MCE", range=(0, 1), headline=8, percent=True, interval="none")
def mce(bins: Bins, *, min_count: Count = 1) -> float:
    """Maximum calibration error: the largest gap of any non-empty bin.

    A bin of three samples can determine it; `min_count` leaves out small bins.

    min_count  bins with fewer samples are left out

    >>> round(mce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=5), 6)
    0.25
    """
    gaps = bins.gap.abs()[bins.count > min_count - 1]  # for counts the same as >=; for weights, 1 means non-empty
    return float(gaps.max()) if len(gaps) else math.nan


@metric(top_label_bins, title="RMS error", range=(0, 1), percent=True, interval="distance")
def rms_ce(bins: Bins) -> float:
    """Root mean square calibration error: like ECE, but large gaps weigh more.

    sqrt(Σ_b n_b / n · (accuracy(b) − confidence(b))²), also called the L2 calibration error.

    >>> round(rms_ce([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=5), 6)
    0.212132
    """
    return math.sqrt(float((bins.weight * bins.gap.square()).sum()))


@metric(top_label_bins, title="debiased L2", range=(0, 1), percent=True, whole_weights=True, interval="distance")
def debiased_l2(bins: Bins) -> float:
    """Root mean square calibration error without the part that is sampling noise.

    The variance of a bin's accuracy, a(1 − a) / (n_b − 1), is subtracted from each squared gap (Kumar, Liang and Ma,
    2019, Definition 5.1). A negative result becomes 0. Bins of one sample say nothing and are left out.
    """
    enough = bins.count > 1
    accuracy = bins.hits.double() / bins.count.clamp_min(1)
    noise = accuracy * (1 - accuracy) / (bins.count - 1).clamp_min(1)
    squared = float((bins.weight * (bins.gap.square() - noise) * enough).sum())
    return math.sqrt(max(squared, 0.0))


@metric(top_label_bins, title="debiased ECE", range=(0, 1), percent=True, whole_weights=True, interval="distance")
def debiased_ece(bins: Bins) -> float:
    """Expected calibration error without the part that is sampling noise.

    A bin of n_b samples with gap g measures |g + noise|, on average more than |g|. With normal noise of variance
    a(1 − a) / n_b that average is known (a folded normal), and its excess over |g| is subtracted, down to 0.
    """
    accuracy = bins.hits.double() / bins.count.clamp_min(1)
    gap = bins.gap.abs()
    excess = _folded_normal_mean(gap, (accuracy * (1 - accuracy) / bins.count.clamp_min(1)).sqrt()) - gap
    return max(float((bins.weight * (gap - excess)).sum()), 0.0)


def _folded_normal_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|X| for X normal, exact even where the deviation is 0."""
    ratio = mean / deviation.clamp_min(1e-300)
    density = deviation * math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2)
    return density + mean * torch.erf(ratio / math.sqrt(2))


@metric(
    predicted_class_bins,
    title="top-label-conditional ECE",
    range=(0, 1),
    percent=True,
    interval="distance",
    of_classes=True,
)
def conditional_ece(bins: Bins) -> float:
    """Calibration error of the predicted class, separately for each predicted class.

    Gupta and Ramdas (2022): confidence should be right given *which* class was predicted, not only on average over
    all. It is the mean over samples of the gap in their (class, bin) cell; never below ECE with the same bins.
    """
    return float((bins.hits - bins.confidence).abs().sum() / bins.count.sum())
