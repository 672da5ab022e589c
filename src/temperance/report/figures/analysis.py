"""Figures of an analysis: a post-hoc training, angles between classes, a map of logits, scores on unfamiliar data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from temperance.diagnose.analysis import Embedding, simplex_angle
from temperance.diagnose.traces import Trace, pearson
from temperance.errors import InputError, one_of
from temperance.jobs.ood import OODComparison
from temperance.metrics.bins import Bins
from temperance.metrics.statistic import Statistic
from temperance.report.figures.gradients import COLOURS
from temperance.report.figures.predictions import GUIDE, OVER, PLAIN, UNDER, draw_confidence_histogram, new_figure
from temperance.report.figures.training import plain
from temperance.report.pages.analysis import between_classes, hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_traces(traces: Sequence[Trace]) -> Figure:
    """Total loss, spread of the class losses and calibration error of post-hoc trainings (SCTL Figure 4)."""
    figure = new_figure(11.4, 3.6)
    columns = (
        ("total", "total loss (NLL)", 1.0),
        ("spread", "spread of the class losses", 1.0),
        ("ece", "ECE, %", 100.0),
    )
    axes = figure.subplots(1, 3)
    for ax, (column, title, scale) in zip(axes, columns, strict=True):
        for i, trace in enumerate(traces):
            values = (scale * getattr(trace, column)).tolist()
            ax.plot(trace.steps.tolist(), values, color=COLOURS[i % len(COLOURS)], label=trace.objective)
        ax.set(xlabel="step", ylabel=title)
        plain(ax)
    axes[0].legend(fontsize="small", frameon=False)
    return figure


def draw_correlation(traces: Sequence[Trace], column: str = "spread", ax: Axes | None = None) -> Axes:
    """Calibration error against the "total" loss or the "spread" of class losses, with Pearson's r (SCTL Figure 1)."""
    one_of("column", column, ("total", "spread"))
    ax = ax or new_figure(4.8, 3.8).add_subplot()
    for i, trace in enumerate(traces):
        x, y = getattr(trace, column).tolist(), (100 * trace.ece).tolist()
        label = f"{trace.objective} (r = {trace.correlation(column):.2f})"
        ax.scatter(x, y, s=9, color=COLOURS[i % len(COLOURS)], alpha=0.6, linewidths=0, label=label)
    r = pearson(torch.cat([getattr(t, column) for t in traces]), torch.cat([t.ece for t in traces]))
    ax.set_title(f"all together: r = {r:.2f}", fontsize="medium", loc="left")
    ax.set(xlabel="total loss (NLL)" if column == "total" else "spread of the class losses", ylabel="ECE, %")
    ax.legend(fontsize="small", frameon=False)
    plain(ax)
    return ax


def draw_class_losses(trace: Trace, ax: Axes | None = None) -> Axes:
    """The loss of every class, step by step; those that were trained on stand out (SCTL Figure 3b)."""
    ax = ax or new_figure(4.8, 3.8).add_subplot()
    some = len(trace.trained) < len(trace.classes)
    for column, j in enumerate(trace.classes):
        mine = some and j in trace.trained
        values = trace.class_losses[:, column].tolist()
        ax.plot(
            trace.steps.tolist(),
            values,
            color=OVER if mine else UNDER,
            alpha=1.0 if mine else 0.45,
            linewidth=1.8 if mine else 1.0,
            zorder=3 if mine else 2,
        )
    ax.set(xlabel="step", ylabel="loss of each class (NLL)")
    plain(ax)
    return ax


def draw_angles(angles: Tensor, names: Sequence[str] | None = None) -> Figure:
    """The angles between class prototypes as a matrix and as a histogram (MaC-Cal Figure 2): `angles_between(...)`.

    In the matrix, light is near the mean angle. The dashed line is where classes as far apart as can be would meet.
    """
    if angles.ndim != 2 or angles.shape[0] != angles.shape[1]:
        raise InputError(f"angles must be (k, k), as angles_between gives; got {tuple(angles.shape)}")
    k, pairs = len(angles), between_classes(angles)
    figure = new_figure(9.2, 4.2)
    matrix, histogram = figure.subplots(1, 2)
    off = (angles - pairs.mean()).abs().fill_diagonal_(0)
    drawn = matrix.imshow(off.numpy(), cmap="Blues", vmin=0)
    figure.colorbar(drawn, ax=matrix, label="degrees from the mean angle", shrink=0.85)
    if names is not None and k <= 20:
        matrix.set_xticks(range(k), names, rotation=90)
        matrix.set_yticks(range(k), names)
    else:
        matrix.set(xlabel="class", ylabel="class")
    histogram.hist(pairs.numpy(), bins=min(40, 2 * math.ceil(math.sqrt(len(pairs)))), color=PLAIN)
    histogram.axvline(simplex_angle(k), color=GUIDE, linestyle="--")
    histogram.set(xlabel="angle, degrees", ylabel="pairs of classes")
    plain(histogram)
    return figure


def draw_map(found: Embedding, names: Sequence[str], ax: Axes | None = None) -> Axes:
    """A map of logits, coloured by label, stronger the less sure (MaC-Cal Figure 2): what `tsne(...)` gives."""
    ax = ax or new_figure(5.0, 5.0).add_subplot()
    order = found.entropy.argsort()
    strength = (255 * (0.12 + 0.88 * found.entropy[order].sqrt())).round().int().tolist()
    labels = found.labels[order].tolist()
    colours = [f"{hue(j, len(names))}{opacity:02x}" for j, opacity in zip(labels, strength, strict=True)]
    x, y = found.points[order].T.tolist()
    ax.scatter(x, y, s=12, c=colours, linewidths=0)
    if len(names) <= 10:
        for j, name in enumerate(names):
            ax.scatter([], [], s=20, color=hue(j, len(names)), label=name.replace("$", r"\$"))
        ax.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    ax.set_axis_off()
    ax.set_aspect("equal")
    return ax


def draw_confidence_histograms(sets: Mapping[str, Statistic]) -> Figure:
    """Confidence histograms side by side, on one scale: `ece.stats(probs, labels)` of several sets, by name."""
    if not sets:
        raise InputError("there is nothing to draw: give at least one set by name")
    figure = new_figure(4.2 * len(sets), 3.4)
    axes = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for ax, (name, bins) in zip(axes, sets.items(), strict=True):
        draw_confidence_histogram(bins, ax)
        ax.set_title(name, fontsize="medium", loc="left")
        if ax is not axes[0]:
            ax.set_ylabel("")
    highest = max(float((b.count / b.n).max()) for b in sets.values() if isinstance(b, Bins))
    axes[0].set_ylim(0, 1.05 * highest)
    return figure


def draw_scores(found: OODComparison) -> Figure:
    """Histograms of every confidence score on the model's own data and on unfamiliar data."""
    figure = new_figure(4.2 * len(found.histograms), 3.4)
    axes = figure.subplots(1, len(found.histograms), squeeze=False)[0]
    for ax, histogram in zip(axes, found.histograms, strict=True):
        edges = histogram.edges.tolist()
        inside = found.provenance.settings["inside"]
        ax.stairs(histogram.inside.tolist(), edges, fill=True, color=PLAIN, label=inside)
        for i, (name, shares) in enumerate(histogram.outside.items()):
            ax.stairs(shares.tolist(), edges, color=COLOURS[i % len(COLOURS)], label=name, linewidth=1.4)
        ax.axvline(histogram.limit, color=GUIDE, linestyle="--", linewidth=1)
        area = found.row("auroc", method=histogram.score).value
        ax.set_title(f"{histogram.score}: AUROC {100 * area:.2f} %", fontsize="medium", loc="left")
        # Scores of a sure model heap up at one end; roots leave the rest to be seen.
        ax.set_yscale("function", functions=(lambda share: np.sqrt(np.maximum(share, 0)), np.square))
        ax.set(xlabel=histogram.score)
        plain(ax)
    axes[0].set_ylabel("share of samples")
    axes[0].legend(fontsize="small", frameon=False)
    return figure
