"""A plot area in SVG: data coordinates in, shapes out.

Colours, fonts and strokes are classes of page.css, so that a picture follows the reader's light or dark theme. Sizes
are in units of the viewBox: a picture is `WIDTH` wide, which is close to its size on a phone. So its text is readable
there, and slightly larger on a desktop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temperance.markup import Markup, join, tag
from temperance.report.formats import PERCENT

WIDTH = 420
LEFT, RIGHT = 46, 402  # where the plot area begins and ends
INNER = RIGHT - LEFT
FIFTHS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]

Point = tuple[float, float]


def tick_text(value: float) -> str:
    """A share beside an axis: 20 %, 2.5 %."""
    return f"{100 * value:.3g}{PERCENT}"


def number_text(value: float) -> str:
    """A plain number beside an axis, with a true minus sign."""
    return f"{value:.6g}".replace("-", "−")


@dataclass(frozen=True)
class Scale:
    """A straight line from data to picture: `low` is drawn at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + self.share(value) * (self.end - self.start)

    def share(self, value: float) -> float:
        """The position of a value on the scale: 0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low)


class RootScale(Scale):
    """A square-root scale, from 0: small values stay visible beside large ones."""

    def share(self, value: float) -> float:
        return math.sqrt(value / self.high)


class LogScale(Scale):
    """A logarithmic scale. Values below `low` are drawn at `low`."""

    def share(self, value: float) -> float:
        return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)


def roomy(low: float, high: float, start: float, end: float) -> Scale:
    """A scale with a little room on either side of the data."""
    room = 0.04 * (high - low) or 0.5
    return Scale(low - room, high + room, start, end)


@dataclass(frozen=True)
class Plot:
    """A rectangle with an x and a y scale."""

    x: Scale
    y: Scale

    def box(self, left: float, right: float, low: float, high: float, class_: str, *, width: float = 1.0) -> Markup:
        """A filled rectangle, a little narrower than its sides and high enough to be seen.

        `width` is the share of the space between the sides that it takes, in the middle.
        """
        height = max(self.y(low) - self.y(high), 1.0)
        x, space = self.x(left), self.x(right) - self.x(left)
        inset = 0.5 + space * (1 - width) / 2
        # A bin narrower than a pixel still shows.
        wide = max(space - 2 * inset, 0.5)
        return tag("rect", x=x + inset, y=self.y(low) - height, width=wide, height=height, class_=class_)

    def bars(self, edges: Sequence[float], heights: Sequence[float]) -> Markup:
        """A histogram: a bar between each two neighbouring edges, if it has a height."""
        places = zip(edges[:-1], edges[1:], heights, strict=True)
        return join(self.box(left, right, 0, height, "bar") for left, right, height in places if height)

    def line(self, points: Sequence[Point], class_: str, *, end: str = "") -> Markup:
        """Straight lines through the points; `end` closes the path."""
        places = "L".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return tag("path", d=f"M{places}{end}", class_=class_)

    def area(self, low: Sequence[Point], high: Sequence[Point], class_: str) -> Markup:
        """The area between two lines."""
        return self.line([*high, *reversed(low)], class_, end="Z")

    def dot(self, x: float, y: float, class_: str) -> Markup:
        return tag("circle", cx=self.x(x), cy=self.y(y), r=2.6, class_=class_)

    def framed(self, *parts: Markup) -> Markup:
        """Shapes, clipped to the plot area."""
        x, y = self.x.start, self.y.end
        width, height = self.x.end - x, self.y.start - y
        box = f"{x:g} {y:g} {width:g} {height:g}"
        return tag("svg", *parts, class_="frame", x=x, y=y, width=width, height=height, viewBox=box)

    def x_axis(self, ticks: Sequence[float], title: str, text: Callable[[float], str] = tick_text) -> Markup:
        """Numbers below the plot, as `text` writes them, and what they are."""
        bottom = self.y.start
        marks = [label(self.x(tick), bottom + 18, text(tick), anchor="middle") for tick in ticks]
        return join([*marks, label((LEFT + RIGHT) / 2, bottom + 36, title, anchor="middle")])

    def y_axis(self, ticks: Sequence[float], text: Callable[[float], str] = tick_text) -> Markup:
        """Numbers to the left, as `text` writes them, with a faint line across at each."""
        parts = []
        for tick in ticks:
            y = self.y(tick)
            kind = "grid zero" if tick == 0 and self.y.low < 0 else "grid"
            parts.append(tag("path", d=f"M{self.x.start:.1f},{y:.1f}H{self.x.end:.1f}", class_=kind))
            parts.append(label(self.x.start - 6, y + 4, text(tick), anchor="end"))
        return join(parts)


def label(x: float, y: float, text: str, *, anchor: str = "start") -> Markup:
    return tag("text", text, x=float(x), y=float(y), text_anchor=anchor)


def picture(height: float, description: str, *parts: Markup) -> Markup:
    """The finished picture, with a description for readers who cannot see it."""
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=description)


# --------------------------------------------------------------------------------------------------------------- ticks


def round_ticks(high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from 0 to `high`: at most `about` of them besides 0.

    >>> round_ticks(27, 4)
    [0.0, 10.0, 20.0]
    """
    power = 10.0 ** math.floor(math.log10(high / about))
    step = next(m * power for m in (1, 2, 5, 10) if high / (m * power) < about + 1 - 1e-9)
    return [i * step for i in range(math.floor(high / step + 1e-9) + 1)]


def ticks_between(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that lie between `low` and `high`.

    >>> ticks_between(-1.2, 2.3, 4)
    [-1.0, 0.0, 1.0, 2.0]
    """
    step = round_ticks(high - low, about)[1] if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def root_ticks(scale: RootScale, room: float = 18.0, least: float = 0.0) -> list[float]:
    """0 and round numbers from `least` to the top of a square-root scale, at least `room` apart in the picture.

    >>> root_ticks(RootScale(0, 0.9, 200, 0), room=25)
    [0.0, 0.02, 0.1, 0.2, 0.5]
    """
    chosen: list[float] = []
    top = math.floor(math.log10(scale.high))
    for power in range(top, top - 4, -1):
        for leading in (5, 2, 1):
            tick = float(f"{leading}e{power}")
            beside = [scale(other) for other in (*chosen[-1:], 0.0)]
            if least <= tick <= scale.high and all(abs(place - scale(tick)) >= room for place in beside):
                chosen.append(tick)
    return [0.0, *reversed(chosen)]


def log_ticks(low: float, high: float) -> list[float]:
    """The powers of ten from `low` to `high`; where there are fewer than two, also twice and five times as much.

    >>> log_ticks(0.02, 30), log_ticks(0.015, 0.3)
    ([0.1, 1.0, 10.0], [0.02, 0.05, 0.1, 0.2])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leading in ((1,), (1, 2, 5)):
        found = [tick for power in powers for tick in (float(f"{n}e{power}") for n in leading) if low <= tick <= high]
        if len(found) > 1:
            break
    return found
