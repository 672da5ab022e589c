"""Sections that show predictions before and after something changed them."""

from __future__ import annotations

import math

from temperance.jobs.evaluation import Evaluation
from temperance.jobs.results import Row
from temperance.markup import Markup, join, tag
from temperance.report.formats import interval_of, percent, value_of
from temperance.report.numbers import bars
from temperance.report.page import Cell, folded, legend, noted, pair, section, split, stroke, table
from temperance.report.pages.evaluation import (
    RISK_KEYS,
    answered,
    fewest,
    named_metric,
    reliability_explained,
    reliability_table,
)
from temperance.report.svg import charts


def reliability_pair(before: Evaluation, after: Evaluation, method: str) -> Markup:
    """Two reliability diagrams, before and after `method`."""
    sides = [("before", before), (f"after {method}", after)]
    most = max(bar.count for _, side in sides for bar in bars(side.reliability))
    figures = []
    for name, side in sides:
        caption = [tag("b", name[0].upper() + name[1:]), f" ECE\u00a0{value_of(side.row('ece'))}"]
        figures.append((join(caption), charts.reliability(side.reliability, most)))
    return section(
        "Is the confidence right?",
        pair(*figures),
        reliability_explained(before.reliability),
        *(folded(f"The numbers {name}", reliability_table(side.reliability)) for name, side in sides),
    )


def risk_coverage_pair(before: Evaluation, after: Evaluation, method: str, remark: str = "") -> Markup:
    """Two risk-coverage curves in one picture; `remark` is added to the explanation."""
    old, new = before.risk_coverage, after.risk_coverage
    rows = []
    for m in answered(new):
        share = float(new.coverage[m - 1])
        risks = (float(old.risk[fewest(old, share) - 1]), float(new.risk[m - 1]))
        rows.append((percent(share, 0), *map(percent, risks)))
    return section(
        "If the model may decline, what error remains?",
        split(
            charts.risk_coverage(new, old),
            f"Answering only the surest predictions leaves fewer errors if confidence ranks them well. {remark}",
            legend((stroke("curve was"), "before"), (stroke("curve"), f"after {method}"), *RISK_KEYS),
            table(("Answered", "Error before", "After"), rows),
        ),
    )


def metrics_pair(before: Evaluation, after: Evaluation) -> Markup:
    """Every metric before and after."""
    settings = before.provenance.settings

    def cell(row: Row) -> Cell:
        return value_of(row) if math.isnan(row.low) else noted(value_of(row), interval_of(row))

    rows = [(named_metric(old), cell(old), cell(new)) for old, new in zip(before.rows, after.rows, strict=True)]
    explained = tag("p", f"In small print: {100 * settings['level']:g}\u00a0% intervals.")
    return section(
        "Every number",
        explained if settings["bootstrap"] else Markup(),
        table(("Metric", "Before", "After"), rows, "metrics both"),
    )
