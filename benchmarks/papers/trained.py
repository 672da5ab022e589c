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
from statistics import fmean, variance
from typing import Any

from scipy.stats import t as student

from benchmarks.papers.outputs import RESULTS, Cell, Figure, Output
from benchmarks.papers.trainings import LOSS_METHODS, MIXES, SMALL, Training, training_of
from benchmarks.quality.table import read

SETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10"}
ALL = SETS | {SMALL: "5,000 images"}
REDUCED = "ResNet-18, 100 epochs"
ALSO_SMALL = "small networks on 5,000 images of CIFAR-10"

PERCENT = {"ECE": "ece", "AECE": "adaptive-ece", "classwise ECE": "classwise-ece", "accuracy": "accuracy", "MCE": "mce"}

Line = dict[str, Any]
Triple = Sequence[float | None]  # a number and its interval over test samples; None where a metric has none


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
    found = lines(method, state, data)
    if not found:
        return None
    ours, low, high = (100 * number for number in measured(found, PERCENT[metric]))
    return Cell(row, column, metric, printed, ours, low, high, len(found))


def measured(found: Sequence[Line], key: str) -> tuple[float, float, float]:
    """The mean of a metric over the trainings of a method, and its 95 % interval."""
    return interval([line[key] for line in found], repeated(key, found[0]))


def interval(found: Sequence[Triple], others: Sequence[Sequence[float]] = ()) -> tuple[float, float, float]:
    """The mean of trainings of a method, and its 95 % interval.

    It is over trainings, with a spread that is taken to be the same for all methods, if one was trained three times.
    Else it is over test samples, the mean of the intervals of `found`.

    found   a number of each training with its interval over test samples
    others  the numbers of trainings of each of the methods; without it, only those of `found`
    """
    known = [[math.nan if number is None else number for number in each] for each in found]
    value, low, high = (fmean(numbers) for numbers in zip(*known, strict=True))
    groups = [group for group in others or [[each for each, _, _ in known]] if len(group) > 1]
    if any(len(group) > 2 for group in groups):
        freedom = sum(len(group) - 1 for group in groups)
        spread = math.sqrt(sum((len(group) - 1) * variance(group) for group in groups) / freedom)
        reach = float(student.ppf(0.975, freedom)) * spread / math.sqrt(len(found))
        low, high = max(value - reach, 0.0), value + reach
    return value, low, high


def repeated(key: str, like: Line) -> list[list[float]]:
    """A metric of every training of the papers' losses and mixes that was made like one: a list for each method."""
    one = Training.parse(like["training"])
    keep = [change for change in one.changes if change.startswith("keep=")]
    recipe = " ".join([f"network={one.network}", f"epochs={one.epochs}", *keep])
    found = (lines(f"{method} {recipe}", like["state"], one.data) for method in (*LOSS_METHODS, *MIXES))
    return [[line[key][0] for line in group] for group in found if group]


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

    It holds where the 95 % interval of their difference is above zero, is reversed where it is below, and undecided
    where zero is in it. The interval is made of those of the two numbers: Zou and Donner, Construction of confidence
    limits about effect measures, 2008, eq. 3.
    """
    difference = higher.ours - lower.ours
    if difference > math.hypot(lower.high - lower.ours, higher.ours - higher.low):
        return "holds"
    return "reversed" if -difference > math.hypot(lower.ours - lower.low, higher.high - higher.ours) else "undecided"


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
