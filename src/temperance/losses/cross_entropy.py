"""Losses that are plain functions of the probabilities: cross-entropy, the Brier score, label smoothing."""

from torch import Tensor

from temperance.losses.base import Loss, Rows, loss


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row: see `CrossEntropy`. (n, k), (n,) → (n,)"""
    return Rows(logits, labels).nll


@loss(
    paper="Good, Rational decisions, JRSS B 1952",
    proper=True,
    equals_cross_entropy_at={},
)
class CrossEntropy(Loss):
    """Cross-entropy: −log p of the label, the usual training loss."""

    def _losses(self, rows: Rows) -> Tensor:
        return rows.nll
