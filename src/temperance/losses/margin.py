"""Penalties on how far apart the logits are: label smoothing for those beyond a margin only."""

from __future__ import annotations

from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from temperance.errors import one_of
from temperance.losses.base import Loss, Regulariser, Rows, TorchOptions, Used, at_least_float32, loss, number, switch


def mbls_penalty(logits: Tensor, *, margin: float = 6.0, detach_max: bool = False) -> Tensor:
    """mean_j ReLU(z_top − z_j − margin) of each row: see `MbLS`. (n, k) → (n,)"""
    logits = at_least_float32(logits)
    top = logits.max(1, keepdim=True).values
    if detach_max:
        top = top.detach()
    return F.relu(top - margin - logits, inplace=True).mean(1)


def acls_penalty(
    logits: Tensor,
    *,
    margin: float = 6.0,
    pos_weight: float = 0.1,
    neg_weight: float = 0.01,
    variant: str = "paper",
    neg_agg: str = "mean",
    halved: bool = False,
    amount: str = "adaptive",
    condition: str = "margin",
) -> Tensor:
    """The ACLS penalty of each row: see `ACLS`. (n, k) → (n,)"""
    logits = at_least_float32(logits)
    top, prediction = logits.max(1, keepdim=True)
    held = top.detach()
    # What is held constant makes the gradient that of eq. 12: down at the top class, up at the others, nothing else.
    pos = top - margin if variant == "released" else top - logits.detach().amin(1, keepdim=True) - margin
    neg = held - margin - logits
    if condition == "margin":
        pos, neg = F.relu(pos), F.relu(neg, inplace=True)
    else:
        neg = neg.scatter(1, prediction, 0)
    if amount == "adaptive":
        pos, neg = pos.square(), neg.square()
        if halved:
            pos_weight, neg_weight = pos_weight / 2, neg_weight / 2
    if variant == "released":
        # Its indicator marks every class that shares the largest logit.
        pos = pos * (logits.detach() == held).sum(1, keepdim=True)
    if neg_agg == "mean":
        neg_weight = neg_weight / max(logits.shape[1] - 1, 1)
    return pos_weight * pos.squeeze(1) + neg_weight * neg.sum(1)


@loss(
    name="mbls",
    paper="Liu et al., The devil is in the margin: margin-based label smoothing for network calibration, CVPR 2022",
    equals_cross_entropy_at={"margin": 1e6},
    hyper_parameters=(
        Used("CIFAR-10", {"margin": 6.0, "strength": 0.1}, "MbLS; ACLS paper"),
        Used("CIFAR-100", {"margin": 6.0, "strength": 0.1}, "BalCAL program"),
        Used("Tiny-ImageNet, ImageNet, VOC", {"margin": 10.0, "strength": 0.1}, "MbLS; ACLS paper"),
    ),
)
class MbLS(Regulariser):
    """Margin-based label smoothing: a linear penalty on logits that lie more than `margin` below the largest.

    base + strength · mean_j ReLU(z_top − z_j − margin), the mean over all k classes as in the authors' program; the
    ACLS paper's eq. 14 writes a sum, with strength / k for its λ.

    detach_max  hold z_top constant in the gradient. The authors' program does not: z_top is pushed down by every class
                beyond the margin. The ACLS paper's analysis, with no gradient at the top class, describes True
    """

    def __init__(
        self,
        *,
        margin: float = 6.0,
        strength: float = 0.1,
        detach_max: bool = False,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("margin", margin, 0)
        number("strength", strength, 0)
        switch("detach_max", detach_max)
        self.margin = margin
        self.strength = strength
        self.detach_max = detach_max

    def _penalty(self, rows: Rows) -> Tensor:
        return self.strength * mbls_penalty(rows.logits, margin=self.margin, detach_max=self.detach_max)


@loss(
    name="acls",
    paper="Park et al., ACLS: adaptive and conditional label smoothing for network calibration, ICCV 2023",
    exact_gradient=False,
    equals_cross_entropy_at={"margin": 1e6},
    hyper_parameters=(
        Used("CIFAR-10", {"margin": 6.0, "pos_weight": 0.1, "neg_weight": 0.01}, "ACLS paper"),
        Used("CIFAR-100", {"margin": 10.0, "pos_weight": 0.1, "neg_weight": 0.01}, "BalCAL program"),
        Used("Tiny-ImageNet, ImageNet, VOC", {"margin": 10.0, "pos_weight": 0.1, "neg_weight": 0.01}, "ACLS paper"),
    ),
)
class ACLS(Regulariser):
    """Adaptive and conditional label smoothing: a squared penalty on logits farther apart than `margin`.

    base + pos_weight · ReLU(z_top − min_k z_k − margin)² + neg_weight · mean_{j ≠ top} ReLU(z_top − z_j − margin)²
    (eq. 13), with the minimum held constant in the first term and z_top in the second, so that the gradient has the
    pattern of eq. 12: it lowers the top logit and raises each far one by itself.

    variant    "paper", or "released": the program's first term is ReLU(z_top − margin)², without the minimum. That form
               depends on a shift of all logits, which a network can slide down to escape it. The two give different
               results: say which one was used
    neg_agg    "mean" over the k − 1 other classes, as in the program; "sum", a literal reading of eq. 13
    halved     halves the squares: then the gradient is eq. 12 exactly, which eq. 13 doubles
    amount     "adaptive": grows with the distance beyond the margin (eq. 10); "constant": linear terms in place of the
               squares (with condition="margin" the paper's "CR only")
    condition  "margin": only beyond it (eq. 11); "always": no ReLU, which also pulls small distances up to the margin
               (with amount="adaptive" the paper's "AR only")

    >>> import torch
    >>> ACLS(base="focal", margin=10.0)(torch.tensor([[12.0, 3.0, -1.0]]), torch.tensor([1]))
    tensor(9.9418)
    """

    def __init__(
        self,
        *,
        margin: float = 6.0,
        pos_weight: float = 0.1,
        neg_weight: float = 0.01,
        variant: str = "paper",
        neg_agg: str = "mean",
        halved: bool = False,
        amount: str = "adaptive",
        condition: str = "margin",
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("margin", margin, 0)
        number("pos_weight", pos_weight, 0)
        number("neg_weight", neg_weight, 0)
        one_of("variant", variant, ("paper", "released"))
        one_of("neg_agg", neg_agg, ("mean", "sum"))
        switch("halved", halved)
        one_of("amount", amount, ("adaptive", "constant"))
        one_of("condition", condition, ("margin", "always"))
        self.margin = margin
        self.pos_weight = pos_weight
        self.neg_weight = neg_weight
        self.variant = variant
        self.neg_agg = neg_agg
        self.halved = halved
        self.amount = amount
        self.condition = condition

    def _penalty(self, rows: Rows) -> Tensor:
        return acls_penalty(
            rows.logits,
            margin=self.margin,
            pos_weight=self.pos_weight,
            neg_weight=self.neg_weight,
            variant=self.variant,
            neg_agg=self.neg_agg,
            halved=self.halved,
            amount=self.amount,
            condition=self.condition,
        )
