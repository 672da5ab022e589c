"""What the networks of the queue measured (benchmarks/results/papers.jsonl), as cells of the papers' tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.papers.outputs import RESULTS, Cell
from benchmarks.papers.trainings import Training, published
from benchmarks.quality.table import read

# What was trained, and how that differs from the papers.
DATA, NETWORK, EPOCHS = "cifar100", "resnet18", 100
REDUCED = "ResNet-18 on CIFAR-100, 100 epochs"

PERCENT = {"ECE": "ece", "AECE": "adaptive-ece", "classwise ECE": "classwise-ece", "accuracy": "accuracy", "MCE": "mce"}


def lines(method: str, state: str = "as trained") -> list[dict[str, Any]]:
    """The results of a training method in a state, one for each seed.

    method  a loss with the settings of its paper, or "mixup", "mit" or "cutmix"
    state   "as trained", a calibrator, or a head and how it was made
    """
    mixed = method in ("mixup", "mit", "cutmix")
    loss, changes = ("cross-entropy", {f"mix={method}"}) if mixed else (published(method, DATA), set[str]())
    found = []
    for line in read(RESULTS / "papers.jsonl"):
        training = Training.parse(line["training"])
        others = {change for change in training.changes if not change.startswith("seed=")}
        same = (training.data, training.network, training.epochs) == (DATA, NETWORK, EPOCHS)
        if same and (training.loss, others) == (loss, changes) and line.get("state") == state:
            found.append(line)
    return found


def cell(row: str, method: str, metric: str, printed: float | None, state: str = "as trained") -> Cell | None:
    """A number in percent, the mean over seeds; its interval is the mean of theirs. None where nothing was trained."""
    found = [line[PERCENT[metric]] for line in lines(method, state)]
    if not found:
        return None
    ours, low, high = (100 * math.fsum(values) / len(found) for values in zip(*found, strict=True))
    return Cell(row, "", metric, printed, ours, low, high, len(found))


def cells(printed: Mapping[str, tuple[str, str, Mapping[str, float]]]) -> Iterator[Cell]:
    """The cells of rows that were trained: {row: (method, state, {metric: the paper's number})}."""
    for row, (method, state, numbers) in printed.items():
        for metric, number in numbers.items():
            if (found := cell(row, method, metric, number, state)) is not None:
                yield found
