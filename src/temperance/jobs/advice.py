"""What a comparison recommends and why, in plain words.

The recommended method is the one of lowest NLL that passes three tests on the test samples:

- Its gain over no calibration is more than chance would give, by a test that holds for few samples (`metrics.gain`),
  corrected for the number of methods.
- Its ECE is not higher than without calibration by more than resampling explains.
- Its accuracy is not lower by more than that.

If none does, a method that is significantly more accurate may have a higher ECE: ECE compares confidence with how often
a method's own predictions are right, and does not show that these got better. The verdict then says that ECE rises.

Among many methods one always looks good by chance, so they share an error rate of 5 %. `auto` gets half of it, or
`temperature` where `auto` is not compared; the others get equal shares of the rest. The favourite is named before any
data are seen, so the shares are valid for any data. With equal shares for thirty methods, a few hundred samples would
seldom be enough for any of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from temperance.calibrators.auto import FEWEST_MISTAKES
from temperance.errors import plural
from temperance.jobs.outcomes import BASELINE, HIGHER_ECE, SIGNIFICANT, Outcome
from temperance.metrics import METRICS
from temperance.metrics.gain import MOST_SAMPLES, ROUNDING, Gains, holm
from temperance.metrics.significance import Difference
from temperance.showing import likelihood, percent

if TYPE_CHECKING:
    from temperance.jobs.comparison import Comparison

FAVOURITES = ("auto", "temperature")

# A simpler method has at most half as many parameters, and fewer by at least this number.
SIMPLER = 10


def shares(labels: Sequence[str]) -> dict[str, float]:
    """The share of the 5 % that each method gets; shares sum to one."""
    favourite = next((name for name in FAVOURITES if name in labels), None)
    if favourite is None or len(labels) < 3:
        return {label: 1 / len(labels) for label in labels}
    return {label: 1 / 2 if label == favourite else 1 / 2 / (len(labels) - 1) for label in labels}


def chance_of_gain(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The p-value of the gain over no calibration, for each fitted method, corrected for the number of methods."""
    gains = _gains(outcomes)
    given = shares(list(gains))
    p_values = [each.p_value() for each in gains.values()]
    return dict(zip(gains, holm(p_values, list(given.values())), strict=True))


def chance_of_loss(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The p-value of being worse than no calibration, corrected likewise; here all methods have equal shares."""
    gains = _gains(outcomes)
    p_values = [(-each).p_value() for each in gains.values()]
    return dict(zip(gains, holm(p_values, [1 / len(gains) for _ in gains]), strict=True))


def _gains(outcomes: Sequence[Outcome]) -> dict[str, Gains]:
    return {each.label: each.gains for each in outcomes if each.gains and each.method.name != BASELINE}


def recommended(outcomes: Sequence[Outcome], baseline: Outcome) -> Outcome:
    """The outcome with the lowest NLL that passes every test, or all but that of ECE if it is more accurate."""
    chance = chance_of_gain(outcomes)
    at_a_price = (each for each in outcomes if _passes_at_a_price(each, baseline, chance))
    return next((each for each in outcomes if passes(each, baseline, chance)), next(at_a_price, baseline))


def passes(outcome: Outcome, baseline: Outcome, chance: Mapping[str, float]) -> bool:
    """Is it better than no calibration by more than chance, without a drawback?"""
    return chance.get(outcome.label, 1.0) < SIGNIFICANT and not outcome.drawbacks(baseline)


def _passes_at_a_price(outcome: Outcome, baseline: Outcome, chance: Mapping[str, float]) -> bool:
    """Is it better by more than chance and more accurate, with no drawback but a higher ECE?"""
    is_better = chance.get(outcome.label, 1.0) < SIGNIFICANT
    return is_better and outcome.drawbacks(baseline) == (HIGHER_ECE,) and outcome.more_accurate(baseline)


def clearly_behind(outcome: Outcome, other: Outcome) -> bool:
    """Is its NLL above another's by more than resampling explains?"""
    by = outcome.minus(other, "nll")
    return by.value > 0 and by.p_value < SIGNIFICANT


# ---------------------------------------------------------------------------------------------------------- the verdict


def verdict(found: Comparison) -> str:
    """What to use and why."""
    best, none = found.recommended, found.baseline
    if not found.any_fitted:
        return f"Nothing to recommend: no calibrator {'could be fitted' if found.failures else 'is among the methods'}."
    lower = [outcome for outcome in found.ranked if outcome is not none and _lower(outcome, best)]
    if best is none:
        head = f"Leave it as it is{_why_not(found, lower)}"
        rest = [*_passed_over(found, lower), *_refused(found, lower), *_risk(found, lower), *_needed(found, lower)]
        return " ".join([head, *rest])
    p_value = max(1, math.ceil(1000 * found.chance[best.label])) / 1000
    corrected = ", corrected for the number of methods" if len(found.chance) > 1 else ""
    head = f"Use {best.label}: it is significantly better than no calibration (p ≤ {p_value:g}{corrected})."
    rest = [
        _change(found, best),
        *_flattered(found),
        *_price(found),
        *_passed_over(found, lower),
        *_alternatives(found),
    ]
    return " ".join([head, *_harm(found, best, "it"), *rest])


def _lower(outcome: Outcome, other: Outcome) -> bool:
    """Is its NLL lower by more than rounding?"""
    return outcome.measured["nll"].value < other.measured["nll"].value - ROUNDING


def _why_not(found: Comparison, lower: Sequence[Outcome]) -> str:
    samples = plural(found.test.n_counted, f"test {found.test.row_name}")
    if not lower:
        return f": no calibrator has a lower NLL on {samples}."
    if any(found.chance[outcome.label] < SIGNIFICANT for outcome in lower):
        return "."
    return f": {samples} cannot tell whether a calibrator helps."


def _passed_over(found: Comparison, lower: Sequence[Outcome]) -> list[str]:
    """Why methods with a lower NLL than the recommended one are not recommended."""
    by_reason: dict[str, list[str]] = {}
    for outcome in lower:
        drawbacks = " and ".join(outcome.drawbacks(found.baseline))
        by_chance = found.chance[outcome.label] >= SIGNIFICANT
        reason = "which could be chance" if by_chance else f"but {drawbacks} than no calibration"
        by_reason.setdefault(reason, []).append(outcome.label)
    return [
        f"{named(labels)} {'have' if len(labels) > 1 else 'has'} a lower NLL, {reason}."
        for reason, labels in by_reason.items()
    ]


def _refused(found: Comparison, lower: Sequence[Outcome]) -> list[str]:
    """What the first method changes whose gain is sure and which has a drawback, and what to do."""
    refused = next((outcome for outcome in lower if found.chance[outcome.label] < SIGNIFICANT), None)
    if refused is None:
        return []
    advised = f"Compare other methods, or fit {refused.label} by itself if only NLL counts."
    return [f"With {refused.label}, {_change(found, refused)}", advised]


def _flattered(found: Comparison) -> list[str]:
    """Whether much of the gain may be luck: the method was chosen because it looks good on these samples."""
    by = found.recommended.minus(found.baseline, "nll")
    if by.high < by.value / 2:
        return []
    return ["On new data the gain may be smaller: the method was chosen because it looks good on these samples."]


def _price(found: Comparison) -> list[str]:
    """What a recommended method costs whose ECE is higher."""
    if HIGHER_ECE not in found.recommended.drawbacks(found.baseline):
        return []
    return [
        "So NLL falls and ECE rises: it is right more often, but its confidence is further from how often it is right. "
        "No method here gains significantly without that; if confidence matters more, leave it as it is."
    ]


def _harm(found: Comparison, outcome: Outcome, name: str) -> list[str]:
    """How likely a method is to do harm, where there are enough mistakes to say so."""
    if found.baseline.mistakes < FEWEST_MISTAKES:
        return []
    return [
        f"The probability that {name} does harm, a higher NLL on new data like these, is {likelihood(outcome.harm)}."
    ]


def _risk(found: Comparison, lower: Sequence[Outcome]) -> list[str]:
    """How likely the favourite is to do harm, where its gain could be chance.

    For the method of lowest NLL this would come out too low: it was chosen because it looks good on these samples.
    """
    favourite = next((outcome for name in FAVOURITES for outcome in lower if outcome.label == name), None)
    if favourite is None or found.chance[favourite.label] < SIGNIFICANT:
        return []
    said = _harm(found, favourite, favourite.label)
    if said and favourite.harm < SIGNIFICANT:
        said.append("The test is stricter: it also allows for mistakes that these samples do not show.")
    return said


def _needed(found: Comparison, lower: Sequence[Outcome]) -> list[str]:
    """How many samples it would take to show a gain that could be chance."""
    given = shares(list(found.chance))
    needed = {
        outcome.label: outcome.gains.samples_needed(SIGNIFICANT * given[outcome.label])
        for outcome in lower
        if outcome.gains and found.chance[outcome.label] >= SIGNIFICANT and not outcome.drawbacks(found.baseline)
    }
    if not needed:
        return []
    if found.baseline.mistakes < FEWEST_MISTAKES:
        wrong = found.baseline.mistakes
        if found.test.multilabel:
            return ["Labels apply to nearly all samples, and only the others show when scores are too high."]
        few = plural(wrong, "test prediction")
        are = "No test prediction is" if not wrong else f"Only {few} {'is' if wrong == 1 else 'are'}"
        more = f"collect test {found.test.row_name}s until {FEWEST_MISTAKES} are wrong"
        return [f"{are} wrong, and only mistakes show when a model is too sure: {more}."]
    rows = f"{found.test.row_name}s"
    label = next((name for name in FAVOURITES if name in needed), next(iter(needed)))
    if needed[label] > MOST_SAMPLES:
        return [f"More than {MOST_SAMPLES:,} test {rows} would be needed to tell."]
    count = f"{_rounded(needed[label]):,}"
    return [f"If the gain of {label} is as large as it looks here, about {count} test {rows} would tell."]


def _rounded(count: float) -> int:
    """Rounded up to two digits."""
    unit = 10.0 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * int(unit)


def _alternatives(found: Comparison) -> list[str]:
    """Methods that also pass the tests and are not clearly worse than the recommended one, a much simpler one first."""
    best = found.recommended
    level = [
        outcome
        for outcome in found.ranked
        if outcome is not best and passes(outcome, found.baseline, found.chance)
        if outcome.can_be_told_from(best) and not clearly_behind(outcome, best)
    ]
    if not level:
        return []
    first, simpler = min(level, key=lambda outcome: outcome.n_parameters), ""
    if best.n_parameters >= max(2 * first.n_parameters, first.n_parameters + SIMPLER):
        parameters = f"{first.n_parameters:,} parameter{'s' * (first.n_parameters > 1)}"
        simpler = f" (simpler: {parameters} instead of {best.n_parameters:,})"
    else:
        first = level[0]
    others = [outcome.label for outcome in level if outcome is not first]
    return [f"Not clearly worse: {named([first.label + simpler, *others])}."]


def _change(found: Comparison, after: Outcome) -> str:
    """NLL goes from 1.02 to 0.91, ECE from 8.66 % to 1.25 %, accuracy stays at 75.57 %."""
    before = found.baseline
    names = ("nll", "ece") if found.test.multilabel else ("nll", "ece", "accuracy")
    moves = {name: (before.measured[name].value, after.measured[name].value) for name in names}
    by = {name: after.minus(before, name) for name in names}
    by["nll"] = replace(by["nll"], p_value=found.chance[after.label])
    return told(moves, by) + "."


def told(moves: Mapping[str, tuple[float, float]], by: Mapping[str, Difference]) -> str:
    """How metrics moved from one value to another: accuracy goes from 96.11 % to 78.33 %, NLL from 0.1195 to 0.6068."""
    said: list[str] = []
    verb = "goes from"
    for name, values in moves.items():
        metric = METRICS[name]
        decimals = 4 if max(values) >= 0.01 else 6
        was, now = (percent(value) if metric.percent else f"{value:.{decimals}f}" for value in values)
        untested = " (not tested)" if math.isnan(by[name].low) else " (which could be chance)"
        chance = untested if by[name].p_value >= SIGNIFICANT else ""
        said.append(f"{metric.title} stays at {now}" if was == now else f"{metric.title} {verb} {was} to {now}{chance}")
        verb = "goes from" if was == now else "from"
    return ", ".join(said)


def by_reason(failures: Mapping[str, str]) -> list[tuple[str, str]]:
    """Methods that could not be fitted, and why; those with the same reason are one entry."""
    alike: dict[str, list[str]] = {}
    for label, why in failures.items():
        alike.setdefault(why.removeprefix(label.partition(":")[0]), []).append(label)
    return [(named(labels), failures[labels[0]]) for labels in alike.values()]


def named(labels: Sequence[str]) -> str:
    """The first of several methods and the number of others; two are both named."""
    others = f"{len(labels) - 1} others" if len(labels) > 2 else "".join(labels[1:])
    return f"{labels[0]} and {others}" if others else labels[0]


# ---------------------------------------------------------------------------------------------------------- the remarks


def remark(found: Comparison, outcome: Outcome) -> str:
    """Where one method stands, in a few words."""
    none, best = found.baseline, found.recommended
    words = ["no calibration"] if outcome is none else []
    if outcome is best and found.any_fitted:
        passed_over = best is not none and any(_lower(other, best) for other in found.ranked)
        words.insert(0, "recommended, the lowest NLL that passes" if passed_over else "recommended")
    if outcome is not none and outcome.same_as(none):
        return ", ".join([*words, "the same as no calibration"])
    if outcome is not none and _lower(outcome, none) and found.chance[outcome.label] >= SIGNIFICANT:
        words.append("gain could be chance")
    if found.chance_worse.get(outcome.label, 1.0) < SIGNIFICANT:
        words.append("worse than no calibration")
    else:
        words += [f"{drawback} than no calibration" for drawback in outcome.drawbacks(none)]
    if outcome not in (best, found.ranked[0]) and found.tells_apart and found.level_with_best(outcome):
        words.append("not clearly behind the best")
    return ", ".join(words)
