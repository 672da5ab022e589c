"""Calibration error by kernel density estimates on the simplex (Popordanoska, Sayer and Blaschko, 2022).

The label frequencies given a prediction f_i are estimated from the other samples near it,

    Ê[y | f_i] = Σ_{j≠i} k(f_i; f_j) y_j / Σ_{j≠i} k(f_i; f_j),

where k(·; f_j) is the density of a Dirichlet distribution with α = f_j / bandwidth + 1, which stays on the simplex. For
the probability f of one event it is a Beta distribution, the Dirichlet of (f, 1 − f). Time grows with n², memory with
n: the kernel is computed a few rows at a time. The functions of tensors are differentiable, so a loss can use them.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from temperance.arrays import block_rows
from temperance.errors import InputError
from temperance.metrics.base import MetricClaims, metric
from temperance.metrics.stats import FullRows, TopLabels, full_rows, top_labels
from temperance.settings import Bounds, Positive

# Predictions are kept this far from the edge of the simplex, where the kernel's logarithm is infinite.
MARGIN = 1e-9

# The kernel is computed in tiles of about this many values, which stay in cache.
TILE_VALUES = {"cpu": 1 << 19, "cuda": 1 << 25}

CLAIMS: MetricClaims = {
    "range": (0, 1),
    "percent": True,
    "quadratic": True,
    "whole_weights": True,
    "interval": "distance",
}
# No value for perfect predictions: the only sample of a class has no neighbour to show that it is right.
MARGINAL: MetricClaims = {**CLAIMS, "range": (0, math.inf), "perfect": None, "of_classes": True}
CANONICAL: MetricClaims = {**MARGINAL, "range": (0, 2)}

Bandwidth = Positive | Literal["loo"]
Power = Annotated[float, Bounds(1)]


def loo_bandwidths() -> Tensor:
    """The bandwidths that leave-one-out maximum likelihood chooses from."""
    return torch.cat([torch.logspace(-5, -1, 15, dtype=torch.float64), torch.linspace(0.2, 1, 5, dtype=torch.float64)])


def canonical_error(
    probs: Tensor, labels: Tensor, bandwidth: float, *, p: float = 1, counted: Tensor | None = None
) -> Tensor:
    """Σ_c |Ê[y_c | f] − f_c|^p, averaged over samples, or over the `counted` ones (n,)."""
    near = neighbour_weights(probs, bandwidth, counted=counted)
    gaps = (torch.cat([_of_each_label(weights, labels, probs.shape[1]) for weights in near]) - probs).abs()
    errors = (gaps if p == 1 else gaps.pow(p)).sum(1)
    return errors.mean() if counted is None else (errors * counted).sum() / counted.sum().clamp_min(1)


def binary_error(value: Tensor, happened: Tensor, bandwidth: float, *, p: float = 1) -> Tensor:
    """|Ê[happened | value] − value|^p, averaged over samples, for the probability of one event."""
    near = neighbour_weights(two_sided(value), bandwidth)
    return (torch.cat([weights @ happened.to(value.dtype) for weights in near]) - value).abs().pow(p).mean()


def two_sided(value: Tensor) -> Tensor:
    """The probability of an event as a distribution over it and its opposite. (n, 2)"""
    return torch.stack([value, 1 - value], dim=1)


def neighbour_weights(points: Tensor, bandwidth: float, *, counted: Tensor | None = None) -> Iterator[Tensor]:
    """The weights of all other points around each point (n, d), a tile at a time, valid until the next one. (rows, n)

    log k(f_i; f_j) = Σ_c (α_jc − 1) ln f_ic − ln B(α_j) is one matrix product. Weights are relative to the largest of
    their row, so that their sum is at least 1 however far away the other points are, then divided by that sum. Points
    that are not `counted` (n,) are no one's neighbours; a point without neighbours has zero weights.
    """
    points = points.clamp(MARGIN, 1 - MARGIN)
    log_norm = _log_norm(points, bandwidth)
    for log_kernel in _others(points.log(), points / bandwidth):
        log_kernel.sub_(log_norm)
        if counted is not None:
            log_kernel.masked_fill_(~counted, -math.inf)
        highest = log_kernel.detach().amax(1, keepdim=True).clamp_min(torch.finfo(points.dtype).min)
        weights = log_kernel.sub_(highest).exp_()
        total = weights.sum(1, keepdim=True).clamp_min(0.5)
        # A single tile may be differentiated, so it must not be modified in place.
        tiled = len(weights) < len(points) and not weights.requires_grad
        yield weights.div_(total) if tiled else weights / total


def _of_each_label(weights: Tensor, labels: Tensor, k: int) -> Tensor:
    """The sum of the weights of each label's samples. (rows, n), (n,) → (rows, k)"""
    if weights.is_cuda:  # where index_add sums in an order that changes from run to run
        return weights @ one_hot(labels, k).to(weights.dtype)
    return weights.new_zeros(len(weights), k).index_add(1, labels, weights)


def loo_log_likelihood(points: Tensor, bandwidths: Tensor) -> Tensor:
    """The log-likelihood of each point (n, d) under the density of the others, summed, for each bandwidth."""
    points = points.clamp(MARGIN, 1 - MARGIN)
    settings = [(bandwidth, _log_norm(points, bandwidth)) for bandwidth in bandwidths.tolist()]
    total = points.new_zeros(len(settings))
    for product in _others(points.log(), points):
        total += torch.stack([(product / b - log_norm).logsumexp(1).sum() for b, log_norm in settings])
    return total - len(points) * math.log(len(points) - 1)


def _log_norm(points: Tensor, bandwidth: float) -> Tensor:
    """ln B(α) = Σ_c ln Γ(α_c) − ln Γ(Σ_c α_c). (n,)"""
    alpha = points / bandwidth + 1
    return alpha.lgamma().sum(1) - alpha.sum(1).lgamma()


def _others(left: Tensor, right: Tensor) -> Iterator[Tensor]:
    """left @ right.T, a tile at a time, −∞ where a sample meets itself; valid until the next one. (rows, n)"""
    n = len(left)
    if n < 2:
        raise InputError("a kernel estimate leaves each sample out in turn, so it needs at least 2 samples; got 1")
    step = block_rows(n, left.device, TILE_VALUES)
    # Without a gradient one tile is reused for all rows: freed tiles between small results would add up to n × n.
    reused = None if step >= n or left.requires_grad or right.requires_grad else left.new_empty(step, n)
    for start in range(0, n, step):
        rows = left[start : start + step]
        if reused is None:
            product = rows @ right.T
            yield product.diagonal_scatter(product.new_full((len(rows),), -math.inf), start)
        else:
            product = torch.mm(rows, right.T, out=reused[: len(rows)])
            product.diagonal(start).fill_(-math.inf)
            yield product


def loo_bandwidth(points: Tensor) -> float:
    """The bandwidth under which the points (n, d) are most likely, each given the others."""
    grid = loo_bandwidths()
    return float(grid[int(loo_log_likelihood(points, grid).argmax())])


def _chosen(bandwidth: Bandwidth, points: Tensor) -> float:
    return loo_bandwidth(points) if bandwidth == "loo" else bandwidth


@metric(top_labels, title="KDE ECE", **CLAIMS)
def kde_ece(samples: TopLabels, *, p: Power = 1, bandwidth: Bandwidth = 0.02) -> float:
    """Kernel calibration error of the predicted class: ECE with Beta kernels in place of bins.

    The mean of |Ê[correct | c_i] − c_i|^p; the root 1/p is not taken, as in the authors' program. `bandwidth="loo"`
    takes the bandwidth under which the confidences are most likely, each given the others.

    p          power of the error
    bandwidth  of the kernels, or "loo": chosen by leave-one-out likelihood
    """
    chosen = _chosen(bandwidth, two_sided(samples.confidence))
    return float(binary_error(samples.confidence, samples.correct, chosen, p=p))


@metric(full_rows, title="KDE marginal CE", **MARGINAL)
def kde_ece_marginal(samples: FullRows, *, p: Power = 1, bandwidth: Bandwidth = 0.02) -> float:
    """Kernel calibration error of each class's probability, summed over classes.

    Σ_c of the mean of |Ê[y = c | f_ic] − f_ic|^p with Beta kernels; the root is not taken. A sum, not a mean as in
    `classwise_ece`: for two classes it is twice the error of one. `bandwidth="loo"` chooses for each class separately.

    p          power of the error
    bandwidth  of the kernels, or "loo": chosen by leave-one-out likelihood
    """
    total = 0.0
    for j in range(samples.probs.shape[1]):
        value = samples.probs[:, j]
        chosen = _chosen(bandwidth, two_sided(value))
        total += float(binary_error(value, samples.labels == j, chosen, p=p))
    return total


@metric(full_rows, title="KDE canonical CE", **CANONICAL)
def kde_ece_canonical(samples: FullRows, *, p: Power = 1, bandwidth: Bandwidth = 0.02) -> float:
    """Kernel calibration error of the whole distribution, not only of its largest probability.

    The mean of Σ_c |Ê[y_c | f_i] − f_ic|^p with Dirichlet kernels; the root is not taken. Neighbours are few in many
    dimensions: with more than about ten classes it takes many samples to tell miscalibration from a lack of neighbours.

    p          power of the error
    bandwidth  of the kernels, or "loo": chosen by leave-one-out likelihood
    """
    chosen = _chosen(bandwidth, samples.probs)
    return float(canonical_error(samples.probs, samples.labels, chosen, p=p))
