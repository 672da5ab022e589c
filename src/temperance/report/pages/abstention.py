"""The page of rules for abstaining."""

from __future__ import annotations

from pathlib import PurePath

from temperance.errors import plural
from temperance.jobs.abstention import Abstention, why_none
from temperance.jobs.thresholds import Rule
from temperance.markup import Markup, tag
from temperance.metrics.selective import RiskCoverage
from temperance.report.formats import percent
from temperance.report.page import (
    SHOWN_ROWS,
    answer,
    grouped_table,
    heading,
    legend,
    noted,
    page,
    pair,
    section,
    split,
    stroke,
)
from temperance.report.pages.evaluation import ANSWERED, RISK_KEYS, provenance_section
from temperance.report.svg import charts
from temperance.report.svg.drawing import Point

SHOWN_CURVES = 12
COLUMNS = ("Limit", "Abstain below", "Used", "Wrong here")


def abstention_page(found: Abstention) -> str:
    """The page: the promise, the error at every coverage with the thresholds marked, every rule."""
    name = PurePath(found.source).name
    calibrated_by = found.provenance.settings.get("calibrated_by", "")
    groups = plural(len(found.groups), "group") if found.by_group else ""
    n_found = sum(rule.found for rule in found.rules)
    wrong = sum(float(each.risk[-1]) * rules[0].n for each, rules in zip(found.curves, found.groups, strict=True))
    figures = [
        ("Error of all predictions", percent(wrong / found.n), f"on {plural(found.n, found.row_name)}"),
        ("Thresholds found", f"{n_found:,}", f"of {len(found.rules):,}"),
        ("Probability", f"{100 * found.level:g}\u00a0%", "that the promise holds"),
    ]
    return page(
        f"{name} – when to abstain",
        heading("When to abstain", name, [plural(found.n, found.row_name), groups, calibrated_by]),
        answer(found.verdict, figures, found.notes),
        _curves_section(found),
        _rules_section(found),
        provenance_section(found.provenance),
    )


def _curves_section(found: Abstention) -> Markup:
    """The error at every coverage, with the thresholds marked; a picture for each group."""
    keys = legend((stroke("curve"), "this model"), ("point", "a threshold, and its limit of the error"), *RISK_KEYS)
    said = "A threshold lies below its limit: the distance allows for chance."
    title = "If the model abstains, what error remains?"
    if not found.by_group:
        return section(title, split(_picture(found.curves[0], found.rules), ANSWERED, said, keys))
    figures = [
        (tag("b", rules[0].group), _picture(curve, rules))
        for curve, rules in zip(found.curves[:SHOWN_CURVES], found.groups, strict=False)
    ]
    more = len(found.curves) > SHOWN_CURVES
    said += f" The first {SHOWN_CURVES} of {len(found.curves):,} groups are drawn." * more
    return section(title, f"{ANSWERED} {said}", keys, pair(*figures))


def _picture(curve: RiskCoverage, rules: tuple[Rule, ...]) -> Markup:
    chosen: dict[Point, list[str]] = {}
    for rule in rules:
        if rule.found:
            chosen.setdefault((rule.coverage, rule.error), []).append(f"{100 * rule.risk:g}\u00a0%")
    return charts.risk_coverage(curve, chosen={point: ", ".join(limits) for point, limits in chosen.items()})


def _rules_section(found: Abstention) -> Markup:
    """Every rule, or why there is none."""
    n = len(found.groups)
    tables = [(_title(rules[0], found.row_name), map(_cells, rules)) for rules in found.groups[:SHOWN_ROWS]]
    more = [f"The first {SHOWN_ROWS} of {n:,} groups are shown."] if n > SHOWN_ROWS else []
    return section("Every threshold", *more, grouped_table(COLUMNS, tables, "rules"))


def _title(rule: Rule, row_name: str) -> str:
    return f"{rule.group} · {plural(rule.n, row_name)}" if rule.group else ""


def _cells(rule: Rule) -> list[str]:
    limit = f"{100 * rule.risk:g}\u00a0%"
    if not rule.found:
        return [noted(limit, why_none(rule)), "–", "–", "–"]
    return [limit, f"{rule.threshold:g}", noted(percent(rule.coverage), f"{rule.kept:,}"), percent(rule.error)]
