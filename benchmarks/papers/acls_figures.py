"""Figure 3 of ACLS: how large its penalty is for the samples that a network was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.papers.figures import file_of, read_parts
from benchmarks.papers.outputs import Drawing, Figure
from temperance.losses import ACLS, CrossEntropy
from temperance.markup import Markup
from temperance.report.formats import percent
from temperance.report.svg.drawing import LEFT, RIGHT, Plot, Scale, number_text, picture
from temperance.report.svg.lines import BOTTOM, y_scale, y_ticks

NETWORKS = {"ACLS": "acls", "cross-entropy": "cross-entropy"}
MOST, N_BINS = 0.1, 20  # as in the paper: clipped there, and the number of bins


def measure(folder: Path) -> dict[str, Any]:
    """The share of samples in each bin of the penalty with the margin, and of those without any."""
    penalised, plain = ACLS(margin=10.0, reduction="none"), CrossEntropy(reduction="none")
    found = {}
    for name, method in NETWORKS.items():
        logits, labels = read_parts(folder / file_of(method), "train_logits", "train_labels")
        penalty = penalised(logits, labels) - plain(logits, labels)
        counts = torch.histc(penalty.clamp(0, MOST), N_BINS, 0, MOST)
        # No more than rounding leaves of the difference.
        none = float((penalty.abs() < 1e-9).double().mean())
        found[name] = {"shares": (counts / len(penalty)).tolist(), "none": round(none, 5)}
    return found


def draw(numbers: dict[str, Any]) -> Drawing:
    pictures = [
        (f"Penalty in the network of {name}: none for {percent(kept['none'], 0)}", _histogram(kept["shares"]))
        for name, kept in numbers.items()
    ]
    texts = ", ".join(f"{percent(kept['none'], 1)} in that of {name}" for name, kept in numbers.items())
    return Drawing(
        pictures,
        f"In the paper, 5 % of the samples have no penalty in a network trained with ACLS. Here: {texts}.",
    )


def _histogram(shares: list[float]) -> Markup:
    edges = [MOST * i / len(shares) for i in range(len(shares) + 1)]
    y = y_scale(0, max(shares), from_zero=True)
    plot = Plot(Scale(0, MOST, LEFT, RIGHT), y)
    return picture(
        BOTTOM + 42,
        "Histogram of the penalty of training samples.",
        plot.y_axis(y_ticks(y)),
        plot.bars(edges, shares),
        plot.x_axis([0, 0.02, 0.04, 0.06, 0.08, MOST], f"penalty, {MOST:g} or more in the last bar", number_text),
    )


PENALTIES = Figure(measure, draw, tuple(file_of(method) for method in NETWORKS.values()))
