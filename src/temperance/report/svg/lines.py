"""Pictures of several lines: curves over epochs, steps, severities or logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from temperance.markup import Markup, join, tag
from temperance.report.page import legend, stroke
from temperance.report.svg.drawing import (
    LEFT,
    RIGHT,
    Plot,
    Point,
    Scale,
    label,
    number_text,
    picture,
    roomy,
    tick_text,
    ticks_between,
)

COLOURS, DASHES = 7, 4  # of page.css
TOP, BOTTOM = 8.0, 220.0
MOST_POINTS = 1000  # of one line
LETTER = 6.1  # the width of a letter of a name


def series(i: int) -> str:
    """The classes of the i-th of several lines: its colour, and dashes for readers who cannot tell colours apart."""
    return f"series-{i % COLOURS} dash-{(i % COLOURS // 2 + i // COLOURS) % DASHES}"


@dataclass(frozen=True)
class Line:
    """A named line through points; values that are not finite leave a gap.

    number  which of the lines of a picture it is: its colour and dashes
    kind    "", or "faint" as page.css draws it
    band    points of a lower and an upper line, with the space between them shaded
    """

    name: str
    points: Sequence[Point]
    number: int = 0
    kind: str = ""
    band: tuple[Sequence[Point], Sequence[Point]] | None = None

    @property
    def class_(self) -> str:
        """Its classes in page.css."""
        return " ".join(filter(None, ["line", self.kind, series(self.number)]))


def points(xs: Tensor, ys: Tensor) -> list[Point]:
    """Two columns as points."""
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def line_chart(
    lines: Sequence[Line],
    *,
    y_title: str,
    x_title: str,
    percent: bool = False,
    from_zero: bool = False,
    highest: float | None = None,
    limits: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    dots: bool = False,
    at: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Lines over a common scale; the caption says what y is.

    percent    y is a share, written in percent
    from_zero  the y scale begins at 0
    highest    the largest value on the y scale, for pictures that are compared
    limits     both ends of the y scale; lines are clipped there
    dots       mark every point
    at         places on the x axis with a vertical line and a name
    """
    shown = [p for line in lines for p in (*line.points, *(p for edge in line.band or () for p in edge)) if finite(p)]
    xs, ys = zip(*shown, strict=True)
    y = y_scale(min(ys), max(ys) if highest is None else highest, from_zero=from_zero)
    y = Scale(*limits, BOTTOM, TOP) if limits else y
    ticks = y_ticks(y)
    low, high = min(xs), max(xs)
    x = Scale(low, high if high > low else low + 1, LEFT, RIGHT)
    across = list(x_ticks) if x_ticks is not None else whole_ticks(low, high)
    plot = Plot(x, y)
    parts = [plot.area(*line.band, f"area {series(line.number)}") for line in lines if line.band is not None]
    parts += [drawn_line(plot, line, dots=dots) for line in lines]
    for i, (value, name) in enumerate(at):
        parts.append(plot.line([(value, y.low), (value, y.high)], "mark plain"))
        # The name is to the right of its line, unless the next one or the edge is too near.
        near_next = i + 1 < len(at) and x(at[i + 1][0]) - x(value) < 18
        crowded = near_next or x(value) + LETTER * len(name) > RIGHT
        parts.append(label(x(value) + (-4 if crowded else 4), TOP + 10, name, anchor="end" if crowded else "start"))
    return picture(
        BOTTOM + 42,
        f"{y_title} over {x_title}: {', '.join(line.name for line in lines)}.",
        plot.y_axis(ticks, tick_text if percent else number_text),
        plot.framed(*parts) if limits else join(parts),
        plot.x_axis(across, x_title, number_text),
    )


def scatter_chart(
    groups: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    x_percent: bool = False,
    y_percent: bool = True,
    from_zero: bool = True,
    level: tuple[float, str] | None = None,
) -> Markup:
    """The points of each group as a cloud, in its colour.

    level  a height with a line across, and its name
    """
    shown = [point for group in groups for point in group.points if finite(point)]
    xs, ys = zip(*shown, strict=True)
    heights = (*ys, level[0]) if level else ys
    x = roomy(min(xs), max(xs), LEFT, RIGHT)
    y = y_scale(min(heights), max(heights), from_zero=from_zero)
    plot = Plot(x, y)
    clouds = [plot.dot(*p, f"point {series(group.number)}") for group in groups for p in group.points if finite(p)]
    parts = [tag("g", *clouds, class_="cloud")]
    if level:
        parts.append(plot.line([(x.low, level[0]), (x.high, level[0])], "guide"))
        parts.append(label(RIGHT, y(level[0]) - 5, level[1], anchor="end"))
    return picture(
        BOTTOM + 42,
        f"{y_title} against {x_title}: {len(shown):,} points.",
        plot.y_axis(y_ticks(y), tick_text if y_percent else number_text),
        *parts,
        plot.x_axis(ticks_between(x.low, x.high, 5), x_title, tick_text if x_percent else number_text),
    )


def drawn_line(plot: Plot, line: Line, *, dots: bool = False) -> Markup:
    """A line in its colour, with a name for a pointer that rests on it."""
    drawn = [plot.line(_thinned(piece), line.class_) for piece in unbroken(line.points)]
    if dots:
        drawn += [plot.dot(*p, f"point {series(line.number)}") for p in line.points if finite(p)]
    return tag("g", tag("title", line.name), *drawn)


def y_scale(low: float, high: float, *, from_zero: bool) -> Scale:
    """A scale that holds both ends with a little room."""
    low = min(0.0, low) if from_zero else low
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = (low if from_zero and low == 0 else low - room), high + room
    return Scale(low, high, BOTTOM, TOP)


def y_ticks(y: Scale) -> list[float]:
    """At least three ticks."""
    return next(found for found in (ticks_between(y.low, y.high, about) for about in (4, 5, 6, 8)) if len(found) > 2)


def whole_ticks(low: float, high: float) -> list[float]:
    """The whole numbers among the ticks, or the lowest value where there are none."""
    return [tick for tick in ticks_between(low, high, 6) if tick == round(tick)] or [low]


def finite(point: Point) -> bool:
    return all(map(math.isfinite, point))


def unbroken(points: Sequence[Point]) -> list[list[Point]]:
    """The stretches of points without a gap."""
    found: list[list[Point]] = [[]]
    for point in points:
        if finite(point):
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_POINTS` of the points, evenly spaced, with both ends."""
    if len(points) <= MOST_POINTS:
        return points
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(i * step)] for i in range(MOST_POINTS)]


def line_legend(lines: Sequence[Line]) -> Markup:
    """What the lines are."""
    return legend(*((stroke(line.class_), line.name) for line in lines))
