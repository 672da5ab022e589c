"""What the networks of the queue measured (benchmarks/results/papers.jsonl), as cells of the papers' tables.

A method is a loss with the settings of its paper, with changes after a colon where there are any, or a mix: see
`trainings.training_of`. Most are ResNet-18 and 100 epochs, on CIFAR-100 and CIFAR-10; the papers train larger networks.
Small networks were trained more often, on a part of CIFAR-10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.papers.outputs import RESULTS, Cell, Figure, Output
from benchmarks.papers.trainings import SMALL, Training, training_of
from benchmarks.quality.table import read

SETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10"}
ALL = SETS | {SMALL: "5,000 images"}
REDUCED = "ResNet-18, 100 epochs"
ALSO_SMALL = "small networks on 5,000 images of CIFAR-10"

PERCENT = {"ECE": "ece", "AECE": "adaptive-ece", "classwise ECE": "classwise-ece", "accuracy": "accuracy", "MCE": "mce"}

# Student's t for a 95 % interval of a mean, by the number of trainings.
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}

Line = dict[str, Any]


def lines(method: str, state: str = "as trained", data: str = "cifar100") -> list[Line]:
    """The results of a training method in a state, one for each seed.

    state   "as trained", a calibrator, or a head and how it was made
    """
    return [line for line in _all_lines(method, data) if line.get("state") == state]


def is_measured(method: str, data: str = "cifar100") -> bool:
    """Was it trained? A training that broke down was."""
    return bool(_all_lines(method, data))


def broke_down(method: str, data: str = "cifar100") -> bool:
    """Was it trained, and did every training fail?"""
    return is_measured(method, data) and all("failure" in line for line in _all_lines(method, data))


def failures() -> list[Line]:
    """The lines of all trainings that broke down."""
    return [line for line in read(RESULTS / "papers.jsonl") if "failure" in line]


def _all_lines(method: str, data: str) -> list[Line]:
    file = RESULTS / "papers.jsonl"
    changed = file.stat().st_mtime_ns if file.exists() else 0
    return _by_training(file, changed).get(training_of(method, data), [])


@cache
def _by_training(file: Path, changed: int) -> dict[Training, list[Line]]:
    """The lines of each training, those of all seeds together; read again when the file has changed."""
    found: dict[Training, list[Line]] = {}
    for line in read(file):
        found.setdefault(Training.parse(line["training"]).of_any_seed, []).append(line)
    return found


# --------------------------------------------------------------------------------------------------------------- cells


def cell(
    row: str,
    method: str,
    metric: str,
    printed: float | None,
    state: str = "as trained",
    data: str = "cifar100",
    column: str = "",
) -> Cell | None:
    """A number in percent, the mean over seeds; None where nothing was trained."""
    found = [line[PERCENT[metric]] for line in lines(method, state, data)]
    if not found:
        return None
    ours, low, high = (100 * number for number in interval(found))
    return Cell(row, column, metric, printed, ours, low, high, len(found))


def interval(found: Sequence[Sequence[float | None]]) -> tuple[float, float, float]:
    """The mean of trainings, each with its interval over test samples, and a 95 % interval of it.

    It is over trainings where there are three or more, else over test samples: the mean of theirs. It is NaN where a
    metric has no interval (None).
    """
    known = [[math.nan if number is None else number for number in each] for each in found]
    value, low, high = (fmean(numbers) for numbers in zip(*known, strict=True))
    if len(found) in STUDENT:
        reach = STUDENT[len(found)] * stdev(each for each, _, _ in known) / math.sqrt(len(found))
        low, high = max(value - reach, 0.0), value + reach
    return value, low, high


def cells(
    rows: Mapping[str, tuple[str, str]],
    metrics: Sequence[str],
    printed: Mapping[str, Mapping[str, Sequence[float]]],
    columns: Mapping[str, str] = ALL,
) -> Iterator[Cell]:
    """The cells of rows that were trained, on each data set of `printed`.

    rows     {row: (method, state)}
    printed  {data: {row: the paper's number for each metric}}; rows may be missing
    columns  {data: what is said of it}
    """
    for data, numbers in printed.items():
        for row, (method, state) in rows.items():
            expected = dict(zip(metrics, numbers.get(row, ()), strict=False))
            for metric in metrics:
                found = cell(row, method, metric, expected.get(metric), state, data, columns[data])
                if found is not None:
                    yield found


def verdict(lower: Cell, higher: Cell) -> str:
    """Whether the first number is below the second, as is claimed.

    It holds where the intervals do not overlap and are in the claimed order, is reversed where they are in the other
    order, and undecided where they overlap. Intervals over test samples do not know the chance of a training.
    """
    if lower.high < higher.low:
        return "holds"
    return "reversed" if lower.low > higher.high else "undecided"


# ------------------------------------------------------------------------------------------------------------- outputs


def output(
    name: str,
    about: str,
    how: str,
    cells: Callable[[Path], Iterator[Cell]],
    methods: Mapping[str, str],
    sets: Sequence[str] = tuple(ALL),
) -> Output:
    """A table or figure of trainings of the queue, {row: method}; state and text say which of them were measured."""
    begun = [data for data in sets if any(is_measured(method, data) for method in methods.values())]
    said = "; ".join([*(_networks(how, begun) or ["waiting in the queue"]), f"trained: {counts(methods, sets)}"])
    table = cells if begun else None
    return Output(name, about, "reduced" if begun else "not run", said, table, methods=methods, sets=tuple(sets))


def shown(
    name: str,
    about: str,
    how: str,
    more: str,
    kind: str,
    cells: Callable[[Path], Iterator[Cell]] | None = None,
    figure: Figure | None = None,
) -> Output:
    """A table or figure of what only later trainings of cross-entropy measured.

    kind  the entry of a line: "unfamiliar" and "corrupted" images, or "masked" weights
    """
    found = [data for data in ALL if any(kind in line for line in lines("cross-entropy", data=data))]
    return Output(name, about, "reduced", "; ".join([*_networks(how, found), more]), cells, figure=figure)


def _networks(how: str, begun: Sequence[str]) -> list[str]:
    """Which networks stand in place of the paper's, by the data sets that they were trained on."""
    said = [(how, any(data in SETS for data in begun)), (ALSO_SMALL, SMALL in begun)]
    return [text for text, is_there in said if is_there]


def counts(methods: Mapping[str, str], sets: Sequence[str] = tuple(ALL)) -> str:
    """How many of the methods were trained on each data set."""
    return ", ".join(progress(methods, data) for data in sets)


def progress(methods: Mapping[str, str], data: str) -> str:
    """How many of the methods were trained on a data set, which wait in the queue, and which broke down.

    >>> progress({"CE": "cross-entropy", "LS": "label-smoothing"}, "cifar100")
    'all 2 on CIFAR-100'
    """
    waiting = [row for row, method in methods.items() if not is_measured(method, data)]
    broken = [row for row, method in methods.items() if broke_down(method, data)]
    n, done = len(methods), len(methods) - len(waiting)
    count = f"all {n}" if not waiting else f"{done} of {n}" if done else f"none of {n} yet"
    notes = [f"waiting: {', '.join(waiting)}"] if waiting and done else []
    notes += [f"broke down: {', '.join(broken)}"] if broken else []
    return f"{count} on {ALL[data]}" + (f" ({'; '.join(notes)})" if notes else "")
