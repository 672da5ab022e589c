"""Minimisation of a smooth function within bounds: L-BFGS, or Newton's method if there is a Hessian.

Without a Hessian, parameters held at a bound follow the negative gradient, the others the L-BFGS direction (Nocedal,
1980), and steps are projected onto the bounds (Bertsekas, 1982). SciPy has a solver like this one, but importing it
takes longer than most fits.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# At the optimum no component of the gradient is larger than this.
TOLERANCE = 1e-6

MAX_TRIALS = 40

# How many of the last steps L-BFGS remembers.
REMEMBERED = 30

# A parameter this close to a bound is held there if its negative gradient points to the bound.
NEAR = 1e-6

# A gain below this share of the value is lost in rounding. After more than LOST steps in a row without a gain it stops.
ROUNDING = 1e-14
LOST = 10

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """Where an optimiser ended, and its record of how."""

    parameters: Tensor
    info: dict[str, Any] = field(default_factory=dict)


def descend(
    problem: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
    max_steps: int = 200,
    *,
    still: float = 0.0,
    hessian: Callable[[], Tensor] | None = None,
) -> Solution:
    """The parameters (p,) in [low, high] of least value, given the value and its gradient.

    It continues until the gradient is small: near a flat minimum a test of the value would stop too early. Where that
    does not matter, `still` stops it when a step gains less than this share of the value. `hessian` returns the Hessian
    at the last evaluation, if it costs no more than a few evaluations.
    """

    def evaluate(x: Array) -> tuple[float, Array]:
        value, gradient = problem(torch.from_numpy(x.copy()).to(start.device))
        return value, gradient.cpu().numpy()

    lower, upper = _limit(low, start, -math.inf), _limit(high, start, math.inf)
    x = np.clip(start.double().cpu().numpy(), lower, upper)
    value, gradient = evaluate(x)
    memory, steps, lost = _Memory(), 0, 0
    while steps < max_steps and _within(x, gradient, lower, upper) > TOLERANCE / 10:
        if hessian:
            direction = _newton(hessian().cpu().numpy(), gradient, lower - x, upper - x)
            if -gradient @ direction / 2 <= still * abs(value):  # what the step would gain
                break
        else:
            held = ((x - lower < NEAR) & (gradient > 0)) | ((upper - x < NEAR) & (gradient < 0))
            direction = -gradient
            direction[~held] = memory.direction(gradient, ~held)
        found = _line_search(evaluate, x, value, gradient, direction, lower, upper)
        if found is None:
            if not memory.pairs:
                break
            memory.pairs.clear()  # and try the gradient itself
            continue
        there, reached, turned = found
        memory.add(there - x, turned - gradient)
        gain = value - reached
        x, value, gradient, steps = there, reached, turned, steps + 1
        if still and gain <= still * abs(value):
            break
        lost = 0 if gain > 0 else lost + 1
        if lost > LOST:
            break
    slope = _within(x, gradient, lower, upper)
    info = {"converged": slope <= TOLERANCE, "gradient": slope, "value": value, "steps": steps}
    return Solution(torch.from_numpy(x).to(start.device), info)


class _Memory:
    """The last steps and their gradient changes, from which L-BFGS approximates the Hessian."""

    def __init__(self) -> None:
        self.pairs: deque[tuple[Array, Array]] = deque(maxlen=REMEMBERED)

    def add(self, step: Array, change: Array) -> None:
        # A pair without positive curvature does not help a descent.
        if step @ change > 1e-12 * (change @ change):
            self.pairs.append((step, change))

    def direction(self, gradient: Array, free: npt.NDArray[np.bool_]) -> Array:
        """Minus the approximate inverse Hessian times the gradient, for the free parameters only."""
        towards = -gradient[free]
        pairs = [(s, y, s @ y) for s, y in ((s[free], y[free]) for s, y in self.pairs)]
        pairs = [pair for pair in pairs if pair[2] > 0]
        if not pairs:
            return towards / max(float(np.linalg.norm(towards)), 1e-300)
        shares = []
        for s, y, curvature in reversed(pairs):
            share = (s @ towards) / curvature
            towards = towards - share * y
            shares.append(share)
        _, y, curvature = pairs[-1]
        towards = towards * (curvature / (y @ y))
        for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
            towards = towards + (share - (y @ towards) / curvature) * s
        return towards


def _newton(hessian: Array, gradient: Array, lower: Array, upper: Array) -> Array:
    """The step within bounds (p,) to the minimum of the quadratic function with this Hessian and gradient.

    It follows Newton's direction to the first bound in the way, then holds that parameter there. At the end a parameter
    is released if its negative gradient points away from the bound.
    """
    step = np.zeros_like(gradient)
    held = ((lower >= 0) & (gradient > 0)) | ((upper <= 0) & (gradient < 0))
    ridged = hessian + np.diag(1e-12 * (hessian.diagonal() + hessian.trace()) + 1e-300)
    for _ in range(10 * len(step)):
        slope, free = gradient + ridged @ step, np.flatnonzero(~held)
        move = np.linalg.solve(ridged[np.ix_(free, free)], -slope[free])
        bound = np.where(move < 0, lower[free], upper[free])
        room = np.divide(bound - step[free], move, out=np.full_like(move, np.inf), where=move != 0)
        first = int(room.argmin()) if len(room) else 0
        if len(room) and room[first] < 1:
            step[free] += room[first] * move
            step[free[first]] = bound[first]
            held[free[first]] = True
            continue
        step[free] += move
        slope = gradient + ridged @ step
        away = held & (((step <= lower) & (slope < 0)) | ((step >= upper) & (slope > 0))) & (lower < upper)
        if not away.any():
            break
        held[np.abs(np.where(away, slope, 0)).argmax()] = False
    return step


@np.errstate(invalid="ignore")  # where a trial overflows, its slope may be NaN
def _line_search(
    evaluate: Callable[[Array], tuple[float, Array]],
    x: Array,
    value: float,
    gradient: Array,
    direction: Array,
    lower: Array,
    upper: Array,
) -> tuple[Array, float, Array] | None:
    """A step along a direction, projected onto the bounds, that lowers the value enough and is not needlessly short.

    Steps are doubled, then bisected between one too short and one too long (weak Wolfe conditions).
    """
    size, too_short, too_long = 1.0, 0.0, math.inf
    best = None
    for _ in range(MAX_TRIALS):
        there = np.clip(x + size * direction, lower, upper)
        reached, turned = evaluate(there)
        moved = there - x
        slope = float(gradient @ moved)
        # A comparison with NaN is false.
        if reached <= value + 1e-3 * slope + ROUNDING * abs(value):
            best, too_short = (there, reached, turned), size
            moved[(there == lower) | (there == upper)] = 0  # a longer step would not move these
            if turned @ moved >= 0.9 * slope:
                return best
        else:
            too_long = size
        middle = 0.5
        if too_short == 0 and (uphill := float(turned @ moved)) > 0:
            # The zero of the slope by linear interpolation: on a stream every trial is a whole pass.
            middle = min(max(slope / (slope - uphill), 0.01), 0.5)
        size = 2 * too_short if too_long == math.inf else too_short + middle * (too_long - too_short)
    return best


def _within(x: Array, gradient: Array, lower: Array, upper: Array) -> float:
    """The largest component of the projected gradient."""
    return float(np.abs(x - np.clip(x - gradient, lower, upper)).max())


def _limit(limit: Tensor | float | None, like: Tensor, otherwise: float) -> Array:
    value = otherwise if limit is None else limit
    array: Array = torch.as_tensor(value, dtype=torch.float64).expand(like.shape).cpu().numpy()
    return array
