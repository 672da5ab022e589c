"""What labels can show: that all are of one class, or that they have nothing to do with the predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from temperance.jobs.verdict import as_class
from temperance.metrics.batch import Batch
from temperance.metrics.tally import Tally
from temperance.showing import percents

ENOUGH_LABELS = 10  # fewer are often of one class by chance
ENOUGH_ROWS = 100  # with fewer, a fair model may be no better than chance
CHANCE = 2  # standard deviations that chance explains


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

    def notes(self, predicted: Tally, names: Sequence[str], *, answers: bool = False) -> list[str]:
        """What a reader should know about the labels; `predicted` is the tally by predicted class."""
        n, present = int(self.counts.sum()), self.counts.nonzero()
        if len(present) == 1:
            said = one_outcome(int(present)) if answers else one_class(as_class(names[int(present)]))
            return [said] if n >= ENOUGH_LABELS else []
        return list(filter(None, [self.unrelated(predicted)]))

    def unrelated(self, predicted: Tally) -> str:
        """A sentence about labels of several classes that have nothing to do with the predictions, if that is so."""
        n = int(self.counts.sum())
        by_chance = float((self.counts / n) @ (predicted.count / n))
        accuracy = float(predicted.hits.sum() / n)
        above_chance = accuracy - by_chance > CHANCE * math.sqrt(by_chance * (1 - by_chance) / n)
        if n < ENOUGH_ROWS or above_chance or int((predicted.count > 0).sum()) == 1:
            return ""
        right, chance = percents((accuracy,), (by_chance,))
        return (
            f"The predictions are right {right} of the time, no better than chance: unrelated labels would give "
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
