"""Penalties on pairs of classes."""

import math
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.losses.base import Loss, Regulariser, Rows, TorchOptions, Used, loss, number
from temperance.losses.formula import at_least_float32

# Pairs are taken in tiles of about this many values, so that memory does not grow with k².
TILE_VALUES = {"cpu": 1 << 19, "cuda": 1 << 25}


def cpc_penalty(
    logits: Tensor, labels: Tensor, *, discrimination_weight: float = 0.1, exclusion_weight: float = 1.0
) -> Tensor:
    """The pairwise constraints of each row: see `CPC`. (n, k), (n,) → (n,)"""
    logits, (n, k) = at_least_float32(logits), logits.shape
    if k == 1:
        return logits.new_zeros(n)
    label = labels[:, None]
    places = torch.arange(k - 1, device=logits.device)
    others = logits.gather(1, places + (places >= label))
    penalty = discrimination_weight * F.softplus(others - logits.gather(1, label)).mean(1)
    if k > 2:
        penalty = penalty + exclusion_weight / (2 * (k - 1) * (k - 2)) * pair_spread(others)
    return penalty


def pair_spread(z: Tensor) -> Tensor:
    """Σ over pairs a < b of softplus(z_a − z_b) + softplus(z_b − z_a), differentiable once. (n, m) → (n,)

    Tile by tile: the n · m² differences are never held together, not even for the backward pass.
    """
    value: Tensor = torch.ops.temperance.pair_spread(z)[0]
    return value


def _value_and_gradient(z: Tensor) -> tuple[Tensor, Tensor]:
    n, m = z.shape
    value, gradient = z.new_zeros(n), torch.zeros_like(z)
    tile = TILE_VALUES.get(z.device.type, TILE_VALUES["cpu"])
    width = min(m, 128)
    height = max(1, tile // width**2)
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


def _save(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, of_value: Tensor, of_gradient: Tensor) -> Tensor:
    (gradient,) = ctx.saved_tensors
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
    adds a constant. With two classes there is nothing to exclude. Time grows with k², memory does not.
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
