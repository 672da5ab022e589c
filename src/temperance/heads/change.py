"""Changes between two sets of predictions for the same samples, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from temperance.jobs.outcomes import LEVEL, MEASURED, SIGNIFICANT
from temperance.metrics import METRICS
from temperance.metrics.evidence import ENOUGH
from temperance.metrics.gain import holm
from temperance.metrics.significance import Difference, difference
from temperance.predictions import Predictions
from temperance.showing import listed

# What a change is judged by, the most important first.
JUDGED = ("accuracy", "nll", "ece")
ACCURACY_TO_LOSE = 0.02  # no better confidence makes up for a larger loss
FEWEST_RESAMPLES = 60  # with fewer, no p-value corrected for three tests can be below 0.05


def differences(before: Predictions, after: Predictions, *, bootstrap: int, seed: int) -> dict[str, Difference]:
    """The change of each metric, paired by sample; without an interval if there are too few resamples.

    The p-values of the metrics that a change is judged by are corrected for their number.
    """
    old, new, labels = before.logits(), after.logits(), after.labels
    found = {}
    for name in MEASURED:
        metric = METRICS[name]
        if bootstrap >= FEWEST_RESAMPLES:
            found[name] = difference(
                metric, new, old, labels, from_logits=True, level=LEVEL, n_resamples=bootstrap, seed=seed
            )
        else:
            by = metric(new, labels, from_logits=True) - metric(old, labels, from_logits=True)
            found[name] = Difference(by, math.nan, math.nan, LEVEL, math.nan)
    if bootstrap >= FEWEST_RESAMPLES:
        p_values = holm([found[name].p_value for name in JUDGED])
        for name, p_value in zip(JUDGED, p_values, strict=True):
            found[name] = replace(found[name], p_value=p_value)
    return found


def judgement(found: Mapping[str, Difference]) -> str:
    """Better, worse, mixed or no clear change, and in what, by the significant differences.

    NLL depends on accuracy and on calibration. A lower ECE does not make up for a worse NLL, because a classifier that
    knows less can still be calibrated; a higher accuracy does. Nothing makes up for much accuracy lost. Without
    intervals there is no judgement.
    """
    if any(math.isnan(found[name].p_value) for name in JUDGED):
        return f"No verdict without at least {FEWEST_RESAMPLES} resamples."
    if any(math.isnan(found[name].low) for name in JUDGED):
        return f"No verdict without at least {ENOUGH} right and {ENOUGH} wrong predictions, before or after."
    better, worse = _moved(found)
    if not better and not worse:
        return "No clear change."
    if not worse:
        return f"Better in {_titles(better)}."
    if not better:
        return f"Worse in {_titles(worse)}."
    if is_worse(found):
        return f"Worse in {_titles(worse)}, though better in {_titles(better)}."
    return f"Mixed: better in {_titles(better)}, worse in {_titles(worse)}."


def unproven(found: Mapping[str, Difference]) -> str:
    """Why a metric whose interval excludes 0 may still have moved by chance; empty if there is none."""
    names = [name for name in JUDGED if found[name].low * found[name].high > 0]
    names = [name for name in names if SIGNIFICANT <= found[name].p_value < 1]  # 1: too few samples
    if not names:
        return ""
    intervals = "The interval" if len(names) == 1 else "Each interval"
    return f"{intervals} of {_titles(names)} excludes 0, but three metrics are judged, so that alone is no proof."


def is_worse(found: Mapping[str, Difference]) -> bool:
    """Worse in something and better in nothing that compensates for it, by the significant differences."""
    better, worse = _moved(found)
    if "accuracy" in worse and found["accuracy"].value < -ACCURACY_TO_LOSE:
        return True
    return bool(worse) and (not better or (better == ["ece"] and "nll" in worse))


def _moved(found: Mapping[str, Difference]) -> tuple[list[str], list[str]]:
    """The metrics that are significantly better, and those that are significantly worse."""
    moved = [name for name in JUDGED if found[name].p_value < SIGNIFICANT]
    better = [name for name in moved if (found[name].value > 0) == (METRICS[name].lower_is_better is False)]
    return better, [name for name in moved if name not in better]


def moved_by(name: str, value: float) -> str:
    """A difference as it is shown: in percentage points if the metric is shown in percent."""
    return f"{100 * value:+.2f}" if METRICS[name].percent else f"{value:+.4f}"


def _titles(names: list[str]) -> str:
    return listed([METRICS[name].title for name in names])
