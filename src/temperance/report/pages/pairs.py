"""Before and after, side by side: the sections of a page about something that changes predictions."""

from __future__ import annotations

from collections.abc import Sequence

from temperance.jobs.evaluation import Evaluation
from temperance.jobs.results import Row
from temperance.report.formats import digits_for, interval_of, percent, points, value_of
from temperance.report.markup import Markup, join, tag
from temperance.report.numbers import ClassChange, class_changes
from temperance.report.page import Cell, folded, legend, mark, noted, pair, searchable, section, split, strip, table
from temperance.report.pages.evaluation import answered, named_metric, reliability_explained, reliability_table
from temperance.report.svg import charts
from temperance.report.svg.drawing import Scale

MOST_CHANGED = 8  # classes shown on either side without unfolding the table


def reliability_pair(before: Evaluation, after: Evaluation, method: str) -> Markup:
    """Two reliability diagrams; `method` is what lies between them."""
    sides = [("before", before), (f"after {method}", after)]
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


def class_changes_section(before: Evaluation, after: Evaluation) -> Markup:
    """The classes that gained and lost most, and every class in a table that can be searched."""
    changes = class_changes(before.classwise, after.classwise, before.class_names)
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


def risk_coverage_pair(before: Evaluation, after: Evaluation, method: str, remark: str = "") -> Markup:
    """Two risk-coverage curves in one picture; `remark` is added to how they are read."""
    old, new = before.risk_coverage, after.risk_coverage
    n = len(new.coverage)
    rows = [(percent(m / n, 0), percent(float(old.risk[m - 1])), percent(float(new.risk[m - 1]))) for m in answered(n)]
    return section(
        "If the model may decline, what error remains?",
        split(
            charts.risk_coverage(new, old),
            tag(
                "p",
                f"Answering only the surest predictions leaves fewer errors, if confidence ranks them well. {remark}",
            ),
            legend(
                [
                    ("curve was", "before"),
                    ("curve", f"after {method}"),
                    ("best", "if every error were among the least sure"),
                    ("guide", "if confidence said nothing"),
                ]
            ),
            table(("Answered", "Error before", "After"), rows),
        ),
    )


def metrics_pair(before: Evaluation, after: Evaluation) -> Markup:
    """Every metric before and after."""
    settings = before.provenance.settings

    def cell(row: Row) -> Cell:
        return noted(value_of(row), interval_of(row)) if settings["bootstrap"] else value_of(row)

    rows = [(named_metric(old), cell(old), cell(new)) for old, new in zip(before.rows, after.rows, strict=True)]
    explained = tag("p", f"In small print: {100 * settings['level']:g}\u00a0% intervals.")
    return section(
        "Every number",
        explained if settings["bootstrap"] else Markup(),
        table(("Metric", "Before", "After"), rows, "metrics both"),
    )
