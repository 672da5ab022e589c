"""Penalties on how far apart the logits are: label smoothing for those beyond a margin only."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from temperance.errors import number, one_of, switch
from temperance.losses.base import Loss, SamplePenalty, TorchOptions, Used, loss
from temperance.losses.formula import Part, Parts, Sample, Term, dot, first_largest, pick, put, smallest, total
from temperance.losses.rowwise import loss_of


def mbls_penalty(logits: Tensor, *, margin: float = 6.0, detach_max: bool = False) -> Tensor:
    """mean_j ReLU(z_top − z_j − margin) of each row: see `MbLS`. (n, k) → (n,)"""
    return loss_of(logits, _any_label(logits), _mbls_term(margin, 1.0, detach_max, logits.shape[1]))


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
    detach: bool = True,
) -> Tensor:
    """The ACLS penalty of each row: see `ACLS`. (n, k) → (n,)"""
    term = acls_term(
        logits.shape[1],
        margin=margin,
        pos_weight=pos_weight,
        neg_weight=neg_weight,
        variant=variant,
        neg_agg=neg_agg,
        halved=halved,
        amount=amount,
        condition=condition,
        detach=detach,
    )
    return loss_of(logits, _any_label(logits), term)


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
class MbLS(SamplePenalty):
    """Margin-based label smoothing: a linear penalty on logits that lie more than `margin` below the largest.

    base + strength · mean_j ReLU(z_top − z_j − margin), the mean over all k classes as in the authors' program; the
    ACLS paper's eq. 14 writes a sum, with strength / k for its λ.

    strength    papers call it a weight: a number given as `weight` is taken for it, and a tensor for class weights
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
        weight: object = options.get("weight")
        if isinstance(weight, int | float):
            strength, options["weight"] = weight, None
        super().__init__(base=base, **options)
        number("margin", margin, 0)
        number("strength", strength, 0)
        switch("detach_max", detach_max)
        self.margin = margin
        self.strength = strength
        self.detach_max = detach_max

    def _term(self, k: int) -> Term:
        return _mbls_term(self.margin, self.strength, self.detach_max, k)


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
class ACLS(SamplePenalty):
    """Adaptive and conditional label smoothing: a squared penalty on logits farther apart than `margin`.

    base + pos_weight · ReLU(z_top − min_k z_k − margin)² + neg_weight · mean_{j ≠ top} ReLU(z_top − z_j − margin)²
    (eq. 13), with the minimum held constant in the first term and z_top in the second, so that the gradient has the
    pattern of eq. 12: it lowers the top logit and raises each far one by itself.

    The pushes of eq. 12 do not add up to 0, and the penalty does not change when all logits go down together: so they
    go down for ever, which can break a training. The "released" variant stops by itself, and `detach=False` does not
    drift; its squares still want small steps at the start.

    variant    "paper", or "released": the program's first term is ReLU(z_top − margin)², without the minimum. That form
               depends on a shift of all logits, which a network can slide down to escape it. The two give different
               results: say which one was used
    neg_agg    "mean" over the k − 1 other classes, as in the program; "sum", a literal reading of eq. 13
    halved     halves the squares: then the gradient is eq. 12 exactly, which eq. 13 doubles
    amount     "adaptive": grows with the distance beyond the margin (eq. 10); "constant": linear terms in place of the
               squares (with condition="margin" the paper's "CR only")
    condition  "margin": only beyond it (eq. 11); "always": no ReLU, which also pulls small distances up to the margin
               (with amount="adaptive" the paper's "AR only")
    detach     holds the minimum and z_top constant, as above; without it the gradient is that of eq. 13 itself, which
               raises the lowest logit as much as it lowers the top one

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
        detach: bool = True,
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
        switch("detach", detach)
        self.margin = margin
        self.pos_weight = pos_weight
        self.neg_weight = neg_weight
        self.variant = variant
        self.neg_agg = neg_agg
        self.halved = halved
        self.amount = amount
        self.condition = condition
        self.detach = detach
        if detach and variant == "paper":
            self.remedy = "set detach=False in acls, which moves all logits down otherwise"

    def _term(self, k: int) -> Term:
        return acls_term(
            k,
            margin=self.margin,
            pos_weight=self.pos_weight,
            neg_weight=self.neg_weight,
            variant=self.variant,
            neg_agg=self.neg_agg,
            halved=self.halved,
            amount=self.amount,
            condition=self.condition,
            detach=self.detach,
        )


def _mbls_term(margin: float, strength: float, detach_max: bool, k: int) -> Term:
    return Term(_mbls, (margin, strength / k), (detach_max,))


def _mbls(sample: Sample, margin: float, weight: float, detach_max: bool) -> Parts:
    beyond = torch.relu(sample.top - margin - sample.z)
    active = (beyond > 0).to(beyond)
    rest = -weight * active
    if not detach_max:
        rest = put(rest, sample.winner, weight * total(active))
    return weight * total(beyond), 0.0, rest


def acls_term(
    k: int,
    *,
    margin: float,
    pos_weight: float,
    neg_weight: float,
    variant: str = "paper",
    neg_agg: str = "mean",
    halved: bool = False,
    amount: str = "adaptive",
    condition: str = "margin",
    detach: bool = True,
) -> Term:
    """The ACLS penalty for k classes: see `ACLS`."""
    if halved and amount == "adaptive":
        pos_weight, neg_weight = pos_weight / 2, neg_weight / 2
    if neg_agg == "mean":
        neg_weight = neg_weight / max(k - 1, 1)
    return Term(_acls, (margin, pos_weight, neg_weight), (variant, amount, condition, detach))


def _acls(
    sample: Sample,
    margin: float,
    pos_weight: Part,
    neg_weight: Part,
    variant: str,
    amount: str,
    condition: str,
    detach: bool,
) -> Parts:
    z, top, winner = sample.z, sample.top, sample.winner
    pos = top - margin if variant == "released" else top - smallest(z) - margin
    neg = top - margin - z
    if condition == "margin":
        pos, neg = torch.relu(pos), torch.relu(neg)
    else:
        neg = put(neg, winner, 0.0)
    if variant == "released":
        # The program's indicator marks every class that shares the largest logit.
        pos_weight = pos_weight * total((z >= top).to(z))
    if amount == "adaptive":
        value = pos_weight * pos * pos + neg_weight * dot(neg, neg)
        down, up = 2 * pos_weight * pos, 2 * neg_weight * neg
    else:
        value = pos_weight * pos + neg_weight * total(neg)
        down, up = pos_weight * torch.ones_like(pos), neg_weight * put(torch.ones_like(z), winner, 0.0)
        if condition == "margin":
            down, up = down * (pos > 0).to(z), up * (neg > 0).to(z)
    if detach:
        # The pattern of eq. 12: down at the top class, up at the others, and nothing else.
        return value, 0.0, put(-up, winner, down)
    rest = put(-up, winner, down + total(up))
    if variant == "paper":
        lowest = first_largest(-z)
        rest = put(rest, lowest, pick(rest, lowest) - down)
    return value, 0.0, rest


def _any_label(logits: Tensor) -> Tensor:
    """Labels, where they do not matter. (n,)"""
    return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
