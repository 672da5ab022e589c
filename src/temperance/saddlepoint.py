"""Tail probabilities of weighted sums of gamma variables, by the saddlepoint approximation."""

import math

import numpy as np
import numpy.typing as npt
from torch import Tensor

# Values that differ by less count as equal.
SAME = 1e-9


def chance_below_zero(values: Tensor, shapes: Tensor) -> float:
    """The chance that Σ x_i G_i is below zero, for independent gamma-distributed numbers G_i of these shapes.

    With shapes of 1 these are the random weights of the Bayesian bootstrap.
    """
    x, a = (each.double().cpu().numpy() for each in (values, shapes))
    if float(a @ x) < 0:
        return 1 - chance_below_zero(-values, shapes)
    worst = -float(x.min())
    if worst < SAME:
        return 0.0
    found = saddlepoint_tail(x / worst, a)
    return math.erfc(float(a @ x) / math.sqrt(2 * float(a @ np.square(x)))) / 2 if found is None else found


def saddlepoint_tail(x: npt.NDArray[np.float64], shapes: npt.NDArray[np.float64]) -> float | None:
    """The same for x ≥ −1, by Lugannani and Rice's saddlepoint formula (1980), within a few percent.

    None if it is above one half, or so close to it that the formula has a pole.
    """
    c = _steepest(x, shapes)
    exponent = float(shapes @ np.log1p(c * x))
    if exponent < 0.01:
        return None
    w, u = math.sqrt(2 * exponent), c * math.sqrt(float(shapes @ np.square(x / (1 + c * x))))
    density = math.exp(-exponent) / math.sqrt(2 * math.pi)
    return min(1.0, math.erfc(w / math.sqrt(2)) / 2 + density * (1 / u - 1 / w))


def _steepest(x: npt.NDArray[np.float64], shapes: npt.NDArray[np.float64]) -> float:
    """The c in [0, 1) at which Σ a_i log(1 + c x_i), a concave function, is largest; the smallest x is −1."""
    low, high, c = 0.0, 1.0, 0.0
    while high - low > 1e-12:
        share = x / (1 + c * x)
        slope = float(shapes @ share)
        if c == 0 and slope <= 0:
            return 0.0
        low, high = (c, high) if slope > 0 else (low, c)
        step = slope / float(shapes @ np.square(share))
        if abs(step) < 1e-13:
            break
        c = c + step if low < c + step < high else (low + high) / 2
    return c
