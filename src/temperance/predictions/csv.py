"""Predictions in .csv and .tsv, perhaps compressed (.gz): a header, then a row for each sample.

The columns are those of a wide table in .parquet. Numbers are float64, written with as many digits as it takes to read
them back exactly. The column `calibrated_by`, with the same text in every row, names the calibrator that made the
probabilities.
"""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import MARK, Described, Wanted, as_number, binary_names, check_set
from temperance.predictions.columns import (
    NewColumn,
    TableColumns,
    class_columns,
    find_columns,
    label_columns,
    with_new_scores,
)
from temperance.predictions.core import WRITTEN_ROWS, Extras, Origin, Predictions
from temperance.predictions.csv_parsing import Table, lines_of, open_text, pieces, separator
from temperance.predictions.dense import line_chunks
from temperance.predictions.labels import NO_LABEL, places_among, unknown_label
from temperance.predictions.rows import Chunk, Meaning, placed

# Cells that are carried over as numbers, because programs write numbers this way; 007 is text.
WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
REAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|-?inf|nan")


def read(path: Path, wanted: Wanted) -> Predictions:
    """Open the predictions in a .csv file."""
    header, columns = _columns(path, wanted)
    # Weights are parsed with the scores, as their last column.
    numbers = (*columns.scores, *columns.label_columns, *([] if columns.weights is None else [columns.weights]))
    table = Table(path, header, numbers, columns.labels, columns.groups)
    # One pass counts the rows, by one column, and reads the calibrator's name in place of groups.
    mark = () if columns.mark is None else (columns.mark,)
    counted = table._replace(scores=columns.scores[:1] if columns.labels is None else (), groups=mark)
    n, marks = 0, set[str]()
    for piece in pieces(counted):
        n += len(piece.scores)
        marks |= {name for names in piece.groups for name in names.tolist()}
    names = binary_names(columns.class_names, wanted)
    # Whether labels are numbers or names is known when they are read.
    truth = None if columns.labels is None else Described((n,), "i", "text")
    width = len(columns.scores)
    if columns.label_columns:
        truth = Described((n, width), "f", "float64")
    n, k, space = check_set(columns.name, Described((n, width), "f", "float64"), truth, [], names, wanted)
    meaning = Meaning(columns.name, names, wanted)

    def place(row: int) -> str:
        return f"line {next(islice(lines_of(path), row // math.prod(space) + 1, None))[0]}"

    def read_rows(rows: int) -> Iterator[Chunk]:
        start = 0
        with reading(path), placed(place):
            for piece in pieces(table):
                labels = None if piece.labels is None else _numbers(piece.labels, meaning, start)
                if columns.label_columns:
                    labels = piece.scores[:, width : 2 * width]
                scores, weights = piece.scores[:, :width], None if columns.weights is None else piece.scores[:, -1]
                parsed = meaning.chunk(scores, labels, piece.groups, start, weights)
                yield from (parsed.slice(i, i + rows) for i in range(0, len(parsed.labels), rows))
                start += len(parsed.labels)

    return columns.opened(path, wanted, names, n, k, read=read_rows, place=place, marks=marks, space=space)


def _columns(path: Path, wanted: Wanted) -> tuple[list[str], TableColumns]:
    """The header, and the roles of its columns."""
    header = next(lines_of(path), (0, []))[1]
    if header and all(as_number(name) is not None for name in header):
        raise InputError("the first line is numbers; it must name the columns: logits_0,logits_1,…,label")
    columns = find_columns(header, wanted)
    if columns.is_list:
        raise InputError(
            f"a .csv has no lists: {columns.name} must be a column for each class, {columns.name}_0,{columns.name}_1,… "
            "If it is the score of a binary classifier's positive class, pass positive=1",
            flags={"pass positive=1": "add --binary"},
        )
    return header, columns


def _numbers(labels: npt.NDArray[Any], meaning: Meaning, start: int) -> npt.NDArray[Any]:
    """Labels as numbers where they are numbers. No class name is a number, so a label cannot be both."""
    wanted, names = meaning.wanted, meaning.class_names
    if labels.dtype.kind != "U" or isinstance(wanted.positive, str):
        return labels
    try:
        if any("_" in label for label in labels.tolist()):
            raise ValueError  # see as_number
        return labels.astype(np.int64)
    except (ValueError, OverflowError):
        number_of = places_among(names or ())
    numbers = np.empty(len(labels), np.int64)
    for row, label in enumerate(labels.tolist()):
        whole = _whole(label)
        number = number_of(label) if whole is None else whole
        if whole is None and number == NO_LABEL:
            if wanted.one_score and names is None:
                return labels
            raise unknown_label(label, start + row, names)
        numbers[row] = number
    return numbers


def _whole(cell: str) -> int | None:
    """A whole number, however it is written: 1, 1.0 or True."""
    if cell in ("True", "False"):
        return int(cell == "True")
    value = as_number(cell)
    return int(value) if value is not None and abs(value) < 1 << 63 and value == int(value) else None


def extras(origin: Origin) -> Extras:
    """The columns that are not predictions: as numbers if every cell is one, else as text."""
    with reading(origin.path):
        header, columns = _columns(origin.path, origin.wanted)
        places = {name: header.index(name) for name in columns.others(header)}
        cells: dict[str, list[str]] = {name: [] for name in places}
        for _, row in islice(lines_of(origin.path), 1, None):
            for name, place in places.items():
                cells[name].append(row[place])
    return {name: _plain_numbers(column) for name, column in cells.items()}


def _plain_numbers(cells: list[str]) -> npt.NDArray[Any]:
    if all(map(WHOLE.fullmatch, cells)):
        return np.array(cells, dtype=np.int64)
    return np.array(cells, dtype=np.float64 if all(map(REAL.fullmatch, cells)) else np.str_)


def write(path: Path, predictions: Predictions, extras: Extras) -> None:
    """Write predictions and their extras as a .csv file."""
    header = [*class_columns(predictions)]
    numbered = predictions.has_labels and predictions.label_name not in extras  # text labels are among the extras
    grouped = predictions.has_groups and not predictions.multilabel
    header += [*label_columns(predictions) * numbered, *["group"] * grouped]
    header += [*["weight"] * predictions.has_weights, *extras]
    marks = [] if predictions.calibrated_by is None else [predictions.calibrated_by]
    n_lines = predictions.n // math.prod(predictions.space)
    others = [_cells(name, array, n_lines) for name, array in extras.items()]
    with open_text(path, "w", "utf-8") as handle:
        # Quote all text: the writer would leave a carriage return unquoted, which readers take for a new line.
        writer = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC, delimiter=separator(path))
        writer.writerow([*header, *[MARK] * len(marks)])
        start = 0
        for chunk in line_chunks(predictions, WRITTEN_ROWS):
            size = len(chunk.labels)
            columns = chunk.labels.reshape(size, -1).T.tolist() if numbered else []
            columns += [] if chunk.groups is None else [chunk.groups.tolist()]
            columns += [] if chunk.weights is None else [chunk.weights.tolist()]
            columns += [cells[start : start + size] for cells in others]
            rest = zip(*columns, strict=True) if columns else [()] * size
            written = chunk.scores if predictions.multilabel else predictions.written(chunk.scores).reshape(size, -1)
            rows = zip(written.double().tolist(), rest, strict=True)
            writer.writerows([*scores, *cells, *marks] for scores, cells in rows)
            start += size


def rewrite(origin: Origin, path: Path, predictions: Predictions) -> None:
    """Write a copy of a .csv file with new predictions: all other cells stay as they are."""
    class_columns(predictions)
    with reading(origin.path), open_text(path, "w", "utf-8") as handle:
        header, columns = _columns(origin.path, origin.wanted)
        new = with_new_scores(header, columns, origin.wanted, predictions)
        plain = csv.writer(handle, lineterminator="\n", delimiter=separator(path))
        # The plain one would leave a carriage return unquoted, which readers take for a new line.
        quoted = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_ALL, delimiter=separator(path))
        for cells in chain([[column.name for column in new]], _new_rows(origin.path, header, new, predictions)):
            (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)


def _new_rows(path: Path, header: list[str], new: Sequence[NewColumn], predictions: Predictions) -> Iterator[list[str]]:
    places = {name: i for i, name in enumerate(header)}
    values = (
        row
        for chunk in line_chunks(predictions, WRITTEN_ROWS)
        for row in zip(chunk.scores.double().tolist(), chunk.labels.tolist(), strict=True)
    )
    mark = predictions.calibrated_by or ""
    # Both are read from the same file; `values` raises an error if its number of rows has changed.
    for (scores, label), (_, old) in zip(values, islice(lines_of(path), 1, None), strict=False):
        cells = []
        for column in new:
            if column.kind == "old":
                cells.append(old[places[column.old]])
            elif column.kind == "score":
                cells.append(repr(scores[column.of_class]))
            else:
                cells.append(str(label) if column.kind == "label" else mark)
        yield cells


def _cells(name: str, array: npt.NDArray[Any], n: int) -> list[Any]:
    if array.shape != (n,) or array.dtype.kind not in "biufUMm":
        raise InputError(
            f"a .csv holds one number or text for each sample, and {name} is {array.dtype} of shape {array.shape}; "
            "write .npz"
        )
    cells: list[Any] = (array.astype(np.str_) if array.dtype.kind in "bMm" else array).tolist()
    return cells
