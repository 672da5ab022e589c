"""Matplotlib figures for papers and notebooks: each function draws one statistic and returns the Axes it drew on.

    bins = ece.stats(probs, labels)
    draw_reliability(bins).figure.savefig("reliability.png")

Without `ax` a new figure is made; it belongs to no window and needs no closing. Matplotlib's settings stay as they are.
Matplotlib comes with the extra `report` and is imported when the first figure is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from temperance.errors import InputError, amount, optional
from temperance.jobs.results import shown
from temperance.metrics.binned import ece
from temperance.metrics.bins import Bins, SparseBins
from temperance.metrics.selective import RiskCoverage
from temperance.metrics.statistic import Statistic
from temperance.report.numbers import GAP_WIDTH, Bar, bars, highest_risk, thinned, worst_classes
from temperance.settings import Count, of_kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN, GUIDE = "#b0b9c5", "#7d838c"
OVER, UNDER = "#c8452f", "#2a6fbb"
LONGEST = 24  # characters of a class name
PALE_OVER, PALE_UNDER = "#ebbcb3", "#b3cde8"  # of a gap that could be chance


def draw_reliability(bins: Statistic, ax: Axes | None = None) -> Axes:
    """The reliability diagram: the accuracy in each confidence bin, and its gap to the mean confidence.

    Grey bars are accuracy. A narrower bar spans the gap: red up to a mean confidence above it (over-confident), blue
    down to one below it (under-confident), pale where the 95 % interval of the accuracy contains the mean confidence,
    so that the gap could be chance. The interval is exact (Clopper and Pearson, 1934); with weights there is none. The
    strip below counts the samples on a square-root scale.

    `bins` is `ece.stats(probs, labels)` or an evaluation's `reliability`.
    """
    found = _bins(bins, 1, "ece.stats(probs, labels)")
    ax = ax or new_figure(4.8, 5.6).add_subplot()
    shares = bars(found)
    ax.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle="--", label="calibrated")
    _spans(ax, shares, [0.0] * len(shares), [bar.accuracy for bar in shares], PLAIN, "accuracy")
    certain, chance = ([bar for bar in shares if bar.chance == is_chance] for is_chance in (False, True))
    _gaps(ax, [bar for bar in certain if bar.over], OVER, "over-confident")
    _gaps(ax, [bar for bar in certain if not bar.over], UNDER, "under-confident")
    _gaps(ax, chance, [PALE_OVER if bar.over else PALE_UNDER for bar in chance], "pale: could be chance")
    above = [bar.high - bar.accuracy for bar in shares]
    ax.errorbar(
        [bar.confidence for bar in shares],
        [bar.accuracy for bar in shares],
        yerr=None if found.is_weighted else [[bar.accuracy - bar.low for bar in shares], above],
        fmt="o",
        markersize=3,
        elinewidth=1,
        color=ax.yaxis.label.get_color(),
        clip_on=False,
        label="weighted accuracy" if found.is_weighted else "95 % interval (Clopper–Pearson)",
    )
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    ax.set_title(_summary(found), fontsize="medium", loc="left")
    ax.set_aspect("equal")
    crowded = any(bar.left < 0.4 and bar.accuracy > 0.65 for bar in shares)
    where: Literal["lower right", "upper left"] = "lower right" if crowded else "upper left"
    ax.legend(loc=where, fontsize="small", framealpha=0.85, edgecolor="none")
    _count_strip(ax, shares)
    return ax


def draw_reliability_pair(before: Statistic, after: Statistic, axes: Sequence[Axes] | None = None) -> tuple[Axes, Axes]:
    """Two reliability diagrams side by side: before and after calibration."""
    first, second = axes or new_figure(9.4, 5.8).subplots(1, 2)
    for bins, ax, name in ((before, first, "before"), (after, second, "after")):
        draw_reliability(bins, ax)
        ax.set_title(f"{name}\n{ax.get_title(loc='left')}", fontsize="medium", loc="left")
    second.set_ylabel("")
    return first, second


def draw_confidence_histogram(bins: Statistic, ax: Axes | None = None) -> Axes:
    """How sure the model is: the share of samples in each confidence bin, with mean confidence and accuracy marked.

    Shares are on a square-root scale, so that the small ones of a sure model can be read.

    `bins` is `ece.stats(probs, labels)` or an evaluation's `reliability`.
    """
    found = _bins(bins, 1, "ece.stats(probs, labels)")
    ax = ax or new_figure(4.8, 3.4).add_subplot()
    shares = bars(found)
    n = float(found.n)
    _spans(ax, shares, [0.0] * len(shares), [bar.count / n for bar in shares], PLAIN, None)
    confidence, accuracy = float(found.confidence.sum()) / n, float(found.hits.sum()) / n
    ax.axvline(confidence, color=OVER if confidence > accuracy else UNDER, linestyle="--", label="mean confidence")
    ax.axvline(accuracy, color=ax.yaxis.label.get_color(), label="accuracy")
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of samples (square-root scale)")
    _square_roots(ax, max(bar.count for bar in shares) / n)
    ax.legend(fontsize="small", framealpha=0.85, edgecolor="none")
    return ax


def draw_classwise(
    bins: Statistic, ax: Axes | None = None, *, names: Sequence[str] | None = None, most: int = 15
) -> Axes:
    """The classes with the largest calibration error, and how much of it is over- and how much under-confidence.

    `bins` is `classwise_ece.stats(probs, labels)` or an evaluation's `classwise`; `names` are the class names.
    """
    found = _bins(bins, 2, "classwise_ece.stats(probs, labels)")
    of_kind("most", most, Count)
    worst = worst_classes(found, names, most)
    ax = ax or new_figure(4.8, 1.2 + 0.24 * len(worst)).add_subplot()
    rows = range(len(worst))
    over = [100 * entry.over for entry in worst]
    ax.barh(rows, over, height=0.7, color=OVER, label="over-confident")
    ax.barh(rows, [100 * entry.under for entry in worst], height=0.7, left=over, color=UNDER, label="under-confident")
    # A dollar sign in a name would start a formula.
    ax.set_yticks(rows, [_short(entry.name).replace("$", r"\$") for entry in worst])
    ax.set_ylim(len(worst) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("calibration error, %")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small", frameon=False, borderaxespad=0.2)
    return ax


def draw_risk_coverage(curve: RiskCoverage, ax: Axes | None = None) -> Axes:
    """The error that remains at every coverage, if the model may reject its least confident predictions.

    `curve` is `risk_coverage_curve(probs, labels)` or an evaluation's `risk_coverage`.
    """
    if not isinstance(curve, RiskCoverage):
        raise InputError(f"expected a RiskCoverage, as risk_coverage_curve(...) gives; got {type(curve).__name__}")
    ax = ax or new_figure(4.8, 3.4).add_subplot()
    points = thinned(curve)
    everything = float(curve.risk[-1])
    ax.axhline(everything, color=GUIDE, linewidth=1, linestyle="--")
    note = f"answering everything: {everything:.3g}"
    ax.annotate(note, (0, everything), (4, 3), textcoords="offset points", fontsize="small")
    ax.plot(points.coverage.tolist(), points.risk.tolist(), color=UNDER)
    ax.set(xlim=(0, 1), ylim=(0, highest_risk(curve)), xlabel="coverage (share answered)", ylabel="risk (mean loss)")
    return ax


# --------------------------------------------------------------------------------------------------------------- parts


def new_figure(width: float, height: float) -> Figure:
    with optional("matplotlib", "report", "drawing"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def _bins(found: object, dimensions: int, source: str) -> Bins:
    if isinstance(found, SparseBins):
        found = found.dense()
    if not isinstance(found, Bins) or found.count.ndim != dimensions:
        got = f"Bins of shape {tuple(found.count.shape)}" if isinstance(found, Bins) else type(found).__name__
        raise InputError(f"expected Bins with {dimensions} dimension(s), as {source} gives; got {got}")
    return found


def _spans(
    ax: Axes,
    shares: list[Bar],
    low: list[float],
    high: list[float],
    color: str | list[str],
    label: str | None,
    width: float = 1.0,
) -> None:
    """A bar for each bin, from low to high; `width` is the share of the bin that it takes, in the middle."""
    heights = [top - bottom for bottom, top in zip(low, high, strict=True)]
    widths = [width * (bar.right - bar.left) for bar in shares]
    middle = [(bar.left + bar.right) / 2 for bar in shares]
    ax.bar(middle, heights, widths, low, color=color, edgecolor=ax.get_facecolor(), linewidth=0.6, label=label)


def _gaps(ax: Axes, shares: list[Bar], color: str | list[str], label: str) -> None:
    """The part between accuracy and mean confidence."""
    if not shares:
        return
    accuracy, confidence = [bar.accuracy for bar in shares], [bar.confidence for bar in shares]
    low, high = list(map(min, accuracy, confidence)), list(map(max, accuracy, confidence))
    _spans(ax, shares, low, high, color, label, GAP_WIDTH)


def _count_strip(ax: Axes, shares: list[Bar]) -> None:
    """A histogram of the samples below the diagram, on the same confidence axis."""
    strip = ax.inset_axes((0, -0.2, 1, 0.16), sharex=ax)
    _spans(strip, shares, [0.0] * len(shares), [float(bar.count) for bar in shares], PLAIN, None)
    strip.set(xlim=(0, 1), xlabel="confidence", ylabel="samples\n(√ scale)")
    most = max(bar.count for bar in shares)
    _square_roots(strip, most)
    strip.set_yticks([0, most], ["0", amount(most)])
    ax.tick_params(labelbottom=False)


def _square_roots(ax: Axes, highest: float) -> None:
    """A y axis of square roots, from 0."""
    ax.set_yscale("function", functions=(lambda share: np.sqrt(np.maximum(share, 0)), np.square))
    ax.set_ylim(0, 1.05 * highest)


def _summary(bins: Bins) -> str:
    n = float(bins.n)
    accuracy, confidence = float(bins.hits.sum()) / n, float(bins.confidence.sum()) / n
    parts = {"ECE": ece.value(bins), "accuracy": accuracy, "confidence": confidence}
    return " · ".join(f"{name} {shown(value, percent=True)}" for name, value in parts.items())


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
