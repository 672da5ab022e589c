"""Losses of all probabilities of a sample: cross-entropy, the Brier score, label smoothing, the entropy penalty."""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import Loss, PenaltyOptions, Regulariser, TorchOptions, Used, loss
from temperance.losses.rows import Rows
from temperance.settings import Fraction, NonNegative


@loss(
    paper="Good, Rational decisions, JRSS B 1952",
    proper=True,
    soft_targets=True,
    equals_cross_entropy_at={},
)
class CrossEntropy(Loss):
    """Cross-entropy: −log p of the label, the usual training loss.

    Every other loss is compared with it, and penalties are added to it unless they have another base. With target
    probabilities y it is −Σ_j y_j log p_j.

    label_smoothing  as in `nn.CrossEntropyLoss`: the share of the target that is spread evenly over all classes; class
                     weights apply to each class of the smoothed target

    >>> import torch
    >>> logits, labels = torch.tensor([[2.0, 1.0, 0.0], [0.5, 2.5, 0.3]]), torch.tensor([0, 1])
    >>> CrossEntropy()(logits, labels)
    tensor(0.3138)
    """

    def __init__(self, *, label_smoothing: Fraction = 0.0, **options: Unpack[TorchOptions]) -> None:
        super().__init__(**options)
        self.label_smoothing = label_smoothing

    def _losses(self, rows: Rows) -> Tensor:
        epsilon = self.label_smoothing
        return (1 - epsilon) * rows.nll - epsilon * rows.log_probs.mean(1) if epsilon else rows.nll

    def _weighted(self, rows: Rows, counts: Tensor, weight: Tensor | None) -> Tensor:
        epsilon = self.label_smoothing
        if not epsilon or weight is None:
            return super()._weighted(rows, counts, weight)
        spread = rows.log_probs.clamp_min(-1e30) @ weight / rows.k
        return counts * ((1 - epsilon) * rows.nll) - rows.kept * (epsilon * spread)


@loss(
    paper="Brier, Verification of forecasts expressed in terms of probability, Monthly Weather Review 1950",
    proper=True,
    soft_targets=True,
)
class Brier(Loss):
    """Brier score: the squared distance of the probabilities to the one-hot label, which bounds the cost of a mistake.

    Σ_j (p_j − 1[j = y])², summed over classes (some divide by k), from 0 to 2; with target probabilities y it is
    Σ_j (p_j − y_j)². Its gradient vanishes for confidently wrong samples, so training starts more slowly than with
    cross-entropy.
    """

    def _losses(self, rows: Rows) -> Tensor:
        if rows.soft is not None:
            return (rows.probs - rows.soft).square().sum(1)
        others = rows.probs.scatter(1, rows.labels[:, None], 0)
        # 1 − p_y as the sum of the others, which loses no digits near 0.
        return others.square().sum(1) + others.sum(1).square()


@loss(
    paper="Szegedy et al., Rethinking the Inception architecture for computer vision, CVPR 2016",
    soft_targets=True,
    equals_cross_entropy_at={"smoothing": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet, VOC", {"smoothing": 0.05}, "ACLS and MbLS programs"),
        Used("CIFAR-10, CIFAR-100", {"smoothing": 0.1, "convention": "others"}, "MDCA program"),
    ),
)
class LabelSmoothing(Loss):
    """Label smoothing: cross-entropy with a target that moves `smoothing` from the label to other classes.

    smoothing  ε, the share taken from the label
    convention  "all": the target is 1 − ε + ε/k for the label and ε/k elsewhere (Szegedy et al., torch, ACLS eq. 4);
                "others": 1 − ε for the label and ε/(k − 1) elsewhere (the MDCA program). "others" with ε (k − 1)/k is
                "all" with ε.

    Class weights apply to the label, as in every loss here; torch's `label_smoothing` weights each class of the soft
    target separately.
    """

    def __init__(
        self,
        *,
        smoothing: Fraction = 0.05,
        convention: Literal["all", "others"] = "all",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(**options)
        self.smoothing = smoothing
        self.convention = convention

    def _losses(self, rows: Rows) -> Tensor:
        epsilon, k = self.smoothing, rows.k
        if self.convention == "others":
            if k == 1:
                raise InputError('convention="others" needs at least two classes; there is one')
            epsilon = epsilon * k / (k - 1)
        return (1 - epsilon) * rows.nll - epsilon * rows.log_probs.mean(1)


@loss(
    paper="Pereyra et al., Penalizing confident output distributions, ICLR workshop 2017",
    soft_targets=True,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used(
            "CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet, VOC",
            {"strength": 0.1, "average": "element"},
            "MbLS program",
        ),
    ),
)
class EntropyPenalty(Regulariser):
    """Confidence penalty (ECP): rewards the entropy of the probabilities.

    base − strength · H with H = −Σ_j p_j ln p_j.

    strength  weight of the entropy
    average   "sample": H of each sample, as in the paper; "element": H / k, as in the MbLS program, which averages
              p ln p over samples and classes, so the same strength weighs k times less
    """

    def __init__(
        self,
        *,
        strength: NonNegative = 0.1,
        average: Literal["sample", "element"] = "sample",
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.strength = strength
        self.average = average

    def _penalty(self, rows: Rows) -> Tensor:
        return -self.strength * (rows.entropy if self.average == "sample" else rows.entropy / rows.k)
