"""Cross-entropy weighted by the label's probability: focal, its sample-dependent and inverse forms, dual focal."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import Loss, TorchOptions, Used, loss
from temperance.losses.rows import Rows
from temperance.settings import Bounds, Fraction

# Above this gamma the inverse focal loss rises with the label's probability somewhere: 1 / W(1/e), with Lambert's W.
REVERSAL_GAMMA = 3.591121476668622

# Larger powers are of no use and could overflow float32.
MAX_GAMMA = 100.0
Gamma = Annotated[float, Bounds(0, MAX_GAMMA)]

# 1 − p is clamped to this, so that the slope of a power below one stays finite where the label is certain.
FLOOR = 1e-16


def one_minus_p(nll: Tensor) -> Tensor:
    """1 − p of the label, exact near p = 1. (n,)"""
    return (-torch.expm1(-nll)).clamp_min(FLOOR)


def focal(nll: Tensor, gamma: float, *, detach_weight: bool = False) -> Tensor:
    """−(1 − p)^gamma · log p. (n,)"""
    weight = one_minus_p(nll) ** gamma
    return (weight.detach() if detach_weight else weight) * nll


@loss(
    paper="Lin et al., Focal loss for dense object detection, ICCV 2017; for calibration Mukhoti et al., NeurIPS 2020",
    equals_cross_entropy_at={"gamma": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet, VOC", {"gamma": 3.0}, "Mukhoti et al. and MbLS programs"),
        Used("CIFAR-10, CIFAR-100", {"gamma": 1.0}, "MDCA, as the base that its penalty is added to"),
    ),
)
class Focal(Loss):
    """Focal loss: cross-entropy in which well-fitted samples count less.

    −(1 − p)^gamma · log p, p the probability of the label. Its gradient is g(p) times that of cross-entropy with
    g = (1 − p)^gamma − gamma (1 − p)^(gamma − 1) p ln p. It is not proper: its optimum is less confident than the data.

    gamma  how fast a sample's weight falls as its label becomes probable; 0 is cross-entropy
    detach_weight  hold (1 − p)^gamma constant in the gradient

    >>> logits, labels = torch.tensor([[2.0, 1.0, 0.0], [0.5, 2.5, 0.3]]), torch.tensor([0, 1])
    >>> Focal(gamma=2.0)(logits, labels)
    tensor(0.0271)
    """

    def __init__(self, *, gamma: Gamma = 3.0, detach_weight: bool = False, **options: Unpack[TorchOptions]) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.detach_weight = detach_weight

    def _losses(self, rows: Rows) -> Tensor:
        return focal(rows.nll, self.gamma, detach_weight=self.detach_weight)


@loss(
    name="flsd",
    paper="Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020",
    equals_cross_entropy_at={"low_gamma": 0.0, "gamma": 0.0},
    hyper_parameters=(
        Used(
            "CIFAR-10, CIFAR-100, Tiny-ImageNet",
            {"low_gamma": 5.0, "gamma": 3.0, "below": 0.2},
            "Mukhoti et al.: FLSD-53; FL-53 in Zhou et al. 2025",
        ),
    ),
)
class FLSD(Loss):
    """Sample-dependent focal loss (FLSD-53): a larger gamma for samples whose label is improbable.

    Focal loss with gamma = `low_gamma` where the label's probability p is below `below`, else `gamma`; the choice
    carries no gradient, and the value jumps there. The rule uses the label's probability; the ACLS paper's supplement
    states it with the largest one. In the authors' program the gamma above p = 0.5 is that of the constructor, so any
    value but 3 silently changes the rule.

    low_gamma  gamma where the label's probability is below `below`
    gamma      gamma elsewhere
    below      the threshold between the two
    """

    def __init__(
        self, *, low_gamma: Gamma = 5.0, gamma: Gamma = 3.0, below: Fraction = 0.2, **options: Unpack[TorchOptions]
    ) -> None:
        super().__init__(**options)
        self.low_gamma = low_gamma
        self.gamma = gamma
        self.below = below

    def _losses(self, rows: Rows) -> Tensor:
        improbable = torch.exp(-rows.nll) < self.below
        return torch.where(improbable, focal(rows.nll, self.low_gamma), focal(rows.nll, self.gamma))


@loss(
    paper="Wang, Feng and Zhang, Rethinking calibration of deep neural networks, NeurIPS 2021; Zhou et al. 2025",
    equals_cross_entropy_at={"gamma": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, ResNet-50", {"gamma": 2.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-10, ResNet-110", {"gamma": 3.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-10, WRN-28-10", {"gamma": 1.5}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-10, PreResNet-56", {"gamma": 2.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-100, ResNet-50, WRN-28-10, PreResNet-56", {"gamma": 1.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-100, ResNet-110", {"gamma": 1.5}, "Zhou et al. 2025, App. Table 2"),
        Used("Tiny-ImageNet, ViT-S, Swin-T", {"gamma": 1.0}, "Zhou et al. 2025, App. Table 2"),
    ),
)
class InverseFocal(Loss):
    """Inverse focal loss: cross-entropy in which well-fitted samples count more.

    −(1 + p)^gamma · log p, p the probability of the label (Zhou et al., Def. 3.2), with slope
    −gamma (1 + p)^(gamma − 1) ln p − (1 + p)^gamma / p; the paper prints the first term with the opposite sign. Above
    gamma = 1/W(1/e) = 3.591121 the slope is positive around p = 0.278, where the loss pushes the label's probability
    down. Such a gamma is refused unless `allow_reversal=True`.

    gamma           how fast a sample's weight rises as its label becomes probable; 0 is cross-entropy
    allow_reversal  allow a gamma that pushes some labels' probabilities down
    """

    def __init__(self, *, gamma: Gamma = 2.0, allow_reversal: bool = False, **options: Unpack[TorchOptions]) -> None:
        super().__init__(**options)
        if gamma > REVERSAL_GAMMA and not allow_reversal:
            raise InputError(
                f"gamma of the inverse focal loss should be at most {REVERSAL_GAMMA:.6f}; got {gamma}, with which "
                "it pushes the label's probability down in places. If you want that, pass allow_reversal=True"
            )
        self.gamma = gamma
        self.allow_reversal = allow_reversal

    def _losses(self, rows: Rows) -> Tensor:
        return (1 + torch.exp(-rows.nll)) ** self.gamma * rows.nll


@loss(
    paper="Tao, Dong and Xu, Dual focal loss for calibration, ICML 2023",
    equals_cross_entropy_at={"gamma": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, ResNet-50", {"gamma": 5.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-10, ResNet-110", {"gamma": 4.5}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-10, WRN-28-10", {"gamma": 2.6}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-10, PreResNet-56", {"gamma": 4.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-100, ResNet-50", {"gamma": 5.0}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-100, ResNet-110", {"gamma": 6.1}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-100, WRN-28-10", {"gamma": 3.9}, "Zhou et al. 2025, App. Table 2"),
        Used("CIFAR-100, PreResNet-56", {"gamma": 4.5}, "Zhou et al. 2025, App. Table 2"),
        Used("Tiny-ImageNet, ViT-S, Swin-T", {"gamma": 1.0}, "Zhou et al. 2025, App. Table 2"),
    ),
)
class DualFocal(Loss):
    """Dual focal loss: focal loss that also uses the probability p_j of the label's closest rival.

    −(1 − p_y + p_j)^gamma · log p_y; gradients flow through p_j. There are three definitions of p_j:

    gamma  how fast a sample's weight falls as its label outdistances the rival
    behaviour  "released": the largest probability strictly below p_y, 0 if there is none, as in the authors' program,
               which produced the numbers in later papers;
               "eq24": the largest among the other classes, as in Zhou et al.'s eq. 24;
               "eq25-26": the same where the label is predicted, else 0; how Zhou et al. describe the program, wrongly
               for more than two classes
    """

    def __init__(
        self,
        *,
        gamma: Gamma = 5.0,
        behaviour: Literal["released", "eq24", "eq25-26"] = "released",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.behaviour = behaviour

    def _losses(self, rows: Rows) -> Tensor:
        z, label = rows.logits, rows.labels[:, None]
        z_label = z.gather(1, label)
        if self.behaviour == "released":
            # Logits have the order of the probabilities, and still differ where softmax rounds them to equal values.
            rivals = z < z_label
        else:
            rivals = torch.ones_like(z, dtype=torch.bool).scatter(1, label, False)
            if self.behaviour == "eq25-26":
                rivals = rivals & (z_label >= z.amax(1, keepdim=True))
        p_rival = rows.probs.where(rivals, 0).amax(1)
        return (one_minus_p(rows.nll) + p_rival) ** self.gamma * rows.nll
