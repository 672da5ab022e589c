"""What labels can show: that all are of one class, that they have nothing to do with the predictions, or that they
number the classes in another way.
"""

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
from temperance.predictions.checks import excerpt
from temperance.showing import FEW, listed, percents

ENOUGH_LABELS = 10  # fewer are often of one class by chance
ENOUGH_ROWS = 100  # with fewer, a fair model may be no better than chance
CHANCE = 2  # standard deviations that chance explains
CERTAIN = 6  # and that it never does
FEWEST_PAIRED, MOST_PAIRED = 3, 256  # classes of which pairs of label and prediction are counted


class LabelCounts:
    """How many rows have each label, and how many have each label and prediction.

    counts  (k,)
    pairs   (k, k) labels down, predictions across; empty for two classes, and for more than `MOST_PAIRED`
    """

    def __init__(self, counts: Tensor, pairs: Tensor) -> None:
        self.counts, self.pairs = counts, pairs

    @classmethod
    def none(cls, k: int) -> LabelCounts:
        """Those of no rows, of k classes."""
        paired = k if FEWEST_PAIRED <= k <= MOST_PAIRED else 0
        return cls(torch.zeros(k, dtype=torch.int64), torch.zeros(paired, paired, dtype=torch.int64))

    def __add__(self, other: LabelCounts) -> LabelCounts:
        return LabelCounts(self.counts + other.counts, self.pairs + other.pairs)

    def seen(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; their labels are counted on the way."""
        k = len(self.counts)
        for batch in batches:
            self.counts += torch.bincount(batch.labels, minlength=k).to(self.counts.device)
            if len(self.pairs):
                pairs = torch.bincount(batch.labels * k + batch.prediction, minlength=k * k)
                self.pairs += pairs.view(k, k).to(self.pairs.device)
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
        return list(filter(None, [self.wrong(predicted, names)]))

    def wrong(self, predicted: Tally, names: Sequence[str]) -> str:
        """A sentence about labels that look wrong, if they do."""
        return self._exchanged(names) or self._unrelated(predicted)

    def absent(self, predicted: Tally, names: Sequence[str]) -> str:
        """A sentence about classes that are predicted and never the label, although labels are many and not all one."""
        found = ((self.counts == 0) & (predicted.count > 0)).nonzero().squeeze(1).tolist()
        if not found or self.n < ENOUGH_LABELS * len(self.counts) or int((self.counts > 0).sum()) == 1:
            return ""
        n, absent = int(predicted.count[found].sum()), [as_class(names[j]) for j in found]
        which = listed(absent, "or") if len(absent) <= FEW else excerpt(absent)
        predictions = "prediction" if n == 1 else f"{n:,} predictions"
        return f"No label is {which}, so the {predictions} of {'it' if len(found) == 1 else 'them'} cannot be right."

    def related(self, predicted: Tally, deviations: float = CERTAIN) -> bool:
        """Are the predictions right more often than chance explains, by this many standard deviations?"""
        return self._above_chance(predicted) > deviations

    def _above_chance(self, predicted: Tally) -> float:
        """How many standard deviations the accuracy is above that of unrelated labels."""
        by_chance = self._by_chance(predicted)
        deviation = math.sqrt(by_chance * (1 - by_chance) / self.n)
        return (float(predicted.total().accuracy) - by_chance) / deviation if deviation else 0.0

    def _exchanged(self, names: Sequence[str]) -> str:
        """A sentence about classes that labels and predictions number in different ways, if that is so.

        Of such a class, most predictions have the same other label, and most samples with this label are predicted so.
        """
        if not len(self.pairs):
            return ""
        hits, label = self.pairs.max(0)
        elsewhere = label != torch.arange(len(label))
        n_predicted, n_labels = self.pairs.sum(0), self.counts[label]
        found = elsewhere & _most(hits, n_predicted) & _most(hits, n_labels)
        if not found.any():
            return ""
        j = int(torch.where(found, hits, 0).argmax())
        predicted_as, labelled = as_class(names[j]), as_class(names[int(label[j])])
        of_predictions, of_labels = percents((float(hits[j] / n_predicted[j]),), (float(hits[j] / n_labels[j]),))
        others = int(found.sum()) - 1
        like_it = f" So are {others:,} other classes." if others > 1 else " So is another class." * others
        return (
            f"{of_predictions} of the predictions of {predicted_as} are labelled {labelled}, and {of_labels} of the "
            f"labels {labelled} are predicted as {predicted_as}: they seem to be exchanged.{like_it} Check that labels "
            "and scores have the classes in the same order."
        )

    def _unrelated(self, predicted: Tally) -> str:
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


def _most(hits: Tensor, n: Tensor) -> Tensor:
    """Is it more than half of n, beyond any chance? (...) bool"""
    return 2 * hits - n > CERTAIN * n.double().sqrt()


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
    only = f"No label{of_what} is {name.removeprefix('not ')}" if name.startswith("not ") else ""
    return (
        f"{only or f'Every label{of_what} is {name}'}, so nothing shows how often the other classes occur. If you "
        "expected others, check where the labels come from: perhaps a wrong column, or one end of sorted data."
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
