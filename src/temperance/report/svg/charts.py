"""The pictures of predictions: reliability, confidence, classes, risk and coverage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from temperance.errors import plural
from temperance.markup import Markup, join, tag
from temperance.metrics.bins import Bins
from temperance.metrics.selective import RiskCoverage
from temperance.report.formats import PERCENT, digits_for, percent, percent_range, points
from temperance.report.numbers import GAP_WIDTH, Bar, bars, highest_risk, thinned
from temperance.report.svg.drawing import (
    FIFTHS,
    INNER,
    LEFT,
    RIGHT,
    LogScale,
    Plot,
    Point,
    RootScale,
    Scale,
    label,
    log_ticks,
    number_text,
    picture,
    root_ticks,
    round_ticks,
    ticks_between,
)
from temperance.report.words import OF_PREDICTIONS, Words

SMALLEST_SHARE = 1e-4  # of the largest class error; smaller errors are drawn at the left edge


def reliability(bins: Bins, most: float | None = None, *, words: Words = OF_PREDICTIONS) -> Markup:
    """Accuracy in each confidence bin, the gap to the mean confidence, and how many samples there are.

    most   top of the scale of samples, for pictures that are compared
    words  for probabilities of other events
    """
    found = bars(bins)
    top, strip, between = 24.0, 60.0, 42.0
    x = Scale(0, 1, LEFT, RIGHT)
    plot = Plot(x, Scale(0, 1, top + INNER, top))
    counts = RootScale(0, most or max(bar.count for bar in found), top + INNER + between + strip, top + INNER + between)
    samples = Plot(x, counts)
    ticks = root_ticks(counts, least=1)
    return picture(
        counts.start + 42,
        f"Reliability diagram with {len(found)} bins that are not empty; the table below has its numbers.",
        label(0, 12, words.happened),
        plot.y_axis(FIFTHS),
        join(_reliability_bar(plot, bar, words) for bar in found),
        plot.line([(0, 0), (1, 1)], "guide"),
        join(_interval(plot, bar) for bar in found),
        label(0, counts.end - 14, f"{words.rows} (square-root scale)"),
        samples.y_axis(ticks, _compact),
        join(tag("g", _hint(bar, words), samples.box(bar.left, bar.right, 0, bar.count, "bar")) for bar in found),
        samples.x_axis(FIFTHS, words.said),
    )


def _reliability_bar(plot: Plot, bar: Bar, words: Words) -> Markup:
    """A bar as high as the accuracy; a narrower one spans the gap from there to the mean confidence."""
    low, high = sorted((bar.accuracy, bar.confidence))
    gap = ("over" if bar.over else "under") + (" chance" if bar.chance else "")
    return tag(
        "g",
        _hint(bar, words),
        plot.box(bar.left, bar.right, 0, bar.accuracy, "bar"),
        plot.box(bar.left, bar.right, low, high, gap, width=GAP_WIDTH),
    )


def _interval(plot: Plot, bar: Bar) -> Markup:
    dot = plot.dot(bar.confidence, bar.accuracy, "dot")
    if math.isnan(bar.low):
        return dot
    return join([plot.line([(bar.confidence, bar.low), (bar.confidence, bar.high)], "whisker"), dot])


def _hint(bar: Bar, words: Words = OF_PREDICTIONS) -> Markup:
    """What the browser shows when a pointer rests on a bar."""
    within = "" if math.isnan(bar.low) else f" (95{PERCENT} interval {percent_range(bar.low, bar.high, 1)})"
    return tag(
        "title",
        f"{words.said} {percent_range(bar.left, bar.right, 1)}: {plural(bar.count, words.row)}, "
        f"says {percent(bar.confidence)}, {words.event} {percent(bar.accuracy)}{within}",
    )


def histogram(bins: Bins, highest: float | None = None) -> Markup:
    """The share of samples in each bin on a square-root scale, with accuracy and mean confidence marked.

    `highest` is the top of the scale of shares, for pictures that are compared.
    """
    found = bars(bins)
    n = float(bins.n)
    confidence, accuracy = float(bins.confidence.sum()) / n, float(bins.hits.sum()) / n
    shares = RootScale(0, highest or max(bar.count for bar in found) / n, 276, 60)
    plot = Plot(Scale(0, 1, LEFT, RIGHT), shares)
    ticks = root_ticks(shares)
    return picture(
        318,
        f"Histogram of confidence: mean confidence {percent(confidence)}, accuracy {percent(accuracy)}.",
        label(0, 12, "share of predictions (square-root scale)"),
        plot.y_axis(ticks),
        join(tag("g", _hint(bar), plot.box(bar.left, bar.right, 0, bar.count / n, "bar")) for bar in found),
        plot.x_axis(FIFTHS, "confidence"),
        _marks(plot, accuracy, confidence),
    )


def _marks(plot: Plot, accuracy: float, confidence: float) -> Markup:
    """Two vertical lines, each with its name on the side away from the other.

    Where the edge of the picture leaves no room for a name, it is on the inner side but higher, above the other line.
    """
    over = confidence > accuracy
    marks = [(accuracy, "accuracy", "mark"), (confidence, "mean confidence", f"mark {'over' if over else 'under'}")]
    parts = []
    for (value, name, class_), on_left in zip(marks, (over, not over), strict=True):
        turned = value < 0.3 if on_left else value > 0.7
        dx, anchor = (-5, "end") if on_left != turned else (5, "start")
        height = 32 if turned else 50
        x = plot.x(value)
        parts.append(tag("path", d=f"M{x:.1f},{plot.y.start:.1f}V{height - 10}", class_=class_))
        parts.append(label(x + dx, height, name, anchor=anchor))
    return join(parts)


def risk_coverage(
    curve: RiskCoverage, before: RiskCoverage | None = None, chosen: Mapping[Point, str] | None = None
) -> Markup:
    """The error among the most confident predictions at every coverage, and the least that it could be.

    before  another curve to compare it with
    chosen  points to mark, a coverage and an error each, and their names
    """
    shown = [curve] if before is None else [before, curve]
    highest, everything = min(max(map(highest_risk, shown)), 1.0), float(curve.risk[-1])
    plot = Plot(Scale(0, 1, LEFT, RIGHT), Scale(0, highest, 260, 26))
    ticks = round_ticks(highest, 4)
    drawn = []
    for each in map(thinned, shown):
        drawn.append(list(zip(each.coverage.tolist(), each.risk.clamp_max(highest).tolist(), strict=True)))
    best = [(coverage, max(0.0, 1 - (1 - everything) / coverage)) for coverage, _ in drawn[-1]]
    return picture(
        302,
        f"Risk-coverage curve: the error is {percent(everything)} when every prediction is kept.",
        label(0, 12, "error among those answered"),
        plot.y_axis(ticks),
        plot.line([(0, everything), (1, everything)], "guide"),
        plot.line(best, "best"),
        join(plot.line(line, "curve was") for line in drawn[:-1]),
        plot.line(drawn[-1], "curve"),
        join(_named_dot(plot, point, name) for point, name in (chosen or {}).items()),
        plot.x_axis(FIFTHS, "answered (coverage)"),
    )


def _named_dot(plot: Plot, point: Point, name: str) -> Markup:
    x, y = point
    return join([plot.dot(x, y, "dot"), label(plot.x(x) - 4, plot.y(y) - 6, name, anchor="end")])


# ------------------------------------------------------------------------------------------------------- many classes


def error_distribution(errors: Tensor) -> Markup:
    """The number of classes at each calibration error, on a logarithmic scale."""
    largest = float(errors.max())
    smallest = max(float(errors.min()), SMALLEST_SHARE * largest)
    low, high = (0.5 * smallest, 1.3 * largest) if largest else (1e-4, 1e-2)
    x = LogScale(low, high, LEFT, RIGHT)
    edges = torch.logspace(math.log10(low), math.log10(high), 37, dtype=torch.float64)
    ticks = log_ticks(low, high)
    described = f"Distribution of the calibration errors of {len(errors):,} classes; the largest is "
    described += percent(largest, digits_for(largest))

    def text(tick: float) -> str:
        return percent(tick, max(0, -math.floor(math.log10(100 * tick) + 1e-9)))

    return _class_histogram(x, errors, edges, described, "error of the class", ticks, text)


def change_distribution(change: Tensor) -> Markup:
    """The number of classes at each change of the calibration error."""
    reach = float(change.abs().max()) or 0.01
    x = Scale(-1.04 * reach, 1.04 * reach, LEFT, RIGHT)
    edges = torch.linspace(x.low, x.high, 42, dtype=torch.float64)
    ticks = ticks_between(x.low, x.high, 5)
    described = f"Distribution of the changes of {len(change):,} classes, at most {points(reach)} points"
    title = "change of the error, points"
    return _class_histogram(x, change, edges, described, title, ticks, lambda tick: number_text(100 * tick))


def _class_histogram(
    x: Scale,
    values: Tensor,
    edges: Tensor,
    described: str,
    title: str,
    ticks: list[float],
    text: Callable[[float], str],
) -> Markup:
    counts = torch.bucketize(values.cpu().double(), edges[1:-1]).bincount(minlength=len(edges) - 1).tolist()
    y = RootScale(0, max(counts), 236, 26)
    plot = Plot(x, y)
    drawn = []
    for left, right, n in zip(edges[:-1].tolist(), edges[1:].tolist(), counts, strict=True):
        if n:
            drawn.append(tag("g", tag("title", f"{n:,} classes"), plot.box(left, right, 0, n, "bar")))
    up = root_ticks(y, least=1)
    return picture(
        278,
        f"{described}.",
        label(0, 12, "classes (square-root scale)"),
        plot.y_axis(up, _compact),
        join(drawn),
        plot.x_axis(ticks, title, text),
    )


def _compact(count: float) -> str:
    """A count in few characters: 9,500, 12.5k, 3.4M."""
    if count < 10_000:
        return f"{count:,.0f}"
    return f"{count / 1e6:.3g}M" if count >= 999_500 else f"{count / 1e3:.3g}k"
