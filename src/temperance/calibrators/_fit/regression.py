"""Softmax regression: the convex problem behind vector, matrix, Dirichlet and structured scaling.

    minimise  Σ_i c_i (logsumexp(f_i) − target(f_i))  +  Σ_p r_p (θ_p − θ⁰_p)²,      f_i = x_i mapped with parameters θ

c_i are the weights of the rows and `target` is the score of the label, as an objective gives them. Newton's method
solves it. With few parameters its step is solved for with the whole Hessian; with many, conjugate gradients find it,
which takes products of the Hessian and a vector, each at the cost of a gradient. The Hessian only has to point the way,
so of very many rows it uses some; value and gradient use them all.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from temperance.calibrators._fit.logistic import solve_ridged
from temperance.calibrators._fit.solvers import TOLERANCE, Problem, Solution, minimise, settle
from temperance.objectives import Objective

# Rows are taken in blocks of about this many values, which stay in a core's own cache between passes.
BLOCK_VALUES = {"cpu": 1 << 17, "cuda": 1 << 26}

MAX_STEPS = 100
MAX_PRODUCTS = 250
MAX_HALVINGS = 50

# Above this many rows times parameters, products of matrices are in float32, twice as fast; sums stay in float64.
# Slopes are then means over many rows of small probabilities, and rounding errors far below the tolerance.
SINGLE_ABOVE = 20_000_000

# The Hessian uses this many rows, or this many for each feature if that is more. With fewer, steps go astray and there
# are more of them, which costs more than it saves.
HESSIAN_ROWS, HESSIAN_ROWS_PER_FEATURE = 20_000, 5

# With at most this many parameters the whole Hessian is built: that takes fewer operations than a few products with it.
FEW_PARAMETERS = 64

# The preconditioner is built again when the last Newton step took more Hessian products than this.
STALE_AFTER = 25

Linear = Callable[[Tensor], Tensor]


# ---------------------------------------------------------------------------------------------------------------- maps


class Map(Protocol):
    """A map from features to scores that is linear in its parameters."""

    def identity(self, k: int) -> Tensor:
        """The parameters that change nothing."""

    def classes(self, parameters: Tensor) -> int:
        """The number of classes k that parameters of this shape are for."""

    def scores(self, x: Tensor, parameters: Tensor) -> Tensor:
        """(n, k) scores of features (n, d)."""

    def pull(self, x: Tensor, rows: Tensor) -> Tensor:
        """The gradient of Σ rows · scores in the parameters."""

    def own_features(self, x: Tensor) -> Tensor:
        """The features whose weighted sum is the score of a class, or one set if all share it. (n, k or 1, q)"""

    def by_class(self, parameters: Tensor) -> Tensor:
        """The parameters with the weights of each class in a row (k, q); from there it leads back again."""

    def preconditioner(self, problem: "Regression") -> Linear:
        """An approximate inverse of the Hessian, where the problem was evaluated last."""


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

    def preconditioner(self, problem: "Regression") -> Linear:
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

    def preconditioner(self, problem: "Regression") -> Linear:
        """The Hessian as if probabilities and features were independent: a Kronecker product, plus the penalty.

        If the diagonal has another penalty than the rest of its column, it and the intercept are taken class by class
        instead, as in the diagonal map.
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


def _own_curvature(problem: "Regression") -> Tensor:
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
    # Not (xx + r)(one + s) − x², which can round to something negative.
    determinant = (xx * one - x * x).clamp_min(0) + r * one + s * xx + r * s

    def solve(g: Tensor) -> Tensor:
        return torch.stack([(one + s) * g[0] - x * g[1], (xx + r) * g[1] - x * g[0]]).div_(determinant)

    return solve


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
        # A block yields a gradient of its own, so it should hold more values than there are parameters.
        values = max(BLOCK_VALUES.get(x.device.type, BLOCK_VALUES["cpu"]), 2 * centre.numel())
        rows = max(1, values // max(self.k, x.shape[1]))
        self._slices = [slice(i, i + rows) for i in range(0, len(x), rows)]
        self._every = max(1, len(x) // max(HESSIAN_ROWS, HESSIAN_ROWS_PER_FEATURE * x.shape[1]))
        self._hessian_x = self.x[:: self._every].contiguous()
        self.penalise(penalty)
        self.weigh()

    def penalise(self, penalty: Tensor) -> None:
        """Take a penalty on each parameter."""
        self.penalty = penalty
        self._axes: tuple[Tensor, Tensor] | None = None

    def weigh(self) -> None:
        """Take the weights of the objective, scaled to sum to one, so that a penalty keeps its strength."""
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
        away = parameters - self.centre
        value = (self.penalty * away.square()).sum()
        gradient = 2 * self.penalty * away - self._pulled
        for s in self._slices:
            scores = self.kind.scores(self.x[s], parameters)
            target = self.objective.target(scores, self.labels[s])
            top = scores.amax(1, keepdim=True)
            probs = torch.exp(scores.sub_(top), out=self.probs[s])
            total = probs.sum(1, keepdim=True)
            value += (self.weights[s].double() * ((total.log() + top).double() - target.double()[:, None])).sum()
            probs /= total
            gradient += self.kind.pull(self.x[s], probs * self.weights[s])
        return float(value), gradient

    def principal_axes(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """The second moments of the features [x, 1] in the units of a penalty as sizes (r,) along axes (d + 1, r).

        Axes of size zero are left out.
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
        product = 2 * self.penalty * direction
        for x, p, c in self.hessian_blocks():
            change = self.kind.scores(x, direction)
            change -= (p * change).sum(1, keepdim=True)
            product += self.kind.pull(x, change.mul_(p).mul_(c))
        return product

    def newton_step(self, gradient: Tensor) -> Tensor:
        """Minus the inverse Hessian at the last evaluation times the gradient, by way of the whole Hessian."""
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
    start: Tensor,
    centre: Tensor,
    tolerance: float = TOLERANCE,
) -> Solution:
    """The parameters that minimise the objective plus the penalty on their distance from the centre."""
    if not objective.convex:
        return _minimise_any(kind, x, labels, objective, penalty=penalty, start=start, centre=centre)
    problem = Regression(kind, x, labels, objective, penalty=penalty, centre=centre)
    if not objective.adapts:
        return newton(problem, start, tolerance)
    record: dict[str, Any] = {}

    def solve(parameters: Tensor) -> Tensor:
        found = newton(problem, parameters, tolerance)
        record.update(found.info)
        return found.parameters

    parameters, rounds = settle(problem.reweigh, solve, start)
    record |= rounds | objective.info
    record["converged"] = record["converged"] and rounds["weights_settled"]
    return Solution(parameters, record)


def _minimise_any(
    kind: Map, x: Tensor, labels: Tensor, objective: Objective, *, penalty: Tensor, start: Tensor, centre: Tensor
) -> Solution:
    problem = Problem(
        objective,
        lambda rows, free: kind.scores(rows, free.view(start.shape)).log_softmax(1),
        x,
        labels,
        penalty=lambda free: (penalty * (free.view(start.shape) - centre).square()).sum(),
    )
    found = minimise(problem, start.reshape(-1))
    return Solution(found.parameters.view(start.shape), found.info)


def newton(problem: Regression, start: Tensor, tolerance: float = TOLERANCE) -> Solution:
    """Newton's method, with halved steps where a full one does not help, until no slope is above the tolerance."""
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
    """Minus the inverse Hessian times the gradient, more exact nearer to the optimum, and the products it took.

    It stops early once the slopes are negligible.
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
        # Near the optimum a step gains less than the rounding of the value.
        if found <= value + 1e-4 * step * slope + 50 * torch.finfo(problem.x.dtype).eps * abs(value):
            return there, found, gradient
        step /= 2
    return None
