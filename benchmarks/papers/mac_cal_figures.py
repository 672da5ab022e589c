"""The figures of MaC-Cal on our networks: maps and angles of logits, masked weights, ECE by γ, keep rates by epoch."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.papers import trained
from benchmarks.papers.figures import bins_of, file_of, kept_bins, read_parts, rounded
from benchmarks.papers.outputs import RESULTS, Drawing, Figure
from benchmarks.quality.table import read
from temperance.diagnose.analysis import Embedding, angles_between, class_means, simplex_angle, tsne
from temperance.metrics import ece
from temperance.report.formats import percent
from temperance.report.pages.analysis import point_map
from temperance.report.svg.angles import angle_matrix, between_classes
from temperance.report.svg.charts import reliability
from temperance.report.svg.lines import Line, line_chart

FILE = file_of("cross-entropy", "cifar10")
STATES = {"before MaC-Cal": "test_logits", "after MaC-Cal": "mac-cal:preset=paper/test_logits"}
MAPPED = 700  # samples on a map


# ------------------------------------------------------------------------------- figure 2: logits before and afterwards


def measure_logits(folder: Path) -> dict[str, Any]:
    """A map of the logits, the angles between the mean logits of classes, and reliability."""
    found: dict[str, Any] = {}
    for name, array in STATES.items():
        logits, labels = read_parts(folder / FILE, array, "test_labels")
        mapped = tsne(logits, labels, n=MAPPED)
        found[name] = {
            "points": rounded(mapped.points, 2),
            "labels": mapped.labels.tolist(),
            "entropy": rounded(mapped.entropy, 4),
            "angles": rounded(between_classes(angles_between(class_means(logits, labels))), 1),
            "bins": kept_bins(logits.softmax(1), labels),
            "classes": logits.shape[1],
        }
    return found


def draw_logits(numbers: dict[str, Any]) -> Drawing:
    pictures, entropies, spreads = [], [], []
    bins = {name: bins_of(kept["bins"]) for name, kept in numbers.items()}
    most = max(float(each.count.max()) for each in bins.values())
    for name, kept in numbers.items():
        k = kept["classes"]
        points, entropy = (torch.tensor(kept[key], dtype=torch.float64) for key in ("points", "entropy"))
        mapped = Embedding(points, torch.tensor(kept["labels"]), entropy, torch.arange(len(points)))
        angles = torch.zeros(k, k, dtype=torch.float64)
        first, second = torch.triu_indices(k, k, 1)
        angles[first, second] = torch.tensor(kept["angles"], dtype=torch.float64)
        pictures += [
            (f"Logits {name}, stronger where unsure", point_map(mapped, k)),
            (f"Angles between mean logits {name}", angle_matrix(angles + angles.T, [str(j) for j in range(k)])),
            (f"Reliability {name}: ECE {percent(ece.value(bins[name]))}", reliability(bins[name], most)),
        ]
        entropies.append(percent(float(entropy.mean())))
        spreads.append(f"{float(between_classes(angles).std()):.1f}°")
    return Drawing(
        pictures,
        f"MaC-Cal takes the mean entropy, as a share of its maximum, from {' to '.join(entropies)}. The angles between "
        f"classes vary by {' before and '.join(spreads)} after (standard deviation; all would be "
        f"{simplex_angle(k):.1f}° at best).",
        columns=3,
    )


LOGITS = Figure(measure_logits, draw_logits, (FILE,))


# --------------------------------------------------------------------------------- figure 1: weights masked at random


def masked_lines(folder: Path = Path()) -> list[dict[str, Any]]:
    """What the first training of cross-entropy measured that has it: ratio, accuracy and confidence of each mask."""
    found = [
        line["masked"] for data in trained.ALL for line in trained.lines("cross-entropy", data=data) if "masked" in line
    ]
    return found[0] if found else []


def draw_masked(numbers: list[dict[str, Any]]) -> Drawing:
    lines = [
        Line(name, [(100 * each["ratio"], each[name]) for each in numbers], i)
        for i, name in enumerate(("accuracy", "confidence"))
    ]
    drawn = line_chart(lines, y_title="Accuracy and confidence", x_title="weights masked, %", percent=True, dots=True)
    half = min(numbers, key=lambda each: abs(each["ratio"] - 0.5))
    return Drawing(
        [("The network with weights of its classifier masked", drawn)],
        f"With half of the weights masked, confidence falls from {percent(numbers[0]['confidence'])} to "
        f"{percent(half['confidence'])} and accuracy from {percent(numbers[0]['accuracy'])} to "
        f"{percent(half['accuracy'])}.",
        lines,
    )


MASKED = Figure(masked_lines, draw_masked)


# -------------------------------------------------------------------------------------------------- figure 7: ECE by γ

READINGS = {
    "two layers, as a sparsity": "mac-cal:preset=paper:q_means=sparsity",
    "one layer, as a sparsity": "mac-cal:preset=paper:width=none",
    "two layers, as a retention (eq. 12)": "mac-cal:preset=paper:q_means=retention",
    "measured and used with the last mask": "mac-cal:preset=paper:mask_every=epoch:measure=last_mask:deploy=last_mask",
}


def measure_gamma(folder: Path) -> dict[str, dict[str, float]]:
    """The mean over two networks of test ECE for each reading and γ."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in READINGS}
    for line in read(RESULTS / "heads.jsonl"):
        for name, method in READINGS.items():
            start, _, gamma = line["method"].rpartition(":acc_discount=")
            if start == method and gamma != "auto" and line.get("seed") == 0:
                found[name][gamma].append(line["ece"])
    return {name: {gamma: fmean(errors) for gamma, errors in sorted(each.items())} for name, each in found.items()}


def draw_gamma(numbers: dict[str, dict[str, float]]) -> Drawing:
    lines = [
        Line(name, [(float(gamma), error) for gamma, error in each.items()], i)
        for i, (name, each) in enumerate(numbers.items())
    ]
    ticks = [float(gamma) for gamma in next(iter(numbers.values()))]
    drawn = line_chart(lines, y_title="ECE", x_title="γ", percent=True, from_zero=True, x_ticks=ticks, dots=True)
    errors = next(iter(numbers.values())).values()
    return Drawing(
        [("ECE by γ, two ResNet-18 on CIFAR-100", drawn)],
        "In the paper, γ matters little. Here, with the first of these readings, ECE is between "
        f"{percent(min(errors))} and {percent(max(errors))} for γ from {min(ticks):g} to {max(ticks):g}.",
        lines,
    )


GAMMA = Figure(measure_gamma, draw_gamma)


# ---------------------------------------------------------------------------------------- figure 8: keep rate by epoch


def measure_rates(folder: Path) -> dict[str, list[float]]:
    """The keep rate after each epoch, for the first training of some methods on CIFAR-100."""
    methods = ("cross-entropy", "label-smoothing", "mbls", "acls", "focal", "mixup")
    found = {method: trained.lines(method, "mac-cal:preset=paper") for method in methods}
    return {method: lines[0]["keep_rates"] for method, lines in found.items() if lines}


def draw_rates(numbers: dict[str, list[float]]) -> Drawing:
    lines = [Line(method, list(enumerate(rates, 1)), i) for i, (method, rates) in enumerate(numbers.items())]
    drawn = line_chart(lines, y_title="keep rate", x_title="epoch", percent=True)
    ends = ", ".join(f"{method} {rates[-1]:.2f}" for method, rates in numbers.items())
    return Drawing(
        [("Share of weights that are kept, by epoch of the retraining", drawn)],
        f"In the paper, the keep rate moves quickly at first and then settles. Here it ends at: {ends}.",
        lines,
    )


RATES = Figure(measure_rates, draw_rates)
