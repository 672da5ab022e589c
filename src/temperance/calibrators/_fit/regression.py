"""Softmax regression: the convex problem behind vector, matrix, Dirichlet and structured scaling.

    minimise  Σ_i c_i (logsumexp(f_i) − target(f_i))  +  Σ_p r_p (θ_p − θ⁰_p)²,      f_i = x_i mapped with parameters θ

c_i are the row weights and `target` is the score of the label, both defined by the objective. Newton's method solves
it. With few parameters a step uses the full Hessian; with many, conjugate gradients find it from products of the
Hessian with a vector, each at the cost of a gradient. The Hessian only has to give a direction, so with very many rows
it uses a sample of them; value and gradient use all.
"""

from typing import Any

import torch
from torch import Tensor

from temperance.arrays import CORE_BLOCK_VALUES, block_rows
from temperance.calibrators._fit.descent import TOLERANCE, Solution
from temperance.calibrators._fit.logistic import solve_ridged
from temperance.calibrators._fit.maps import Linear, Map
from temperance.calibrators._fit.solvers import Problem, minimise, settle
from temperance.objectives import Objective
from temperance.threads import in_parts

MAX_STEPS = 100
MAX_PRODUCTS = 250
MAX_HALVINGS = 50

# Above this many rows times parameters, matrix products are in float32, twice as fast; sums stay in float64. Gradients
# are then means over many rows of small probabilities, and rounding errors are far below the tolerance.
SINGLE_ABOVE = 20_000_000

# The Hessian uses this many rows, or this many per feature if that is more. With fewer, steps are worse and more are
# needed, which costs more than it saves.
HESSIAN_ROWS, HESSIAN_ROWS_PER_FEATURE = 20_000, 5

# With at most this many parameters the full Hessian is built: that is cheaper than a few products with it.
FEW_PARAMETERS = 64

# The preconditioner is built again when the last Newton step took more Hessian products than this.
STALE_AFTER = 25


# ------------------------------------------------------------------------------------------------------------- problem


class Regression:
    """The problem at the top of this file; it remembers the probabilities of its last evaluation."""

    def __init__(
        self, kind: Map, x: Tensor, labels: Tensor, objective: Objective, *, penalty: Tensor, centre: Tensor
    ) -> None:
        self.kind = kind
        self.x = x.float() if len(x) * centre.numel() > SINGLE_ABOVE else x
        self.labels = labels
        self.objective = objective
        self.centre = centre
        self.k = kind.classes(centre)
        self.probs = self.x.new_empty(len(x), self.k)
        # Each block produces a whole gradient, so it should hold more values than there are parameters.
        width = max(self.k, x.shape[1])
        rows = max(block_rows(width, x.device, CORE_BLOCK_VALUES), 2 * centre.numel() // width)
        self._slices = [slice(i, i + rows) for i in range(0, len(x), rows)]
        self._every = max(1, len(x) // max(HESSIAN_ROWS, HESSIAN_ROWS_PER_FEATURE * x.shape[1]))
        self._hessian_x = self.x[:: self._every].contiguous()
        self.penalise(penalty)
        self.weigh()

    def penalise(self, penalty: Tensor) -> None:
        """Set the penalty on each parameter."""
        self.penalty = penalty
        self._axes: tuple[Tensor, Tensor] | None = None

    def weigh(self) -> None:
        """Take the objective's weights, scaled to sum to one, so that a penalty keeps its strength."""
        weights = self.objective.weights(self.labels, self.k)
        self.weights = (weights / weights.sum())[:, None].to(self.x.dtype)
        some = weights[:: self._every]
        self._hessian_weights = (some / some.sum())[:, None].to(self.x.dtype)
        self._pulled = torch.zeros_like(self.centre)
        self._axes = None
        for s in self._slices:
            with torch.enable_grad():
                # The target is linear in the scores, so its gradient is the same everywhere.
                scores = torch.zeros_like(self.probs[s], requires_grad=True)
                (slope,) = torch.autograd.grad(self.objective.target(scores, self.labels[s]).sum(), scores)
            self._pulled += self.kind.pull(self.x[s], slope * self.weights[s])

    def hessian_blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Features, probabilities and weights of the rows that the Hessian uses, in blocks."""
        parts = (self._hessian_x, self.probs[:: self._every], self._hessian_weights)
        rows = self._slices[0].stop
        return list(zip(*(torch.split(part, rows) for part in parts), strict=True))

    def __call__(self, parameters: Tensor) -> tuple[float, Tensor]:
        """The value and its gradient."""

        def of_block(s: slice) -> tuple[Tensor, Tensor]:
            scores = self.kind.scores(self.x[s], parameters)
            target = self.objective.target(scores, self.labels[s])
            top = scores.amax(1, keepdim=True)
            probs = torch.exp(scores.sub_(top), out=self.probs[s])
            total = probs.sum(1, keepdim=True)
            value = (self.weights[s].double() * ((total.log() + top).double() - target.double()[:, None])).sum()
            probs /= total
            return value, self.kind.pull(self.x[s], probs * self.weights[s])

        away = parameters - self.centre
        value = (self.penalty * away.square()).sum()
        gradient = 2 * self.penalty * away - self._pulled
        for part, slope in in_parts(of_block, self._slices):
            value += part
            gradient += slope
        return float(value), gradient

    def principal_axes(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """The second moments of the features [x, 1], in the penalty's units: eigenvalues (r,) and axes (d + 1, r).

        Axes of eigenvalue zero are left out.
        """
        if self._axes is None:
            moments = torch.zeros(2 * (self.x.shape[1] + 1,), dtype=torch.float64, device=self.x.device)
            for x, _, c in self.hessian_blocks():
                padded = torch.cat([x, torch.ones_like(c)], 1)
                moments += padded.T @ (padded * c)
            size, axes = torch.linalg.eigh(units[:, None] * moments * units)
            seen = size > 1e-12 * size[-1]
            self._axes = size[seen], axes[:, seen]
        return self._axes

    def hessian_times(self, direction: Tensor) -> Tensor:
        """The Hessian at the last evaluation times a direction."""

        def of_block(block: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            x, p, c = block
            change = self.kind.scores(x, direction)
            change -= (p * change).sum(1, keepdim=True)
            return self.kind.pull(x, change.mul_(p).mul_(c))

        product = 2 * self.penalty * direction
        for part in in_parts(of_block, self.hessian_blocks()):
            product += part
        return product

    def newton_step(self, gradient: Tensor) -> Tensor:
        """Minus the inverse Hessian at the last evaluation times the gradient, from the full Hessian."""
        g = self.kind.by_class(gradient)
        k, q = g.shape
        hessian = (2 * self.kind.by_class(self.penalty)).reshape(-1).diag()
        of_classes = hessian.view(k, q, k, q).diagonal(dim1=0, dim2=2)  # (q, q, k)
        for x, p, c in self.hessian_blocks():
            features = self.kind.own_features(x)
            pulled = features * p[:, :, None]  # (n, k, q)
            weighted = pulled * c[:, :, None]
            of_classes += torch.einsum("nai,naj->ija", features.expand_as(pulled), weighted)
            hessian -= pulled.flatten(1).T @ weighted.flatten(1)
        return self.kind.by_class(-solve_ridged(hessian[None], g.reshape(1, -1, 1)).view(k, q))

    def reweigh(self, parameters: Tensor) -> float:
        """Let the objective choose new weights; returns how much they changed."""
        scores = (self.kind.scores(self.x[s], parameters).log_softmax(1) for s in self._slices)
        losses = [self.objective.losses(z, self.labels[s]) for z, s in zip(scores, self._slices, strict=True)]
        change = self.objective.reweigh(torch.cat(losses), self.labels, self.k)
        self.weigh()
        return change


# -------------------------------------------------------------------------------------------------------------- solver


def fit_map(
    kind: Map,
    x: Tensor,
    labels: Tensor,
    objective: Objective,
    *,
    penalty: Tensor,
    centre: Tensor,
    tolerance: float = TOLERANCE,
) -> Solution:
    """The parameters that minimise the objective plus the penalty on their distance from the centre."""
    if not objective.convex:
        return _minimise_any(kind, x, labels, objective, penalty=penalty, centre=centre)
    problem = Regression(kind, x, labels, objective, penalty=penalty, centre=centre)
    if not objective.adapts:
        return newton(problem, centre, tolerance)

    def solve(parameters: Tensor) -> tuple[Tensor, dict[str, Any]]:
        found = newton(problem, parameters, tolerance)
        return found.parameters, found.info

    parameters, record = settle(problem.reweigh, solve, centre)
    return Solution(parameters, record | objective.info)


def _minimise_any(
    kind: Map, x: Tensor, labels: Tensor, objective: Objective, *, penalty: Tensor, centre: Tensor
) -> Solution:
    problem = Problem(
        objective,
        lambda rows, free: kind.scores(rows, free.view_as(centre)).log_softmax(1),
        x,
        labels,
        penalty=lambda free: (penalty * (free.view_as(centre) - centre).square()).sum(),
    )
    found = minimise(problem, centre.reshape(-1))
    return Solution(found.parameters.view_as(centre), found.info)


def newton(problem: Regression, start: Tensor, tolerance: float = TOLERANCE) -> Solution:
    """Newton's method with step halving, until no component of the gradient is above the tolerance."""
    parameters = start.clone()
    value, gradient = problem(parameters)
    steps, products = 0, MAX_PRODUCTS
    while steps < MAX_STEPS and float(gradient.abs().amax()) > tolerance:
        if parameters.numel() <= FEW_PARAMETERS:
            direction = problem.newton_step(gradient)
        else:
            if products > STALE_AFTER:
                inverse = problem.kind.preconditioner(problem)
            direction, products = _newton_direction(problem.hessian_times, gradient, inverse, tolerance / 2)
        found = _line_search(problem, parameters, direction, value, float((direction * gradient).sum()))
        if found is None:
            break
        parameters, value, gradient = found
        steps += 1
    size = float(gradient.abs().amax())
    return Solution(parameters, {"converged": size <= tolerance, "gradient": size, "value": value, "steps": steps})


def _newton_direction(hessian: Linear, gradient: Tensor, inverse: Linear, negligible: float) -> tuple[Tensor, int]:
    """Minus the inverse Hessian times the gradient, more accurate nearer the optimum, and the number of products.

    It stops early once the residual is negligible.
    """
    direction, residual = torch.zeros_like(gradient), -gradient
    towards = inverse(residual)
    size = first = float((residual * towards).sum())
    along = towards
    enough = first * min(0.1, first)
    products = 0
    while products < MAX_PRODUCTS:
        bent = hessian(along)
        products += 1
        length = size / float((along * bent).sum())
        direction = direction + length * along
        residual = residual - length * bent
        towards = inverse(residual)
        before, size = size, float((residual * towards).sum())
        if size <= enough or float(residual.abs().amax()) <= negligible:
            break
        along = towards + (size / before) * along
    return direction, products


def _line_search(
    problem: Regression, parameters: Tensor, direction: Tensor, value: float, slope: float
) -> tuple[Tensor, float, Tensor] | None:
    """The first of the steps 1, 1/2, 1/4, … that lowers the value enough, or None."""
    step = 1.0
    for _ in range(MAX_HALVINGS):
        there = parameters + step * direction
        found, gradient = problem(there)
        # Near the optimum a step gains less than the rounding error of the value.
        if found <= value + 1e-4 * step * slope + 50 * torch.finfo(problem.x.dtype).eps * abs(value):
            return there, found, gradient
        step /= 2
    return None
