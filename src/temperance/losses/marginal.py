"""Calibration of how often each class is predicted over a batch."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from temperance.losses.base import Loss, Regulariser, Rows, TorchOptions, Used, loss, number
from temperance.losses.distributed import BatchLevel


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
        kept = rows.kept.to(rows.logits.dtype)
        # By itself, as the exponential of log p would take longer, forward and backward.
        predicted = kept @ rows.logits.softmax(1)
        observed = kept.new_zeros(rows.k).index_add_(0, rows.labels, kept)
        predicted, observed = self._all_sum(predicted), self._all_sum(observed)
        share = self.strength / rows.k / observed.sum().clamp_min(1)
        return share * (predicted - observed).abs().sum()
