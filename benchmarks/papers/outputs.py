"""Every table and figure of the five papers: what was run, the paper's number beside ours, and what was not run.

Each paper has a file here that lists its tables and figures as `Output`s. `temperance reproduce` prints them.
"""

from __future__ import annotations

import importlib
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.quality.table import read, table, write
from temperance.markup import Markup
from temperance.report.formats import signed
from temperance.report.svg.lines import Line

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CELLS = RESULTS / "reproduced.jsonl"
FIGURES = RESULTS / "figures.jsonl"

# The real predictions, where there are any beside the checkout.
DATA = ROOT.parent / "shared" / "data"

# What the queue trained, where it is beside the checkout.
PREDICTIONS = ROOT.parent / "predictions"

# The head of the column that says what a row was measured on.
COLUMN = "data, network"

# Numbers of the same predictions agree if they differ by no more than this many points.
CLOSE = 0.03

# Each paper, and the file here that has its tables and figures.
PAPERS = {
    "sctl": "Jung et al., Scaling of class-wise training losses for post-hoc calibration, ICML 2023",
    "cts": "Frenkel and Goldberger, Network calibration by class-based temperature scaling, EUSIPCO 2021",
    "acls": "Park et al., ACLS: Adaptive and conditional label smoothing for network calibration, ICCV 2023",
    "selective-risk": "Zhou et al., Revisiting reweighted risk for calibration: AURC, focal and inverse focal, 2025",
    "mac-cal": "Ni et al., Deep neural network calibration by reducing classifier shift with stochastic masking, 2025",
}


@dataclass(frozen=True)
class Cell:
    """One number of a table, in the paper's unit: what is printed there, and what came out here.

    column    the data and the network, where a table has several
    printed   None where the paper does not have this row
    low, high the 95 % interval, over trainings or over test samples; NaN where there is none
    trainings how many `ours` is the mean of
    exact     measured on the paper's own predictions, so that `ours` should be `printed`
    """

    row: str
    column: str
    metric: str
    printed: float | None
    ours: float
    low: float = math.nan
    high: float = math.nan
    trainings: int = 1
    exact: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure: pictures with their captions, what their lines are, and what they say."""

    pictures: Sequence[tuple[str, Markup]]
    says: str
    legend: Sequence[Line] = ()
    columns: int = 2


@dataclass(frozen=True)
class Figure:
    """How a figure is made.

    measure  its numbers, from a folder of predictions, or from benchmarks/results where there are no files
    draw     the drawing of these numbers
    files    the predictions that it measures; the numbers are then kept in FIGURES
    trained  whether they are of the queue; else they are published ones
    """

    measure: Callable[[Path], Any]
    draw: Callable[[Any], Drawing]
    files: tuple[str, ...] = ()
    trained: bool = True


@dataclass(frozen=True)
class Output:
    """A table or figure of a paper.

    name     "table 1", "figure A"
    state    exact: on the paper's own predictions, with its numbers; run: the paper's experiment; reduced: with other
             data, networks or epochs; not run
    how      what is reduced, or why it is not run
    cells    makes its table, from predictions or from benchmarks/results; None where there is no table to make
    data     the predictions that it measures, in the folder of real ones, * for any; what comes of it is kept in CELLS
    methods  the trainings of the queue that it shows, {row: method}, on each of `sets`
    figure   how a figure is drawn, where it is more than a table
    beside   cells of trainings of the queue, to be shown below those of `cells`
    """

    name: str
    about: str
    state: Literal["exact", "run", "reduced", "not run"]
    how: str
    cells: Callable[[Path], Iterator[Cell]] | None = None
    data: tuple[str, ...] = ()
    methods: Mapping[str, str] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    figure: Figure | None = None
    beside: Callable[[], Iterator[Cell]] | None = None


def outputs_of(paper: str) -> list[Output]:
    """All tables and figures of a paper, as its file here lists them."""
    found: list[Output] = importlib.import_module(f"benchmarks.papers.{paper.replace('-', '_')}").OUTPUTS
    return found


def stored(paper: str, name: str) -> list[Cell]:
    """The cells of a table that are kept in the repository."""
    fields = Cell.__dataclass_fields__
    nothing = {"low": math.nan, "high": math.nan}
    lines: list[dict[str, Any]] = [
        {field: nothing[field] if line[field] is None and field in nothing else line[field] for field in fields}
        for line in read(CELLS)
        if (line["paper"], line["output"]) == (paper, name)
    ]
    return [Cell(**line) for line in lines]


def store(paper: str, name: str, cells: Sequence[Cell], seconds: float) -> None:
    """Keep the cells of a table in the repository, in place of those that were there."""
    _replace(CELLS, paper, name, [_as_json(cell) for cell in cells], seconds)


def stored_numbers(paper: str, name: str) -> Any:
    """The numbers of a figure that are kept in the repository; None where there are none."""
    found = [line["numbers"] for line in read(FIGURES) if (line["paper"], line["output"]) == (paper, name)]
    return found[0] if found else None


def store_numbers(paper: str, name: str, numbers: Any, seconds: float) -> None:
    """Keep the numbers of a figure in the repository, in place of those that were there."""
    _replace(FIGURES, paper, name, [{"numbers": numbers}], seconds)


def _replace(file: Path, paper: str, name: str, found: Sequence[dict[str, Any]], seconds: float) -> None:
    from temperance.files import atomic_write
    from temperance.jobs.results import Provenance

    about = Provenance.of({}, {}, seed=0)
    common = {"seconds": round(seconds, 1), "hardware": platform.machine(), "created": about.created}
    common |= {"commit": about.commit, "torch": about.versions["torch"]}
    lines = [line for line in read(file) if (line["paper"], line["output"]) != (paper, name)]
    lines += [{"paper": paper, "output": name} | each | common for each in found]
    with atomic_write(file) as temporary:
        write(temporary, lines)


def _as_json(cell: Cell) -> dict[str, Any]:
    return {
        name: (None if math.isnan(value) else round(value, 4)) if isinstance(value, float) else value
        for name, value in asdict(cell).items()
    }


def agreement(cells: Sequence[Cell]) -> str:
    """A sentence about how near our numbers are to the paper's, on its own predictions."""
    found = [abs(cell.ours - cell.printed) for cell in cells if cell.exact and cell.printed is not None]
    near = sum(difference <= CLOSE for difference in found)
    said = f"{near} of {len(found)} numbers are within {CLOSE} points of the paper's"
    return f"{said}; the largest difference is {max(found):.2f}."


def markdown(cells: Sequence[Cell]) -> str:
    """Cells as a Markdown table: a line for each row and column, and for each metric the paper's number and ours."""
    return table(*grid(cells))


def grid(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """The head and lines of a table of cells.

    A metric has a column of the paper's numbers if it prints any, and one of differences if there are exact cells.
    """
    metrics = list(dict.fromkeys(cell.metric for cell in cells))
    printed = {cell.metric for cell in cells if cell.printed is not None}
    exact = {cell.metric for cell in cells if cell.exact}
    columns = any(cell.column for cell in cells)
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault((cell.column, cell.row), {})[cell.metric] = cell
    head = [*([COLUMN] if columns else []), "method"]
    for metric in metrics:
        names = [f"{metric}, paper", "ours"] if metric in printed else [f"{metric}, ours"]
        head += [*names, *(["difference"] if metric in exact else [])]
    lines = []
    for (column, row), by_metric in found.items():
        texts = [
            _texts(by_metric.get(metric))[metric not in printed : 3 if metric in exact else 2] for metric in metrics
        ]
        lines.append([*([column] if columns else []), row, *(text for three in texts for text in three)])
    return head, lines


def _texts(cell: Cell | None) -> list[str]:
    """The paper's number, ours with its interval, and the difference of an exact cell."""
    if cell is None:
        return ["", "", ""]
    if cell.printed is None:
        return ["", ours(cell), ""]
    digits = _digits(cell)
    difference = signed(cell.ours - cell.printed, digits) if cell.exact else ""
    return [f"{cell.printed:.{digits}f}", ours(cell), difference]


def ours(cell: Cell) -> str:
    """Our number, with its interval and how many trainings it is the mean of."""
    digits = _digits(cell)
    said = f"{cell.ours:.{digits}f}"
    if not math.isnan(cell.low):
        said += f" ({cell.low:.{digits}f}–{cell.high:.{digits}f})"
    return said + (f", mean of {cell.trainings}" if cell.trainings > 1 else "")


def _digits(cell: Cell) -> int:
    return 3 if cell.metric == "classwise ECE" else 2
