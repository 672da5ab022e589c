"""The rows of a batch, as losses that look at the whole batch see them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.arrays import flatten
from temperance.losses.formula import NLL, Term, at_least_float32, first_largest, once
from temperance.losses.rowwise import row_losses


class Rows:
    """The rows of a batch, with what several terms of a loss need of them: computed once, when first asked for.

    given    the logits in the caller's shape (n, k) or (n, k, *space), at least float32
    labels   (n,) int64, every one in 0 … k − 1; an ignored row has some label of these
    ignored  (n,) bool, or None where it is known that no row is
    indices  (n,) int64, which samples of the training set these are, where the caller said so
    """

    _confidence: Tensor | None = None

    def __init__(
        self, logits: Tensor, labels: Tensor, *, ignored: Tensor | None = None, indices: Tensor | None = None
    ) -> None:
        self.given = at_least_float32(logits)
        self.labels = labels
        self.ignored = ignored
        self.indices = indices

    @property
    def k(self) -> int:
        return self.given.shape[1]

    @property
    def shape(self) -> torch.Size:
        """(n,) or (n, *space), as the caller has them."""
        return self.given.shape[:1] + self.given.shape[2:]

    @once
    def logits(self) -> Tensor:
        """(n, k)"""
        return flatten(self.given)

    @once
    def log_probs(self) -> Tensor:
        """(n, k)"""
        return F.log_softmax(self.logits, 1)

    @once
    def probs(self) -> Tensor:
        """(n, k)"""
        return F.softmax(self.logits, 1)

    def losses(self, terms: tuple[Term, ...]) -> Tensor:
        """The sum of some terms for each row. (n,) The confidence is seen on the way."""
        losses, confidence = row_losses(self.given, self.labels.view(self.shape), terms)
        self._confidence = confidence.flatten()
        return losses.flatten()

    @once
    def nll(self) -> Tensor:
        """−log p of the label. (n,)"""
        return self.losses(NLL)

    @property
    def confidence(self) -> Tensor:
        """The largest probability. (n,)"""
        if self._confidence is None:
            self.losses(NLL)
        assert self._confidence is not None
        return self._confidence

    @once
    def prediction(self) -> Tensor:
        """The most probable class. (n,)"""
        return first_largest(self.given).flatten()

    @property
    def correct(self) -> Tensor:
        """Is the most probable class the label? (n,) bool"""
        return self.prediction == self.labels

    def detached(self) -> Rows:
        """The same rows without gradients."""
        found = Rows(self.given.detach(), self.labels, ignored=self.ignored, indices=self.indices)
        found._confidence = self.confidence.detach()
        return found

    @property
    def kept(self) -> Tensor:
        """Which rows count. (n,) bool"""
        return torch.ones_like(self.labels, dtype=torch.bool) if self.ignored is None else ~self.ignored

    def mean(self, values: Tensor) -> Tensor:
        """The mean of values (n, …) over the rows that count; 0 if there are none. (…)"""
        if self.ignored is None:
            return values.mean(0) if len(values) else values.sum(0)
        counted = values.masked_fill(self.ignored.reshape(-1, *[1] * (values.ndim - 1)), 0)
        return counted.sum(0) / self.kept.sum().clamp_min(1)
