"""Losses turn logits into gradients: drop-in replacements for cross-entropy that keep confidence honest in training."""

from temperance.losses.base import LOSSES, Loss, Regulariser, make_loss
from temperance.losses.cross_entropy import CrossEntropy, cross_entropy
from temperance.losses.kernel import KDEXE, MMCE
from temperance.losses.marginal import MDCA
from temperance.losses.selective import AU, AURC
from temperance.losses.soft import SoftAvUC, SoftECE

__all__ = [
    "AU",
    "AURC",
    "KDEXE",
    "LOSSES",
    "MDCA",
    "MMCE",
    "CrossEntropy",
    "Loss",
    "Regulariser",
    "SoftAvUC",
    "SoftECE",
    "cross_entropy",
    "make_loss",
]
