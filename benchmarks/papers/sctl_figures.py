"""The figures of SCTL: post-hoc trainings, step by step, of ResNet-110 on CIFAR-10 that others trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.papers.figures import r_text, rounded
from benchmarks.papers.outputs import Drawing, Figure
from benchmarks.quality.data import fit_and_test
from temperance.diagnose.analysis import OBJECTIVES, RATE, STEPS, TOY_RATE, WORST
from temperance.diagnose.traces import Trace, pearson, posthoc_trace
from temperance.report.formats import percent
from temperance.report.pages.traces import COLUMNS, class_line, class_losses, scatter
from temperance.report.svg.lines import Line, line_chart, points

FILE = "logits/c10_resnet110_h.npz"
LAYER = "class-temperature"


def measure_traces(folder: Path) -> list[dict[str, Any]]:
    """A layer on the logits, trained with each objective and measured on the test part."""
    logits, labels, test, truth = fit_and_test(folder / FILE)
    return [
        _kept(
            posthoc_trace(
                *(logits, labels), layer=LAYER, objective=name, held_out=(test, truth), lr=RATE, steps=STEPS, every=5
            )
        )
        for name in OBJECTIVES
    ]


def measure_toy(folder: Path) -> dict[str, Any]:
    """The same layer, trained on the worst classes only and measured on the same samples."""
    logits, labels, _, _ = fit_and_test(folder / FILE)
    return _kept(posthoc_trace(logits, labels, layer="vector", worst_classes=WORST, lr=TOY_RATE, steps=STEPS, every=3))


def _kept(trace: Trace) -> dict[str, Any]:
    numbers = {name: rounded(getattr(trace, name)) for name in ("total", "class_losses", "spread", "ece")}
    about = {"objective": trace.objective, "layer": trace.layer, "steps": trace.steps.tolist()}
    return about | numbers | {"classes": trace.classes, "trained": trace.trained}


def _trace(kept: dict[str, Any]) -> Trace:
    numbers = {name: torch.tensor(kept[name], dtype=torch.float64) for name in COLUMNS}
    return Trace(
        kept["objective"],
        kept["layer"],
        torch.tensor(kept["steps"]),
        numbers["total"],
        torch.tensor(kept["class_losses"], dtype=torch.float64),
        numbers["spread"],
        numbers["ece"],
        tuple(kept["classes"]),
        tuple(kept["trained"]),
    )


def draw_scatters(numbers: list[dict[str, Any]]) -> Drawing:
    """Figure 1: calibration error against the total loss and against the spread of the class losses."""
    traces = [_trace(kept) for kept in numbers]
    total, spread, error = (torch.cat([getattr(trace, name) for trace in traces]) for name in COLUMNS)
    rs = [pearson(column, error) for column in (total, spread)]
    pictures = [
        (f"ECE against the total loss: r = {r_text(rs[0])}", scatter(traces, "total")),
        (f"ECE against the spread of the class losses: r = {r_text(rs[1])}", scatter(traces, "spread")),
    ]
    nearer = "the spread" if abs(rs[1]) > abs(rs[0]) else "the total loss"
    return Drawing(
        pictures,
        "In the paper, ECE follows the spread of the class losses, not the total loss. Here it follows "
        f"{nearer} more closely: Pearson's r over all steps and objectives is {r_text(rs[0])} with the total loss and "
        f"{r_text(rs[1])} with the spread.",
        _keys(traces),
    )


def draw_by_step(numbers: list[dict[str, Any]]) -> Drawing:
    """Figure 4: total loss, spread and calibration error by step."""
    traces = [_trace(kept) for kept in numbers]
    pictures = []
    for column, title in COLUMNS.items():
        lines = [Line(each.objective, points(each.steps, getattr(each, column)), i) for i, each in enumerate(traces)]
        pictures.append((title, line_chart(lines, y_title=title, x_title="step", percent=column == "ece")))
    ends = ", ".join(f"{each.objective} {percent(float(each.ece[-1]))}" for each in traces)
    return Drawing(pictures, f"ECE after {STEPS} steps: {ends}.", _keys(traces), columns=3)


def _keys(traces: list[Trace]) -> list[Line]:
    return [Line(trace.objective, [], i) for i, trace in enumerate(traces)]


def draw_toy(numbers: dict[str, Any]) -> Drawing:
    """Figure 3: two steps of about the same total loss and different errors."""
    toy = _trace(numbers)
    a, b = toy.equal_totals()
    marks = [(float(toy.steps[a]), "A"), (float(toy.steps[b]), "B")]
    pictures = []
    for column, title in COLUMNS.items():
        line = Line(title, points(toy.steps, getattr(toy, column)))
        drawn = line_chart([line], y_title=title, x_title="step", percent=column == "ece", at=marks)
        pictures.append((title, drawn))
    names = [str(j) for j in range(10)]
    pictures.insert(1, ("Loss of each class", class_losses(toy, names, marks)))
    keys = [class_line("classes trained on", mine=True), class_line("the others", mine=False)]
    totals, errors = ([float(column[row]) for row in (a, b)] for column in (toy.total, toy.ece))
    return Drawing(
        pictures,
        f"Only classes {', '.join(map(str, toy.trained))} are trained on. At A and B the total loss is "
        f"{totals[0]:.4f} and {totals[1]:.4f}, and ECE {percent(errors[0])} and {percent(errors[1])}.",
        keys,
    )


SCATTERS = Figure(measure_traces, draw_scatters, (FILE,), trained=False)
TOY = Figure(measure_toy, draw_toy, (FILE,), trained=False)
BY_STEP = Figure(measure_traces, draw_by_step, (FILE,), trained=False)
