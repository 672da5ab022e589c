"""Sections about post-hoc training: the losses of classes beside the calibration error, as in SCTL's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from temperance.diagnose.traces import Trace, pearson
from temperance.markup import Markup, tag
from temperance.report.formats import percent
from temperance.report.page import legend, noted, pair, section, stroke, table
from temperance.report.svg.lines import Line, line_chart, line_legend, points, scatter_chart
from temperance.showing import listed

OTHERS = 40  # lines of classes that were not trained on
COLUMNS = {"total": "Total loss (NLL)", "spread": "Spread of the class losses", "ece": "Calibration error"}


def trace_section(traces: Sequence[Trace], name: str) -> Markup:
    """Total loss, spread of the class losses and calibration error with each objective (SCTL Figures 1 and 4)."""
    if not traces:
        return Markup()
    figures = []
    for column, title in COLUMNS.items():
        lines = [Line(each.objective, points(each.steps, getattr(each, column)), i) for i, each in enumerate(traces)]
        drawn = line_chart(lines, y_title=title, x_title="step", percent=column == "ece")
        figures.append((tag("b", title), drawn))
    total, spread, ece = (torch.cat([getattr(trace, column) for trace in traces]) for column in COLUMNS)
    correlations = {each.objective: (each.correlation("total"), each.correlation("spread")) for each in traces}
    correlations["all together"] = pearson(total, ece), pearson(spread, ece)
    rows = [(name, *map(_signed_r, found)) for name, found in correlations.items()]
    return section(
        "What happens while a calibrator is trained?",
        f"A {traces[0].layer} layer on the logits of {name}, trained on held-out predictions with each objective and "
        "measured on the test part. The losses are NLL, whatever the objective. The table says how closely the "
        "calibration error follows the total loss, and how closely the spread of the class losses.",
        line_legend([Line(trace.objective, [], i) for i, trace in enumerate(traces)]),
        pair(
            *figures,
            (tag("b", "Error against total loss"), scatter(traces, "total")),
            (tag("b", "Error against spread"), scatter(traces, "spread")),
            (
                noted(tag("b", "How closely does the error follow them?"), "Pearson's r over the steps"),
                table(("Objective", "Total loss", "Spread"), rows),
            ),
        ),
    )


def _signed_r(r: float) -> str:
    return "–" if math.isnan(r) else f"{r:.3f}".replace("-", "−")


def scatter(traces: Sequence[Trace], column: str) -> Markup:
    """Calibration error against the total loss or the spread, a point for every step."""
    title = "total loss" if column == "total" else "spread of the class losses"
    groups = [Line(each.objective, points(getattr(each, column), each.ece), i) for i, each in enumerate(traces)]
    return scatter_chart(groups, x_title=title, y_title="Calibration error")


def _between(toy: Trace, a: int, b: int) -> str:
    """A sentence that compares two steps of about the same total loss."""
    if a == b:
        return "No two steps have about the same total loss, so A and B are one step."
    totals = " and ".join(f"{float(toy.total[row]):.4f}" for row in (a, b))
    errors = " and ".join(percent(float(toy.ece[row])) for row in (a, b))
    return f"At A and B the total loss is {totals}, and the calibration error {errors}."


def toy_section(toy: Trace | None, names: Sequence[str]) -> Markup:
    """Training on the worst classes only, with two steps of about the same total loss marked (SCTL Figure 3)."""
    if toy is None:
        return Markup()
    a, b = toy.equal_totals()
    trained = [names[j] for j in toy.trained]
    marks = [(float(toy.steps[a]), "A"), (float(toy.steps[b]), "B")]
    figures = []
    for column, title in COLUMNS.items():
        line = Line(title, points(toy.steps, getattr(toy, column)))
        drawn = line_chart([line], y_title=title, x_title="step", percent=column == "ece", at=marks)
        figures.append((tag("b", title), drawn))
    figures.insert(1, (tag("b", "Loss of each class"), class_losses(toy, names, marks)))
    rows = [
        (
            name,
            str(int(toy.steps[row])),
            f"{float(toy.total[row]):.4f}",
            f"{float(toy.spread[row]):.4f}",
            percent(float(toy.ece[row])),
            _share(toy, row),
        )
        for name, row in (("A", a), ("B", b))
    ]
    return section(
        "What if only the worst classes are trained?",
        f"The same layer, trained only on the classes with the highest losses ({listed(trained)}) and measured on "
        f"all classes of the same data. {_between(toy, a, b)}",
        legend(
            (stroke(class_line("", mine=True).class_), "classes trained on"),
            (stroke(class_line("", mine=False).class_), "the others"),
            ("line", "A and B"),
        ),
        pair(*figures),
        table(("", "Step", "Total loss", "Spread", "ECE", "In classes trained on"), rows),
    )


def _share(trace: Trace, row: int) -> str:
    """The share of the class losses that is in the classes trained on; a dash where all losses are 0."""
    mine = [trace.classes.index(j) for j in trace.trained if j in trace.classes]
    total = float(trace.class_losses[row].sum())
    return percent(float(trace.class_losses[row, mine].sum()) / total, 1) if total else "–"


def class_losses(trace: Trace, names: Sequence[str], at: Sequence[tuple[float, str]]) -> Markup:
    """The loss of every class at every step. Those trained on stand out; of many others, some are drawn."""
    mine = [i for i, j in enumerate(trace.classes) if j in trace.trained]
    others = [i for i, j in enumerate(trace.classes) if j not in trace.trained]
    # Evenly spaced among the others by their last loss, so that the few that are drawn stand for all.
    others.sort(key=lambda i: float(trace.class_losses[-1, i]))
    others = others[:: math.ceil(len(others) / OTHERS) or 1]
    lines = []
    for i in (*others, *mine):
        values = points(trace.steps, trace.class_losses[:, i])
        lines.append(class_line(names[trace.classes[i]], values, mine=i in mine))
    return line_chart(lines, y_title="loss of each class", x_title="step", at=at)


def class_line(name: str, points: Sequence[tuple[float, float]] = (), *, mine: bool) -> Line:
    return Line(name, points, 1 if mine else 0, "" if mine else "faint")
