"""Objectives that are sums over rows: NLL and its variants."""

from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from temperance.objectives.base import Objective, largest_change, objective
from temperance.settings import Bounds, Fraction

# ------------------------------------------------------------------------------------------------------- fixed weights


@objective(convex=True)
class Nll(Objective):
    """Negative log-likelihood: mean −log p(label), the usual choice."""

    def __call__(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        return nll_loss(log_probs, labels) if self.counts is None else super().__call__(log_probs, labels)


@objective(convex=True)
class ClassBalancedNll(Objective):
    """Negative log-likelihood in which every class counts the same.

    The mean over the classes that occur of their mean −log p(label). It is `class-scaled` without the scaling, and so
    the baseline that separates the two effects on imbalanced data.
    """

    def class_weights_of(self, counts: Tensor) -> Tensor:
        return 1 / (torch.where(counts > 0, counts, 1) * (counts > 0).sum()).double()


@objective(convex=True, name="label-smoothing")
class SmoothedNll(Objective):
    """Cross-entropy with a smoothed label: the target spreads `smoothing` evenly over all classes.

    The target is (1 − ε) · one-hot + ε / k, torch's convention; spreading ε (k − 1) / k over the k − 1 wrong classes
    gives the same target. Its optimum is deliberately less confident than the data, so calibrators fitted with it are
    under-confident.

    smoothing  ε, the share taken from the label
    """

    def __init__(self, *, smoothing: Fraction = 0.05) -> None:
        self.smoothing = smoothing

    def target(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (1 - self.smoothing) * super().target(scores, labels) + self.smoothing * scores.mean(1)


@objective(convex=False, name="brier")
class BrierScore(Objective):
    """Brier score: mean squared distance to the one-hot label, which bounds the cost of a confident mistake."""

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        # Σ_j (p_j − 1[j = y])² = Σ_j p_j² − 2 p_y + 1.
        label_prob = self.target(log_probs, labels).exp()
        return (2 * log_probs).exp().sum(1) - 2 * label_prob + 1


# ------------------------------------------------------------------------------------------------------- chosen weights


@objective(convex=False, name="focal")
class FocalNll(Objective):
    """Focal loss: −(1 − p)^gamma · log p of the label, so that well-fitted samples count less.

    `detach_weight=True` treats (1 − p)^gamma as a constant in each step, as the SCTL authors' program does; the
    objective is then linear in log p until the weights are updated. Its optimum is less confident than the data.

    gamma          how fast a sample's weight falls as its label becomes probable; 0 is cross-entropy
    detach_weight  hold (1 − p)^gamma constant in each step

    Lin et al., Focal loss for dense object detection, 2017; Mukhoti et al., Calibrating deep neural networks using
    focal loss, 2020.
    """

    def __init__(self, *, gamma: Annotated[float, Bounds(0, 100)] = 3.0, detach_weight: bool = False) -> None:
        self.gamma = gamma
        self.detach_weight = detach_weight
        self.convex = self.adapts = detach_weight
        self.weighs_classes = not detach_weight
        self._focus: Tensor | None = None

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        losses = super().losses(log_probs, labels)
        return losses if self.adapts else self._focus_of(losses) * losses

    def weights(self, labels: Tensor, k: int) -> Tensor:
        even = super().weights(labels, k)
        return even if self._focus is None else even * self._focus

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        if not self.adapts:
            return 0.0
        before, self._focus = self._focus, self._focus_of(losses.double())
        return largest_change(before, self._focus)

    def _focus_of(self, losses: Tensor) -> Tensor:
        # 1 − p without cancellation near p = 1; the floor keeps the slope of a power below 1 finite.
        return (-torch.expm1(-losses)).clamp_min(1e-30) ** self.gamma
