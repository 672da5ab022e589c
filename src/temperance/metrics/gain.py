"""Is one set of predictions better than another, or could it be chance? A test that is valid for few samples.

The gain of a sample is by how much new predictions q lower its NLL: log q(y) − log p(y) for its label y. Most samples
gain or lose a little; a few, the mistakes, gain or lose much. A bootstrap or a t-test knows nothing of mistakes that
happen to be missing from the samples, so it favours more confident predictions.

Missing mistakes can be bounded. Whatever its label, a sample could not have gained less than the minimum of
log q(j) − log p(j) over the classes j, which is known. Gaffke's test (2005) needs such a bound and nothing else. It
adds one pseudo-sample that loses as much as any label of any sample could, and draws the weights of all samples at
random, uniformly among those that sum to one. The p-value is how often the weighted mean is below zero.

If gains take two values this is the exact binomial test. That it is valid in general is a conjecture, which has held
wherever it was tried. More confident predictions gain a little and can lose much, so it takes many samples to show that
they help. Less confident ones can lose only a little, so a few mistakes are enough.

The bound comes from the samples at hand. With fewer than ten of them the p-value is 1.

A p-value says how surprising the gains are if there is nothing to gain. `chance_of_harm` says how likely a loss is,
which takes a prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.saddlepoint import chance_below_zero, saddlepoint_tail

FEWEST_SAMPLES = 10
MOST_SAMPLES = 10_000_000  # if more are needed, it does not matter how many
SCEPTICAL = 5.0  # the number of pseudo-samples in `chance_of_harm`
ROUNDING = 1e-9  # predictions whose logarithms differ by less are equal
HALVINGS = 50  # of the interval that holds a bound


@dataclass(frozen=True)
class Gains:
    """The gain of each sample (n,), and the least and the largest gain that any label of any sample would give.

    counts  how many samples have each value, if equal gains are listed once
    """

    values: Tensor
    least: float
    most: float
    counts: Tensor | None = None

    def __neg__(self) -> Gains:
        """The gains of the first predictions over the second."""
        return Gains(-self.values, -self.most, -self.least, self.counts)

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.values) if self.counts is None else int(self.counts.sum())

    @property
    def mean(self) -> float:
        total = self.values.sum() if self.counts is None else self.values.double() @ self.counts.double()
        return float(total) / self.n

    def p_value(self, times: float = 1.0) -> float:
        """The p-value of no gain on average; with `times` as many samples of the same kind.

        The random weights are exponential variables divided by their sum, so this is the chance that Σ x_i E_i − E_0 is
        below zero, for gains x in units of the largest loss. Lugannani and Rice's formula gives it within a few
        percent, and errs on the side of caution.
        """
        worst = -self.least
        if self.n * times < FEWEST_SAMPLES or worst < ROUNDING:
            return 1.0
        x = np.append(np.maximum(self.values.double().cpu().numpy() / worst, -1.0), -1.0)
        counts = np.ones(len(x) - 1) if self.counts is None else self.counts.double().cpu().numpy()
        found = saddlepoint_tail(x, np.append(times * counts, 1.0))
        return 1.0 if found is None else found

    def lowest(self, level: float) -> float:
        """The largest mean gain that the test rejects at this level: the true one is above it."""
        low, high = self.least, self.mean
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            moved = Gains(self.values - middle, self.least - middle, self.most - middle, self.counts)
            low, high = (middle, high) if moved.p_value() <= level else (low, middle)
        return low

    def samples_needed(self, level: float) -> float:
        """About how many samples of the same kind would give a p-value of at most `level`; infinity for too many."""
        n = self.n
        few, many = 1.0, 2.0
        while self.p_value(many) > level:
            few, many = many, 2 * many
            if n * few > MOST_SAMPLES:
                return math.inf
        while many / few > 1.02:
            middle = math.sqrt(few * many)
            few, many = (middle, many) if self.p_value(middle) > level else (few, middle)
        return math.ceil(n * many)


def chance_of_harm(gains: Tensor, if_right: float) -> float:
    """The probability that samples of the same kind lose on average, given these gains.

    It is a Bayesian bootstrap in closed form: how often the mean is below zero if samples are weighted at random.
    Pseudo-samples are added as a prior. Each gains `if_right`, the mean gain if the labels followed the first
    predictions, which is never above zero.
    """
    values = torch.cat([gains.double().cpu(), torch.tensor([if_right], dtype=torch.float64)])
    shapes = torch.ones_like(values)
    shapes[-1] = SCEPTICAL
    return chance_below_zero(values, shapes)


def holm(p_values: Sequence[float], shares: Sequence[float] | None = None) -> list[float]:
    """p-values corrected for the number of tests.

    If every null hypothesis is true, the chance that any corrected p-value is at most α is at most α. `shares` are the
    proportions in which α is divided among the hypotheses, by default evenly. A rejected one leaves its share to the
    others.

    Holm, A simple sequentially rejective multiple test procedure, 1979.

    >>> [round(p, 4) for p in holm([0.04, 0.01, 0.9])]
    [0.08, 0.03, 0.9]
    """
    share = [1.0] * len(p_values) if shares is None else shares
    corrected, left, highest = list(p_values), math.fsum(share), 0.0
    for i in sorted(range(len(p_values)), key=lambda i: p_values[i] / share[i]):
        highest = max(highest, min(1.0, p_values[i] * left / share[i]))
        corrected[i] = highest
        left -= share[i]
    return corrected
