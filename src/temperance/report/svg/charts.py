"""The pictures of the HTML page."""

from __future__ import annotations

from temperance.metrics.bins import Bins
from temperance.metrics.selective import RiskCoverage
from temperance.report.formats import PERCENT, percent, percent_range
from temperance.report.markup import Markup, join, tag
from temperance.report.numbers import Bar, bars, highest_risk, thinned
from temperance.report.svg.drawing import INNER, LEFT, RIGHT, Plot, Scale, label, picture, round_ticks, tick_text

FIFTHS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def reliability(bins: Bins, most: int | None = None) -> Markup:
    """Accuracy in each confidence bin, the gap to the mean confidence, and how many samples there are.

    `most` is the top of the scale of samples, for pictures that are compared.
    """
    found = bars(bins)
    top, strip, between = 24.0, 54.0, 38.0
    x = Scale(0, 1, LEFT, RIGHT)
    plot = Plot(x, Scale(0, 1, top + INNER, top))
    most = most or max(bar.count for bar in found)
    counts = Plot(x, Scale(0, most, top + INNER + between + strip, top + INNER + between))
    return picture(
        counts.y.start + 42,
        f"Reliability diagram with {len(found)} bins that are not empty; the table below has its numbers.",
        label(0, 12, "accuracy"),
        plot.y_axis(FIFTHS, [tick_text(t) for t in FIFTHS]),
        join(_reliability_bar(plot, bar) for bar in found),
        plot.line([(0, 0), (1, 1)], "guide"),
        join(_interval(plot, bar) for bar in found),
        label(0, counts.y.end - 14, "samples"),
        counts.y_axis([0, most], ["0", _compact(most)]),
        join(tag("g", _told(bar), counts.box(bar.left, bar.right, 0, bar.count, "bar")) for bar in found),
        counts.x_axis(FIFTHS, "confidence"),
    )


def _reliability_bar(plot: Plot, bar: Bar) -> Markup:
    low, high = sorted((bar.accuracy, bar.confidence))
    gap = ("over" if bar.over else "under") + (" chance" if bar.chance else "")
    return tag(
        "g",
        _told(bar),
        plot.box(bar.left, bar.right, 0, bar.accuracy, "bar"),
        plot.box(bar.left, bar.right, low, high, gap),
    )


def _interval(plot: Plot, bar: Bar) -> Markup:
    whisker = plot.line([(bar.confidence, bar.low), (bar.confidence, bar.high)], "whisker")
    return join([whisker, plot.dot(bar.confidence, bar.accuracy, "dot")])


def _told(bar: Bar) -> Markup:
    """What a pointer resting on a bar is told."""
    return tag(
        "title",
        f"confidence {percent_range(bar.left, bar.right, 1)}: {bar.count:,} samples, says {percent(bar.confidence)}, "
        f"right {percent(bar.accuracy)} (95{PERCENT} interval {percent_range(bar.low, bar.high, 1)})",
    )


def histogram(bins: Bins, highest: float | None = None) -> Markup:
    """The share of samples in each bin, with accuracy and mean confidence marked.

    `highest` is the top of the scale of shares, for pictures that are compared.
    """
    found = bars(bins)
    n = int(bins.n)
    confidence, accuracy = float(bins.confidence.sum()) / n, float(bins.hits.sum()) / n
    highest = highest or max(bar.count for bar in found) / n
    plot = Plot(Scale(0, 1, LEFT, RIGHT), Scale(0, highest, 260, 44))
    ticks = round_ticks(highest, 4)
    return picture(
        302,
        f"Histogram of confidence: mean confidence {percent(confidence)}, accuracy {percent(accuracy)}.",
        plot.y_axis(ticks, [tick_text(t) for t in ticks]),
        join(tag("g", _told(bar), plot.box(bar.left, bar.right, 0, bar.count / n, "bar")) for bar in found),
        plot.x_axis(FIFTHS, "confidence"),
        _marks(plot, accuracy, confidence),
    )


def _marks(plot: Plot, accuracy: float, confidence: float) -> Markup:
    """Two upright lines, each with its name on the side away from the other.

    Where the edge of the picture leaves no room for it, a name is on the inner side but higher, above the other line.
    """
    over = confidence > accuracy
    marks = [(accuracy, "accuracy", "mark"), (confidence, "mean confidence", f"mark {'over' if over else 'under'}")]
    parts = []
    for (value, name, class_), on_left in zip(marks, (over, not over), strict=True):
        turned = value < 0.3 if on_left else value > 0.7
        dx, anchor = (-5, "end") if on_left != turned else (5, "start")
        height = 14 if turned else 32
        x = plot.x(value)
        parts.append(tag("path", d=f"M{x:.1f},{plot.y.start:.1f}V{height - 10}", class_=class_))
        parts.append(label(x + dx, height, name, anchor=anchor))
    return join(parts)


def risk_coverage(curve: RiskCoverage, before: RiskCoverage | None = None) -> Markup:
    """The error among the surest predictions, at every coverage; and if all errors were the least sure.

    `before` is another curve to see it against.
    """
    shown = [curve] if before is None else [before, curve]
    highest, everything = min(max(map(highest_risk, shown)), 1.0), float(curve.risk[-1])
    plot = Plot(Scale(0, 1, LEFT, RIGHT), Scale(0, highest, 260, 26))
    ticks = round_ticks(highest, 4)
    drawn = []
    for points in map(thinned, shown):
        drawn.append(list(zip(points.coverage.tolist(), points.risk.clamp_max(highest).tolist(), strict=True)))
    best = [(coverage, max(0.0, 1 - (1 - everything) / coverage)) for coverage, _ in drawn[-1]]
    return picture(
        302,
        f"Risk-coverage curve: the error is {percent(everything)} when every prediction is kept.",
        label(0, 12, "error among those answered"),
        plot.y_axis(ticks, [tick_text(t) for t in ticks]),
        plot.line([(0, everything), (1, everything)], "guide"),
        plot.line(best, "best"),
        join(plot.line(points, "curve was") for points in drawn[:-1]),
        plot.line(drawn[-1], "curve"),
        plot.x_axis(FIFTHS, "answered (coverage)"),
    )


def _compact(count: int) -> str:
    """A count in few characters: 9,500, 12.5k, 3.4M."""
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1e6:.3g}M" if count >= 999_500 else f"{count / 1e3:.3g}k"
