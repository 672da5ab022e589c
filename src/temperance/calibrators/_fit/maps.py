"""Linear maps of features to scores: a factor and a shift for each class, or a whole matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from temperance.calibrators._fit.regression import Regression

Linear = Callable[[Tensor], Tensor]


class Map(Protocol):
    """A map from features to scores that is linear in its parameters."""

    def identity(self, k: int) -> Tensor:
        """The parameters that change nothing."""

    def classes(self, parameters: Tensor) -> int:
        """The number of classes k, from parameters of this shape."""

    def scores(self, x: Tensor, parameters: Tensor) -> Tensor:
        """(n, k) scores of features (n, d)."""

    def pull(self, x: Tensor, rows: Tensor) -> Tensor:
        """The gradient of Σ rows · scores in the parameters."""

    def own_features(self, x: Tensor) -> Tensor:
        """The features whose weighted sum is the score of each class, or one set if all share them. (n, k or 1, q)"""

    def by_class(self, parameters: Tensor) -> Tensor:
        """The parameters with the weights of each class in a row (k, q). It is its own inverse."""

    def preconditioner(self, problem: Regression) -> Linear:
        """An approximate inverse of the Hessian at the problem's last evaluation."""


class Diagonal:
    """x ↦ v ∘ x + b, parameters (2, k)."""

    def identity(self, k: int) -> Tensor:
        return torch.stack([torch.ones(k, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)])

    def classes(self, parameters: Tensor) -> int:
        return parameters.shape[1]

    def scores(self, x: Tensor, parameters: Tensor) -> Tensor:
        own = parameters.to(x.dtype)
        return torch.addcmul(own[1], x, own[0])

    def pull(self, x: Tensor, rows: Tensor) -> Tensor:
        return torch.stack([(rows * x).sum(0), rows.sum(0)])

    def own_features(self, x: Tensor) -> Tensor:
        return torch.stack([x, torch.ones_like(x)], 2)

    def by_class(self, parameters: Tensor) -> Tensor:
        return parameters.T

    def preconditioner(self, problem: Regression) -> Linear:
        """Each class on its own: the 2 × 2 Hessian of its v and b."""
        return _two_by_two(_own_curvature(problem), problem.penalty)


class Full:
    """x ↦ W x + b, parameters (k, d + 1) = [W | b]; the first k of the d features are those of the classes."""

    def identity(self, k: int) -> Tensor:
        return torch.eye(k, k + 1, dtype=torch.float64)

    def classes(self, parameters: Tensor) -> int:
        return parameters.shape[0]

    def scores(self, x: Tensor, parameters: Tensor) -> Tensor:
        own = parameters.to(x.dtype)
        return torch.addmm(own[:, -1], x, own[:, :-1].T.contiguous())

    def pull(self, x: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows.T @ x, rows.sum(0)[:, None]], 1)

    def own_features(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones_like(x[:, :1])], 1)[:, None]

    def by_class(self, parameters: Tensor) -> Tensor:
        return parameters

    def preconditioner(self, problem: Regression) -> Linear:
        """The Hessian as if probabilities and features were independent: a Kronecker product, plus the penalty.

        If the penalty on the diagonal differs from that on the rest of its column, the diagonal and the intercept are
        treated class by class instead, as in the diagonal map.
        """
        spread = torch.zeros(problem.k, problem.k, dtype=torch.float64, device=problem.x.device)
        for _, p, c in problem.hessian_blocks():
            weighted = p * c
            spread += weighted.sum(0).diag() - p.T @ weighted
        a, u = torch.linalg.eigh(spread)
        alike = bool((problem.penalty == problem.penalty[:1]).all())
        # In units in which the penalty on every feature is one.
        units = (2 * (problem.penalty[0] if alike else problem.penalty[0, 1].expand(problem.penalty.shape[1]))).rsqrt()
        b, v = problem.principal_axes(units)
        correction = 1 / (a.clamp_min(0)[:, None] * b + 1) - 1
        u, v, correction = (tensor.to(problem.x.dtype) for tensor in (u, v, correction))

        def together(g: Tensor) -> Tensor:
            scaled = g * units
            turned: Tensor = u @ ((u.T @ (scaled.to(v.dtype) @ v)) * correction)
            return (scaled + turned @ v.T) * units

        if alike:
            return together
        own = _two_by_two(_own_curvature(problem), _diagonal_and_intercept(problem.penalty))

        def apart(g: Tensor) -> Tensor:
            others = g.clone()
            others.diagonal().zero_()
            others[:, -1] = 0
            found = together(others)
            alone = own(_diagonal_and_intercept(g))
            found.diagonal().copy_(alone[0])
            found[:, -1] = alone[1]
            return found

        return apart


def _diagonal_and_intercept(parameters: Tensor) -> Tensor:
    return torch.stack([parameters.diagonal(), parameters[:, -1]])


def _own_curvature(problem: Regression) -> Tensor:
    """Σ c p (1 − p) times x², x and 1, for each class. (3, k)"""
    found = torch.zeros(3, problem.k, dtype=torch.float64, device=problem.x.device)
    for x, p, c in problem.hessian_blocks():
        w = (p * (1 - p)).mul_(c)
        own = x[:, : problem.k]
        wx = w * own
        found += torch.stack([(wx * own).sum(0), wx.sum(0), w.sum(0)])
    return found


def _two_by_two(curvature: Tensor, penalty: Tensor) -> Linear:
    xx, x, one = curvature.unbind()
    r, s = (2 * penalty).unbind()
    # Not (xx + r)(one + s) − x², which rounding can make negative.
    determinant = (xx * one - x * x).clamp_min(0) + r * one + s * xx + r * s

    def solve(g: Tensor) -> Tensor:
        return torch.stack([(one + s) * g[0] - x * g[1], (xx + r) * g[1] - x * g[0]]).div_(determinant)

    return solve
