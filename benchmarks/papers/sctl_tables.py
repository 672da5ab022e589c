"""What SCTL's tables say together: the tables of docs/evidence.md and docs/results.md about class scaling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from benchmarks.papers import sctl
from benchmarks.papers.outputs import RESULTS, Cell, agreement, outputs_of, stored
from benchmarks.quality.table import read, table

OBJECTIVES = {
    "CE": "NLL",
    "LS": "label smoothing",
    "FL": "focal",
    "ND": "class scaling",
    "CM": "class scaling, CM",
    "MM": "class scaling, MM",
    sctl.BALANCED: sctl.BALANCED,
}


def class_scaling() -> str:
    """ECE by objective, the mean over the four calibrators: the paper's number / ours."""
    exact = [cell for table in ("table 1", "table 2") for cell in stored("sctl", table) if cell.exact]
    return _by_objective(exact + list(sctl.own_networks(sctl.ROWS)))


def class_scaling_stand_ins() -> str:
    """The same on balanced data, with networks in place of the paper's, and how often class scaling helps there."""
    tables = [cell for cell in stored("sctl", "table 1") + stored("sctl", "table 3") if not cell.exact]
    cells = list({(cell.column, cell.row, cell.metric): cell for cell in tables}.values())
    columns = dict.fromkeys(cell.column for cell in cells)
    shares = [_over_calibrators(cells, column, "ND", sctl.BELOW) for column in columns]
    return _by_objective(cells, ["networks on which class scaling is below NLL, %", *shares])


def _by_objective(cells: Sequence[Cell], *more: Sequence[str]) -> str:
    """A line for each objective that was measured and a column for each network; `more` lines below them."""
    columns = dict.fromkeys(cell.column for cell in cells)
    lines: list[Sequence[str]] = []
    for objective, said in OBJECTIVES.items():
        texts = [_over_calibrators(cells, column, objective) for column in columns]
        if any(texts):
            lines.append([said, *texts])
    return table(["objective", *columns], [*lines, *more])


def _over_calibrators(cells: Sequence[Cell], column: str, objective: str, metric: str = "ECE") -> str:
    """The mean over the four calibrators: the paper's number / ours; empty where nothing was measured."""
    names = {f"{name} {objective}" for name in sctl.CALIBRATORS}
    found = [cell for cell in cells if (cell.column, cell.metric) == (column, metric) and cell.row in names]
    printed = [cell.printed for cell in found if cell.printed is not None]
    ours = f"{fmean(cell.ours for cell in found):.2f}" if found else ""
    return f"{fmean(printed):.2f} / {ours}" if printed else ours


def agreement_table() -> str:
    """How near our numbers are to those of SCTL's tables."""
    exact = [output.name for output in outputs_of("sctl") if output.state == "exact"]
    return table(["table", "agreement"], [[name, agreement(stored("sctl", name))] for name in exact])


def class_scaling_elsewhere() -> str:
    """ECE with NLL and with class scaling, on the image classifiers and on the language models."""
    by_method: dict[str, dict[str, float]] = defaultdict(dict)
    for line in read(RESULTS / "quality.jsonl"):
        if "ece" in line:
            by_method[line["method"]][line["set"]] = line["ece"]
    images = [name for name in by_method["temperature"] if name.startswith(("c10_", "c100_", "fmnist_"))]
    texts = [name for name in by_method["temperature"] if name not in images]
    heads = ["calibrator", f"ECE, {len(images)} image sets", "lower in"]
    heads += [f"ECE, {len(texts)} language models", "lower in"]
    lines = []
    for method in ("temperature", "class-temperature", "structured-vector"):
        before, after = by_method[method], by_method[f"{method}:objective=class-scaled"]
        cells = []
        for sets in (images, texts):
            means = (100 * fmean(found[name] for name in sets) for found in (before, after))
            cells.append(" % → ".join(f"{mean:.2f}" for mean in means) + " %")
            cells.append(f"{sum(after[name] < before[name] for name in sets)} of {len(sets)}")
        lines.append([f"{method} → class-scaled", *cells])
    return table(heads, lines)
