"""Penalties on the distance between logits: label smoothing that acts only beyond a margin."""

from __future__ import annotations

from typing import Literal, Protocol, Unpack

from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import PenaltyOptions, Regulariser, Used, Variant, loss
from temperance.losses.rows import Rows
from temperance.settings import NonNegative

Aggregation = Literal["mean", "sum"]


@loss(
    name="mbls",
    paper="Liu et al., The devil is in the margin: margin-based label smoothing for network calibration, CVPR 2022",
    soft_targets=True,
    equals_cross_entropy_at={"margin": 1e6},
    hyper_parameters=(
        Used("CIFAR-10", {"margin": 6.0, "strength": 0.1}, "MbLS; ACLS paper"),
        Used("CIFAR-100", {"margin": 6.0, "strength": 0.1}, "BalCAL program"),
        Used("Tiny-ImageNet, ImageNet, VOC", {"margin": 10.0, "strength": 0.1}, "MbLS; ACLS paper"),
    ),
)
class MbLS(Regulariser):
    """Margin-based label smoothing: a linear penalty on logits that lie more than `margin` below the largest.

    base + strength · mean_j ReLU(z_top − z_j − margin), the mean over all k classes as in the authors' program. Eq. 14
    of the ACLS paper's supplement writes a sum, whose λ is strength / k. Papers call the strength a weight; here, as in
    torch, `weight` is the class weights.

    margin    distance between logits from which the penalty applies
    strength  weight of the penalty
    detach_max  hold z_top constant in the gradient. The authors' program does not: every class beyond the margin
                pushes z_top down. The ACLS paper's analysis, without a gradient at the top class, describes True
    """

    def __init__(
        self,
        *,
        margin: NonNegative = 6.0,
        strength: NonNegative = 0.1,
        detach_max: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.margin = margin
        self.strength = strength
        self.detach_max = detach_max

    def _penalty(self, rows: Rows) -> Tensor:
        z = rows.logits
        top = z.amax(1, keepdim=True)
        distance = (top.detach() if self.detach_max else top) - z
        return self.strength * (distance - self.margin).relu().mean(1)


def distances(z: Tensor, *, variant: str, detach: bool) -> tuple[Tensor, Tensor]:
    """z_top − min_k z_k (n,) and z_top − z_j (n, k), as ACLS differentiates them: see `ACLS`."""
    top, lowest = z.amax(1, keepdim=True), z.amin(1, keepdim=True)
    if variant == "released":
        return top.squeeze(1), top.detach() - z
    if detach:
        return (top - lowest.detach()).squeeze(1), top.detach() - z
    return (top - lowest).squeeze(1), top - z


def detach_remedy(name: str, detach: bool, variant: str) -> str | None:
    """What to change if training with these settings of `distances` breaks down; conflicting settings are refused."""
    if detach and variant == "released":
        raise InputError('detach needs variant="paper"; the released program already holds z_top constant')
    return f"set detach=False in {name}: with detach=True its logits drift without bound" if detach else None


class TwoTerms(Protocol):
    """The settings that ACLS shares with its ablation."""

    margin: float
    pos_weight: float
    neg_weight: float
    aggregation: Aggregation
    variant: Variant
    detach: bool


def acls_penalty(z: Tensor, of: TwoTerms, terms: str) -> Tensor:
    """λ1 ReLU(z_top − min_k z_k − M)² + λ2 mean_{j ≠ top} ReLU(z_top − z_j − M)² (eq. 13): see `ACLS`. (n, k) → (n,)"""
    to_lowest, to_others = distances(z, variant=of.variant, detach=of.detach)
    pos, neg = to_lowest - of.margin, to_others - of.margin
    if terms == "adaptive":
        neg = neg.masked_fill(z == z.amax(1, keepdim=True), 0)
    else:
        pos, neg = pos.relu(), neg.relu()  # the condition of eq. 11, which also leaves out j = top
    if terms != "conditional":
        pos, neg = pos.square(), neg.square()  # the amount of eq. 10
    if of.variant == "released":
        pos = pos * (z == z.amax(1, keepdim=True)).sum(1)  # the program counts each class with the largest logit
    others = max(z.shape[1] - 1, 1) if of.aggregation == "mean" else 1
    return of.pos_weight * pos + of.neg_weight / others * neg.sum(1)


@loss(
    name="acls",
    paper="Park et al., ACLS: adaptive and conditional label smoothing for network calibration, ICCV 2023",
    soft_targets=True,
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
    (eq. 13), as autograd differentiates it. Its gradient sums to 0 over the classes. It is twice that of eq. 12, which
    omits the factor 2 of the squares; halve both weights for the amount of eq. 12.

    margin      distance between logits from which the penalty applies
    pos_weight  λ1, weight of the predicted class's term
    neg_weight  λ2, weight of the other classes' term
    terms        "both": adaptive and conditional; "adaptive": no ReLU, which also pulls small distances up to the
                 margin (Table 5, "AR only"); "conditional": ReLU without the square (Table 5, "CR only")
    aggregation  "mean" over the k − 1 other classes, as in the program; "sum", a literal reading of eq. 13
    variant      "paper", or "released": in the program the first term is ReLU(z_top − margin)², without the minimum,
                 and z_top is held constant in the second. That form is not invariant to a shift of all logits. Results
                 differ, so report which one was used
    detach       hold the minimum constant in the first term and z_top in the second. The gradient then has the pattern
                 of eq. 12, which lowers the top logit and raises each distant one. For gradient analysis only: these
                 gradients do not sum to 0, all logits drift without bound, and training breaks down

    >>> import torch
    >>> ACLS(base="focal", margin=10.0)(torch.tensor([[12.0, 3.0, -1.0]]), torch.tensor([1]))
    tensor(9.9418)
    """

    def __init__(
        self,
        *,
        margin: NonNegative = 6.0,
        pos_weight: NonNegative = 0.1,
        neg_weight: NonNegative = 0.01,
        terms: Literal["both", "adaptive", "conditional"] = "both",
        aggregation: Aggregation = "mean",
        variant: Variant = "paper",
        detach: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.remedy = detach_remedy(self.name, detach, variant)
        self.margin = margin
        self.pos_weight = pos_weight
        self.neg_weight = neg_weight
        self.terms = terms
        self.aggregation = aggregation
        self.variant = variant
        self.detach = detach

    def _penalty(self, rows: Rows) -> Tensor:
        return acls_penalty(rows.logits, self, self.terms)
