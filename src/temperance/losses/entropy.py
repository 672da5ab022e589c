"""A penalty on confident outputs."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from temperance.errors import one_of
from temperance.losses.base import Loss, Regulariser, Rows, TorchOptions, Used, loss, number


@loss(
    paper="Pereyra et al., Penalizing confident output distributions, ICLR workshop 2017",
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used(
            "CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet, VOC",
            {"strength": 0.1, "average": "element"},
            "MbLS program",
        ),
    ),
)
class EntropyPenalty(Regulariser):
    """Confidence penalty (ECP): rewards the entropy of the probabilities.

    base − strength · H with H = −Σ_j p_j ln p_j.

    average  "sample": H of each sample, as in the paper; "element": H / k, as in the MbLS program, which averages
             p ln p over samples and classes. The same strength means k times less there
    """

    def __init__(
        self,
        *,
        strength: float = 0.1,
        average: str = "sample",
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("strength", strength, 0)
        one_of("average", average, ("sample", "element"))
        self.strength = strength
        self.average = average

    def _penalty(self, rows: Rows) -> Tensor:
        # p ln p from log p, which is finite where p is rounded to 0.
        negative_entropy = (rows.probs * rows.log_probs).sum(1)
        return (self.strength if self.average == "sample" else self.strength / rows.k) * negative_entropy
