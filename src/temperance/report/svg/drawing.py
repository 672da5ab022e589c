"""A plot area in SVG: data coordinates in, shapes out.

Colours, fonts and strokes are classes of page.css, so that a picture follows the reader's light or dark theme. Sizes
are in units of the viewBox: a picture is `WIDTH` wide, which is close to its size on a phone, so that its text stays
readable there and grows a little on a desk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from temperance.report.formats import PERCENT
from temperance.report.markup import Markup, join, tag

WIDTH = 420
LEFT, RIGHT = 46, 402  # where the plot area begins and ends
INNER = RIGHT - LEFT


@dataclass(frozen=True)
class Scale:
    """A straight line from data to picture: `low` is drawn at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def roomy(low: float, high: float, start: float, end: float) -> Scale:
    """A scale with a little room on either side of the data."""
    room = 0.04 * (high - low) or 0.5
    return Scale(low - room, high + room, start, end)


@dataclass(frozen=True)
class Plot:
    """A rectangle with an x and a y scale."""

    x: Scale
    y: Scale

    def box(self, left: float, right: float, low: float, high: float, class_: str) -> Markup:
        """A filled rectangle, a little narrower than its sides, and high enough to be seen."""
        height = max(self.y(low) - self.y(high), 1.0)
        x, width = self.x(left), self.x(right) - self.x(left)
        return tag("rect", x=x + 0.5, y=self.y(low) - height, width=width - 1, height=height, class_=class_)

    def line(self, points: Sequence[tuple[float, float]], class_: str) -> Markup:
        """Straight lines through the points."""
        return tag("path", d="M" + "L".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points), class_=class_)

    def area(self, low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], class_: str) -> Markup:
        """What lies between two lines over the same places."""
        outline = [*high, *reversed(low)]
        return tag(
            "path", d="M" + "L".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in outline) + "Z", class_=class_
        )

    def dot(self, x: float, y: float, class_: str) -> Markup:
        return tag("circle", cx=self.x(x), cy=self.y(y), r=2.6, class_=class_)

    def label(self, x: float, y: float, text: str, *, anchor: str = "start", dx: float = 0, dy: float = 0) -> Markup:
        """Text beside a point."""
        return label(self.x(x) + dx, self.y(y) + dy, text, anchor=anchor)

    def x_axis(self, ticks: Sequence[float], title: str, texts: Sequence[str] | None = None) -> Markup:
        """Numbers below the plot, in percent unless their texts are given, and what they are."""
        bottom = self.y.start
        texts = [tick_text(t) for t in ticks] if texts is None else texts
        marks = [label(self.x(t), bottom + 16, text, anchor="middle") for t, text in zip(ticks, texts, strict=True)]
        return join([*marks, label((LEFT + RIGHT) / 2, bottom + 34, title, anchor="middle")])

    def y_axis(self, ticks: Sequence[float], texts: Sequence[str]) -> Markup:
        """Numbers to the left, with a faint line across at each."""
        parts = []
        for value, text in zip(ticks, texts, strict=True):
            parts.append(self.line([(self.x.low, value), (self.x.high, value)], "grid"))
            parts.append(self.label(self.x.low, value, text, anchor="end", dx=-6, dy=4))
        return join(parts)


def label(x: float, y: float, text: str, *, anchor: str = "start") -> Markup:
    return tag("text", text, x=float(x), y=float(y), text_anchor=anchor)


def picture(height: float, description: str, *parts: Markup) -> Markup:
    """The finished picture, with a description for those who do not see it."""
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=description)


def tick_text(value: float) -> str:
    """A share beside an axis: 20 %, 2.5 %."""
    return f"{100 * value:.3g}{PERCENT}"


def round_ticks(high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from 0 to `high`.

    >>> round_ticks(27, 4)
    [0.0, 10.0, 20.0]
    """
    raw = high / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return [i * step for i in range(math.floor(high / step + 1e-9) + 1)]


def ticks_between(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that lie between `low` and `high`.

    >>> ticks_between(-1.2, 2.3, 4)
    [-1.0, 0.0, 1.0, 2.0]
    """
    step = round_ticks(high - low, about)[1] if high > low else 1.0
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number_text(value: float) -> str:
    """A plain number beside an axis, with a true minus sign."""
    return f"{value:.6g}".replace("-", "−")
