"""HTML and SVG as text that is always escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

# Elements of HTML that have no content and no closing tag.
VOID = {"br", "img", "input", "link", "meta"}


class Markup(str):
    """Text that already is markup; `tag` and `join` escape any other text."""

    __slots__ = ()


def join(parts: Iterable[str], between: str = "") -> Markup:
    """All parts as one piece of markup, with `between` between them."""
    return Markup(escaped(between).join(map(escaped, parts)))


def tag(element: str, /, *children: str, **attributes: object) -> Markup:
    """An element; `class_="a"` and `stroke_width=1` are written class="a" and stroke-width="1".

    An attribute that is None or False is left out, one that is True has no value.

    >>> tag("p", "1 < 2 ", tag("b", "always"), class_="note")
    '<p class="note">1 &lt; 2 <b>always</b></p>'
    """
    opening = "".join([element, *(_attribute(name, value) for name, value in attributes.items())])
    if element in VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{element}>")


def escaped(text: str) -> Markup:
    """Text as markup."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'
