"""Calibration of how often each class is predicted over a batch."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.losses.base import Loss, Regulariser, Rows, TorchOptions, Used, loss, number
from temperance.losses.distributed import BatchLevel
from temperance.losses.formula import Batch, Part, Parts, Sample, Term, dot
from temperance.losses.plain import watched
from temperance.losses.rowwise import class_sums, reduced_loss


@loss(
    name="mdca",
    paper="Hebbalaguppe et al., A stitch in time saves nine: a train-time regularizing loss for calibration, CVPR 2022",
    per_sample=False,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100", {"strength": 1.0}, "MDCA scripts, on cross-entropy or Focal(gamma=1)"),
    ),
)
class MDCA(BatchLevel, Regulariser):
    """MDCA: adds how far each class's mean probability over the batch is from its share of the labels.

    base + strength · (1/k) Σ_c |mean_i p_ic − mean_i 1[y_i = c]|. It needs batches larger than the number of classes to
    say much. The ACLS paper's supplement leaves out 1/k, and its a_c = sgn(|…|), which is always +1, would make the
    gradient vanish: it is the sign of the difference itself. The authors' best is on focal loss,
    `MDCA(base=Focal(gamma=1.0))`.
    """

    def __init__(
        self, *, strength: float = 1.0, base: str | Loss = "cross-entropy", **options: Unpack[TorchOptions]
    ) -> None:
        super().__init__(base=base, **options)
        number("strength", strength, 0)
        self.strength = strength

    def _penalty(self, rows: Rows) -> Tensor:
        kept = rows.kept.to(rows.given.dtype)
        # By itself, as the exponential of log p would take longer, forward and backward.
        predicted = kept @ rows.logits.softmax(1)
        observed = kept.new_zeros(rows.k).index_add_(0, rows.labels, kept)
        predicted, observed = self._all_sum(predicted), self._all_sum(observed)
        share = self.strength / rows.k / observed.sum().clamp_min(1)
        return share * F.l1_loss(predicted, observed, reduction="sum")

    def _value(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> Tensor:
        of_base = self.base._terms(logits.shape[1]) if logits.ndim > 1 else None
        alike = self.weight is None and self.reduction != "none"  # what every row adds to the whole
        if of_base is None or not alike or self._spread or watched():
            return super()._value(logits, labels, indices)
        batch = self._batch(logits, labels, indices, of_base)
        return reduced_loss(batch._replace(terms=(*of_base, self._of_batch(batch))))

    def _of_batch(self, batch: Batch) -> Term:
        """The penalty as a term: the same value for each row, and its share of the gradient."""
        k, labels = batch.logits.shape[1], batch.labels.flatten()
        predicted, n = class_sums(batch)
        if n == len(labels):
            observed = torch.bincount(labels, minlength=k)
        else:
            kept = labels != batch.ignore_index
            observed = torch.zeros_like(predicted).index_add_(0, labels.where(kept, 0), kept.to(predicted.dtype))
        gap = predicted - observed
        signs = gap.sign().view(1, k, *[1] * (batch.logits.ndim - 2))
        return Term(_marginal, (gap.abs().sum() * (self.strength / k) / n, self.strength / k), vectors=(signs,))


def _marginal(sample: Sample, signs: Tensor, penalty: Part, weight: float) -> Parts:
    return penalty + 0 * sample.nll, 0.0, weight * sample.p * (signs - dot(sample.p, signs))
