"""Gap scaling: the gaps between a row's sorted logits, stretched by how sure the row is."""

from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.solvers import TOLERANCE
from temperance.calibrators.base import Calibrator, Shared, calibrator
from temperance.calibrators.ordered import LEAST_GAIN, centred
from temperance.calibrators.temperature import caution_of, fit_inverse_temperature
from temperance.objectives import Nll
from temperance.settings import Positive

# A new factor begins below the logits of these ranks: the first gaps decide, the many small ones share a factor.
RANKS = (1, 2, 3, 5)
# How many of the largest log-probabilities tell how sure a row is.
SEEN = 4
# Rows further out than this many standard deviations are treated like rows at it: nothing was learnt beyond.
REACH = 3.0

BLOCK_VALUES = {"cpu": 1 << 17, "cuda": 1 << 26}
MAX_STEPS = 50
MAX_HALVINGS = 30


@calibrator(family="ordered", preserves_argmax=True)
class GapScaling(Calibrator):
    """Stretches the gaps between sorted logits by factors that depend on how sure the row is; the order stays.

    With u = z / T sorted downwards and its gaps in groups g (the first, the second, the third and fourth, the rest)

        p = softmax(f),   f_(i) = −Σ_{j < i} m_g(j) · (u_(j) − u_(j+1)),   m_g = 1 + θ_g · φ

    φ = [1, the four largest log-probabilities, the largest logit less the mean], all but the 1 standardised. T comes
    first, by NLL; `rescale=False` leaves it at 1. θ then minimises NLL + (`ridge` / n) ‖θ‖², a convex problem of 24
    parameters for any number of classes, by Newton's method. With few samples it stays near temperature scaling.

    It is what `order-preserving` becomes with a linear network and few factors: nearly as good on real predictions, and
    ten times faster. On rows unlike those it was fitted on a factor can become zero or negative; a tiny positive one
    then replaces it, so the order stays. It treats all classes alike, which complements methods that tell them apart:
    `auto` ends with it.

    ridge    strength of the penalty on θ
    rescale  find T first; false: T = 1

    Rahimi et al., "Intra order-preserving functions for calibration of multi-class neural networks" (NeurIPS 2020).
    """

    inverse_temperature: Tensor
    centre: Tensor
    spread: Tensor
    slopes: Tensor

    def __init__(self, *, ridge: Positive = 5.0, rescale: bool = True, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.ridge = ridge
        self.rescale = rescale

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        inverse, record = fit_inverse_temperature(Nll(), logits, labels) if self.rescale else (1.0, {})
        self._keep("inverse_temperature", logits.new_tensor(inverse))
        scaled = centred(logits) * inverse
        sureness = torch.cat([_sureness(rows) for rows in torch.split(scaled, _step(scaled))])
        self._keep("centre", sureness.mean(0))
        self._keep("spread", (sureness - self.centre).square().mean(0).sqrt().clamp_min(1e-9))
        problem = _Problem(scaled, self._described(sureness), labels, self.ridge)
        found, self.info = _newton(problem, logits.new_zeros(problem.shape))
        self.info |= {"temperature": 1 / inverse} | caution_of(record)
        self._keep("slopes", found)

    def _calibrate(self, logits: Tensor) -> Tensor:
        scaled = centred(logits) * self.inverse_temperature
        gains = (1 + self._described(_sureness(scaled)) @ self.slopes.T).clamp_min(LEAST_GAIN)
        scores = torch.zeros_like(scaled)
        for gain, depth in zip(gains.T, _depths(scaled, _edges(scaled)), strict=True):
            scores = scores - gain[:, None] * depth
        return scores.log_softmax(1)

    def _described(self, sureness: Tensor) -> Tensor:
        """φ of each row. (n, 1 + d)"""
        standard = ((sureness - self.centre) / self.spread).clamp(-REACH, REACH)
        return torch.cat([torch.ones_like(standard[:, :1]), standard], 1)


def _sureness(scaled: Tensor) -> Tensor:
    """The largest log-probabilities of rows whose mean is 0, and their largest logit. (n, d)"""
    top = scaled.topk(min(SEEN, scaled.shape[1]), dim=1).values
    return torch.cat([top - scaled.logsumexp(1, keepdim=True), top[:, :1]], 1)


def _edges(scaled: Tensor) -> Tensor:
    """The logits at which a factor begins, and the least one, where the last factor ends. (n, g + 1)"""
    ranks = [rank for rank in RANKS if rank < scaled.shape[1]]
    top = scaled.topk(ranks[-1], dim=1).values
    return torch.cat([top[:, [rank - 1 for rank in ranks]], scaled.amin(1, keepdim=True)], 1)


def _depths(scaled: Tensor, edges: Tensor) -> Iterator[Tensor]:
    """How far each logit lies below the top, in parts between the edges: f = −Σ_g m_g · depth_g. (n, k) for each g"""
    for start, end in zip(edges.T[:-1, :, None], edges.T[1:, :, None], strict=True):
        yield torch.minimum((start - scaled).clamp_min(0), start - end)


def _step(rows: Tensor) -> int:
    """How many rows to take at once, so that what is computed from them stays in cache."""
    return max(1, BLOCK_VALUES.get(rows.device.type, BLOCK_VALUES["cpu"]) // (len(RANKS) * rows.shape[1]))


class _Problem:
    """The penalised NLL of slopes θ (g, 1 + d), with its first two derivatives."""

    def __init__(self, scaled: Tensor, described: Tensor, labels: Tensor, ridge: float) -> None:
        self.scaled = scaled
        self.edges = _edges(scaled)
        self.described = described
        self.labels = labels
        self.penalty = ridge / len(labels)
        self.shape = (self.edges.shape[1] - 1, described.shape[1])

    def __call__(self, theta: Tensor) -> tuple[float, Tensor, Tensor]:
        """Value, gradient (p,) and Hessian (p, p)."""
        n, (groups, d) = len(self.labels), self.shape
        value = self.penalty * theta.square().sum()
        gradient = 2 * self.penalty * theta
        hessian = theta.new_zeros(groups * groups, d * d)
        for scaled, edges, described, labels in self._blocks():
            depths = torch.stack(list(_depths(scaled, edges)), 1)
            scores = -((1 + described @ theta.T)[:, None, :] @ depths).squeeze(1)
            log_probs = scores.log_softmax(1)
            own = depths.gather(2, labels[:, None, None].expand(-1, groups, 1)).squeeze(2)
            weighted = depths * log_probs.exp()[:, None, :]
            mean = weighted.sum(2)
            # The covariance of the depths under p, for each row.
            bends = weighted @ depths.mT - mean[:, :, None] * mean[:, None, :]
            value -= log_probs.gather(1, labels[:, None]).sum() / n
            gradient += (own - mean).T @ described / n
            hessian += bends.flatten(1).T @ (described[:, :, None] * described[:, None, :]).flatten(1) / n
        square = hessian.view(groups, groups, d, d).permute(0, 2, 1, 3).reshape(theta.numel(), theta.numel())
        square.diagonal().add_(2 * self.penalty)
        return float(value), gradient.reshape(-1), square

    def _blocks(self) -> Iterator[tuple[Tensor, ...]]:
        step = _step(self.scaled)
        parts = (self.scaled, self.edges, self.described, self.labels)
        return zip(*(torch.split(part, step) for part in parts), strict=True)


def _newton(problem: _Problem, start: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Newton's method, with halved steps where a full one does not help."""
    theta = start
    value, gradient, hessian = problem(theta)
    steps = 0
    while steps < MAX_STEPS and float(gradient.abs().amax()) > TOLERANCE:
        direction = -torch.linalg.solve(hessian, gradient).view_as(theta)
        for halvings in range(MAX_HALVINGS):
            there = theta + direction / 2**halvings
            found = problem(there)
            if found[0] <= value:
                break
        else:
            break
        theta, (value, gradient, hessian) = there, found
        steps += 1
    size = float(gradient.abs().amax())
    return theta, {"converged": size <= TOLERANCE, "gradient": size, "value": value, "steps": steps}
