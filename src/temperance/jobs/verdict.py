"""What a set of predictions' numbers mean, in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from temperance.metrics.binned import confidence_gap, debiased_ece, ece
from temperance.metrics.bins import Bins
from temperance.metrics.classwise import class_errors, class_over, class_under

# Below this much calibration error, with sampling noise taken off, nothing is worth repairing.
NEGLIGIBLE = 0.005


def verdict(reliability: Bins, classwise: Bins, class_names: Sequence[str]) -> str:
    """One paragraph: over- or under-confident, by how much, where, which classes, and what to do."""
    n = int(reliability.n)
    confidence = float(reliability.confidence.sum()) / n
    accuracy = int(reliability.hits.sum()) / n
    sure, right = percent(confidence, 1), percent(accuracy, 1)
    says = f"On {n:,} samples it is {sure} sure on average and right {right} of the time"
    error, without_noise = ece.value(reliability), debiased_ece.value(reliability)
    noise = math.sqrt(accuracy * (1 - accuracy) / n)
    if without_noise < max(NEGLIGIBLE, 2 * noise):
        by_chance = f"the measured error of {percent(error, 2)} is what chance alone would give"
        return f"Calibrated, as far as {n:,} samples can tell. {says}, and {by_chance}. Nothing needs repair."
    gap = confidence_gap.value(reliability)
    if abs(gap) < max(0.35 * without_noise, noise):
        head = "Over-confident in some places and under-confident in others, which cancels on average."
    else:
        head = "Over-confident." if gap > 0 else "Under-confident."
    found = f"{says}: an expected calibration error of {percent(error, 2)}."
    advice = "To repair it without retraining, run `temperance compare` on held-out predictions."
    return " ".join(filter(None, [head, found, _where(reliability), _who(classwise, class_names), advice]))


def percent(value: float, digits: int) -> str:
    """A share as people write it."""
    return f"{100 * value:.{digits}f} %"


def _where(bins: Bins) -> str:
    """The stretch of neighbouring bins, all off in the same direction, that carries most of the error."""
    share = (bins.weight * bins.gap.abs() / (bins.weight * bins.gap.abs()).sum()).tolist()
    worst = max(range(len(share)), key=share.__getitem__)
    same_side = (bins.gap * bins.gap[worst] > 0).tolist()
    low = high = worst
    while low > 0 and same_side[low - 1] and share[low - 1] > 0.05:
        low -= 1
    while high + 1 < len(share) and same_side[high + 1] and share[high + 1] > 0.05:
        high += 1
    part = slice(low, high + 1)
    count = float(bins.count[part].sum())
    says, is_right = float(bins.confidence[part].sum()) / count, float(bins.hits[part].sum()) / count
    start, end = percent(float(bins.edges[low]), 0), percent(float(bins.edges[high + 1]), 0)
    return (
        f"Predictions with a confidence of {start} to {end} carry {percent(sum(share[part]), 0)} of it: "
        f"they say {percent(says, 0)} and are right {percent(is_right, 0)} of the time."
    )


def _who(bins: Bins, names: Sequence[str], most: int = 3) -> str:
    """The classes with the largest error, and in which direction."""
    if len(names) < 3:
        return ""
    errors, over, under = class_errors(bins), class_over(bins), class_under(bins)
    order = errors.argsort(descending=True)[:most].tolist()
    named = ", ".join(f"{names[j]} ({_direction(over[j], under[j])})" for j in order)
    return f"The classes furthest off are {named}."


def _direction(over: Tensor, under: Tensor) -> str:
    return "over-confident" if float(over) > float(under) else "under-confident"
