"""Gap scaling: the gaps between a row's sorted logits, stretched depending on how confident the row is."""

from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.descent import Solution, descend
from temperance.calibrators._fit.inverse_temperature import caution_of, core_rows, fit_inverse_temperature
from temperance.calibrators._fit.solvers import Problem, WithObjective, minimise, sample_weight
from temperance.calibrators.base import Shared, calibrator
from temperance.calibrators.ordered import LEAST_GAIN, centred
from temperance.calibrators.weights import weighed
from temperance.objectives import Nll, Objective, ObjectiveName
from temperance.settings import Positive
from temperance.threads import one_thread

# A new factor starts below the logits of these ranks: the first gaps matter most, the many small ones share a factor.
RANKS = (1, 2, 3, 5)
# How many of the largest log-probabilities describe how confident a row is.
SEEN = 4
# Features are clipped at this many standard deviations: nothing was learnt beyond.
REACH = 3.0

MAX_STEPS = 50


@calibrator(family="ordered", preserves_argmax=True, takes_objective=True, takes_weights=True, scale_free=True)
class GapScaling(WithObjective):
    """Stretches the gaps between sorted logits by factors that depend on how confident the row is; the order stays.

    With u = z / T sorted in descending order and its gaps in groups g (the first, the second, the third and fourth, the
    rest)

        p = softmax(f),   f_(i) = −Σ_{j < i} m_g(j) · (u_(j) − u_(j+1)),   m_g = 1 + θ_g · φ

    φ = [1, the four largest log-probabilities, the largest logit minus the mean], all but the 1 standardised. T is
    fitted first; `rescale=False` leaves it at 1. θ then minimises NLL + (`ridge` / n) ‖θ‖², a convex problem of 24
    parameters for any number of classes, by Newton's method; other objectives are minimised by L-BFGS. With few samples
    it stays near temperature scaling.

    It is `order-preserving` with a linear network and few factors: nearly as good on real predictions, and ten times
    faster. On rows unlike those it was fitted on, a factor can become zero or negative; a tiny positive one then
    replaces it, so the order stays. It treats all classes alike, which complements methods that tell them apart: `auto`
    ends with it.

    ridge    strength of the penalty, which keeps the factors near 1
    rescale  fit a temperature first; false: the temperature is 1

    Rahimi et al., "Intra order-preserving functions for calibration of multi-class neural networks" (NeurIPS 2020).
    """

    inverse_temperature: Tensor
    centre: Tensor
    spread: Tensor
    slopes: Tensor

    def __init__(
        self,
        *,
        ridge: Positive = 5.0,
        rescale: bool = True,
        objective: ObjectiveName = "nll",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, **shared)
        self.ridge = ridge
        self.rescale = rescale

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        objective = self._make_objective(weights)
        inverse, record = fit_inverse_temperature(objective, logits, labels) if self.rescale else (1.0, {})
        self._keep("inverse_temperature", logits.new_tensor(inverse))
        scaled = centred(logits) * inverse
        top = _largest(scaled)
        in_blocks = (torch.split(part, core_rows(scaled)) for part in (scaled, top))
        sureness = torch.cat([_sureness(*rows) for rows in zip(*in_blocks, strict=True)])
        self._keep("centre", weighed(sureness, weights).mean(0))
        self._keep("spread", weighed((sureness - self.centre).square(), weights).mean(0).sqrt().clamp_min(1e-9))
        described = self._described(sureness)
        if isinstance(objective, Nll):
            share = objective.weights(labels, logits.shape[1])
            problem = _Problem(scaled, top, described, labels, share, self.ridge / objective.n_samples(labels))
            start = logits.new_zeros(len(_ranks(scaled)) * described.shape[1])
            with one_thread():
                found = descend(problem, start, max_steps=MAX_STEPS, hessian=lambda: problem.hessian)
        else:
            found = _minimise(objective, scaled, described, labels, self.ridge)
        self.info = found.info | {"temperature": 1 / inverse} | caution_of(record)
        self._keep("slopes", found.parameters.view(-1, described.shape[1]))

    def _calibrate(self, logits: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or len(logits) <= core_rows(logits):
            return self._log_probs(logits)
        with one_thread():  # its many small operations would wait for torch's threads
            return torch.cat([self._log_probs(rows) for rows in torch.split(logits, core_rows(logits))])

    def _log_probs(self, logits: Tensor) -> Tensor:
        scaled = centred(logits) * self.inverse_temperature
        top = _largest(scaled)
        return _stretched(scaled, top, self._described(_sureness(scaled, top)), self.slopes)

    def _described(self, sureness: Tensor) -> Tensor:
        """The features φ of each row. (n, 1 + d)"""
        standard = ((sureness - self.centre) / self.spread).clamp(-REACH, REACH)
        return torch.cat([torch.ones_like(standard[:, :1]), standard], 1)


def _stretched(scaled: Tensor, top: Tensor, described: Tensor, slopes: Tensor) -> Tensor:
    """Log-probabilities of rows whose gaps are multiplied by their factors. (n, k)"""
    gains = (1 + described @ slopes.T).clamp_min(LEAST_GAIN)
    scores = torch.zeros_like(scaled)
    for gain, depth in zip(gains.T, _depths(scaled, _edges(scaled, top)), strict=True):
        scores = scores - gain[:, None] * depth
    return scores.log_softmax(1)


def _largest(scaled: Tensor) -> Tensor:
    """The largest logits of each row in descending order, as many as the functions below need. (n, at most 5)"""
    return scaled.topk(min(max(SEEN, RANKS[-1]), scaled.shape[1]), dim=1).values


def _sureness(scaled: Tensor, top: Tensor) -> Tensor:
    """The largest log-probabilities of rows whose mean is 0, and their largest logit. (n, d)"""
    return torch.cat([top[:, :SEEN] - scaled.logsumexp(1, keepdim=True), top[:, :1]], 1)


def _edges(scaled: Tensor, top: Tensor) -> Tensor:
    """The logits at which a factor starts, and the smallest logit, where the last factor ends. (n, g + 1)"""
    return torch.cat([top[:, [rank - 1 for rank in _ranks(scaled)]], scaled.amin(1, keepdim=True)], 1)


def _ranks(scaled: Tensor) -> list[int]:
    """Those of RANKS that have logits below them."""
    return [rank for rank in RANKS if rank < scaled.shape[1]]


def _depths(scaled: Tensor, edges: Tensor) -> Iterator[Tensor]:
    """How far each logit lies below the top, split at the edges: f = −Σ_g m_g · depth_g. (n, k) for each g"""
    for start, end in zip(edges.T[:-1, :, None], edges.T[1:, :, None], strict=True):
        yield torch.minimum((start - scaled).clamp_min(0), start - end)


class _Problem:
    """The penalised NLL of slopes θ (g · (1 + d),) with its gradient, and the Hessian of its last evaluation.

    Below the start of the last group all logits have the same depth in the groups before it. So for a row's many logits
    there, only three sums matter: of p, of p · depth and of p · depth², with the depth in the last group.
    """

    def __init__(
        self, scaled: Tensor, top: Tensor, described: Tensor, labels: Tensor, share: Tensor, penalty: float
    ) -> None:
        self.edges = _edges(scaled, top)
        self.top = torch.stack(list(_depths(top[:, : _ranks(scaled)[-1]], self.edges)), 2)
        self.own = torch.cat(list(_depths(scaled.gather(1, labels[:, None]), self.edges)), 1)
        self.deep = (self.edges[:, -2:-1] - scaled).clamp_min_(0)
        self.described = described
        self.share = share
        self.penalty = penalty
        self.hessian = described.new_empty(0)  # (p, p)

    def __call__(self, parameters: Tensor) -> tuple[float, Tensor]:
        groups, d = self.edges.shape[1] - 1, self.described.shape[1]
        theta = parameters.view(groups, d)
        value = self.penalty * theta.square().sum()
        gradient = 2 * self.penalty * theta
        hessian = theta.new_zeros(groups * groups, d * d)
        for top, own, deep, edges, described, share in self._blocks():
            gains = 1 + described @ theta.T
            above = edges[:, :-2] - edges[:, 1:-1]  # the depth of the last group's logits in the groups before it
            probs = (-(top @ gains[:, :, None]).squeeze(2)).exp()
            ones = deep.new_ones(deep.shape[1])
            powers = torch.exp(deep * -gains[:, -1:])
            base = (-(above * gains[:, :-1]).sum(1)).exp()
            # The logits above the last group have depth 0 there, so each adds exp(0) = 1 to the sum.
            rest = [(powers @ ones - top.shape[1]) * base, *(powers.mul_(deep) @ ones * base for _ in range(2))]
            norm = probs.sum(1) + rest[0]
            probs = probs / norm[:, None]
            mass, first, second = (part / norm for part in rest)

            weighted = top * probs[:, :, None]
            last = mass[:, None] * above
            mean = weighted.sum(1) + torch.cat([last, first[:, None]], 1)
            # The covariance of the depths under p, for each row.
            bends = weighted.mT @ top - mean[:, :, None] * mean[:, None, :]
            bends[:, :-1, :-1] += last[:, :, None] * above[:, None, :]
            bends[:, :-1, -1] += first[:, None] * above
            bends[:, -1, :-1] += first[:, None] * above
            bends[:, -1, -1] += second
            counted = described * share[:, None]
            value += share @ ((own * gains).sum(1) + norm.log())
            gradient += (own - mean).T @ counted
            hessian += bends.flatten(1).T @ (described[:, :, None] * counted[:, None, :]).flatten(1)
        self.hessian = hessian.view(groups, groups, d, d).permute(0, 2, 1, 3).reshape(theta.numel(), theta.numel())
        self.hessian.diagonal().add_(2 * self.penalty)
        return float(value), gradient.reshape(-1)

    def _blocks(self) -> Iterator[tuple[Tensor, ...]]:
        step = core_rows(self.deep)
        parts = (self.top, self.own, self.deep, self.edges, self.described, self.share)
        return zip(*(torch.split(part, step) for part in parts), strict=True)


def _minimise(objective: Objective, scaled: Tensor, described: Tensor, labels: Tensor, ridge: float) -> Solution:
    """The slopes that minimise any objective plus the ridge."""
    k, shape = scaled.shape[1], (len(_ranks(scaled)), described.shape[1])
    penalty = ridge * sample_weight(objective, labels, k)

    def forward(inputs: Tensor, slopes: Tensor) -> Tensor:
        rows = inputs[:, :k]
        return _stretched(rows, _largest(rows), inputs[:, k:], slopes.view(shape))

    inputs = torch.cat([scaled, described], 1)
    problem = Problem(objective, forward, inputs, labels, k=k, penalty=lambda slopes: penalty * slopes.square().sum())
    return minimise(problem, scaled.new_zeros(shape[0] * shape[1]), max_steps=MAX_STEPS)
