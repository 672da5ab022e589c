"""The page of a comparison: which calibrator to use, what it changes, and how the others did."""

from __future__ import annotations

import math
from pathlib import PurePath
from statistics import median_high

from temperance.jobs.comparison import Comparison
from temperance.jobs.evaluation import Evaluation
from temperance.jobs.outcomes import Outcome
from temperance.markup import Markup, join, tag
from temperance.report.formats import interval_of, points, signed, value_of
from temperance.report.page import (
    Cell,
    answer,
    grouped_table,
    heading,
    legend,
    mark,
    moved,
    noted,
    page,
    section,
    strip,
    strip_axis,
    table,
)
from temperance.report.pages.classes import class_changes_section, classwise_section
from temperance.report.pages.evaluation import (
    metrics_pair,
    metrics_section,
    provenance_section,
    reliability_pair,
    reliability_section,
    risk_coverage_pair,
    risk_coverage_section,
)
from temperance.report.svg.drawing import Scale

BARS = (
    " A bar says how far a method is from the best, sample by sample; if it reaches the line of the best, the two are "
    "level."
)
BELOW = "Below NLL and ECE are 95\u00a0% intervals. "
OVERLAP = (
    "The intervals of two methods can overlap although one is clearly better, because both were measured on the same "
    "samples. "
)
SAME_ORDER = "A calibrator that keeps the order of the predictions leaves this curve as it is."


def comparison_page(found: Comparison) -> str:
    """The page: the answer, what it changes in pictures, every method, every class, every number."""
    unchanged = found.recommended is found.baseline
    before, after, method = found.before, found.after, found.recommended.label
    name = PurePath(before.rows[0].source).name
    classes = "" if before.one_score else f"{len(before.class_names):,} classes"
    about = [found.split, classes, f"{len(found.outcomes):,} methods"]
    titles = {"nll": "NLL", "ece": "Calibration error"} | ({} if before.multilabel else {"accuracy": "Accuracy"})
    parts = [
        heading("Comparison of calibrators", name, about),
        answer(found.verdict, [_figure(found, title, metric) for metric, title in titles.items()], found.notes),
        reliability_section(before) if unchanged else reliability_pair(before, after, method),
        ranking_section(found),
        _classes_section(before, None if unchanged else after),
        Markup() if before.multilabel else _risk_coverage(before, None if unchanged else after, method),
        metrics_section(before) if unchanged else metrics_pair(before, after),
        provenance_section(found.provenance),
    ]
    return page(f"{name} – comparison of calibrators", *parts)


def _risk_coverage(before: Evaluation, after: Evaluation | None, method: str) -> Markup:
    return risk_coverage_section(before) if after is None else risk_coverage_pair(before, after, method, SAME_ORDER)


def _classes_section(before: Evaluation, after: Evaluation | None) -> Markup:
    """What calibration changes for each class; answers have no classes."""
    if before.answers:
        return Markup()
    return classwise_section(before) if after is None else class_changes_section(before, after)


def _figure(found: Comparison, title: str, metric: str) -> tuple[str, str, str]:
    """A metric before and after, or once where nothing changes it."""
    old, new = (found.row(metric, method=outcome.label) for outcome in (found.baseline, found.recommended))
    if found.recommended is found.baseline:
        return title, value_of(old), "" if math.isnan(old.low) else f"between {interval_of(old, 'and')}"
    if value_of(old) == value_of(new):
        return title, value_of(old), "the same before and after"
    if metric == "accuracy":
        by = found.recommended.minus(found.baseline, metric)
        notes = [f"{points(by.value)} points"]
        if not math.isnan(by.low):
            notes = [f"{notes[0]},", f"between {points(by.low)} and {points(by.high)}"]
    else:
        sides = ((row, when) for row, when in ((old, "before"), (new, "after")) if not math.isnan(row.low))
        notes = [f"{interval_of(row)} {when}" for row, when in sides]
    return title, moved(value_of(old), value_of(new)), join(tag("span", note) for note in notes)


# --------------------------------------------------------------------------------------------------------- the ranking


def ranking_section(found: Comparison) -> Markup:
    """Every method, the lowest NLL first: those level with it, those behind it, and those that failed."""
    scale = nll_scale(found)
    first = "Level with the best" if found.tells_apart else "Perhaps level with the best"
    level = [outcome for outcome in found.ranked if found.level_with_best(outcome)]
    behind = [outcome for outcome in found.ranked if not found.level_with_best(outcome)]
    groups = [
        (title, [_ranked(found, outcome, scale) for outcome in outcomes])
        for title, outcomes in ((first, level), ("Behind the best", behind))
        if outcomes
    ]
    columns = (
        "Method",
        strip_axis(f"{scale.low:.4f}", f"{scale.high:.4f}"),
        "NLL",
        "ECE",
        *["Accuracy"] * (not found.test.multilabel),
        "Parameters",
        "Seconds",
    )
    return section(
        "How did the methods do?",
        "All methods were fitted on the same samples and measured on the same others. The lowest NLL comes first."
        + BARS * found.tells_apart,
        legend(*_keys(found, scale)),
        grouped_table(columns, groups, "ranking"),
        tag(
            "p",
            "" if found.test.multilabel else "Below the accuracy is its change in points. ",
            *([tag("span", BELOW, class_="on-wide-screens"), OVERLAP] if found.tells_apart else []),
            "The best of many methods owes a little to luck.",
            class_="aside",
        ),
        table(("Could not be fitted", "Why"), found.failures, "failures") if found.failures else Markup(),
    )


def _keys(found: Comparison, scale: Scale) -> list[tuple[str, str]]:
    difference = [("range", "95\u00a0% interval of the difference from the best")] if found.tells_apart else []
    keys = [("point", "NLL"), *difference, ("upright", "the best")]
    if _inside(found.baseline, scale):
        keys.append(("line", "no calibration"))
    if not all(_inside(outcome, scale) for outcome in found.ranked):
        keys.append(("beyond", "higher than the scale reaches"))
    return keys


def _ranked(found: Comparison, outcome: Outcome, scale: Scale) -> list[Cell]:
    nll, ece = (found.row(name, method=outcome.label) for name in ("nll", "ece"))
    name = tag("b", outcome.label) if outcome is found.recommended else outcome.label
    return [
        noted(name, remark(found, outcome)),
        _nll_strip(found, outcome, scale),
        noted(f"{nll.value:.4f}", interval_of(nll)),
        noted(value_of(ece), interval_of(ece)),
        *([] if found.test.multilabel else [_accuracy(found, outcome)]),
        f"{outcome.n_parameters:,}",
        f"{outcome.seconds:.2f}",
    ]


def _accuracy(found: Comparison, outcome: Outcome) -> Markup:
    """The accuracy of a method, and below it the change in points."""
    by = outcome.minus(found.baseline, "accuracy").value
    return noted(value_of(found.row("accuracy", method=outcome.label)), "" if outcome is found.baseline else points(by))


def remark(found: Comparison, outcome: Outcome) -> str:
    """Where a method stands. The recommended one may be behind the best, and then the verdict says why."""
    said = found.remark(outcome)
    if outcome is found.recommended and found.any_fitted and not found.level_with_best(outcome):
        return f"{said}; the verdict says why not {found.ranked[0].label}"
    return said


def _reach(found: Comparison, outcome: Outcome) -> tuple[float, float]:
    """The interval of a method's NLL, given the NLL of the best; only the NLL where there is no interval."""
    best = found.ranked[0]
    by = outcome.minus(best, "nll")
    if math.isnan(by.low):
        return outcome.measured["nll"].value, outcome.measured["nll"].value
    return best.measured["nll"].value + by.low, best.measured["nll"].value + by.high


def nll_scale(found: Comparison) -> Scale:
    """A scale around the methods, so that those that nearly coincide can be told apart.

    It reaches from the best to the middle of the field and half as far again. A method beyond that is marked at the
    edge; no calibration often is.
    """
    ends = {outcome: _reach(found, outcome) for outcome in found.ranked}
    low = min(low for low, _ in ends.values())
    calibrated = [high for outcome, (_, high) in ends.items() if outcome is not found.baseline]
    # A single method has no field around it: it is shown beside no calibration.
    middle = median_high(calibrated) if len(calibrated) > 1 else low
    if middle <= low:
        middle = max(high for _, high in ends.values())
    high = max(high for _, high in ends.values() if high <= low + 1.5 * (middle - low))
    return Scale(low, high if high > low else low + 1, 0, 100)


def _inside(outcome: Outcome, scale: Scale) -> bool:
    return outcome.measured["nll"].value <= scale.high


def _nll_strip(found: Comparison, outcome: Outcome, scale: Scale) -> Markup:
    value, best = outcome.measured["nll"].value, found.ranked[0]
    marks = [mark("upright", scale(best.measured["nll"].value))]
    if _inside(found.baseline, scale):
        marks.append(mark("line", scale(found.baseline.measured["nll"].value)))
    by = outcome.minus(best, "nll")
    words = f"{by.value:.4f} above the best"
    if not math.isnan(by.low):
        words += f", between {signed(by.low, 4)} and {signed(by.high, 4)}"
    if not _inside(outcome, scale):
        return strip(f"{words}: beyond the scale", *marks, mark("beyond", 100))
    low, high = map(scale, _reach(found, outcome))
    marks.append(mark("range", low, min(high, 100)))
    if high > 100:
        marks.append(mark("beyond", 100))
    marks.append(mark("point none" if outcome is found.baseline else "point", scale(value)))
    return strip("the best" if outcome is best else words, *marks)
