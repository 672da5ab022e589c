"""Penalties on pairs of classes."""

import math
from functools import lru_cache
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.errors import number
from temperance.losses.base import Loss, Regulariser, TorchOptions, Used, loss
from temperance.losses.formula import at_least_float32
from temperance.losses.plain import transformed
from temperance.losses.rows import Rows

# What is held at once, in values, so that memory does not grow with k² and stays in cache.
BLOCK_VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}

# Logits in a row may be this far apart to be expanded, and polynomials are made eight by eight.
WIDEST = 100.0
STEP = 8


def cpc_penalty(
    logits: Tensor, labels: Tensor, *, discrimination_weight: float = 0.1, exclusion_weight: float = 1.0
) -> Tensor:
    """The pairwise constraints of each row: see `CPC`. (n, k), (n,) → (n,)"""
    logits, (n, k) = at_least_float32(logits), logits.shape
    if k == 1:
        return logits.new_zeros(n)
    label = labels[:, None]
    # The last class in the label's place: the order of the others does not matter.
    others = logits.scatter(1, label, logits[:, -1:])[:, :-1]
    penalty = discrimination_weight * F.softplus(others - logits.gather(1, label)).mean(1)
    if k > 2:
        penalty = penalty + exclusion_weight / (2 * (k - 1) * (k - 2)) * pair_spread(others)
    return penalty


def pair_spread(z: Tensor) -> Tensor:
    """Σ over pairs a < b of softplus(z_a − z_b) + softplus(z_b − z_a). (n, m) → (n,)

    On a CPU without looking at pairs where m is large: see `_expanded`. Elsewhere tile by tile. The n · m² differences
    are never held together, not even for the backward pass, but they are for second derivatives and for `torch.func`.
    """
    if transformed():
        return F.softplus(_differences(z), threshold=40).sum((1, 2)) - z.shape[1] * math.log(2)
    value: Tensor = torch.ops.temperance.pair_spread(z)[0]
    return value


def _value_and_gradient(z: Tensor) -> tuple[Tensor, Tensor]:
    n, m = z.shape
    # A GPU takes the pairs as fast, and to look at a number of its would make every step wait.
    if n == 0 or not z.is_cpu:
        return _by_tiles(z)
    low, high = z.aminmax(dim=1, keepdim=True)
    width = (high - low).squeeze(1)
    narrow = width <= WIDEST
    size = _size(float(width.where(narrow, 0).amax()), torch.finfo(z.dtype).eps)
    if 5 * size > m**2:
        return _by_tiles(z)
    centred = z - (low + high) / 2
    if bool(narrow.all()):
        return _expanded(centred, size)
    value, gradient = z.new_empty(n), torch.empty_like(z)
    value[narrow], gradient[narrow] = _expanded(centred[narrow], size)
    value[~narrow], gradient[~narrow] = _by_tiles(z[~narrow])
    return value, gradient


# ------------------------------------------------------------------------------------------------------- by polynomials
# The function of a pair, 2 log(2 cosh(d/2)), is analytic but at ±iπ and beyond. So polynomials in z_a and z_b give it
# for all pairs of a row at once, with an error that falls as ρ^−size, where ln ρ = asinh(2π / width).


def _size(width: float, precision: float) -> int:
    """How many polynomials make the error of differences up to `width` no larger than rounding."""
    degree = -math.log(precision) / math.asinh(2 * math.pi / max(width, 0.1))
    return STEP * math.ceil((1 + degree) / STEP)


def _expanded(z: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The spread and its gradient for rows around 0: m · √size steps a row, where pairs would take m². (n,), (n, m)

    T_i(z) T_8j(z), i < 8, with T the polynomials of Chebyshev: their sums over a row are a matrix product, and so is
    the gradient at each z, a sum of them.
    """
    n, m = z.shape
    reach, in_value, in_gradient = _coefficients(size, torch.finfo(z.dtype).eps, z.dtype)
    value, gradient = z.new_empty(n), torch.empty_like(z)
    rows = max(1, min(n, _values_at_once(z) // ((STEP + 2 * size // STEP) * m)))
    # One room for all: new ones would cost as much as the work.
    room = [z.new_empty(rows, count, m) for count in (STEP, size // STEP, size // STEP)]
    for first in range(0, n, rows):
        x = z[first : first + rows] / reach
        low, high, parts = (values[: len(x)] for values in room)
        _chebyshev(x, low)
        _chebyshev(2 * low[:, STEP // 2].square() - 1, high)
        sums = (low @ high.mT).flatten(1)
        value[first : first + rows] = ((sums @ in_value) * sums).sum(1) / 2 - m * math.log(2)
        slopes = (sums @ in_gradient).view(-1, STEP, size // STEP)
        torch.bmm(slopes.mT, low, out=parts)
        torch.sum(parts.mul_(high), 1, out=gradient[first : first + rows])
    return value, gradient


def _chebyshev(x: Tensor, out: Tensor) -> None:
    """T_0, T_1, … of x (n, m), as many as there is room for. (n, count, m)"""
    out[:, 0] = 1
    out[:, 1:2] = x[:, None]
    twice = 2 * x
    for i in range(2, out.shape[1]):
        torch.mul(twice, out[:, i - 1], out=out[:, i]).sub_(out[:, i - 2])


@lru_cache(maxsize=16)
def _coefficients(size: int, precision: float, dtype: torch.dtype) -> tuple[float, Tensor, Tensor]:
    """How far the logits may be from 0, and what each pair of polynomials counts: in the spread, in its gradient.

    By interpolation at the zeros of T_size, in float64. (size, size) each
    """
    reach = math.pi / math.sinh(-math.log(precision) / (size - 1))
    angle = (torch.arange(size, dtype=torch.float64) + 0.5) * math.pi / size
    low, high = torch.arange(STEP)[:, None], STEP * torch.arange(size // STEP)[:, None]
    at_zeros = ((low * angle).cos()[:, None] * (high * angle).cos()).flatten(0, 1)
    solved = torch.linalg.inv(at_zeros)
    difference = reach * (angle.cos()[:, None] - angle.cos())
    spread = 2 * F.softplus(difference, threshold=40) - difference
    in_value, in_gradient = (solved.T @ f @ solved for f in (spread, (difference / 2).tanh().T))
    return reach, in_value.to(dtype), in_gradient.to(dtype)


# -------------------------------------------------------------------------------------------------------- pair by pair


def _by_tiles(z: Tensor) -> tuple[Tensor, Tensor]:
    n, m = z.shape
    value, gradient = z.new_zeros(n), torch.zeros_like(z)
    width = min(m, 128)
    height = max(1, _values_at_once(z) // width**2)
    for first in range(0, n, height):
        rows, total, slope = z[first : first + height], value[first : first + height], gradient[first : first + height]
        for start in range(0, m, width):
            left = rows[:, start : start + width, None]
            for other in range(start, m, width):
                right = rows[:, None, other : other + width]
                difference = left - right
                # softplus(d) + softplus(−d) = 2 softplus(d) − d, whose slope is tanh(d/2).
                spread = 2 * F.softplus(difference, threshold=40).sum((1, 2)) - difference.sum((1, 2))
                tilt = difference.div_(2).tanh_()
                slope[:, start : start + width] += tilt.sum(2)
                if other == start:
                    # Every pair twice, and every class with itself.
                    total += (spread - left.shape[1] * 2 * math.log(2)) / 2
                else:
                    total += spread
                    slope[:, other : other + width] -= tilt.sum(1)
    return value, gradient


def _values_at_once(z: Tensor) -> int:
    return BLOCK_VALUES.get(z.device.type, BLOCK_VALUES["cpu"])


def _differences(z: Tensor) -> Tensor:
    """z_a − z_b of all pairs. (n, m) → (n, m, m)"""
    return z[:, :, None] - z[:, None]


def _save(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1])


def _backward(ctx: Any, of_value: Tensor, of_gradient: Tensor) -> Tensor:
    z, gradient = ctx.saved_tensors
    if torch.is_grad_enabled():  # it is to have a gradient itself
        gradient = (_differences(z) / 2).tanh().sum(2)
    found: Tensor = gradient * of_value[:, None]
    return found


# An operator of its own, so that a compiler takes the loop over tiles for one step.
OPERATOR = "temperance::pair_spread"
torch.library.define(OPERATOR, "(Tensor z) -> (Tensor, Tensor)")
torch.library.impl(OPERATOR, "default", _value_and_gradient)
torch.library.register_fake(OPERATOR, lambda z: (z.new_empty(len(z)), torch.empty_like(z)))
torch.library.register_autograd(OPERATOR, _backward, setup_context=_save)


@loss(
    name="cpc",
    paper="Cheng and Vasconcelos, Calibrating deep neural networks by pairwise constraints, CVPR 2022",
    equals_cross_entropy_at={"discrimination_weight": 0.0, "exclusion_weight": 0.0},
    hyper_parameters=(
        Used(
            "CIFAR-10, CIFAR-100, Tiny-ImageNet",
            {"discrimination_weight": 0.1, "exclusion_weight": 1.0},
            "BalCAL program; no program of the authors is known",
        ),
    ),
)
class CPC(Regulariser):
    """Pairwise constraints: the label against each other class, and no order among the other classes.

    base + discrimination_weight · mean_{j ≠ y} −log σ(z_y − z_j)
         + exclusion_weight · ½ Σ_{a < b, both ≠ y} [−log σ(z_a − z_b) − log σ(z_b − z_a)] / ((k − 1)(k − 2))

    Papers differ in whether a pair counts once or twice; a public program also counts each class with itself, which
    adds a constant. With two classes there is nothing to exclude. Neither time nor memory grows with k²: the sum over
    pairs is taken by polynomials of each logit, to within rounding, unless logits lie farther apart than 100.
    """

    def __init__(
        self,
        *,
        discrimination_weight: float = 0.1,
        exclusion_weight: float = 1.0,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("discrimination_weight", discrimination_weight, 0)
        number("exclusion_weight", exclusion_weight, 0)
        self.discrimination_weight = discrimination_weight
        self.exclusion_weight = exclusion_weight

    def _penalty(self, rows: Rows) -> Tensor:
        return cpc_penalty(
            rows.logits,
            rows.labels,
            discrimination_weight=self.discrimination_weight,
            exclusion_weight=self.exclusion_weight,
        )
