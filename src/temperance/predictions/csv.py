"""Predictions in .csv: a header, then a row for each sample, with the same columns as a wide table in .parquet.

Read in pieces by pyarrow where it is installed, elsewhere by Python's own, slower reader, which also finds the line of
whatever pyarrow refuses. Numbers are float64, written with as many digits as it takes to read them back exactly.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import Described, Labels, Text, check_set, no_labels, shown, unknown_label
from temperance.predictions.columns import Columns, find_columns, is_whole_number
from temperance.predictions.core import Chunk, Predictions

# Text is parsed in blocks of this many bytes, or of a few lines where lines are longer than that.
BLOCK_BYTES = 1 << 22


class Piece(NamedTuple):
    """Some rows as in the file: scores (rows, k), labels (rows,) as int64 or text, groups (rows,) as text."""

    scores: npt.NDArray[np.float64]
    labels: npt.NDArray[Any] | None
    groups: Text | None


class Table(NamedTuple):
    """A file, its header, and the columns that are wanted of it."""

    path: Path
    header: list[str]
    scores: Sequence[str]
    labels: str | None
    groups: str | None


def read(path: Path, split: str | None, labels: Labels) -> Predictions:
    """Open the predictions in a .csv file."""
    _, header = next(_lines(path), (0, []))
    columns = _find_columns(header, split, labels)
    table = Table(path, header, columns.scores, columns.labels, columns.groups)
    # Rows are counted by one column.
    counted = table._replace(scores=columns.scores[:1] if columns.labels is None else (), groups=None)
    n, k = sum(len(piece.scores) for piece in _pieces(counted)), len(columns.scores)
    names = columns.class_names
    # Whether a label is a number or a name is seen when it is read.
    truth = None if columns.labels is None else Described((n,), "i", "text")
    check_set(columns.name, Described((n, k), "f", "float64"), truth, None, names)

    def read_rows(rows: int) -> Iterator[Chunk]:
        start = 0
        with reading(path):
            for piece in _pieces(table):
                size = len(piece.scores)
                numbers = no_labels(size) if piece.labels is None else _label_numbers(piece.labels, table, names, start)
                parsed = Chunk(torch.from_numpy(piece.scores), numbers, piece.groups)
                yield from (parsed.slice(i, i + rows) for i in range(0, size, rows))
                start += size

    has = {"has_labels": truth is not None, "has_groups": columns.groups is not None}
    return Predictions(str(path), None, columns.from_logits, n, k, **has, class_names=names, _read=read_rows)


def _find_columns(header: list[str], split: str | None, labels: Labels) -> Columns:
    if header and all(_is_number(cell) for cell in header):
        raise InputError("the first line is numbers; it must name the columns: logits_0,logits_1,…,label")
    columns = find_columns(header, split, labels)
    if columns.is_list:
        raise InputError(
            f"a .csv has no lists: {columns.name} must be a column for each class, {columns.name}_0,{columns.name}_1,…"
        )
    return columns


def _label_numbers(labels: npt.NDArray[Any], table: Table, names: tuple[str, ...] | None, start: int) -> torch.Tensor:
    """Labels as class numbers; no class name is itself a number, so it is plain which of them a label is."""
    try:
        return torch.from_numpy(labels.astype(np.int64))
    except (ValueError, OverflowError):
        known = {name: i for i, name in enumerate(names or ())}
    numbers = np.empty(len(labels), np.int64)
    for row, label in enumerate(labels.tolist()):
        try:
            numbers[row] = known[label] if label in known else int(label)
        except (ValueError, OverflowError):
            line = next(islice(_lines(table.path), start + row + 1, None))[0]
            raise unknown_label(label, f"line {line}", names) from None
    return torch.from_numpy(numbers)


def _pieces(table: Table) -> Iterator[Piece]:
    try:
        import pyarrow
    except ImportError:
        yield from _plain_pieces(table)
        return
    try:
        yield from _arrow_pieces(table)
    except pyarrow.ArrowInvalid:
        for _ in _plain_pieces(table):
            pass
        raise


def _arrow_pieces(table: Table) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import csv as arrow_csv

    texts = [name for name in (table.labels, table.groups) if name is not None]
    reader = arrow_csv.open_csv(
        table.path,
        read_options=arrow_csv.ReadOptions(block_size=max(BLOCK_BYTES, 8 * sum(map(len, table.header)))),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=[*table.scores, *texts],
            column_types=dict.fromkeys(table.scores, pyarrow.float64()) | dict.fromkeys(texts, pyarrow.string()),
            # An empty cell is an error in a number and an empty name in text, never a missing value.
            null_values=[],
        ),
    )
    with reader:
        for batch in reader:
            scores = np.empty((batch.num_rows, len(table.scores)))
            for i, column in enumerate(table.scores):
                scores[:, i] = batch.column(column).to_numpy()
            labels = None if table.labels is None else _numbers_or_text(batch.column(table.labels))
            yield Piece(scores, labels, None if table.groups is None else _text(batch.column(table.groups)))


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
    lines = islice(_lines(table.path), 1, None)
    while block := list(islice(lines, rows_each)):
        for line, cells in block:
            if len(cells) != width:
                raise InputError(f"each line must have {width} cells, as the header has; line {line} has {len(cells)}")
        try:
            scores = np.array([[cells[i] for i in score_places] for _, cells in block], dtype=np.float64)
        except ValueError:
            raise _not_a_number(table, block, score_places) from None
        labels, groups = (
            None if name is None else np.array([cells[table.header.index(name)] for _, cells in block], dtype=np.str_)
            for name in (table.labels, table.groups)
        )
        yield Piece(scores, labels, groups)


def _not_a_number(table: Table, block: list[tuple[int, list[str]]], places: list[int]) -> InputError:
    line, i, cell = next((n, i, cells[i]) for n, cells in block for i in places if not _is_number(cells[i]))
    return InputError(
        f"{shown([table.header[i]])} must be a number in each line; line {line} has {shown([repr(cell)])}"
    )


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, the header first, each with its number in the file."""
    with path.open(newline="", encoding="utf-8-sig") as handle:
        reader = csv.reader(handle, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except UnicodeDecodeError:
            raise InputError(f"expected text in UTF-8; after line {reader.line_num} there is something else") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def write(path: Path, predictions: Predictions) -> None:
    """Write predictions as a .csv file."""
    name = "logits" if predictions.from_logits else "probs"
    numbers = tuple(map(str, range(predictions.k)))
    classes = predictions.class_names or numbers
    if classes != numbers and any(map(is_whole_number, classes)):
        raise InputError(
            f"class names that are numbers, like {next(filter(is_whole_number, classes))!r}, cannot be told from class "
            "numbers in a .csv; write .parquet, .npz or .safetensors"
        )
    with path.open("w", newline="", encoding="utf-8") as handle:
        # All text in quotes: the writer would leave them off a carriage return, which readers take for a new line.
        writer = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        others = [*(["label"] if predictions.has_labels else []), *(["group"] if predictions.has_groups else [])]
        writer.writerow([*(f"{name}_{each}" for each in classes), *others])
        for chunk in predictions.chunks():
            columns = [
                *([chunk.labels.tolist()] if predictions.has_labels else []),
                *([] if chunk.groups is None else [chunk.groups.tolist()]),
            ]
            rest = zip(*columns, strict=True) if columns else repeat(())
            rows = zip(chunk.scores.double().tolist(), rest, strict=False)
            writer.writerows([*scores, *cells] for scores, cells in rows)
