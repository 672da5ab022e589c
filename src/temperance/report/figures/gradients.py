"""Figures of what losses do to predictions; the numbers come from `temperance.losses.gradients`."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temperance.errors import InputError, one_of
from temperance.files import PathLike, atomic_write
from temperance.losses import AU, Loss
from temperance.losses.gradients import (
    Curve,
    Distribution,
    Sweep,
    against_probability,
    smoothed_distribution,
    sweep,
)
from temperance.report.figures.predictions import GUIDE, new_figure
from temperance.report.markup import join, tag
from temperance.report.page import definitions, page, prose, section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

# Told apart also by those who do not see colours as most do, and by the dashes in black and white.
COLOURS = ("#2a6fbb", "#c8452f", "#2e8b57", "#8e5bb5", "#d18f00", "#1b9aaa", "#7a4b2a", "#d1478f", "#5d6672")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))

FIGURES = ("smoothing", "weights", "cdf")
AGAINST = ("logit", "probability")
FORMATS = (".png", ".svg", ".html")

# Slopes grow without bound at probability 0; what matters is where they are small or change their sign.
LOWEST_SLOPE = -6.0


def draw_losses(
    losses: Mapping[str, Loss], figure: str = "smoothing", *, against: str = "logit", k: int = 10
) -> Figure:
    """Draw named losses: how they smooth labels ("smoothing"), weigh samples ("weights") or smooth ranks ("cdf").

    against, k  what smoothing is drawn over, and for how many classes
    """
    one_of("figure", figure, FIGURES)
    if figure == "smoothing":
        found = {name: (sweep(loss, "top", k=k), sweep(loss, "other", k=k)) for name, loss in losses.items()}
        return draw_smoothing(found, against=against)
    if figure == "weights":
        return draw_weights({name: against_probability(loss) for name, loss in losses.items()})
    widths = [loss.cdf_bandwidth for loss in losses.values() if isinstance(loss, AU)]
    if len(widths) < len(losses):
        raise InputError("the figure cdf is of the au loss: name it with bandwidths, as in au:cdf_bandwidth=0.1")
    return draw_distribution(smoothed_distribution(widths))


def draw_smoothing(sweeps: Mapping[str, tuple[Sweep, Sweep]], *, against: str = "logit") -> Figure:
    """How losses smooth labels: by how much f the predicted class's label is lowered and another class's is raised.

    A line is f where the condition C holds; where it does not, f is drawn thin, as far as it is known. The bars below
    show where C holds. A loss much stronger than the others may leave the frame. `sweeps` are a loss's name and its
    `sweep(loss, "top")` and `sweep(loss, "other")`.
    """
    one_of("against", against, AGAINST)
    figure = new_figure(9.6, 4.4 + 0.14 * len(sweeps))
    heights = [1, 0.03 + 0.032 * len(sweeps)]
    axes = figure.subplots(2, 2, sharex="col", height_ratios=heights, squeeze=False)
    titles = ("the predicted class: its label is lowered by f", "another class: its label is raised by f")
    for column, title in enumerate(titles):
        above, below = axes[0, column], axes[1, column]
        for i, (name, pair) in enumerate(sweeps.items()):
            _sweep(above, below, pair[column], i, name, against)
        above.axhline(0, color=GUIDE, linewidth=0.8, zorder=0)
        above.set_ylim(*_limits([pair[column].f[pair[column].C] for pair in sweeps.values()]))
        above.set_title(title, fontsize="medium", loc="left")
        _plain(above)
        _strip(below, len(sweeps))
        below.set_xlabel(_x_label(column, against))
    axes[0, 0].set_ylabel("f")
    axes[1, 0].set_ylabel("C", rotation=0, ha="right", va="center")
    _legend(figure, axes[0, 0])
    return figure


def draw_weights(curves: Mapping[str, Curve]) -> Figure:
    """How losses weigh samples by the probability of their label: weight, loss and slope.

    Weights are relative to cross-entropy and scaled to a mean of 1. A positive slope, which pushes the label's
    probability down, is shaded. `curves` are a loss's name and its `against_probability(loss)`.
    """
    figure = new_figure(11.4, 4.2)
    weights, losses, slopes = figure.subplots(1, 3)
    for i, (name, curve) in enumerate(curves.items()):
        x, style = curve.prob.tolist(), _style(i)
        weights.plot(x, curve.weight.tolist(), label=name, **style)
        losses.plot(x, curve.loss.tolist(), **style)
        slopes.plot(x, curve.slope.tolist(), **style)
    high = max(float(curve.weight.quantile(0.97)) for curve in curves.values())
    weights.set(ylim=(0, 1.1 * high), ylabel="weight, its mean scaled to 1")
    losses.set(ylim=(0, 5), ylabel="loss with that weight")
    top = max(1.0, *(1.2 * float(curve.slope.amax()) for curve in curves.values()))
    slopes.axhline(0, color=GUIDE, linewidth=0.8, zorder=0)
    if any(bool((curve.slope > 0).any()) for curve in curves.values()):
        slopes.axhspan(0, top, color=COLOURS[1], alpha=0.08, linewidth=0, zorder=0)
        slopes.text(
            0.99, 0.985 * top, "pushes the label down", ha="right", va="top", fontsize="small", color=COLOURS[1]
        )
    slopes.set(ylim=(LOWEST_SLOPE, top), ylabel="slope of that loss in the probability")
    for ax in (weights, losses, slopes):
        ax.set(xlim=(0, 1), xlabel="probability of the label")
        _plain(ax)
    _legend(figure, weights)
    return figure


def draw_distribution(found: Distribution) -> Figure:
    """What the bandwidth of the AU loss does to the distribution of confidences: smoothed beside exact."""
    figure = new_figure(5.6, 4.2)
    ax = figure.add_subplot()
    x = found.at.tolist()
    ax.plot(x, found.exact.tolist(), color=ax.yaxis.label.get_color(), linewidth=2.4, alpha=0.35, label="exact")
    for i, (bandwidth, smooth) in enumerate(found.smooth.items()):
        ax.plot(x, smooth.tolist(), label=f"bandwidth {bandwidth:g}", **_style(i))
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of samples up to there")
    ax.legend(loc="upper left", fontsize="small", frameon=False)
    _plain(ax)
    return figure


def write_figure(
    figure: Figure, path: PathLike, *, title: str, reading: str = "", about: Sequence[tuple[str, str]] = ()
) -> None:
    """Save a figure as .png, .svg or a self-contained .html page.

    title, reading, about  on the page: how to read the figure, and names with what they are
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"a figure is written as {', '.join(FORMATS)}; got {Path(path).name!r}")
    with atomic_write(path) as temporary:
        if suffix == ".html":
            temporary.write_text(_html(figure, title, reading, about), encoding="utf-8")
        else:
            temporary.write_bytes(_drawn(figure, suffix[1:]))


# --------------------------------------------------------------------------------------------------------------- parts


def _sweep(above: Axes, below: Axes, found: Sweep, i: int, name: str, against: str) -> None:
    x = (found.logit if against == "logit" else found.prob).tolist()
    style = _style(i)
    here = found.f.masked_fill(~found.C, float("nan")).tolist()
    above.plot(x, here, label=name, **style)
    elsewhere = found.f.masked_fill(found.C | (found.f < 0), float("nan")).tolist()
    above.plot(x, elsewhere, color=style["color"], linewidth=0.7, alpha=0.7)
    holds = [-i + 0.32 if c else float("nan") for c in found.C.tolist()]
    below.fill_between(x, [-i - 0.32] * len(x), holds, color=style["color"], linewidth=0)


def _limits(values: Sequence[Tensor]) -> tuple[float, float]:
    """Where the y axis ends: beyond every curve, but for one that would leave the others no room."""
    ends = []
    for sign in (-1, 1):
        reach = sorted((float((sign * f).amax()) for f in values if len(f)), reverse=True)
        farthest = max(reach[0], 0.0) if reach else 0.0
        if len(reach) > 1 and farthest > 2.5 * reach[1] > 0:
            farthest = 1.6 * reach[1]
        ends.append(sign * farthest)
    low, high = ends if ends[0] < ends[1] else (0.0, 1.0)
    room = 0.06 * (high - low)
    return low - room, high + room


def _strip(ax: Axes, rows: int) -> None:
    """The panel of the conditions: a row for each loss, no numbers."""
    ax.set(ylim=(-rows + 0.3, 0.7), yticks=[])
    ax.spines[["top", "left", "right"]].set_visible(False)


def _x_label(column: int, against: str) -> str:
    if against == "probability":
        return "probability of the class"
    return "its logit, all others 0" if column == 0 else "its logit, the predicted class 12, the rest 0"


def _style(i: int) -> dict[str, Any]:
    colour = COLOURS[i % len(COLOURS)]
    return {"color": colour, "linestyle": DASHES[i % len(DASHES)], "linewidth": 1.8}


def _plain(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize="small")


def _legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    lines = math.ceil(len(labels) / 6)
    columns = math.ceil(len(labels) / lines)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, fontsize="small", frameon=False)


def _drawn(figure: Figure, kind: str) -> bytes:
    import matplotlib

    out = io.BytesIO()
    # Without a date and random names in it the same figure is the same file.
    with matplotlib.rc_context({"svg.hashsalt": "temperance"}):
        figure.savefig(out, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _html(figure: Figure, title: str, reading: str, about: Sequence[tuple[str, str]]) -> str:
    data = base64.b64encode(_drawn(figure, "svg")).decode()
    picture = tag("img", src=f"data:image/svg+xml;base64,{data}", alt=title, style="width:100%;background:#fff")
    parts = [tag("header", tag("h1", title)), tag("p", prose(reading)), tag("div", picture)]
    if about:
        parts.append(section("What is shown", definitions((name, prose(words)) for name, words in about)))
    return page(title, join(parts))
