"""Printed output: no table is cut off, and a terminal without Unicode gets plain letters."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# The width of lines in a file or a pipe, unless COLUMNS is set.
PAPER = 120

# Replacements for characters that a terminal cannot show.
PLAIN = {
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": "-",
    "×": "x",
    "²": "^2",
    "’": "'",
    "“": '"',
    "”": '"',
    "≤": "<=",
    "≥": ">=",
    "→": "->",
}


# Stands for the space before a percent sign while lines are wrapped: rich breaks lines at any space, even at a
# non-breaking one, but not at this character.
GLUE = "\ue000"


class Screen(Console):
    """Standard output, or standard error."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Transliterate the cells of a table before they are laid out, so that columns stay straight."""
        return _glued(super().render_str(_transliterated(text, self.encoding), **options))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render without breaking a line before a percent sign."""
        for segment in super().render(_glued(renderable) if isinstance(renderable, Text) else renderable, options):
            yield segment._replace(text=segment.text.replace(GLUE, " "))

    def on_broken_pipe(self) -> None:
        """Re-raise the BrokenPipeError, which the command line handles."""
        raise


def show(result: RenderableType) -> None:
    """Print results, as wide as the terminal, or wider where a table would lose characters otherwise."""
    screen = Screen()
    width = screen.width
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        width = max(width, PAPER)
    options = screen.options.update(width=width)
    parts = [result] if isinstance(result, Table | Text) else list(result.__rich_console__(screen, options))  # type: ignore[union-attr]
    wide = Screen(width=max([width, *(_least_width(part, screen) for part in parts if isinstance(part, Table))]))
    for part in parts:
        wide.print(part, width=None if isinstance(part, Table) else width)


def _least_width(table: Table, screen: Console) -> int:
    """The width at which no cell is cut: the longest word of each column, or the longest cell where it may not wrap."""
    options = screen.options.update(width=10_000)
    width = 1
    for column in table.columns:
        sizes = [Measurement.get(screen, options, cell) for cell in (column.header, *column.cells)]
        width += 3 + max(size.maximum if column.no_wrap else size.minimum for size in sizes)
    return width


def write_text(text: str) -> None:
    """Text for programs, JSON or CSV, on standard output: UTF-8 whatever the terminal is."""
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
    else:
        print(text, end="")


def transliterate_output() -> None:
    """From now on, transliterate characters that a stream cannot encode, instead of ending the program."""
    codecs.register_error("temperance", _transliterated_error)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="temperance")


def _transliterated_error(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _glued(text: Text) -> Text:
    found = text.copy()
    found.plain = text.plain.replace(" %", f"{GLUE}%")
    return found


def _transliterated(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(character if character.isascii() else _plain(character) for character in text)
    return text


def _plain(character: str) -> str:
    return PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode()
