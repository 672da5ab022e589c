"""Where methods stand over several sets: ranks, wins and harm, with intervals over the sets."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.jobs.outcomes import BASELINE, LEVEL
from temperance.metrics.significance import Draws, Interval

Values = Mapping[str, float]  # of one method on one set, by metric

RESAMPLES = 2000
FEWEST_SETS = 5  # for intervals
EQUAL = 1e-5  # NLLs on one set that differ by less count as equal: two solvers of one method differ by that much


@dataclass(frozen=True)
class Standing:
    """One method over all sets.

    rank      by NLL, the mean over sets, 1 is the lowest NLL; equal methods (`EQUAL`) share ranks, failures are last
    wins      of all comparisons with another method on a set, the share with the lower NLL; equal counts half
    harm      the share of sets with a higher NLL than without calibration; a failure does no harm
    means     over the sets, of each metric that all of them have; NaN if it could not be fitted to all of them
    failures  sets that it could not be fitted to
    """

    method: str
    rank: Interval
    wins: Interval
    harm: Interval
    means: dict[str, float]
    failures: int


def standings(
    sets: Mapping[str, Mapping[str, Values]], *, families: Mapping[str, Hashable] | None = None, seed: int = 0
) -> tuple[Standing, ...]:
    """Every method over all sets, the lowest mean rank first.

    sets      for each set the values of each method; a method that is missing could not be fitted
    families  sets of one family, such as several models on the same data, are resampled together

    >>> values = {"one": {"identity": {"nll": 0.5}, "vector": {"nll": 0.4}}, "two": {"identity": {"nll": 0.3}}}
    >>> [(found.method, found.rank.value, found.failures) for found in standings(values)]
    [('identity', 1.5, 0), ('vector', 1.5, 1)]
    """
    methods = list(dict.fromkeys(method for values in sets.values() for method in values))
    for name, measured in sets.items():
        if BASELINE not in measured:
            raise InputError(f"every set must have been measured with {BASELINE}; {name} was not")
    nll = torch.tensor(
        [[values[method]["nll"] if method in values else math.inf for method in methods] for values in sets.values()],
        dtype=torch.float64,
    )
    mine, others = nll[:, :, None], nll[:, None, :]
    below, above = others < mine - EQUAL, others > mine + EQUAL
    rank = 1 + below.double().sum(2) + ((~below & ~above).double().sum(2) - 1) / 2
    harm = ((nll > nll[:, [methods.index(BASELINE)]] + EQUAL) & nll.isfinite()).double()
    times = _times_drawn([families[name] if families else name for name in sets], seed)
    m = len(methods)
    found = []
    for j, method in enumerate(methods):
        by_rank = _interval(rank[:, j], times, (1, m))
        low, wins, high = ((m - r) / max(1, m - 1) for r in (by_rank.high, by_rank.value, by_rank.low))
        fitted = [values[method] for values in sets.values() if method in values]
        whole = len(fitted) == len(sets)
        shared = [name for name in fitted[0] if all(name in each for each in fitted)]
        means = {name: math.fsum(each[name] for each in fitted) / len(sets) if whole else math.nan for name in shared}
        found.append(
            Standing(
                method,
                by_rank,
                Interval(wins, low, high, LEVEL),
                _interval(harm[:, j], times, (0, 1)),
                means,
                len(sets) - len(fitted),
            )
        )
    return tuple(sorted(found, key=lambda standing: standing.rank.value))


def _times_drawn(families: list[Hashable], seed: int) -> Tensor:
    """How often each set is in each resample, families drawn with replacement. (resamples, sets)"""
    known = list(dict.fromkeys(families))
    of = torch.tensor([known.index(family) for family in families])
    drawn = torch.randint(len(known), (RESAMPLES, len(known)), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(RESAMPLES, len(known), dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(times))
    return times[:, of]


def _interval(values: Tensor, times: Tensor, bounds: tuple[float, float]) -> Interval:
    """The mean over sets with its bootstrap interval, NaN where there are too few sets for one.

    Values are whole numbers or halves, so their sums are exact and print alike on any machine.
    """
    mean = float(values.mean())
    if len(values) < FEWEST_SETS:
        return Interval(mean, math.nan, math.nan, LEVEL)
    return Draws((times @ values) / times.sum(1), 1.0).interval(mean, bounds, LEVEL)
