"""Pictures of several lines: curves over epochs, steps or severities, with as many colours as there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from temperance.report.markup import Markup, join, tag
from temperance.report.page import legend
from temperance.report.svg.drawing import (
    LEFT,
    RIGHT,
    Plot,
    Scale,
    label,
    number_text,
    picture,
    tick_text,
    ticks_between,
)

COLOURS = 6
TOP, BOTTOM = 8.0, 220.0


@dataclass(frozen=True)
class Line:
    """A named line through points; values that are not finite leave a gap.

    colour  the number of a colour of page.css
    kind    "", or "thin" or "was", as page.css draws them
    band    points of a lower and an upper line, between which it is shaded
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    kind: str = ""
    band: tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]] | None = None

    @property
    def class_(self) -> str:
        """What page.css calls it."""
        return " ".join(filter(None, ["line", self.kind, f"series-{self.colour % COLOURS}"]))


def line_chart(
    lines: Sequence[Line],
    *,
    y_title: str,
    x_title: str,
    percent: bool = False,
    from_zero: bool = False,
    highest: float | None = None,
    x_ticks: Sequence[float] | None = None,
    dots: bool = False,
    at: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Lines over a common scale; what y is stands in the caption.

    percent    y is a share, written in percent
    from_zero  the y scale begins at 0
    highest    the largest value on the y scale, for pictures that are compared
    dots       mark every point
    at         places on the x axis with an upright line and a name
    """
    shown = [p for line in lines for p in (*line.points, *(p for edge in line.band or () for p in edge)) if finite(p)]
    xs, ys = zip(*shown, strict=True)
    y, ticks = y_scale(min(ys), max(ys) if highest is None else highest, from_zero=from_zero)
    low, high = min(xs), max(xs)
    x = Scale(low, high if high > low else low + 1, LEFT, RIGHT)
    across = list(x_ticks) if x_ticks is not None else whole_ticks(low, high)
    plot = Plot(x, y)
    parts = []
    for line in lines:
        if line.band is not None:
            parts.append(plot.area(*line.band, f"area series-{line.colour % COLOURS}"))
    for line in lines:
        drawn = [plot.line(piece, line.class_) for piece in unbroken(line.points)]
        if dots:
            drawn += [plot.dot(*p, f"point series-{line.colour % COLOURS}") for p in line.points if finite(p)]
        parts.append(tag("g", tag("title", line.name), *drawn))
    for i, (value, name) in enumerate(at):
        parts.append(plot.line([(value, y.low), (value, y.high)], "mark plain"))
        # The name is to the right of its line, unless the next one is too near.
        crowded = i + 1 < len(at) and x(at[i + 1][0]) - x(value) < 18
        parts.append(label(x(value) + (-4 if crowded else 4), TOP + 10, name, anchor="end" if crowded else "start"))
    texts = [tick_text(t) if percent else number_text(t) for t in ticks]
    return picture(
        BOTTOM + 42,
        f"{y_title} over {x_title}: {', '.join(line.name for line in lines)}.",
        plot.y_axis(ticks, texts),
        join(parts),
        plot.x_axis(across, x_title, [number_text(t) for t in across]),
    )


def y_scale(low: float, high: float, *, from_zero: bool) -> tuple[Scale, list[float]]:
    """A scale that holds both ends with a little room, and its ticks."""
    low = min(0.0, low) if from_zero else low
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = (low if from_zero and low == 0 else low - room), high + room
    ticks = next(found for found in (ticks_between(low, high, about) for about in (4, 5, 6, 8)) if len(found) > 2)
    return Scale(low, high, BOTTOM, TOP), ticks


def whole_ticks(low: float, high: float) -> list[float]:
    """Whole numbers below the plot."""
    return [tick for tick in ticks_between(low, high, 6) if tick == round(tick)] or [low]


def finite(point: tuple[float, float]) -> bool:
    return all(map(math.isfinite, point))


def unbroken(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The stretches of points without a gap."""
    found: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if finite(point):
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def line_legend(lines: Sequence[Line]) -> Markup:
    """What the lines are."""
    return legend((f"series {line.class_}", line.name) for line in lines)
