"""Losses turn logits into gradients: drop-in replacements for cross-entropy that keep confidence honest in training."""

from temperance.losses.base import LOSSES, Loss, Regulariser, make_loss
from temperance.losses.cross_entropy import CrossEntropy, cross_entropy

__all__ = ["LOSSES", "CrossEntropy", "Loss", "Regulariser", "cross_entropy", "make_loss"]
