"""Calibration of how often each class is predicted over a batch."""

from __future__ import annotations

from typing import Unpack

import torch.nn.functional as F
from torch import Tensor

from temperance.errors import number
from temperance.losses.base import Loss, Regulariser, TorchOptions, Used, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.formula import Batch, Parts, Sample, Term, dot, pick
from temperance.losses.plain import watched
from temperance.losses.rows import Rows
from temperance.losses.rowwise import class_excess, reduced_loss


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
        """The penalty as a term: |gap| is the gap times its sign, and of that each row has its own share."""
        k = batch.logits.shape[1]
        signs = class_excess(batch).sign_().view(1, k, *[1] * (batch.logits.ndim - 2))
        return Term(_share_of_gaps, (self.strength / k,), vectors=(signs,))


def _share_of_gaps(sample: Sample, signs: Tensor, weight: float) -> Parts:
    """weight · Σ_c sign_c (p_c − q_c)"""
    predicted = dot(sample.p, signs)
    return weight * (predicted - pick(signs, sample.label)), 0.0, weight * sample.p * (signs - predicted)
