"""The mean of a metric over several labels, in which every label counts equally, with its interval."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import torch

from temperance.jobs.statistics import Statistics
from temperance.metrics import Metric
from temperance.metrics.gather import Parts
from temperance.metrics.significance import DRAWN_ROWS, FEWEST_RESAMPLES, POWERS, Draws, can_be_bounded, resample
from temperance.metrics.statistic import Samples, Statistic
from temperance.threads import one_thread

# The group of the rows that hold a mean over labels.
MEAN_OF_LABELS = "mean of labels"

# Values of a metric that are computed for the interval of its mean: resamples times labels. With more labels there are
# fewer resamples, but not fewer than these. Resamples of metrics that keep their rows take longer, so with many rows
# there are fewer of them, and with more than a hundred labels there is no interval; with others, five times as many.
DRAWN_VALUES = 50_000
MOST_LABELS = 100

# What some metrics are called where a row is a label that applies or does not.
TITLES = {"confidence-gap": "mean score − prevalence", "failure-auroc": "AUROC"}
SUMMARIES = {
    "confidence-gap": "Mean probability minus how often labels apply: positive is too high, negative too low",
    "ece": "Expected calibration error: the mean gap between the probability of labels and how often they apply",
    "failure-auroc": "How often a label that applies has a higher score than one that does not: 50 % is chance",
    "brier": "Brier score: the mean squared distance of the probability to 1 or 0, a proper score",
}


def mean_over_labels(
    found: Statistics, i: int, *, bootstrap: int, level: float, seed: int
) -> tuple[float, float, float, int]:
    """The mean of the i-th metric over the labels that have a value, its interval, and the number of these labels.

    The labels are resampled together, in whole samples, so their dependence is in the interval. Noise adds to a
    distance such as ECE, and more to a small one, so resamples of the mean do not show how much, and its interval also
    holds the mean of the labels' intervals. That is wider than necessary if labels do not go together.
    """
    metric, options = found.measuring.requests[i]
    parts = [group.parts[i] for name, group in found.groups.items() if name is not None]
    with one_thread():
        values = [metric.value(each.whole, **options) for each in parts]
        known = [(each, value) for each, value in zip(parts, values, strict=True) if not math.isnan(value)]
        if not known:
            return math.nan, math.nan, math.nan, 0
        value = sum(value for _, value in known) / len(known)
        keeps_rows = isinstance(known[0][0].stats, Samples)
        if not bootstrap or metric.interval == "none" or len(known) > most_labels(known[0][0].stats):
            return value, math.nan, math.nan, len(known)
        affordable = DRAWN_ROWS // found.n if keeps_rows else DRAWN_VALUES // len(known)
        n_resamples = min(bootstrap, max(FEWEST_RESAMPLES, affordable))
        draws = [_draws(metric, each, options, n_resamples, seed) for each, _ in known]
    if not can_be_bounded(metric, *(each for each, _ in known)):
        return value, math.nan, math.nan, len(known)
    # A label that no drawn sample has may have no value.
    means = torch.stack([each.values for each in draws]).nanmean(0)
    power = POWERS.get(metric.interval, 0)
    interval = Draws(means, draws[0].share).interval(value, metric.range, level, power=power)
    low, high = interval.low, interval.high
    if power:
        of_labels = [_ends(metric, each, of_label, level) for each, (_, of_label) in zip(draws, known, strict=True)]
        low, high = min(low, fmean(ends[0] for ends in of_labels)), max(high, fmean(ends[1] for ends in of_labels))
    return value, low, high, len(known)


def most_labels(stats: Statistic) -> int:
    """With more labels, the mean of a metric of this statistic has no interval, which would take too long."""
    return MOST_LABELS if isinstance(stats, Samples) else 5 * MOST_LABELS


def _draws(metric: Metric, parts: Parts, options: dict[str, Any], n_resamples: int, seed: int) -> Draws:
    """The metric of one label on resamples, which are the same samples for every label."""
    return resample(metric, parts, n_resamples, torch.Generator().manual_seed(seed), **options)


def _ends(metric: Metric, draws: Draws, value: float, level: float) -> tuple[float, float]:
    """The interval of a distance for one label; the value itself where all resamples have it."""
    found = draws.interval(value, metric.range, level, power=POWERS[metric.interval])
    return (value, value) if math.isnan(found.low) else (found.low, found.high)
