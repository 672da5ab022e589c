"""A smooth curve through the log-odds, as curved as the data require."""

from __future__ import annotations

import math
from typing import Annotated, Unpack

import torch
from torch import Tensor
from torch.nn.functional import softplus

from temperance.calibrators._fit.logistic import fit_logistic, solve_ridged
from temperance.calibrators._fit.reduction import Reduction
from temperance.calibrators.base import Shared, calibrator
from temperance.calibrators.logistic import LogisticCalibrator, smoothed_targets, unless_one_sided
from temperance.settings import Bounds, NonNegative

# The values of λ: from a straight line, which is Platt scaling, to a curve with hardly any penalty.
SMOOTHINGS = tuple(10.0**power for power in range(5, -4, -1))

# Samples are grouped into cells along the log-odds, each with its mean: about 225 of equal width in the knots' range,
# wider ones beyond. That moves the curve by far less than its own error, for any number of samples.
CELLS = 256

# The knots reach from the lowest hits to the highest misses, where this share of the rarer outcome counts as outliers.
OUTLIERS = 0.01
# They cover at least this range of log-odds: with few samples hits and misses may hardly overlap.
NARROWEST = 2.0


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class Spline(LogisticCalibrator):
    """Spline calibration: a smooth curve through the log-odds, as curved as the data require.

    log-odds(q) = g(log-odds(p)), with g a natural cubic spline: `n_knots` knots, evenly spaced where hits and misses
    overlap, and straight lines beyond. g minimises NLL + ½ λ ∫ g''². λ → ∞ is Platt scaling. λ is the value among
    10⁻³ … 10⁵ with the least leave-one-out NLL (Lucena 2018 also cross-validates). One Newton step from the fit to all
    samples approximates leaving one out, accurately and at hardly any cost. `smoothing` sets λ instead. Unlike isotonic
    regression, g need not be monotone.

    The spline calibration of Gupta et al. (2021) fits a spline to the cumulative accuracy by least squares and takes
    its derivative, which need not lie in [0, 1]. This one maximises a likelihood, and its values do.

    n_knots    number of knots
    smoothing  λ, the penalty on curvature; None: chosen by leave-one-out

    Lucena, "Spline-based probability calibration" (2018).
    Gupta et al., "Calibration of neural networks using splines" (ICLR 2021).
    """

    origin: Tensor
    spacing: Tensor
    heights: Tensor
    bends: Tensor

    def __init__(
        self,
        *,
        reduction: Reduction = "pooled",
        n_knots: Annotated[int, Bounds(3)] = 10,
        smoothing: NonNegative | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        self.n_knots = n_knots
        self.smoothing = smoothing

    def _fit_binary(self, log_odds: Tensor, happened: Tensor, weights: Tensor) -> dict[str, Tensor]:
        origin, spacing = overlap(log_odds, happened, weights, self.n_knots - 1)
        place = (log_odds - origin) / spacing
        middle = (self.n_knots - 1) / 2
        cell = ((place - middle) / middle).asinh_().mul_(CELLS / 2).floor_().clamp_(-CELLS, CELLS).long() + CELLS
        weight = _cell_sums(cell, weights.expand_as(place))
        some = torch.where(weight > 0, weight, 1)
        place = _cell_sums(cell, place * weights) / some
        hits = _cell_sums(cell, happened * weights)
        target = _cell_sums(cell, smoothed_targets(happened, weights) * weights) / some

        bend, energy = bending(self.n_knots, place)
        heights = place.new_zeros(len(place), self.n_knots)
        best, least = heights, place.new_full((len(place),), torch.inf)
        for smoothing in SMOOTHINGS if self.smoothing is None else (self.smoothing,):
            penalty = math.sqrt(smoothing) * energy
            # After the straight line, each fit starts from the smoother curve.
            fit = fit_logistic(place, target, lambda x: basis(x, bend), heights, weight=weight, penalty=penalty)
            heights = self._record(fit).theta
            nll = left_out_nll(basis(place, bend), heights, weight, hits, penalty)
            best, least = torch.where((nll < least)[:, None], heights, best), torch.minimum(nll, least)

        knots = origin + spacing * torch.arange(self.n_knots, dtype=place.dtype, device=place.device)
        best = unless_one_sided(happened, best, knots)
        return {"origin": origin, "spacing": spacing, "heights": best, "bends": best @ bend.T}

    def _map(self, log_odds: Tensor) -> Tensor:
        left, u = _cell_of((log_odds - self.origin) / self.spacing, self.n_knots)
        height, bend = self.heights.gather(1, left), self.bends.gather(1, left)
        next_height, next_bend = self.heights.gather(1, left + 1), self.bends.gather(1, left + 1)
        return (1 - u) * height + u * next_height + _bump(1 - u) * bend + _bump(u) * next_bend


def overlap(log_odds: Tensor, happened: Tensor, weights: Tensor, n_intervals: int) -> tuple[Tensor, Tensor]:
    """The first knot and the spacing of knots from the lowest hits to the highest misses. (m, 1) each"""
    hits = happened.double() @ weights[:, None]
    left_out = (OUTLIERS * torch.minimum(hits, weights.sum() - hits)).floor()
    low = _beyond(torch.where(happened, log_odds, torch.inf), weights, left_out)
    high = -_beyond(torch.where(happened, torch.inf, -log_odds), weights, left_out)
    # If a threshold separates the two, the gap between them; if there is only one outcome, a range around zero.
    low, high = torch.minimum(low, high).nan_to_num(neginf=0.0), torch.maximum(low, high).nan_to_num(posinf=0.0)
    middle, width = (low + high) / 2, (high - low).clamp_min(NARROWEST)
    return middle - width / 2, width / n_intervals


def _beyond(values: Tensor, weights: Tensor, left_out: Tensor) -> Tensor:
    """The lowest value (m, 1) of each row (m, n) once its lowest `left_out` samples, which are few, are dropped."""
    # With weights of at least 1 these are at most as many rows; if some are smaller, all rows are sorted.
    most = int(left_out.max()) + 1 if float(weights.min()) >= 1 else values.shape[1]
    lowest, order = values.topk(min(most, values.shape[1]), dim=1, largest=False)
    passed = (weights[order].cumsum(1) <= left_out).sum(1, keepdim=True)
    return lowest.gather(1, passed.clamp_max(lowest.shape[1] - 1))


def bending(n_knots: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """For natural splines with knots 0, 1, 2, …: g'' at the knots is bend · heights, ∫ g''² is |energy · heights|²."""
    eye = torch.eye(n_knots, dtype=like.dtype, device=like.device)
    differences = eye[:-2] - 2 * eye[1:-1] + eye[2:]
    beside = torch.diag(eye.new_ones(n_knots - 3), 1)
    mass = 2 / 3 * eye[1:-1, 1:-1] + (beside + beside.T) / 6
    second = torch.linalg.solve(mass, differences)
    return torch.cat([0 * eye[:1], second, 0 * eye[:1]]), torch.linalg.cholesky(mass).mT @ second


def basis(place: Tensor, bend: Tensor) -> Tensor:
    """The contribution of each knot's height at each place. (m, n, q)"""
    left, u = _cell_of(place, len(bend))
    eye = torch.eye(len(bend), dtype=bend.dtype, device=bend.device)
    u = u[..., None]
    return (1 - u) * eye[left] + u * eye[left + 1] + _bump(1 - u) * bend[left] + _bump(u) * bend[left + 1]


def _cell_of(place: Tensor, n_knots: int) -> tuple[Tensor, Tensor]:
    """The knot to the left, which is never the last one, and the distance from it."""
    left = place.floor().clamp(0, n_knots - 2)
    return left.long(), place - left


def _bump(u: Tensor) -> Tensor:
    """The cubic with second derivative 1 at one knot and 0 at the other; a straight line beyond the knots."""
    return (u.clamp_min(0) ** 3 - u) / 6


def left_out_nll(columns: Tensor, theta: Tensor, weight: Tensor, hits: Tensor, penalty: Tensor) -> Tensor:
    """The leave-one-out NLL (m,), by one Newton step from the fit to all samples.

    Leaving out a sample with features f moves its own log-odds by f H⁻¹ f · (p − y) / (1 − f H⁻¹ f · p (1 − p)).

    Rad and Maleki, "A scalable estimate of the out-of-sample prediction error via approximate leave-one-out" (2020).
    """
    t = (columns @ theta[:, :, None]).squeeze(2)
    p = t.sigmoid()
    variance = p * (1 - p)
    hessian = columns.mT @ ((weight * variance)[:, :, None] * columns) + penalty.T @ penalty
    leverage = (columns * solve_ridged(hessian, columns.mT).mT).sum(2)
    reach = leverage / (1 - leverage * variance).clamp_min(1e-3)
    as_hit, as_miss = t - reach * (1 - p), t + reach * p
    return (hits * softplus(-as_hit) + (weight - hits) * softplus(as_miss)).sum(1)


def _cell_sums(cell: Tensor, values: Tensor) -> Tensor:
    return values.new_zeros(len(values), 2 * CELLS + 1).scatter_add_(1, cell, values)
