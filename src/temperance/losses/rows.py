"""A batch as rows: logits, labels or target probabilities, and quantities that losses share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Smaller than any non-zero sum of class weights, and above 0 in float32.
TINY = 1e-30


class Rows:
    """A batch as rows: dense input is flattened, and an ignored row has logits of 0 and label 0.

    logits     (n, k), at least float32
    labels     (n,) int64; for target probabilities, the most probable class
    kept       (n,) bool: rows that are not ignored
    indices    (n,) int64: indices of the rows in the training set, if the caller passed them
    log_probs  (n, k)
    nll        −log p of the label, or its mean over the target probabilities. (n,)
    soft       target probabilities (n, k) in place of labels, if the caller passed them
    """

    soft: Tensor | None = None

    def __init__(
        self, logits: Tensor, labels: Tensor, kept: Tensor | None = None, indices: Tensor | None = None
    ) -> None:
        self.logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        self.labels = labels
        self.kept = torch.ones_like(labels, dtype=torch.bool) if kept is None else kept
        self.indices = indices
        self.k = logits.shape[1]
        self.log_probs = F.log_softmax(self.logits, 1)
        self.nll = F.nll_loss(self.log_probs, labels, reduction="none")

    @classmethod
    def of_probabilities(cls, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Rows:
        """Rows with target probabilities (n, k). Class weights apply to each class of a target, as in torch."""
        rows = cls(logits, targets.argmax(1))
        rows.soft = targets.to(rows.logits.dtype)
        weighted = rows.soft
        if weight is not None:
            weight = weight.to(weighted.dtype)
            weighted = weighted * weight / rows.counts(weight)[:, None]
        rows.nll = -(weighted * rows.log_probs.clamp_min(-1e30)).sum(1)
        return rows

    def counts(self, weight: Tensor) -> Tensor:
        """How much each row counts with these class weights. (n,)"""
        if self.soft is None:
            return weight[self.labels]
        return (self.soft @ weight).clamp_min(TINY)

    @property
    def probs(self) -> Tensor:
        """(n, k)"""
        return self.log_probs.exp()

    @property
    def one_hot(self) -> Tensor:
        """The labels as probabilities. (n, k)"""
        if self.soft is not None:
            return self.soft
        return torch.zeros_like(self.logits).scatter(1, self.labels[:, None], 1)

    @property
    def prediction(self) -> Tensor:
        """The most probable class. (n,)"""
        return self.logits.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The largest probability. (n,)"""
        return self.log_probs.max(1).values.exp()

    @property
    def correct(self) -> Tensor:
        """Is the most probable class the label? (n,) bool"""
        return self.prediction == self.labels

    @property
    def entropy(self) -> Tensor:
        """−Σ_j p_j ln p_j, with 0 · ln 0 = 0. (n,)"""
        return -(self.probs * self.log_probs.clamp_min(-1e30)).sum(1)
