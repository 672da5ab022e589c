"""Ways to decide, what each costs on labelled samples, and what one saves over another.

Intervals and tests are Gaffke's (`metrics.gain`), which hold for few samples: the matrix says what a sample can cost at
most, so a mistake that happens to be missing from the samples is allowed for. An interval of the saving excludes zero
if and only if the test says that it is more than chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from temperance.jobs.costs import Costs, as_precise
from temperance.jobs.outcomes import LEVEL
from temperance.metrics.gain import Gains
from temperance.metrics.significance import Interval

# The thresholds of a decision curve; 199 steps of half a percent.
THRESHOLDS = np.arange(1, 200) / 200


@dataclass(frozen=True)
class Policy:
    """A way to decide, and what it costs per sample; the true mean is between `low` and `high` with 95 %.

    shares  how often each decision is taken
    means   what the samples that it is taken for cost on average; NaN if there are none
    """

    name: str
    cost: float
    low: float
    high: float
    shares: tuple[float, ...]
    means: tuple[float, ...]


@dataclass(frozen=True)
class Saving:
    """What one policy costs less than another per sample; the true mean is between `low` and `high` with 95 %.

    p_value  of no difference, two-sided
    changed  how many samples the two decide differently
    """

    value: float
    low: float
    high: float
    p_value: float
    changed: int

    @property
    def saves(self) -> bool:
        """Does it save more than chance would?"""
        return self.low > 0

    @property
    def loses(self) -> bool:
        """Does it cost more, by more than chance would?"""
        return self.high < 0


@dataclass(frozen=True)
class DecisionCurve:
    """What acting above each threshold brings, for two classes; to act is to treat a sample as the second class.

    net_benefit  for each policy the share of samples that are acted on rightly, minus the share of false alarms
                 times t / (1 − t), where t is the threshold (Vickers and Elkin, 2006)
    cost         for each policy the mean cost; empty unless the cheapest decision changes at one threshold
    chosen       that threshold
    """

    thresholds: tuple[float, ...]
    net_benefit: dict[str, tuple[float, ...]]
    cost: dict[str, tuple[float, ...]]
    chosen: float | None


def measured(name: str, chosen: Tensor, labels: Tensor, costs: Costs, among: Tensor) -> Policy:
    """The cost of decisions (n,) on samples with these labels (n,); `among` (decisions,) are those it may take."""
    each = costs.values[labels, chosen]
    least, most = costs.values[:, among].aminmax()
    mean = _bounded(each, float(least), float(most))[0]
    n_decisions = len(costs.decisions)
    counts = torch.bincount(chosen, minlength=n_decisions)
    means = torch.bincount(chosen, each, minlength=n_decisions) / counts
    shares = counts.double() / len(chosen)
    return Policy(name, mean.value, mean.low, mean.high, tuple(shares.tolist()), tuple(means.tolist()))


def saved(before: Tensor, after: Tensor, labels: Tensor, costs: Costs) -> Saving:
    """What the decisions `after` (n,) cost less than those `before` (n,)."""
    gains = costs.values[labels, before] - costs.values[labels, after]
    found, p_value = _bounded(gains, -costs.reach, costs.reach)
    return Saving(found.value, found.low, found.high, p_value, int((before != after).sum()))


def _bounded(values: Tensor, least: float, most: float) -> tuple[Interval, float]:
    """The mean of values that cannot leave two bounds, with its interval, and the p-value of a mean of zero."""
    if least == most:
        return Interval(least, least, least, LEVEL), 1.0
    unit = max(abs(least), abs(most))  # the test takes values of about 1
    found, counts = np.unique(values.numpy() / unit, return_counts=True)
    gains = Gains(torch.from_numpy(found), least / unit, most / unit, torch.from_numpy(counts))
    tail = (1 - LEVEL) / 2
    low, high = gains.lowest(tail), -(-gains).lowest(tail)
    p_value = min(1.0, 2 * min(gains.p_value(), (-gains).p_value()))
    return Interval(unit * gains.mean, unit * low, unit * high, LEVEL), p_value


def decision_curve(probs: dict[str, Tensor], labels: Tensor, costs: Costs) -> DecisionCurve:
    """The curve of each policy by its probabilities (n, 2), beside acting on all samples and on none."""
    chosen = costs.rule[1].low if len(costs.rule) == 2 else None
    thresholds = torch.from_numpy(np.union1d(THRESHOLDS, [] if chosen is None else [chosen]))
    odds = thresholds / (1 - thresholds)
    n, positives = len(labels), int(labels.sum())
    ones = torch.ones_like(thresholds)
    net_benefit = {
        "act on all": positives / n - (n - positives) / n * odds,
        "act on none": 0 * ones,
    }
    cost = {}
    for name, rows in probs.items():
        right, alarms = (_above(rows[labels == label, 1], thresholds) for label in (1, 0))
        net_benefit[name] = (right - alarms * odds) / n
        if chosen is not None:
            counts = torch.stack([n - positives - alarms, alarms, positives - right, right])
            prices = costs.values[:, [part.decision for part in costs.rule]].flatten()
            cost[name] = prices @ counts.double() / n
    net, mean = ({name: tuple(line.tolist()) for name, line in lines.items()} for lines in (net_benefit, cost))
    return DecisionCurve(tuple(thresholds.tolist()), net, mean, chosen)


def thresholds_told(costs: Costs, several: Iterable[Tensor]) -> tuple[str, ...]:
    """The thresholds in percent, each with as many digits, three or more, as decide all these rows alike."""
    probs = [rows[:, 1] for rows in several if len(costs.rule) > 1]
    return tuple(_told(part.low, probs) for part in costs.rule[1:])


def _told(threshold: float, probs: Sequence[Tensor]) -> str:
    texts = [Decimal(f"{100 * threshold:.{digits}g}") for digits in range(3, 18)]
    told = torch.tensor([float(text / 100) for text in texts], dtype=torch.float64)
    counts = torch.stack([_above(each, torch.cat([told, told.new_tensor([threshold])])) for each in probs])
    alike = (counts[:, :-1] == counts[:, -1:]).all(0) & (told > 0) & (told < 1)
    return f"{next((text for text, same in zip(texts, alike, strict=True) if same), texts[-1]):f} %"


def _above(values: Tensor, thresholds: Tensor) -> Tensor:
    """How many values are above each threshold."""
    ordered = values.cpu().sort().values
    return len(ordered) - torch.searchsorted(ordered, as_precise(thresholds, ordered), right=True)
