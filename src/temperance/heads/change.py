"""What became better and what worse between two sets of predictions of the same samples, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from temperance.jobs.comparison import FEWEST_RESAMPLES
from temperance.jobs.outcomes import MEASURED, SIGNIFICANT
from temperance.metrics import METRICS
from temperance.metrics.significance import Difference, difference
from temperance.predictions import Predictions

# What a change is judged by, the most important first.
JUDGED = ("accuracy", "nll", "ece")
LEVEL = 0.95


def differences(before: Predictions, after: Predictions, *, bootstrap: int, seed: int) -> dict[str, Difference]:
    """By how much each metric went up, sample by sample; without an interval where there are too few resamples."""
    found = {}
    for name in MEASURED:
        metric = METRICS[name]
        old, new = (metric(side.scores, side.labels, from_logits=side.from_logits) for side in (before, after))
        found[name] = Difference(new - old, math.nan, math.nan, LEVEL, math.nan)
        if bootstrap >= FEWEST_RESAMPLES:
            found[name] = difference(
                metric,
                after.scores,
                before.scores,
                after.labels,
                from_logits=True,
                level=LEVEL,
                n_resamples=bootstrap,
                seed=seed,
            )
    return found


def judgement(found: Mapping[str, Difference]) -> str:
    """Better, worse, mixed or no clear change, and in what, by the differences that are no chance.

    NLL sees both accuracy and calibration: where it is worse a lower ECE makes up for nothing, as a classifier that
    knows less can be as sure as it is right; a higher accuracy does. Without intervals there is no judgement.
    """
    if any(math.isnan(found[name].p_value) for name in JUDGED):
        return f"No verdict without at least {FEWEST_RESAMPLES} resamples."
    moved = [name for name in JUDGED if found[name].p_value < SIGNIFICANT]
    better = [name for name in moved if (found[name].value > 0) == (METRICS[name].lower_is_better is False)]
    worse = [name for name in moved if name not in better]
    if not moved:
        return "No clear change."
    if not worse:
        return f"Better in {_listed(better)}."
    if not better:
        return f"Worse in {_listed(worse)}."
    if better == ["ece"] and "nll" in worse:
        return f"Worse in {_listed(worse)}, though better in {_listed(better)}."
    return f"Mixed: better in {_listed(better)}, worse in {_listed(worse)}."


def moved_by(name: str, value: float) -> str:
    """A difference as people read it: points where the metric is shown in percent."""
    return f"{100 * value:+.2f}" if METRICS[name].percent else f"{value:+.4f}"


def _listed(names: list[str]) -> str:
    *first, last = (METRICS[name].title for name in names)
    return f"{', '.join(first)} and {last}" if first else last
