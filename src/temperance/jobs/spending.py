"""What decisions cost, what calibration saves and what to do, in plain words.

A saving is claimed only if its interval excludes zero, and the probabilities are said to help only if deciding by them
is cheaper than the best single decision by more than chance, however good that one looks in hindsight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temperance.errors import plural
from temperance.jobs.verdict import as_class
from temperance.showing import percents

if TYPE_CHECKING:
    from temperance.jobs.decisions import Decisions


def verdict(found: Decisions) -> str:
    """What to do, what it costs, what calibration saves, and the thresholds."""
    return " ".join(filter(None, [_head(found), _price(found), _calibration(found), _constant(found), rule(found)]))


def _head(found: Decisions) -> str:
    saving = found.saving
    if not found.model_helps:
        return "At these costs, nothing shows that the probabilities help."
    if saving is None:
        return ""
    if saving.saves:
        return "Calibrate before you decide."
    if saving.loses:
        return "Decide by the probabilities as they are."
    if saving.changed:
        return f"{plural(found.n, found.row_name)} cannot tell whether calibration saves anything."
    return "Calibration changes no decision."


def _price(found: Decisions) -> str:
    return f"Deciding by these probabilities costs {found.money(found.given.cost)} per {found.row_name}."


def _calibration(found: Decisions) -> str:
    """What decisions cost after calibration, and whether the difference could be chance."""
    saving = found.saving
    if saving is None or found.calibrated is None:
        return ""
    if not saving.changed:
        return f"With probabilities {found.calibrated.name}, every decision is the same."
    after = f"With probabilities {found.calibrated.name} it costs {found.money(found.calibrated.cost)}"
    are = "is" if saving.changed == 1 else "are"
    changed = f"{saving.changed:,} of {plural(found.n, found.row_name)} {are} decided differently."
    value, low, high = saving.value, saving.low, saving.high
    if value < 0:
        value, low, high = -value, -high, -low
    size, interval = found.money(value), f"95 % interval {found.money(low)} to {found.money(high)}"
    if saving.saves:
        return f"{after}: calibration saves {size} ({interval}){_share(found, value)}. {changed}"
    if saving.loses:
        return f"{after}: calibration costs {size} more ({interval}). {changed}"
    if not saving.value:
        return f"{after}, too. {changed}"
    return f"{after}, {size} {'less' if saving.value > 0 else 'more'}, which could be chance ({interval}). {changed}"


def _share(found: Decisions, value: float) -> str:
    """The saving as a share of the cost, if there are no gains among the costs."""
    return "" if bool((found.costs.values < 0).any()) else f", {percents((value / found.given.cost,), digits=0)[0]}"


def _constant(found: Decisions) -> str:
    """What it costs not to look at the probabilities at all."""
    best = found.costs.named(found.constant.shares.index(1.0))
    cheapest = min(policy.cost for policy in found.by_probabilities)
    less = ", which is less" * (found.money(found.constant.cost) != found.money(cheapest))
    return (
        f"The best single decision for all {found.row_name}s, {best}, costs {found.money(found.constant.cost)}"
        f"{less * (found.constant.cost < cheapest)}."
    )


def rule(found: Decisions) -> str:
    """With two classes: the thresholds."""
    costs = found.costs
    if not costs.rule:
        return ""
    below, *others = (costs.phrase(part.decision) for part in costs.rule)
    calibrated = "calibrated " * (found.saving is not None and found.saving.saves)
    of = "confidence" if found.answers else f"probability of {as_class(costs.classes[1])}"
    if not others:
        return f"Whatever the {calibrated}{of}, {below}."
    parts = list(zip(others, found.thresholds, strict=True))
    if len(parts) == 1:
        return f"{capital(others[0])} if the {calibrated}{of} is above {found.thresholds[0]}, else {below}."
    steps = [f"{what} above {low}" for what, low in reversed(parts)]
    return f"By the {calibrated}{of}: {', else '.join([*steps, below])}."


def capital(text: str) -> str:
    """Text as a sentence begins."""
    return text[:1].upper() + text[1:]
