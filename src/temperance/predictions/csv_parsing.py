"""The cells of a .csv file as numbers and text, some rows at a time.

Pyarrow reads them if it is installed. Python's own reader is slower; it also finds the line that pyarrow refuses.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from temperance.errors import InputError
from temperance.predictions.checks import Text, as_number, excerpt

# Text is parsed in blocks of this many bytes, or of a few lines where lines are longer than that.
BLOCK_BYTES = 1 << 22

# Cells that were left empty, in lower case.
NO_VALUE = ("", "na", "n/a", "null", "none")


class Piece(NamedTuple):
    """Some rows as in the file: scores (rows, k), labels (rows,) as int64 or text, columns of groups as text."""

    scores: npt.NDArray[np.float64]
    labels: npt.NDArray[Any] | None
    groups: list[Text]


class Table(NamedTuple):
    """A file, its header, and the columns to read."""

    path: Path
    header: list[str]
    scores: Sequence[str]
    labels: str | None
    groups: Sequence[str]


def pieces(table: Table) -> Iterator[Piece]:
    """The rows of a table in order, some at a time."""
    try:
        import pyarrow
    except ImportError:
        yield from _plain_pieces(table)
        return
    if next(islice(lines_of(table.path), 1, None), None) is None:
        return  # only a header, which pyarrow refuses if it has no line end
    try:
        yield from _arrow_pieces(table)
    except pyarrow.ArrowInvalid:
        for _ in _plain_pieces(table):
            pass
        raise


def _arrow_pieces(table: Table) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import csv as arrow_csv

    texts = list(dict.fromkeys([*([] if table.labels is None else [table.labels]), *table.groups]))
    reader = arrow_csv.open_csv(
        table.path,
        read_options=arrow_csv.ReadOptions(block_size=max(BLOCK_BYTES, 8 * sum(map(len, table.header)))),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True, delimiter=separator(table.path)),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=list(dict.fromkeys([*table.scores, *texts])),
            column_types=dict.fromkeys(table.scores, pyarrow.float64()) | dict.fromkeys(texts, pyarrow.string()),
            # An empty cell is an error in a number and an empty name in text, never a missing value.
            null_values=[],
        ),
    )
    with reader:
        for batch in reader:
            scores = np.empty((batch.num_rows, len(table.scores)))
            for i, column in enumerate(table.scores):
                # A column that is also the labels or a group is text.
                scores[:, i] = batch.column(column).cast(pyarrow.float64()).to_numpy()
            labels = None if table.labels is None else _numbers_or_text(batch.column(table.labels))
            yield Piece(scores, labels, [_text(batch.column(name)) for name in table.groups])


def _numbers_or_text(values: Any) -> npt.NDArray[Any]:
    import pyarrow

    try:
        numbers: npt.NDArray[Any] = values.cast(pyarrow.int64()).to_numpy()
    except pyarrow.ArrowInvalid:
        return _text(values)
    return numbers


def _text(values: Any) -> Text:
    array: Text = values.to_numpy(zero_copy_only=False).astype(np.str_)
    return array


def _plain_pieces(table: Table) -> Iterator[Piece]:
    score_places = [table.header.index(column) for column in table.scores]
    width = len(table.header)
    rows_each = max(1, BLOCK_BYTES // (64 * width))
    lines = islice(lines_of(table.path), 1, None)
    while block := list(islice(lines, rows_each)):
        for line, cells in block:
            if len(cells) != width:
                raise InputError(f"each line must have {width} cells, as the header has; line {line} has {len(cells)}")
        written = [[cells[i] for i in score_places] for _, cells in block]
        try:
            if any("_" in cell for cells in written for cell in cells):
                raise ValueError  # see as_number
            scores = np.array(written, dtype=np.float64)
        except ValueError:
            raise _not_a_number(table, block, score_places) from None
        labels = None if table.labels is None else _texts(table, block, table.labels)
        yield Piece(scores, labels, [_texts(table, block, name) for name in table.groups])


def _texts(table: Table, block: list[tuple[int, list[str]]], column: str) -> Text:
    place = table.header.index(column)
    return np.array([cells[place] for _, cells in block], dtype=np.str_)


def _not_a_number(table: Table, block: list[tuple[int, list[str]]], places: list[int]) -> InputError:
    line, i, cell = next((n, i, cells[i]) for n, cells in block for i in places if as_number(cells[i]) is None)
    came = f"{excerpt([table.header[i]])} must be a number in each line; line {line} has {excerpt([repr(cell)])}"
    return InputError(f"{came}{_remedy(cell.strip())}")


def _remedy(cell: str) -> str:
    """What to do about a cell that is not a number."""
    if cell.lower() in NO_VALUE:
        return "; fill it in, or leave the row out"
    if cell.endswith("%"):
        return "; write 0.87 for 87 %"
    return "; decimals need a point" if as_number(cell.replace(",", ".")) is not None else ""


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, the header first, each with its number in the file."""
    with open_text(path, "r", "utf-8-sig") as handle:
        reader = csv.reader(handle, strict=True, delimiter=separator(path))
        try:
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except UnicodeDecodeError:
            raise InputError(
                f"expected text in UTF-8; line {_first_other_line(path)} is not. Save the file as UTF-8"
            ) from None


def open_text(path: Path, mode: str, encoding: str) -> IO[str]:
    """A file of text, compressed if its name ends in .gz."""
    if _is_gz(path):
        return TextIOWrapper(gzip.GzipFile(path, f"{mode}b", mtime=0), newline="", encoding=encoding)
    return path.open(mode, newline="", encoding=encoding)


def _is_gz(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def separator(path: Path) -> str:
    """The separator of cells: a tab in .tsv, else a comma."""
    return "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","


def _first_other_line(path: Path) -> int:
    """The first line that is not UTF-8. (The reader decodes whole blocks, so its error does not say.)"""
    with gzip.open(path) if _is_gz(path) else path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1
