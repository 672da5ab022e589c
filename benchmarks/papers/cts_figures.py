"""The figures of CTS on our ResNet-18 of CIFAR-100, trained with cross-entropy: classes, temperatures, reliability."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.papers.figures import draw_reliabilities, file_of, kept_bins, r_text, read_parts, rounded
from benchmarks.papers.outputs import Drawing, Figure
from temperance.calibrators import make_calibrator
from temperance.diagnose.traces import pearson
from temperance.metrics import classwise_ece, ece
from temperance.metrics.bins import Bins
from temperance.report.formats import percent
from temperance.report.svg.drawing import FIFTHS, LEFT, RIGHT, Plot, Scale, picture
from temperance.report.svg.lines import BOTTOM, Line, scatter_chart, y_scale, y_ticks

FILE = file_of("cross-entropy")
METHODS = {"TS": "temperature-ece", "CTS": "class-temperature-greedy"}
PARTS = ("val_logits", "val_labels", "test_logits", "test_labels")


def class_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """How often samples of each class are predicted right. (k,)"""
    right = (logits.argmax(1) == labels).double()
    k = logits.shape[1]
    return torch.bincount(labels, right, minlength=k) / torch.bincount(labels, minlength=k)


# ------------------------------------------------------------------------------------------ figure 1: errors of classes


def measure_classes(folder: Path) -> dict[str, Any]:
    """Accuracy and calibration error of each class, under- and over-confident bins apart (eqs 2 to 5)."""
    logits, labels = read_parts(folder / FILE, *PARTS[2:])
    bins = classwise_ece.stats(logits.softmax(1), labels)
    assert isinstance(bins, Bins)
    gaps = bins.weight * bins.gap  # positive where the class is more frequent than its probability says
    under, over = gaps.clamp_min(0), (-gaps).clamp_min(0)
    return {
        "accuracy": rounded(class_accuracy(logits, labels)),
        "under": rounded(under.sum(1), 7),
        "over": rounded(over.sum(1), 7),
        "under by bin": rounded(under.sum(0), 6),
        "over by bin": rounded(over.sum(0), 6),
    }


def draw_classes(numbers: dict[str, Any]) -> Drawing:
    accuracy, under, over = (torch.tensor(numbers[name]) for name in ("accuracy", "under", "over"))
    kinds = {"All bins": under + over, "Under-confident bins": under, "Over-confident bins": over}
    pictures = []
    for (title, errors), colour in zip(kinds.items(), (2, 0, 1), strict=True):  # blue is under-, red over-confident
        group = Line(title, list(zip(accuracy.tolist(), errors.tolist(), strict=True)), colour)
        drawn = scatter_chart([group], x_title="accuracy of the class", y_title="ECE of the class", x_percent=True)
        pictures.append((f"{title}: ECE of each class", drawn))
    both = _by_bin(numbers["under by bin"], numbers["over by bin"])
    pictures.append(("Sums over classes: under-confident blue, over-confident red", both))
    every, low, high = (pearson(accuracy, errors) for errors in kinds.values())
    first = numbers["under by bin"][0] / sum(numbers["under by bin"])
    return Drawing(
        pictures,
        "In the paper, the higher the accuracy of a class, the lower its ECE. Here Pearson's r of the two is "
        f"{r_text(every)} (under-confident bins {r_text(low)}, over-confident bins {r_text(high)}). The lowest bin has "
        f"{percent(first, 0)} of the under-confidence.",
    )


def _by_bin(under: list[float], over: list[float]) -> Any:
    """Two bars in each bin of the class's probability."""
    edges = [i / len(under) for i in range(len(under) + 1)]
    y = y_scale(0, max(*under, *over), from_zero=True)
    plot = Plot(Scale(0, 1, LEFT, RIGHT), y)
    bars = []
    for i, (left, right) in enumerate(pairwise(edges)):
        middle = (left + right) / 2
        bars += [plot.box(left, middle, 0, under[i], "under"), plot.box(middle, right, 0, over[i], "over")]
    return picture(
        BOTTOM + 42,
        "Under-confidence and over-confidence in each bin, summed over classes.",
        plot.y_axis(y_ticks(y)),
        *bars,
        plot.x_axis(FIFTHS, "probability of the class"),
    )


# --------------------------------------------------------------------- figures 2 and 3: reliability, class temperatures


def measure_reliability(folder: Path) -> dict[str, Any]:
    logits, labels, test, truth = read_parts(folder / FILE, *PARTS)
    probs = {"before": test.softmax(1)}
    for name, method in METHODS.items():
        probs[name] = make_calibrator(method).fit(logits, labels).predict_proba(test)
    return {name: kept_bins(each, truth) for name, each in probs.items()}


def said_of_reliability(found: dict[str, Bins]) -> str:
    errors = {name: ece.value(bins) for name, bins in found.items()}
    order = "lower" if errors["CTS"] < errors["TS"] else "no lower"
    return (
        "In the paper, CTS has a lower ECE than TS. Here TS takes the ECE from "
        f"{percent(errors['before'])} to {percent(errors['TS'])}; that of CTS is {order}, {percent(errors['CTS'])}."
    )


def draw_reliability(numbers: dict[str, Any]) -> Drawing:
    return draw_reliabilities(numbers, says=said_of_reliability, columns=3)


def measure_temperatures(folder: Path) -> dict[str, Any]:
    logits, labels, test, truth = read_parts(folder / FILE, *PARTS)
    learnt: dict[str, Tensor] = {}
    for method in METHODS.values():
        learnt |= make_calibrator(method).fit(logits, labels).named_buffers()
    return {
        "accuracy": rounded(class_accuracy(test, truth)),
        "temperatures": rounded(learnt["temperatures"]),
        "temperature": round(float(learnt["temperature"]), 5),
    }


def draw_temperatures(numbers: dict[str, Any]) -> Drawing:
    accuracy, each, one = numbers["accuracy"], numbers["temperatures"], numbers["temperature"]
    group = Line("class temperatures", list(zip(accuracy, each, strict=True)))
    drawn = scatter_chart(
        [group],
        x_title="accuracy of the class",
        y_title="temperature of the class",
        x_percent=True,
        y_percent=False,
        from_zero=False,
        level=(one, f"one temperature for all, {one:.2f}"),
    )
    r = pearson(torch.tensor(accuracy), torch.tensor(each))
    kept = sum(abs(value - one) < 0.005 for value in each)
    return Drawing(
        [("Temperature of each class", drawn)],
        f"The class temperatures lie between {min(each):.2f} and {max(each):.2f}. The single one is {one:.2f}, and "
        f"{kept} of {len(each)} classes keep it. Pearson's r of accuracy and temperature is {r_text(r)}.",
    )


CLASSES = Figure(measure_classes, draw_classes, (FILE,))
RELIABILITY = Figure(measure_reliability, draw_reliability, (FILE,))
TEMPERATURES = Figure(measure_temperatures, draw_temperatures, (FILE,))
