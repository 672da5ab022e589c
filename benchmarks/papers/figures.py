"""What the figures of several papers share: predictions of the queue, reliability diagrams, numbers to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.outputs import Drawing, Figure
from benchmarks.papers.trainings import training_of
from temperance.files import reading
from temperance.metrics import ece
from temperance.metrics.bins import Bins
from temperance.report.formats import percent, points, signed
from temperance.report.svg.charts import reliability


def file_of(method: str, data: str = "cifar100") -> str:
    """The file of predictions of a training method."""
    return training_of(method, data).file


def read_parts(path: Path, *names: str) -> list[Tensor]:
    """Arrays of a file of the queue: logits as float64, labels as int64."""
    with reading(path), np.load(path) as file:
        found = [torch.from_numpy(file[name]) for name in names]
    return [array.long() if array.dtype == torch.uint8 else array.double() for array in found]


def rounded(values: Tensor, digits: int = 5) -> Any:
    """A tensor as lists of numbers, to be kept."""
    return np.round(values.double().numpy(), digits).tolist()


def r_text(r: float) -> str:
    """A correlation to two digits."""
    return signed(r, 2).removeprefix("+")


# -------------------------------------------------------------------------------------------------------- reliability


def kept_bins(probs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """The 15 bins of a reliability diagram as numbers to keep."""
    bins = ece.stats(probs, labels)
    assert isinstance(bins, Bins)
    return {name: rounded(getattr(bins, name), 4) for name in ("count", "confidence", "hits")}


def bins_of(kept: Mapping[str, Sequence[float]]) -> Bins:
    count, confidence, hits = (
        torch.tensor(kept[name], dtype=torch.float64) for name in ("count", "confidence", "hits")
    )
    return Bins(count.long(), confidence, hits.long())


def reliability_figure(methods: Mapping[str, str], says: Callable[[dict[str, Bins]], str], columns: int) -> Figure:
    """Reliability diagrams of training methods on CIFAR-100, {name: method}."""
    files = tuple(file_of(method) for method in methods.values())
    return Figure(partial(_reliabilities, methods), partial(draw_reliabilities, says=says, columns=columns), files)


def _reliabilities(methods: Mapping[str, str], folder: Path) -> dict[str, Any]:
    found = {}
    for name, method in methods.items():
        logits, labels = read_parts(folder / file_of(method), "test_logits", "test_labels")
        found[name] = kept_bins(logits.softmax(1), labels)
    return found


def draw_reliabilities(numbers: Mapping[str, Any], *, says: Callable[[dict[str, Bins]], str], columns: int) -> Drawing:
    """A diagram for each entry, with one scale of samples for all."""
    found = {name: bins_of(kept) for name, kept in numbers.items()}
    most = max(float(bins.count.max()) for bins in found.values())
    pictures = [(f"{name}: ECE {percent(ece.value(bins))}", reliability(bins, most)) for name, bins in found.items()]
    return Drawing(pictures, says(found), columns=columns)


def gaps(found: Mapping[str, Bins]) -> str:
    """How much more sure than right each is on average."""
    each = {name: float((bins.confidence.sum() - bins.hits.sum()) / bins.n) for name, bins in found.items()}
    texts = ", ".join(f"{name} {points(gap)}" for name, gap in each.items())
    return f"Mean confidence minus accuracy, in points: {texts}."
