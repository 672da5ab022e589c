"""Losses that are plain functions of all probabilities: cross-entropy, the Brier score, label smoothing."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from temperance.errors import InputError, number, one_of
from temperance.losses.base import SampleLoss, TorchOptions, Used, loss
from temperance.losses.formula import NLL, Parts, Sample, Term, dot, one_minus_p, put, total
from temperance.losses.rowwise import loss_of


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row: see `CrossEntropy`. (n, k), (n,) → (n,)"""
    return loss_of(logits, labels, *NLL)


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Brier score of each row: see `Brier`. (n, k), (n,) → (n,)"""
    return loss_of(logits, labels, Term(_brier))


def label_smoothing(logits: Tensor, labels: Tensor, *, smoothing: float = 0.05, convention: str = "all") -> Tensor:
    """Cross-entropy of each row with a softened label: see `LabelSmoothing`. (n, k), (n,) → (n,)"""
    return loss_of(logits, labels, _label_smoothing_term(smoothing, convention, logits.shape[1]))


@loss(paper="Good, Rational decisions, JRSS B 1952", proper=True, equals_cross_entropy_at={})
class CrossEntropy(SampleLoss):
    """Cross-entropy: −log p of the label, the usual training loss.

    It is what every other loss is measured against, and the base that penalties are added to unless told otherwise.

    >>> logits, labels = torch.tensor([[2.0, 1.0, 0.0], [0.5, 2.5, 0.3]]), torch.tensor([0, 1])
    >>> CrossEntropy()(logits, labels)
    tensor(0.3138)
    """

    def _terms(self, k: int) -> tuple[Term, ...]:
        return NLL


@loss(
    paper="Brier, Verification of forecasts expressed in terms of probability, Monthly Weather Review 1950",
    proper=True,
)
class Brier(SampleLoss):
    """Brier score: the squared distance of the probabilities to the one-hot label, which bounds what a mistake costs.

    Σ_j (p_j − 1[j = y])², summed over classes (some divide by k) and from 0 to 2. Its gradient vanishes for a sample
    that is confidently wrong, so training starts more slowly than with cross-entropy.
    """

    def _term(self, k: int) -> Term:
        return Term(_brier)


@loss(
    paper="Szegedy et al., Rethinking the Inception architecture for computer vision, CVPR 2016",
    equals_cross_entropy_at={"smoothing": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet, VOC", {"smoothing": 0.05}, "ACLS and MbLS programs"),
        Used("CIFAR-10, CIFAR-100", {"smoothing": 0.1, "convention": "others"}, "MDCA program"),
    ),
)
class LabelSmoothing(SampleLoss):
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

    def _term(self, k: int) -> Term:
        return _label_smoothing_term(self.smoothing, self.convention, k)


def _brier(sample: Sample) -> Parts:
    # Not Σ p² − 2 p_y + 1, which cancels near zero.
    p, p_label = sample.p, torch.exp(-sample.nll)
    others = put(p, sample.label, 0.0)
    of_others = dot(others, others)
    squares = of_others + p_label * p_label
    return of_others + one_minus_p(sample.nll).square(), 2 * p_label, 2 * p * (p - squares)


def _label_smoothing_term(smoothing: float, convention: str, k: int) -> Term:
    if convention == "others":
        if k == 1:
            raise InputError("label smoothing over the other classes needs at least two classes; the logits have one")
        smoothing = smoothing * k / (k - 1)
    return Term(_label_smoothing, (smoothing,))


def _label_smoothing(sample: Sample, smoothing: float) -> Parts:
    mean_log_p = total(sample.z - sample.top) / sample.k + sample.log_confidence
    value = (1 - smoothing) * sample.nll - smoothing * mean_log_p
    return value, 1 - smoothing, smoothing * (sample.p - 1 / sample.k)
