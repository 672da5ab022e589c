"""How much predictions tell: how many are right and how many wrong, or with weights how many these are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from temperance.metrics.statistic import Additive

# An interval needs this many right and this many wrong predictions: no resample has a mistake that the data lack.
ENOUGH = 20


@dataclass(frozen=True)
class Evidence(Additive):
    """Wrong and right predictions: how many, and the sums of their weights and of the squares of these. (2,)

    A few heavy predictions tell little, however many light ones there are. So what counts is how many of equal weight
    would tell as much, (Σw)² / Σw². For Σw² a share of that of all predictions is taken if it is more: mistakes may be
    light only because heavy ones happen to be missing.
    """

    count: Tensor
    weight: Tensor
    squares: Tensor

    @classmethod
    def of(cls, correct: Tensor, weights: Tensor | None = None) -> Self:
        """The evidence of predictions."""
        if weights is None:
            return cls.counted(int(correct.sum()), len(correct))
        return cls.of_each(correct, weights, torch.zeros_like(correct, dtype=torch.int64), 1).of_entry(0)

    @classmethod
    def of_each(cls, correct: Tensor, weights: Tensor | None, of_row: Tensor, size: int) -> Self:
        """Predictions by a number below `size` that each row has. (size, 2)"""
        index = 2 * of_row + correct
        powers = (None, None, None) if weights is None else (None, weights, weights.square())
        sums = (torch.bincount(index, each, minlength=2 * size) for each in powers)
        return cls(*(found.reshape(size, 2).double().cpu() for found in sums))

    @classmethod
    def counted(cls, right: float, n: int) -> Self:
        """This many right predictions of n that count equally."""
        counts = torch.tensor([n - right, right], dtype=torch.float64)
        return cls(counts, counts.clone(), counts.clone())

    def of_entry(self, i: int) -> Self:
        """The evidence with this number."""
        return self.mapped(lambda tensor: tensor[i])

    @property
    def worth(self) -> Tensor:
        """How many wrong and right predictions of equal weight would tell as much. (2,)"""
        alike = self.count * self.squares.sum() / self.count.sum().clamp_min(1)
        return self.weight.square() / torch.maximum(self.squares, alike).clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def enough(self) -> bool:
        """Are there enough right and wrong predictions for an interval?"""
        return float(self.worth.min()) >= ENOUGH

    def enough_with(self, other: Self) -> bool:
        """Does either of two predictions of the same samples have enough mistakes, and either enough right ones?"""
        return float(torch.maximum(self.worth, other.worth).min()) >= ENOUGH

    @property
    def missing(self) -> str:
        """What is missing for an interval, in words; empty if nothing is."""
        if self.enough:
            return ""
        least, which = self.worth.min(0)
        fewer, what = math.floor(least), ("wrong", "right")[int(which)]
        needed = f"{ENOUGH} right and {ENOUGH} wrong predictions"
        if not torch.allclose(self.count, self.weight):
            return f"{needed} of equal weight, and by their weights the {what} ones are worth {fewer}"
        return f"{needed}, and {fewer or 'none'} {'is' if fewer < 2 else 'are'} {what}"
