"""A penalty on confident outputs."""

from __future__ import annotations

from typing import Unpack

from temperance.errors import number, one_of
from temperance.losses.base import Loss, SamplePenalty, TorchOptions, Used, loss
from temperance.losses.formula import Parts, Sample, Term, below_top, dot


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
class EntropyPenalty(SamplePenalty):
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

    def _term(self, k: int) -> Term:
        return Term(_negative_entropy, (self.strength if self.average == "sample" else self.strength / k,))


def _negative_entropy(sample: Sample, strength: float) -> Parts:
    log_p = below_top(sample)
    mean = dot(sample.p, log_p)
    return strength * (mean + sample.log_confidence), 0.0, strength * sample.p * (log_p - mean)
