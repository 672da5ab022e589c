"""Pictures as one SVG file, several side by side, in the light colours of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from temperance.markup import Markup, join, tag
from temperance.report.svg.drawing import WIDTH, label
from temperance.report.svg.lines import LETTER, Line

MARGIN, BETWEEN = 14.0, 30.0  # around the pictures, and from one to the next
CAPTION, NOTE = 20.0, 16.0  # heights of a line of a caption and of the legend
STROKE = 26.0  # the width of a line in the legend


def sheet(pictures: Sequence[tuple[str, Markup]], *, legend: Sequence[Line] = (), columns: int = 2) -> str:
    """Pictures with their captions in rows of `columns`, and a legend of the lines below them."""
    columns = min(columns, len(pictures))
    width = 2 * MARGIN + columns * WIDTH + (columns - 1) * BETWEEN
    parts: list[Markup] = []
    top = MARGIN
    for first in range(0, len(pictures), columns):
        row = pictures[first : first + columns]
        for i, (caption, picture) in enumerate(row):
            left = MARGIN + i * (WIDTH + BETWEEN)
            parts.append(tag("text", caption, x=left, y=top + 14, class_="caption"))
            parts.append(_placed(picture, left, top + CAPTION))
        top += CAPTION + max(_height(picture) for _, picture in row) + BETWEEN / 2
    if legend:
        keys, top = _legend(legend, top, width)
        parts.append(keys)
    view = f"0 0 {width:g} {top + MARGIN / 2:g}"
    described = "; ".join(caption for caption, _ in pictures)
    return standalone(tag("svg", *parts, viewBox=view, role="img", aria_label=described))


def standalone(drawn: Markup) -> str:
    """A picture as the text of an SVG file: with the rules of page.css that pictures need."""
    style = files("temperance.report").joinpath("page.css").read_text(encoding="utf-8")
    colours = re.search(r"^:root \{.*?^\}", style, re.DOTALL | re.MULTILINE)
    assert colours
    rules = [line for line in style.splitlines() if line.startswith(("svg ", "svg.frame", ".series-"))]
    css = "\n".join([colours[0], "svg { background: var(--paper); font-family: sans-serif; }", *rules])
    text = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return (
        text.replace(">", f"><style>\n{css}\nsvg .caption {{ fill: var(--ink); font-size: 13px; }}\n</style>", 1) + "\n"
    )


def _legend(lines: Sequence[Line], top: float, width: float) -> tuple[Markup, float]:
    """A piece of each line with its name, in as many rows as needed, and the bottom of the last row."""
    parts = []
    x, y = MARGIN, top + NOTE
    for line in lines:
        needed = STROKE + 8 + LETTER * len(line.name) + 18
        if x > MARGIN and x + needed > width - MARGIN:
            x, y = MARGIN, y + NOTE
        parts.append(tag("path", d=f"M{x:g},{y - 4:g}h{STROKE:g}", class_=line.class_))
        parts.append(label(x + STROKE + 8, y, line.name))
        x += needed
    return join(parts), y + NOTE / 2


def _placed(picture: Markup, x: float, y: float) -> Markup:
    """A picture at a position in a larger one."""
    return Markup(
        picture.replace("<svg ", f'<svg x="{x:g}" y="{y:g}" width="{WIDTH}" height="{_height(picture):g}" ', 1)
    )


def _height(picture: Markup) -> float:
    found = re.match(r'<svg viewBox="0 0 [\d.]+ ([\d.]+)"', picture)
    assert found, "a picture of `drawing.picture`"
    return float(found[1])
