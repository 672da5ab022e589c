"""What labels can show: that all are of one class, or that they have nothing to do with the predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.jobs.verdict import as_class
from temperance.metrics.batch import Batch
from temperance.metrics.tally import Tally
from temperance.predictions import Predictions
from temperance.showing import percents

ENOUGH_LABELS = 10  # fewer are often of one class by chance
ENOUGH_ROWS = 100  # with fewer, a fair model may be no better than chance
CHANCE = 2  # standard deviations that chance explains
CERTAIN = 6  # and that it never does


class LabelCounts:
    """How many rows have each label. (k,)"""

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts

    def __add__(self, other: LabelCounts) -> LabelCounts:
        return LabelCounts(self.counts + other.counts)

    def seen(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; their labels are counted on the way."""
        for batch in batches:
            self.counts += torch.bincount(batch.labels, minlength=len(self.counts)).to(self.counts.device)
            yield batch

    @property
    def n(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    def _by_chance(self, predicted: Tally) -> float:
        """How often predictions would be right if the labels had nothing to do with them."""
        return float((self.counts.double() / self.n) @ (predicted.count.double() / self.n))

    def notes(self, predicted: Tally, names: Sequence[str], *, answers: bool = False) -> list[str]:
        """What a reader should know about the labels; `predicted` is the tally by predicted class."""
        present = self.counts.nonzero()
        if len(present) == 1:
            said = one_outcome(int(present)) if answers else one_class(as_class(names[int(present)]))
            return [said] if self.n >= ENOUGH_LABELS else []
        return list(filter(None, [self.unrelated(predicted)]))

    def related(self, predicted: Tally, deviations: float = CERTAIN) -> bool:
        """Are the predictions right more often than chance explains, by this many standard deviations?"""
        return self._above_chance(predicted) > deviations

    def _above_chance(self, predicted: Tally) -> float:
        """How many standard deviations the accuracy is above that of unrelated labels."""
        by_chance = self._by_chance(predicted)
        deviation = math.sqrt(by_chance * (1 - by_chance) / self.n)
        return (float(predicted.total().accuracy) - by_chance) / deviation if deviation else 0.0

    def unrelated(self, predicted: Tally) -> str:
        """A sentence about labels of several classes that have nothing to do with the predictions, if that is so."""
        if self.n < ENOUGH_ROWS or self.related(predicted, CHANCE) or int((predicted.count > 0).sum()) == 1:
            return ""
        right, chance = percents((float(predicted.total().accuracy),), (self._by_chance(predicted),))
        than = "worse than" if self._above_chance(predicted) < -CERTAIN else "no better than"
        return (
            f"The predictions are right {right} of the time, {than} chance: unrelated labels would give "
            f"{chance}. If you expected more, check that labels and predictions have the same order and number the "
            "classes alike."
        )


def one_outcome(right: int, of_what: str = "") -> str:
    """A sentence about answers that are all right or all wrong."""
    return (
        f"Every answer{of_what} is {'right' if right else 'wrong'}, so nothing shows whether confidence tells right "
        "from wrong. If you expected others, check how the answers were marked."
    )


def one_label_outcome(applies: int, of_what: str = "") -> str:
    """A sentence about samples to which every label applies, or none."""
    which = "Every label of every sample" if applies else "No label of any sample"
    return f"{which}{of_what} applies, so nothing shows whether scores tell samples apart. Check how they were marked."


def one_class(name: str, of_what: str = "") -> str:
    """A sentence about labels that are all of one class."""
    return (
        f"Every label{of_what} is {name}, so nothing shows how often the other classes occur. If you expected others, "
        "check where the labels come from: perhaps a wrong column, or one end of sorted data."
    )


def need_both_classes(data: Predictions) -> None:
    """Refuse rows of one score that are all of one class: no calibrator can be fitted to them."""
    if not data.one_score:
        return
    data.need_labels()
    with data.located():
        found = {int(label) for chunk in data.chunks() for label in chunk.labels.aminmax()}
        if len(found) == 1 and data.multilabel:
            raise InputError(
                f"{'every' if 1 in found else 'no'} label of the samples to fit on applies, and a calibrator "
                "learns from labels that apply and labels that do not. Fit on more samples"
            )
        if len(found) == 1:
            raise InputError(
                f"every answer to fit on is {'right' if 1 in found else 'wrong'}, and a calibrator learns from "
                "right and wrong ones. If you expected others, fit on more answers, or check how they were marked"
            )
