"""The page of a comparison: which calibrator to use, what it changes, and how the others did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from statistics import median_high

from temperance.compare import Comparison, Outcome
from temperance.report import charts
from temperance.report.evaluation import (
    answered,
    classwise_section,
    metrics_section,
    named_metric,
    provenance_section,
    reliability_explained,
    reliability_section,
    reliability_table,
    risk_coverage_section,
)
from temperance.report.formats import digits_for, interval_of, percent, points, signed, value_of
from temperance.report.markup import Markup, join, tag
from temperance.report.numbers import ClassChange, class_changes
from temperance.report.page import (
    Cell,
    answer,
    folded,
    grouped_table,
    heading,
    legend,
    mark,
    noted,
    page,
    pair,
    searchable,
    section,
    split,
    strip,
    table,
)
from temperance.report.svg import Scale

MOST_CHANGED = 8  # classes shown on either side without unfolding the table


def comparison_page(found: Comparison) -> str:
    """The page: the answer, what it changes in pictures, every method, every class, every number."""
    unchanged = found.recommended is found.baseline
    parts = [
        opening(found),
        reliability_section(found.before) if unchanged else reliability_pair(found),
        ranking_section(found),
        classwise_section(found.before) if unchanged else class_changes_section(found),
        risk_coverage_section(found.before) if unchanged else risk_coverage_pair(found),
        metrics_section(found.before) if unchanged else metrics_pair(found),
        provenance_section(found.provenance),
    ]
    return page(f"{_name(found)} – comparison of calibrators", *parts)


def _name(found: Comparison) -> str:
    return PurePath(found.before.rows[0].source).name


def opening(found: Comparison) -> Markup:
    """What was compared on what, the verdict, and the three numbers it rests on."""
    about = [found.split, f"{len(found.before.class_names):,} classes", f"{len(found.outcomes):,} methods"]
    titles = {"nll": "NLL", "ece": "Calibration error", "accuracy": "Accuracy"}
    figures = [_figure(found, title, metric) for metric, title in titles.items()]
    return join([heading("Comparison of calibrators", _name(found), about), answer(found.verdict, figures)])


def _figure(found: Comparison, title: str, metric: str) -> tuple[str, str, str]:
    """A metric before and after, or once where nothing changes it."""
    old, new = (found.row(metric, method=outcome.label) for outcome in (found.baseline, found.recommended))
    if found.recommended is found.baseline:
        return title, value_of(old), f"between {interval_of(old, 'and')}"
    if value_of(old) == value_of(new):
        return title, value_of(old), "the same before and after"
    moved = join([tag("span", value_of(old), class_="was"), " → ", value_of(new)])
    if metric == "accuracy":
        by = found.recommended.minus(found.baseline, metric)
        notes = [f"{points(by.value)} points,", f"between {points(by.low)} and {points(by.high)}"]
    else:
        notes = [f"{interval_of(old)} before", f"{interval_of(new)} after"]
    return title, moved, join(tag("span", note) for note in notes)


def reliability_pair(found: Comparison) -> Markup:
    sides = [("before", found.before), (f"after {found.recommended.label}", found.after)]
    most = max(int(side.reliability.count.max()) for _, side in sides)
    figures = []
    for name, side in sides:
        caption = [tag("b", name[0].upper() + name[1:]), f" ECE\u00a0{value_of(side.row('ece'))}"]
        figures.append((join(caption), charts.reliability(side.reliability, most)))
    return section(
        "Is the confidence right?",
        pair(*figures),
        reliability_explained(),
        *(folded(f"The numbers {name}", reliability_table(side.reliability)) for name, side in sides),
    )


def ranking_section(found: Comparison) -> Markup:
    """Every method, the lowest NLL first; those that are level with it together; those that failed at the end."""
    scale = _nll_scale(found)
    level = [outcome for outcome in found.ranked if found.level_with_best(outcome)]
    behind = [outcome for outcome in found.ranked if not found.level_with_best(outcome)]
    groups = [
        (title, [_ranked(found, outcome, scale) for outcome in outcomes])
        for title, outcomes in (("Level with the best", level), ("Behind the best", behind))
        if outcomes
    ]
    failures = [(outcome.label, outcome.failure) for outcome in found.outcomes if outcome.failure]
    return section(
        "How did the methods do?",
        tag(
            "p",
            "Fitted on the same samples, measured on the same others, lowest NLL first. The bar says how far a method "
            "is from the best, sample by sample: where it reaches the line of the best, the two are level.",
        ),
        legend(
            [
                ("point", "NLL"),
                ("range", "95\u00a0% interval of the difference from the best"),
                ("upright", "the best"),
                ("line", "no calibration"),
            ]
        ),
        grouped_table(("Method", "", "NLL", "ECE", "Accuracy", "Parameters", "Seconds"), groups, "ranking"),
        tag(
            "p",
            "Below the accuracy is its change in points. ",
            tag("span", "Below NLL and ECE are 95\u00a0% intervals. ", class_="on-wide-screens"),
            "The intervals of two methods can overlap although one is surely better, since both were measured on the "
            "same samples. The best of many owes a little to luck.",
            class_="aside",
        ),
        table(("Could not be fitted", "Why"), failures, "failures") if failures else Markup(),
    )


def _ranked(found: Comparison, outcome: Outcome, scale: Scale) -> list[Cell]:
    nll, ece, accuracy = (found.row(name, method=outcome.label) for name in ("nll", "ece", "accuracy"))
    by = outcome.minus(found.baseline, "accuracy").value
    name = tag("b", outcome.label) if outcome is found.recommended else outcome.label
    return [
        noted(name, found.remark(outcome)),
        _nll_strip(found, outcome, scale),
        noted(f"{nll.value:.4f}", interval_of(nll)),
        noted(value_of(ece), interval_of(ece)),
        noted(value_of(accuracy), "" if outcome is found.baseline else points(by)),
        f"{outcome.n_parameters:,}",
        f"{outcome.seconds:.2f}",
    ]


def _reach(found: Comparison, outcome: Outcome) -> tuple[float, float]:
    """Between which values its NLL lies, given that of the best."""
    best = found.ranked[0]
    by = outcome.minus(best, "nll")
    return best.measured["nll"].value + by.low, best.measured["nll"].value + by.high


def _nll_scale(found: Comparison) -> Scale:
    """From the best to no calibration or to the middle of the field, and to what ends not far behind that.

    What is far worse must not flatten the rest.
    """
    ends = [_reach(found, outcome) for outcome in found.ranked]
    low = min(low for low, _ in ends)
    high = max(_reach(found, found.baseline)[1], median_high(high for _, high in ends))
    high = max(end for _, end in ends if end <= low + 1.5 * (high - low))
    return Scale(low, high if high > low else low + 1, 0, 100)


def _nll_strip(found: Comparison, outcome: Outcome, scale: Scale) -> Markup:
    value, best = outcome.measured["nll"].value, found.ranked[0]
    low, high = (min(scale(end), 100) for end in _reach(found, outcome))
    marks = [
        mark("line", scale(found.baseline.measured["nll"].value)),
        mark("upright", scale(best.measured["nll"].value)),
    ]
    if value > scale.high:
        return strip(f"NLL {value:.4f}: beyond this scale", *marks, mark("beyond", 100))
    by = outcome.minus(best, "nll")
    told = f"{by.value:.4f} above the best, between {signed(by.low, 4)} and {signed(by.high, 4)}"
    kind = "point none" if outcome is found.baseline else "point"
    return strip("the best" if outcome is best else told, *marks, mark("range", low, high), mark(kind, scale(value)))


def class_changes_section(found: Comparison) -> Markup:
    """The classes that gained and lost most, and every class in a table that can be searched."""
    changes = class_changes(found.before.classwise, found.after.classwise, found.before.class_names)
    better = [entry for entry in changes if entry.change < 0]
    worse = [entry for entry in reversed(changes) if entry.change > 0]
    largest = max(max(entry.before, entry.after) for entry in changes)
    lists = [("Most improved", better[:MOST_CHANGED]), ("Most worsened", worse[:MOST_CHANGED])]
    return section(
        "What changed for which class?",
        tag(
            "p",
            f"How far each class's probability is from how often it is the label: {len(better):,} of {len(changes):,} "
            f"classes got better, {len(worse):,} worse. A class with few labels may change by chance.",
        ),
        legend([("point none", "before"), ("point", "after")]),
        tag("div", *(_change_table(title, entries, largest) for title, entries in lists if entries), class_="pair"),
        _every_change(changes, largest) if sum(len(entries) for _, entries in lists) < len(changes) else Markup(),
    )


def _change_table(title: str, entries: Sequence[ClassChange], largest: float) -> Markup:
    place = Scale(0, largest, 0, 100)
    digits = digits_for(largest)
    rows = []
    for entry in entries:
        before, after = place(entry.before), place(entry.after)
        told = f"{percent(entry.before, digits)} before, {percent(entry.after, digits)} after"
        marks = (mark("range", before, after), mark("point none", before), mark("point", after))
        rows.append((entry.name, strip(told, *marks), percent(entry.before, digits), percent(entry.after, digits)))
    return table((title, "", "Before", "After"), rows, "changes")


def _every_change(changes: Sequence[ClassChange], largest: float) -> Markup:
    digits = digits_for(largest)
    rows = [
        (
            entry.name,
            f"{entry.labels:,}",
            percent(entry.before, digits),
            percent(entry.after, digits),
            points(entry.change, digits),
        )
        for entry in changes
    ]
    columns = ("Class", "Labels", "Before", "After", "Points")
    return folded(f"All {len(rows):,} classes", searchable("classes", columns, rows, "every-change"))


def risk_coverage_pair(found: Comparison) -> Markup:
    before, after = found.before.risk_coverage, found.after.risk_coverage
    n = len(after.coverage)
    rows = [
        (percent(m / n, 0), percent(float(before.risk[m - 1])), percent(float(after.risk[m - 1]))) for m in answered(n)
    ]
    return section(
        "If the model may decline, what error remains?",
        split(
            charts.risk_coverage(after, before),
            tag(
                "p",
                "Answering only the surest predictions leaves fewer errors, if confidence ranks them well. A "
                "calibrator that keeps the order of the predictions leaves this curve as it is.",
            ),
            legend(
                [
                    ("curve was", "before"),
                    ("curve", f"after {found.recommended.label}"),
                    ("best", "if every error were among the least sure"),
                    ("guide", "if confidence said nothing"),
                ]
            ),
            table(("Answered", "Error before", "After"), rows),
        ),
    )


def metrics_pair(found: Comparison) -> Markup:
    level = found.before.provenance.settings["level"]
    rows = [
        (named_metric(old), noted(value_of(old), interval_of(old)), noted(value_of(new), interval_of(new)))
        for old, new in zip(found.before.rows, found.after.rows, strict=True)
    ]
    return section(
        "Every number",
        tag("p", f"In small print: {100 * level:g}\u00a0% intervals."),
        table(("Metric", "Before", "After"), rows, "metrics both"),
    )
