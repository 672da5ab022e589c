"""Losses that are plain functions of all probabilities: cross-entropy, the Brier score, label smoothing."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.errors import InputError, one_of
from temperance.losses.base import Loss, Rows, TorchOptions, Used, loss, number


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row: see `CrossEntropy`. (n, k), (n,) → (n,)"""
    return Rows(logits, labels).nll


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Brier score of each row: see `Brier`. (n, k), (n,) → (n,)"""
    return _brier(Rows(logits, labels))


def label_smoothing(logits: Tensor, labels: Tensor, *, smoothing: float = 0.05, convention: str = "all") -> Tensor:
    """Cross-entropy of each row with a softened label: see `LabelSmoothing`. (n, k), (n,) → (n,)"""
    return _label_smoothing(Rows(logits, labels), smoothing, convention)


@loss(paper="Good, Rational decisions, JRSS B 1952", proper=True, equals_cross_entropy_at={})
class CrossEntropy(Loss):
    """Cross-entropy: −log p of the label, the usual training loss.

    It is what every other loss is measured against, and the base that penalties are added to unless told otherwise.

    >>> logits, labels = torch.tensor([[2.0, 1.0, 0.0], [0.5, 2.5, 0.3]]), torch.tensor([0, 1])
    >>> CrossEntropy()(logits, labels)
    tensor(0.3138)
    """

    def _losses(self, rows: Rows) -> Tensor:
        return rows.nll


@loss(
    paper="Brier, Verification of forecasts expressed in terms of probability, Monthly Weather Review 1950",
    proper=True,
)
class Brier(Loss):
    """Brier score: the squared distance of the probabilities to the one-hot label, which bounds what a mistake costs.

    Σ_j (p_j − 1[j = y])², summed over classes (some divide by k) and from 0 to 2. Its gradient vanishes for a sample
    that is confidently wrong, so training starts more slowly than with cross-entropy.
    """

    def _losses(self, rows: Rows) -> Tensor:
        return _brier(rows)


@loss(
    paper="Szegedy et al., Rethinking the Inception architecture for computer vision, CVPR 2016",
    equals_cross_entropy_at={"smoothing": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet, VOC", {"smoothing": 0.05}, "ACLS and MbLS programs"),
        Used("CIFAR-10, CIFAR-100", {"smoothing": 0.1, "convention": "others"}, "MDCA program"),
    ),
)
class LabelSmoothing(Loss):
    """Label smoothing: cross-entropy with a target that gives `smoothing` away to the other classes.

    convention  "all": the target is 1 − ε + ε/k for the label and ε/k elsewhere (Szegedy et al., torch, ACLS eq. 4);
                "others": 1 − ε for the label and ε/(k − 1) elsewhere (the MDCA program). "others" with ε (k − 1)/k is
                "all" with ε.

    The trap: class weights count by the label, as for every loss here; torch's `label_smoothing` weighs each class of
    the soft target by itself.
    """

    def __init__(self, *, smoothing: float = 0.05, convention: str = "all", **options: Unpack[TorchOptions]) -> None:
        super().__init__(**options)
        number("smoothing", smoothing, 0, 1)
        one_of("convention", convention, ("all", "others"))
        self.smoothing = smoothing
        self.convention = convention

    def _losses(self, rows: Rows) -> Tensor:
        return _label_smoothing(rows, self.smoothing, self.convention)


def _brier(rows: Rows) -> Tensor:
    target = torch.zeros_like(rows.logits).scatter_(1, rows.labels[:, None], 1.0)
    # Fused forward and backward; Σ p² − 2 p_y + 1 would need no target but more passes, and cancels near zero.
    return F.mse_loss(rows.probs, target, reduction="none").sum(1)


def _label_smoothing(rows: Rows, smoothing: float, convention: str) -> Tensor:
    if convention == "others":
        if rows.k == 1:
            raise InputError("label smoothing over the other classes needs at least two classes; the logits have one")
        smoothing = smoothing * rows.k / (rows.k - 1)
    return (1 - smoothing) * rows.nll - smoothing * rows.log_probs.mean(1)
