"""The parts that every report page is made of: a skeleton that loads nothing, sections, tables, figures."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

from temperance.markup import Markup, escaped, join, tag
from temperance.report.formats import set_percent_signs

SHOWN_ROWS = 100  # of a long table; a search finds the others
LISTED_ROWS = 1000  # of a long table that a search looks through


class Stack(NamedTuple):
    """A bar of an over- and an under-confident part, in percent of its full width, and the same in words."""

    over: float
    under: float
    text: str


Cell = str | Stack


def page(title: str, *parts: Markup) -> str:
    """A whole page in one file. Its policy keeps the browser from loading anything and from running other scripts."""
    style, script = _asset("page.css"), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )
    body = tag("body", tag("main", *parts), tag("script", script))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


# ------------------------------------------------------------------------------------------------------------ sections


def heading(kind: str, title: str, about: Iterable[str]) -> Markup:
    """What the page is about."""
    return tag(
        "header",
        tag("p", kind, class_="eyebrow"),
        tag("h1", title),
        tag("p", " · ".join(filter(None, about)), class_="about"),
    )


def answer(verdict: str, figures: Iterable[tuple[str, str, str]], notes: Iterable[str] = ()) -> Markup:
    """The first sentence of the verdict in large type, the rest of it, the figures behind it, and notes on them."""
    first, _, reasons = verdict.partition(". ")
    return tag(
        "section",
        tag("p", prose(first.rstrip(".") + "."), class_="verdict"),
        tag("p", prose(reasons)),
        headline(figures),
        *(tag("p", prose(note), class_="aside") for note in notes),
    )


def headline(figures: Iterable[tuple[str, str, str]]) -> Markup:
    """A few large figures: a name, a number, a note."""
    tiles = (
        tag("div", tag("dt", name), tag("dd", tag("b", number), tag("small", note))) for name, number, note in figures
    )
    return tag("dl", *tiles, class_="headline")


def moved(before: str, after: str) -> Markup:
    """A number before and after."""
    return join([tag("span", before, class_="was"), " → ", tag("span", after)])


def section(title: str, *parts: str) -> Markup:
    """Parts of the page under a title; plain text is a paragraph."""
    return tag("section", tag("h2", title), *map(_paragraph, parts))


def split(picture: Markup, *beside: str) -> Markup:
    """A picture with other parts beside it, or below it on a narrow screen; plain text is a paragraph."""
    return tag("div", tag("figure", picture), tag("div", *map(_paragraph, beside)), class_="split")


def pair(*figures: tuple[Markup, Markup]) -> Markup:
    """Pictures with their captions beside each other, or below each other on a narrow screen."""
    parts = (tag("figure", tag("figcaption", caption), picture) for caption, picture in figures)
    return tag("div", *parts, class_="pair")


def legend(*entries: tuple[str, str]) -> Markup:
    """What colours and lines mean. A key is a class of page.css, or markup such as that of `stroke`."""
    items = (
        tag("li", key if isinstance(key, Markup) else tag("i", class_=f"key {key}"), meaning)
        for key, meaning in entries
    )
    return tag("ul", *items, class_="legend")


def stroke(class_: str) -> Markup:
    """A piece of a line as a picture draws it, as the key of a legend."""
    return tag("svg", tag("path", d="M0,5H26", class_=class_), class_="key", viewBox="0 0 26 10", aria_hidden="true")


def folded(summary: str, *parts: Markup) -> Markup:
    """Parts that open on request."""
    return tag("details", tag("summary", summary), *parts)


def definitions(entries: Iterable[tuple[str, str]]) -> Markup:
    """Names and what they stand for."""
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in entries), class_="definitions")


def prose(text: str) -> Markup:
    """Plain text with `code` in backticks."""
    pieces = set_percent_signs(text).split("`")
    return join(tag("code", piece) if i % 2 else piece for i, piece in enumerate(pieces))


# -------------------------------------------------------------------------------------------------------------- tables


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], class_: str | None = None) -> Markup:
    """The first column names the row, the others are numbers. A table that is too wide scrolls; the page does not."""
    return grouped_table(columns, [("", rows)], class_)


def grouped_table(
    columns: Sequence[str], groups: Iterable[tuple[str, Iterable[Sequence[Cell]]]], class_: str | None = None
) -> Markup:
    """As `table`, with a title above each group of rows."""
    heads = (tag("th", name, scope="col") if name else tag("td") for name in columns)
    bodies = []
    for title, rows in groups:
        above = tag("tr", tag("th", title, colspan=len(columns), scope="rowgroup")) if title else Markup()
        lines = (tag("tr", tag("th", _content(first), scope="row"), *map(_cell, rest)) for first, *rest in rows)
        bodies.append(tag("tbody", above, *lines))
    return tag("div", tag("table", tag("thead", tag("tr", *heads)), *bodies, class_=class_), class_="scroll")


def searchable(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], class_: str) -> Markup:
    """A long table: its first rows, and all of them as data that the search field looks through."""
    data = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    note = f"{min(len(rows), SHOWN_ROWS):,} of {len(rows):,} shown" if len(rows) > SHOWN_ROWS else ""
    return tag(
        "div",
        tag("input", type="search", placeholder=f"Search {name}", aria_label=f"Search {name}", hidden=True),
        tag("output", note),
        table(columns, rows[:SHOWN_ROWS], class_),
        tag("script", Markup(data), type="application/json"),
        class_="searchable",
        data_most=SHOWN_ROWS,
    )


def noted(text: str, note: str) -> Markup:
    """A cell of two lines: what it says, and a note in small type."""
    return join([tag("span", text), tag("small", note)]) if note else tag("span", text)


def stacked_bar(stack: Stack) -> Markup:
    """A bar in a table; page.js makes the same one."""
    sides = (("over", stack.over), ("under", stack.under))
    parts = (tag("i", class_=side, style=f"width:{share}%") for side, share in sides)
    return tag("div", *parts, class_="stacked", role="img", title=stack.text, aria_label=stack.text)


def strip(text: str, *marks: Markup) -> Markup:
    """A picture in one line of a table: marks along a scale from 0 to 100, and the same in words."""
    return tag("div", *marks, class_="strip", role="img", title=text, aria_label=text)


def mark(kind: str, at: float, to: float | None = None) -> Markup:
    """A mark of a strip: a point, a line across, or a range where it has two ends; `kind` is a class of page.css."""
    width = "" if to is None else f";width:{abs(to - at):.1f}%"
    return tag("i", class_=kind, style=f"left:{at if to is None else min(at, to):.1f}%{width}")


def strip_axis(low: str, high: str) -> Markup:
    """The head of a column of strips: the ends of their scale."""
    return tag("div", tag("span", low), " ", tag("span", high), class_="ends")


def _paragraph(part: str) -> Markup:
    return part if isinstance(part, Markup) else tag("p", part)


def _cell(cell: Cell) -> Markup:
    return tag("td", _content(cell))


def _content(cell: Cell) -> Markup:
    return escaped(cell) if isinstance(cell, str) else stacked_bar(cell)


def _asset(name: str) -> Markup:
    return Markup(files("temperance.report").joinpath(name).read_text(encoding="utf-8"))
