"""Figures of a training, of a head, and of a network under corruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from temperance.diagnose.shift import MEAN, MEASURED, Shift
from temperance.errors import InputError, one_of
from temperance.metrics import METRICS
from temperance.report.figures.gradients import COLOURS
from temperance.report.figures.predictions import GUIDE, OVER, UNDER, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from temperance.heads.masked import MaskedInference

History = Sequence[Mapping[str, Any]]


def draw_training(history: History) -> Figure:
    """Loss, accuracy, calibration error and learning rate of a training, epoch by epoch: a run's `history`."""
    if not history:
        raise InputError("there is nothing to draw: the history has no epochs")
    figure = new_figure(9.6, 6.0)
    axes = figure.subplots(2, 2, sharex=True)
    panels = (
        ("loss", {"loss": "training", "val_loss": "held out"}, 1.0),
        ("accuracy, %", {"accuracy": "training", "val_accuracy": "held out"}, 100.0),
        ("calibration error, %", {"val_ece": "held out"}, 100.0),
        ("learning rate", {"lr": ""}, 1.0),
    )
    for ax, (title, columns, scale) in zip(axes.flat, panels, strict=True):
        for column, name in columns.items():
            _epochs(ax, history, column, scale, UNDER if name == "training" else OVER if name else GUIDE, name)
        ax.set_ylabel(title)
        plain(ax)
    axes[0, 0].legend(fontsize="small", frameon=False)
    for ax in axes[1]:
        ax.set_xlabel("epoch")
        ax.set_ylim(bottom=0)
    return figure


def draw_keep_rate(histories: Mapping[str, History] | History, ax: Axes | None = None) -> Axes:
    """The keep rate of a masked head over its epochs (MaC-Cal Figure 8): a head's `history`, or several by name."""
    named = histories if isinstance(histories, Mapping) else {"": histories}
    ax = ax or new_figure(4.8, 3.4).add_subplot()
    for i, (name, history) in enumerate(named.items()):
        if not history or "keep_rate" not in history[0]:
            raise InputError("only a masked head, such as mac-cal, has a keep rate in its history")
        _epochs(ax, history, "keep_rate", 1.0, COLOURS[i % len(COLOURS)], name)
    ax.set(xlabel="epoch", ylabel="keep rate", ylim=(0, 1))
    plain(ax)
    if len(named) > 1:
        ax.legend(fontsize="small", frameon=False)
    return ax


def draw_masked_inference(found: Sequence[MaskedInference], ax: Axes | None = None) -> Axes:
    """Accuracy and mean confidence of a classifier with weights masked at random (MaC-Cal Figure 1).

    `found` is what `masked_inference(features)` gives.
    """
    ax = ax or new_figure(4.8, 3.4).add_subplot()
    ratios = [each.ratio for each in found]
    ax.plot(ratios, [each.accuracy for each in found], color=UNDER, marker="o", markersize=3, label="accuracy")
    ax.plot(ratios, [each.confidence for each in found], color=OVER, marker="o", markersize=3, label="mean confidence")
    ax.set(xlabel="share of weights masked", ylim=(0, 1))
    ax.legend(fontsize="small", frameon=False)
    plain(ax)
    return ax


def draw_shift(found: Shift, metric: str = "ece", ax: Axes | None = None) -> Axes:
    """A metric against severity: the mean over corruptions and, shaded, the range over them (MaC-Cal Figure 5)."""
    one_of("metric", metric, MEASURED)
    ax = ax or new_figure(4.8, 3.4).add_subplot()
    scale = 100.0 if METRICS[metric].percent else 1.0
    x = [0, *found.severities]
    for method, color in zip(found.methods, (UNDER, OVER), strict=False):
        clean = found.value(metric, method=method)
        spans = [found.values(metric, severity, method) for severity in found.severities]
        mean = [clean, *(found.value(metric, MEAN, severity, method) for severity in found.severities)]
        low, high = ([scale * clean, *(scale * pick(span) for span in spans)] for pick in (min, max))
        ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        ax.plot(x, [scale * value for value in mean], color=color, marker="o", markersize=3, label=method)
    title = METRICS[metric].title + (", %" if METRICS[metric].percent else "")
    ax.set(xlabel="severity", ylabel=title, xticks=x)
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small", frameon=False)
    plain(ax)
    return ax


def plain(ax: Axes) -> None:
    """No box around the plot, faint lines across."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color=GUIDE, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def _epochs(ax: Axes, history: History, column: str, scale: float, color: str, name: str) -> None:
    known = [(row["epoch"], scale * row[column]) for row in history if row.get(column) is not None]
    if known:
        x, y = zip(*known, strict=True)
        ax.plot(x, y, color=color, label=name or None, marker="o" if len(known) < 3 else None, markersize=3)
