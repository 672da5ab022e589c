"""Labels with a probability of zero: what NLL counts them as, and what it would be otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from temperance.arrays import LOG_FLOOR
from temperance.errors import plural
from temperance.metrics.batch import Batch
from temperance.predictions import Predictions
from temperance.predictions.rounding import zero_at


@dataclass
class Floored:
    """The labels whose probability is zero and counts as `floor`. `evaluate` has none with logits.

    weight  of these labels: their number where samples have no weights
    nll     their summed NLL
    total   the weight of all labels
    """

    floor: float = LOG_FLOOR
    n: int = 0
    weight: float = 0.0
    nll: float = 0.0
    total: float = 0.0

    @classmethod
    def of(cls, data: Predictions, *, calibrated: bool) -> Floored:
        """For rounded probabilities the floor is what replaced their zeros, unless they are calibrated first."""
        return cls() if data.decimals is None or calibrated else cls(zero_at(data.decimals, data.k))

    def __add__(self, other: Floored) -> Floored:
        sums = (getattr(self, name) + getattr(other, name) for name in ("weight", "nll", "total"))
        return Floored(self.floor, self.n + other.n, *sums)

    def counted(self, batches: Iterator[Batch], *, logits: bool = False) -> Iterator[Batch]:
        """The same batches; their labels are counted on the way, and with `logits` also those of logits."""
        # Rows were divided by their sum after zeros were replaced, which moves them a little.
        limit = LOG_FLOOR if self.floor == LOG_FLOOR else 1.5 * self.floor
        for batch in batches:
            if logits or not batch.from_logits:
                floored = batch.label_prob < limit
                if bool(floored.any()):
                    self.n += int(floored.sum())
                    self.weight += float(batch.sum(floored))
                    self.nll += float(batch.sum(torch.where(floored, batch.nll.clamp_max(-math.log(LOG_FLOOR)), 0)))
                self.total += float(batch.count)
            yield batch

    def note(self, nll: float, n: int, row_name: str) -> str:
        """What this does to the NLL of n samples, in a sentence; `row_name` is what a sample is called."""
        have = "1 label has" if self.n == 1 else f"{self.n:,} labels have"
        if row_name == "answer":
            are = "1 answer is" if self.n == 1 else f"{self.n:,} answers are"
            have = f"{are} wrong at a confidence of 1, or right at 0: such an outcome has"
        if row_name == "label":
            are = "1 label of a sample applies" if self.n == 1 else f"{self.n:,} labels of samples apply"
            have = f"{are} at a score of 0, or {'does' if self.n == 1 else 'do'} not at 1: such an outcome has"
        rest = max(0.0, nll * self.total - self.nll)  # rounding can leave less than nothing
        mean = rest / (self.total - self.weight) if self.n < n else 0.0
        others = f"; on the other {plural(n - self.n, row_name)} it is {mean:.4f}" if self.n < n else ""
        if self.floor == LOG_FLOOR:
            return (
                f"{have} a probability of 0, or below {LOG_FLOOR:g}, which NLL counts as {LOG_FLOOR:g}. So NLL is "
                f"{nll:.4f}{others}."
            )
        tiny = (rest - math.log(LOG_FLOOR) * self.weight) / self.total
        return (
            f"{have} a probability that was rounded to 0. With {self.floor:.2g} in its place, NLL is {nll:.4f}; with "
            f"{LOG_FLOOR:g} it would be {tiny:.4f}{others}."
        )
