"""The page of decisions with costs."""

from __future__ import annotations

from pathlib import PurePath

from temperance.errors import plural
from temperance.jobs.decisions import Decisions
from temperance.jobs.policies import DecisionCurve
from temperance.jobs.spending import capital
from temperance.jobs.verdict import as_class
from temperance.markup import Markup, tag
from temperance.report.formats import PERCENT
from temperance.report.page import (
    LISTED_ROWS,
    answer,
    folded,
    grouped_table,
    heading,
    noted,
    page,
    pair,
    searchable,
    section,
    split,
    table,
)
from temperance.report.pages.evaluation import provenance_section
from temperance.report.svg.drawing import FIFTHS
from temperance.report.svg.lines import Line, line_chart, line_legend
from temperance.report.svg.policies import policies_chart

MOST_COSTS = 16  # in a matrix that is shown
MOST_TAKEN = 20  # decisions that are shown at first
BELOW = 0.25  # how far below zero a decision curve is drawn, as a share of its height above


def decisions_page(found: Decisions) -> str:
    """The page: the answer, other thresholds as pictures, what is decided, every number, the costs."""
    name = PurePath(found.source).name
    classes = "" if found.answers else f"{len(found.costs.classes):,} classes"
    return page(
        f"{name} – decisions and costs",
        heading("Decisions and costs", name, [plural(found.n, found.row_name), classes]),
        answer(found.verdict, _figures(found), found.notes),
        thresholds_section(found, found.curve) if found.curve is not None else Markup(),
        policies_section(found),
        taken_section(found),
        costs_section(found),
        provenance_section(found.provenance),
    )


def _figures(found: Decisions) -> list[tuple[str, str, str]]:
    titles = ["These probabilities", "Calibrated"]
    figures = [
        (title, found.money(policy.cost), f"between {found.money(policy.low)} and {found.money(policy.high)}")
        for title, policy in zip(titles, found.by_probabilities, strict=False)
    ]
    if found.saving is not None:
        bounds = f"between {found.money(found.saving.low)} and {found.money(found.saving.high)}"
        figures.append(("Calibration saves", found.money(found.saving.value), bounds))
    return [(title, _minus(number), _minus(note)) for title, number, note in figures]


def thresholds_section(found: Decisions, curve: DecisionCurve) -> Markup:
    """What other thresholds would bring: the mean cost at each, and the decision curve."""
    names = [policy.name for policy in found.by_probabilities]
    numbers = {name: i for i, name in enumerate([*names, "act on all", "act on none"])}
    mark = [] if curve.chosen is None else [(curve.chosen, "at these costs")]

    def lines(values: dict[str, tuple[float, ...]]) -> list[Line]:
        return [
            Line(name, list(zip(curve.thresholds, values[name], strict=True)), number)
            for name, number in numbers.items()
            if name in values
        ]

    figures = []
    if curve.cost:
        drawn = line_chart(
            lines(curve.cost),
            y_title="mean cost",
            x_title="act above a probability of",
            from_zero=True,
            x_ticks=FIFTHS[1:-1],
            at=mark,
        )
        figures.append((tag("b", f"Cost per {found.row_name}"), drawn))
    top = max(max(values) for name, values in curve.net_benefit.items()) or 1.0
    drawn = line_chart(
        lines(curve.net_benefit),
        y_title="net benefit",
        x_title="threshold probability",
        limits=(-BELOW * top, 1.05 * top),
        x_ticks=FIFTHS[1:-1],
        at=mark,
    )
    figures.append((tag("b", "Decision curve: net benefit"), drawn))
    costs = (
        "The first picture is the mean cost if the threshold were another one. With calibrated probabilities, the "
        "threshold that follows from the costs should be near the lowest point. "
        if curve.cost
        else ""
    )
    return section(
        "What would another threshold cost?",
        f"{costs}The decision curve is for other costs: a threshold of t means that a false alarm costs "
        "t\u00a0/\u00a0(1\u00a0−\u00a0t) times as much as a miss. Net benefit is the share of samples that are acted "
        "on rightly, minus the share of false alarms times the same factor. A model helps where it is above acting on "
        "all samples and on none.",
        line_legend([Line(name, [], number) for name, number in numbers.items()]),
        pair(*figures),
    )


def taken_section(found: Decisions) -> Markup:
    """How often each decision is taken and what the samples cost that it is taken for."""
    columns = ("Decision", *map(capital, found.taken_columns))
    some, all_of_them = (
        [[found.costs.decisions[d], *map(_minus, found.taken_cells(d))] for d in found.taken(most)]
        for most in (MOST_TAKEN, LISTED_ROWS)
    )
    n, said, more = len(found.costs.decisions), "", Markup()
    if len(some) < n:
        said = f" These are the {len(some)} of {n:,} decisions that are taken most often."
        summary = "All decisions" if len(all_of_them) == n else f"The {len(all_of_them):,} that are taken most often"
        more = folded(summary, searchable("decisions", columns, all_of_them, "standings"))
    return section(
        "What is decided?",
        "How often each decision is taken, and the mean cost of the samples that it is taken for"
        f"{', before and after calibration' * (found.calibrated is not None)}.{said}",
        table(columns, some, "standings"),
        more,
    )


def policies_section(found: Decisions) -> Markup:
    """Every way to decide, with its interval."""
    rows = [
        (
            capital(policy.name),
            noted(*(_minus(text) for text in _interval(found, policy.cost, policy.low, policy.high))),
        )
        for policy in found.policies
    ]
    how = f"{capital(found.how)}. " if found.how else ""
    return section(
        "Every way to decide",
        f"{how}The best single decision is chosen in hindsight, on these samples. In small print: 95{PERCENT} "
        "intervals that hold for few samples, too.",
        split(policies_chart(found), table(("Decided by", f"Cost per {found.row_name}"), rows)),
    )


def _interval(found: Decisions, value: float, low: float, high: float) -> tuple[str, str]:
    return found.money(value), f"{found.money(low)}\u00a0–\u00a0{found.money(high)}"


def costs_section(found: Decisions) -> Markup:
    """The costs, if there are few."""
    costs = found.costs
    if costs.values.numel() > MOST_COSTS:
        return Markup()
    groups = [
        (f"If {as_class(name)} is true", [(costs.decisions[d], _minus(f"{cost:,.10g}")) for d, cost in enumerate(row)])
        for name, row in zip(costs.classes, costs.values.tolist(), strict=True)
    ]
    return section("The costs", grouped_table(("Decision", "Cost"), groups))


def _minus(text: str) -> str:
    return text.replace("-", "−")
