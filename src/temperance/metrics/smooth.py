"""Calibration error without bins: kernels make the value a smooth function of the confidences."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.metrics.base import metric
from temperance.metrics.batch import Columns, narrow
from temperance.metrics.statistic import Additive
from temperance.metrics.stats import TopLabels, top_labels
from temperance.numerics import prefix_sums

GRID = 4096  # points on [0, 1]: four per narrowest bandwidth
NARROWEST = 1e-3
EQUAL = 1e-12
NOTHING = 9.0  # exp(−9² / 2) is below 1e-17: higher frequencies are smoothed away

MMCE_WIDTH = 0.4


@dataclass(frozen=True)
class Residuals(Additive):
    """The number of samples, and the sums of confidence minus correctness at the points of a grid on [0, 1]."""

    count: Tensor
    residual: Tensor


@narrow
def residuals(batch: Columns) -> Residuals:
    """Confidence minus correctness on a grid, each sample split between the two points next to its confidence."""
    residual = batch.confidence - batch.correct.double()
    place = batch.confidence.clamp(0, 1) * GRID - 0.5
    low = place.floor()
    share = place - low
    # The first and last point are half a step inside; beyond them lies their own mirror image.
    left, right = low.long().clamp_min_(0), (low.long() + 1).clamp_max_(GRID - 1)
    on_grid = batch.tally(left, GRID, residual * (1 - share))
    on_grid += batch.tally(right, GRID, residual * share)
    return Residuals(batch.count, on_grid)


@metric(residuals, title="smooth ECE", range=(0, 1), headline=7, percent=True, interval="smooth distance")
def smooth_ece(grid: Residuals) -> float:
    """Smooth ECE: calibration error after smoothing with a Gaussian kernel whose width the data choose.

    smECE_σ = ∫ |(1/n) Σ_i K_σ(t, c_i) (c_i − correct_i)| dt, with K_σ the Gaussian of standard deviation σ reflected at
    0 and 1. It falls as σ grows, and the value is the fixed point smECE_σ = σ (Błasiok and Nakkiran, 2023), which needs
    no setting and changes little when the predictions do. σ is at least 0.001.

    relplot mirrors a grid whose end points coincide with their own image, so that samples within about 0.001 of
    confidence 1 count half; if a network is often certain, its value is far above the definition's (DenseNet-40 on
    CIFAR-10: 0.082 instead of 0.055). It also rounds σ up to a multiple of 1/1024.

    >>> round(smooth_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 4)
    0.142
    """
    # Reflected at both ends, the residuals have period 2, and smoothing scales each frequency. NumPy's transform of one
    # row takes half as long as torch's.
    residual = grid.residual.cpu().numpy()
    spectrum = np.fft.rfft(np.concatenate([residual, residual[::-1]]) / grid.count.item())
    angular = math.pi * np.arange(GRID + 1)

    def error(bandwidth: float) -> float:
        kept = math.ceil(NOTHING / (math.pi * bandwidth))
        smoothed = np.fft.irfft(spectrum[:kept] * np.exp(-((angular[:kept] * bandwidth) ** 2) / 2), 2 * GRID)
        return float(np.abs(smoothed[:GRID]).sum())

    return min(_fixed_point(error, NARROWEST), 1.0)


def _fixed_point(error: Callable[[float], float], low: float) -> float:
    """The value of a decreasing function where it equals its argument, or at `low` if it is already below that.

    The Illinois method: a secant between two points on either side, where a point that is kept is weighted by half.
    """
    high = error(low)  # not below the fixed point, because the function decreases
    if high <= low:
        return high
    above, below, side = high - low, error(high) - high, 0
    while True:
        middle = (low * below - high * above) / (below - above)
        value = error(middle)
        excess = value - middle
        if abs(excess) < EQUAL or not low < middle < high:
            return value
        if excess > 0:
            low, above = middle, excess
            below, side = (below / 2 if side > 0 else below), 1
        else:
            high, below = middle, excess
            above, side = (above / 2 if side < 0 else above), -1


@metric(top_labels, title="MMCE", range=(0, 1), percent=True, interval="distance")
def mmce(samples: TopLabels, *, squared: bool = False) -> float:
    """Maximum mean calibration error: a kernel distance between confidence and correctness.

    MMCE² = (1/n²) Σ_ij r_i r_j exp(−|c_i − c_j| / 0.4) with r = correct − c (Kumar, Sarawagi and Jain, 2018, with the
    Laplacian kernel of their experiments); `squared=True` omits the root, as some programs do. Exact in O(n log n): in
    order of confidence the kernel is a product of a factor of i and a factor of j.

    squared  omit the root

    >>> round(mmce([[0.9, 0.1], [0.6, 0.4]], [0, 1], squared=True), 6)
    0.078329
    """
    (residual, n), confidence = samples.gaps(), samples.ordered.confidence
    before = prefix_sums(residual * torch.exp(confidence / MMCE_WIDTH))[:-1] * torch.exp(-confidence / MMCE_WIDTH)
    total = max(float((residual * (residual + 2 * before)).sum()), 0.0) / n**2
    return total if squared else math.sqrt(total)
