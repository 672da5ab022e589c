"""How objects are displayed: a short repr, and in a notebook the table that a terminal shows."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from temperance.markup import Markup, join, tag

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

FEW = 3  # up to this many numbers are shown one by one
WIDTH = 120  # characters, for tables in a notebook and where there is no terminal

# Colours are the notebook's own, so that tables fit light and dark themes.
STYLE = (
    ".temperance table{border-collapse:collapse;margin:.5em 0}"
    ".temperance caption{text-align:left;padding:.2em 0}"
    ".temperance th,.temperance td{padding:.15em .8em;text-align:right;white-space:nowrap;"
    "background:none;color:inherit}"
    ".temperance tr>:first-child,.temperance tr>td.text,.temperance tr>th.text{text-align:left}"
    ".temperance td.text{white-space:normal}.temperance td:first-child{white-space:nowrap}"
    ".temperance thead th{border-bottom:1px solid currentColor}"
    ".temperance p{max-width:50em;margin:.5em 0}"
)


class Shown:
    """A result with a title that rich can print; it has a short `repr`, and a notebook shows the same table."""

    @property
    def title(self) -> str:
        """What it is about, in one line."""
        raise NotImplementedError

    def _printed(self, width: int) -> Iterator[Any]:
        """What a terminal of this width shows: tables and text of rich."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        return self._printed(options.max_width)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    def _repr_html_(self) -> str:
        return as_html(self._printed(WIDTH))


def as_text(shown: Shown) -> str:
    """What rich would print in this terminal, without colours."""
    from rich.console import Console

    width = shutil.get_terminal_size((WIDTH, 0)).columns
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_jupyter=False).print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def as_html(parts: Iterable[Any]) -> str:
    """What rich would print, tables and paragraphs, as self-contained HTML."""
    from rich.table import Table

    found = [_table(part) if isinstance(part, Table) else _paragraph(part) for part in parts if str(part).strip()]
    return tag("div", tag("style", Markup(STYLE)), *found, class_="temperance")


def two_columns(title: str, entries: Mapping[str, Any]) -> Iterator[Any]:
    """A title and a table of names and values, for rich to print."""
    from rich.table import Table
    from rich.text import Text

    yield Text(title, style="bold")
    table = Table(show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for name, value in entries.items():
        table.add_row(Text(name), Text(short(value)))
    yield table


def number_table(first: str, *numbers: str, title: str | Text | None = None) -> Table:
    """A table for rich to print: a column of names, and columns of numbers, dim where they are intervals."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, style="dim" if name.endswith("interval") else "")
    return table


def paragraphs(*texts: str) -> Iterator[Text]:
    """Texts for rich to print, an empty line before each."""
    from rich.text import Text

    return (Text(f"\n{text}") for text in texts)


def percent(value: float, digits: int = 2) -> str:
    """A fraction as a percentage: 0.0866 is 8.66 %. Zero has no sign."""
    return f"{100 * value:z.{digits}f} %"


def likelihood(value: float) -> str:
    """A probability in words and figures.

    >>> likelihood(0.0004), likelihood(0.125)
    ('less than 0.1 %', '12.5 %')
    """
    return "less than 0.1 %" if value < 0.001 else "more than 99.9 %" if value > 0.999 else percent(value, 1)


def percents(*groups: Sequence[float], digits: int = 1) -> list[str]:
    """The shares of a sentence, all with the same number of decimals.

    They have up to two decimals more than `digits` where these tell the shares of a group from each other, from 0 % or
    from 100 %.

    >>> percents((0.9999, 0.995), (0.02,))
    ['99.99 %', '99.50 %', '2.00 %']
    """
    enough = max(_decimals({*group, 0.0, 1.0}, digits) for group in groups)
    return [percent(value, enough) for group in groups for value in group]


def _decimals(values: set[float], least: int) -> int:
    """The fewest decimals that tell all values apart; `least` if even two more do not."""
    several = range(least, least + 3)
    return next((enough for enough in several if len({percent(v, enough) for v in values}) == len(values)), least)


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names as a sentence lists them: a, b and c."""
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def short(value: Any) -> str:
    """A value in brief: a number has four digits, many numbers are their count and range.

    >>> short([1.0, 2.5, 3.25, 4.0])
    '4 numbers, 1 … 4'
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "; ".join(f"{name} {short(each)}" for name, each in value.items()) or "none"
    if not isinstance(value, Sequence) or isinstance(value, str):
        return str(value)
    numbers = list(_numbers(value))
    if len(numbers) <= FEW:
        return ", ".join(map(short, numbers)) or "none"
    ends = [number for number in numbers if math.isfinite(number)]
    return f"{len(numbers)} numbers" + (f", {short(min(ends))} … {short(max(ends))}" if ends else "")


def _numbers(value: Any) -> Iterator[float]:
    """The numbers of a list, or of lists in a list."""
    if isinstance(value, Sequence):
        for each in value:
            yield from _numbers(each)
    else:
        yield value


def _table(table: Table) -> Markup:
    columns = table.columns
    aligned = [None if column.justify == "right" else "text" for column in columns]
    heads = (
        tag("th", str(column.header), scope="col", class_=kind) for column, kind in zip(columns, aligned, strict=True)
    )
    rows = zip(*(column.cells for column in columns), strict=True)
    return tag(
        "table",
        tag("caption", _lines(table.title)) if table.title else Markup(),
        tag("thead", tag("tr", *heads)) if table.show_header else Markup(),
        tag(
            "tbody",
            *(
                tag("tr", *(tag("td", str(cell), class_=kind) for cell, kind in zip(row, aligned, strict=True)))
                for row in rows
            ),
        ),
    )


def _paragraph(part: Any) -> Markup:
    bold = getattr(part, "style", "") == "bold"
    text = _lines(part)
    return tag("p", tag("b", text) if bold else text)


def _lines(text: Any) -> Markup:
    return join(str(text).strip().split("\n"), tag("br"))
