"""Penalties on pairs of classes."""

from __future__ import annotations

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from temperance.losses.base import PenaltyOptions, Regulariser, Used, loss
from temperance.losses.rows import Rows
from temperance.settings import NonNegative

# Up to this many pairs are held in memory; more are recomputed in the backward pass.
MOST_PAIRS = 1 << 25


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

    σ is the logistic function. Papers differ in whether a pair counts once or twice; a public program also pairs each
    class with itself, which adds a constant. With two classes there is nothing to exclude. Time grows with n k², memory
    does not.

    discrimination_weight  weight of the label against each other class
    exclusion_weight       weight of the other classes against each other
    """

    def __init__(
        self,
        *,
        discrimination_weight: NonNegative = 0.1,
        exclusion_weight: NonNegative = 1.0,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.discrimination_weight = discrimination_weight
        self.exclusion_weight = exclusion_weight

    def _penalty(self, rows: Rows) -> Tensor:
        z, label, k = rows.logits, rows.labels[:, None], rows.k
        if k == 1:
            return torch.zeros_like(rows.nll)
        # Replace the label by the last class, then drop the last: the order of the other classes does not matter.
        others = z.scatter(1, label, z[:, -1:])[:, :-1]
        penalty = self.discrimination_weight * -F.logsigmoid(z.gather(1, label) - others).mean(1)
        if k > 2:
            penalty = penalty + self.exclusion_weight / (2 * (k - 1) * (k - 2)) * pair_spread(others)
        return penalty


def pair_spread(z: Tensor) -> Tensor:
    """Σ over pairs a < b of −log σ(z_a − z_b) − log σ(z_b − z_a). (n, m) → (n,)"""
    at_once = max(1, MOST_PAIRS // z.shape[1] ** 2)
    if len(z) <= at_once:
        return _all_pairs(z)
    parts = [checkpoint(_all_pairs, part, use_reentrant=False) for part in torch.split(z, at_once)]
    return torch.cat(parts)


def _all_pairs(z: Tensor) -> Tensor:
    """All ordered pairs, minus each class with itself. (n, m) → (n,)"""
    differences = z[:, :, None] - z[:, None, :]
    return -F.logsigmoid(differences).sum((1, 2)) - z.shape[1] * math.log(2)
