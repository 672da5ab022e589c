"""Logistic regression on a few features of one number, for many problems at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

# Samples are processed in blocks of about this many features, so that memory does not grow with the data.
BLOCK_VALUES = 1 << 20

# A problem is solved when a Newton step would lower its mean loss by less than this; that step is still taken.
TOLERANCE = 1e-13
# A step that would lower it by less than this is accepted unchecked: rounding hides whether it did.
SAFE = 1e-9
MAX_STEPS = 100
MAX_HALVINGS = 40

# Added to the Hessian's diagonal, as a share of it, so that directions that the data do not determine stay put.
RIDGE = 1e-12

Features = Callable[[Tensor], Tensor]


class LogisticFit(NamedTuple):
    """Coefficients (m, q), their loss (m,), and by how much the mean loss could still fall (m,)."""

    theta: Tensor
    loss: Tensor
    remaining: Tensor


def fit_logistic(
    x: Tensor,
    target: Tensor,
    features: Features,
    start: Tensor,
    *,
    weight: Tensor | None = None,
    penalty: Tensor | None = None,
) -> LogisticFit:
    """The θ (m, q) of least Σ_i w_i · (log(1 + exp t_i) − y_i · t_i) + ½ |Lθ|², with t = features(x) θ.

    x, target y in [0, 1] and weight w are (m, n), with one problem per row; features(x) is (m, n, q); the penalty L is
    (r, q). The loss is convex, so Newton's method with step halving finds its minimum.
    """
    problems = _Problems(x, target, torch.ones_like(x) if weight is None else weight, features, penalty)
    theta = start.clone()
    loss, gradient, hessian = problems.derivatives(theta)
    remaining = torch.full_like(loss, torch.inf)
    rows = torch.arange(len(theta), device=theta.device)
    for _ in range(MAX_STEPS):
        step = _newton_step(gradient, hessian)
        decrement = (gradient * step).sum(1)
        remaining[rows] = decrement / 2 / problems.weight.sum(1)
        going = remaining[rows] > TOLERANCE
        theta[rows[~going]] -= step[~going]
        rows, step, decrement = rows[going], step[going], decrement[going]
        if not len(rows):
            break
        problems = problems.select(going)
        size = torch.ones_like(decrement)
        for _ in range(MAX_HALVINGS):
            trial = theta[rows] - size[:, None] * step
            found, gradient, hessian = problems.derivatives(trial)
            # A comparison with NaN is false.
            fell = (found <= loss[rows] - 1e-4 * size * decrement) | (remaining[rows] < SAFE)
            if bool(fell.all()):
                break
            size = torch.where(fell, size, size / 2)
        theta[rows], loss[rows] = trial, found
    return LogisticFit(theta, loss, remaining)


@dataclass(frozen=True)
class _Problems:
    x: Tensor
    target: Tensor
    weight: Tensor
    features: Features
    penalty: Tensor | None

    def select(self, keep: Tensor) -> _Problems:
        if bool(keep.all()):
            return self
        return _Problems(self.x[keep], self.target[keep], self.weight[keep], self.features, self.penalty)

    def derivatives(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss (m,), its gradient (m, q) and its Hessian (m, q, q)."""
        m, q = theta.shape
        loss, gradient, hessian = theta.new_zeros(m), torch.zeros_like(theta), theta.new_zeros(m, q, q)
        size = max(1, BLOCK_VALUES // (m * q))
        parts = (torch.split(tensor, size, dim=1) for tensor in (self.x, self.target, self.weight))
        for x, y, w in zip(*parts, strict=True):
            columns = self.features(x)
            t = (columns @ theta[:, :, None]).squeeze(2)
            p = t.sigmoid()
            loss += (w * (softplus(t) - y * t)).sum(1)
            gradient += ((w * (p - y))[:, None] @ columns).squeeze(1)
            hessian += columns.mT @ ((w * p * (1 - p))[:, :, None] * columns)
        if self.penalty is not None:
            held = theta @ self.penalty.T
            loss, gradient = loss + held.square().sum(1) / 2, gradient + held @ self.penalty
            hessian = hessian + self.penalty.T @ self.penalty
        return loss, gradient, hessian


def solve_ridged(hessian: Tensor, right: Tensor) -> Tensor:
    """hessian⁻¹ right, with just enough added to the diagonal to solve with a singular Hessian."""
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    ridge = RIDGE * (diagonal + diagonal.mean(1, keepdim=True)) + torch.finfo(hessian.dtype).tiny
    solution: Tensor = torch.linalg.solve(hessian + torch.diag_embed(ridge), right)
    return solution


def _newton_step(gradient: Tensor, hessian: Tensor) -> Tensor:
    return solve_ridged(hessian, gradient[:, :, None]).squeeze(2)
