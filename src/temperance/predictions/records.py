"""Predictions in .jsonl and .json: a record for each sample, with the columns of a table; scores may be a list.

A .jsonl file is read line by line. A .json file, a list of records or a record of columns, is held while it is read.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.errors import InputError
from temperance.files import reading
from temperance.predictions.checks import MARK, Described, Wanted, binary_names, check_set, excerpt
from temperance.predictions.columns import TableColumns, class_columns, find_columns, with_new_scores
from temperance.predictions.core import WRITTEN_ROWS, Extras, Origin, Predictions
from temperance.predictions.rows import Chunk, Meaning, in_file, placed

Record = dict[str, Any]

# Why samples with several labels are not in these files.
NO_LABELS = "several labels are not read from or written to .json and .jsonl; use .npz, .safetensors, .parquet or .csv"


def read(path: Path, wanted: Wanted) -> Predictions:
    """Open the predictions in a .jsonl or .json file."""
    first, columns = _columns(path, wanted)
    n, marks = 0, set[str]()
    with placed(in_file):
        for record in _records(path):
            n += 1
            marks |= {str(record.get(columns.mark) or "")} if columns.mark else set()
    names = binary_names(columns.class_names, wanted)
    k = len(first[columns.scores[0]]) if columns.is_list else len(columns.scores)
    score = Described((n, k) if columns.is_list else (n,), "f", "float64")
    others = (columns.labels, columns.weights, *columns.groups)
    with placed(in_file):
        kinds = {name: _describe(name, first[name], n) for name in others if name}
    truth, counted = (None if name is None else kinds[name] for name in (columns.labels, columns.weights))
    groups = [kinds[name] for name in columns.groups]
    n, k, _ = check_set(columns.name, Described((n, k), "f", "float64"), truth, groups, names, wanted, counted)
    meaning = Meaning(columns.name, names, wanted)

    def read_rows(rows: int) -> Iterator[Chunk]:
        records, start = _records(path), 0
        with reading(path), placed(in_file):
            while block := list(islice(records, rows)):
                several = [_values(block, name, start, score) for name in columns.scores]
                scores = several[0] if columns.is_list else np.stack(several, axis=1)
                values = {name: _values(block, name, start, kind) for name, kind in kinds.items()}
                labels, weights = (None if name is None else values[name] for name in (columns.labels, columns.weights))
                # A group is called as it is written: 1, not 1.0.
                of_group = [np.array([str(record[name]) for record in block]) for name in columns.groups]
                yield meaning.chunk(scores, labels, of_group, start, weights)
                start += len(block)

    return columns.opened(path, wanted, names, n, k, read=read_rows, place=in_file, marks=marks)


def _records(path: Path) -> Iterator[Record]:
    """The records in order; blank lines do not count."""
    with path.open(encoding="utf-8-sig") as handle:
        found = _parsed(filter(str.strip, handle)) if _is_lines(path) else _listed(json.load(handle))
        for row, record in enumerate(found):
            if not isinstance(record, dict):
                raise InputError(
                    f'each sample must be a record, {{"logits": [1.5, 0.2], "label": 0}}; row {row} is '
                    f"{excerpt([json.dumps(record)])}",
                    row=row,
                )
            yield record


def _parsed(lines: Iterable[str]) -> Iterator[Any]:
    for row, line in enumerate(lines):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"each line must be a record in JSON; row {row} is damaged or cut short ({error.msg}). Write it again",
                row=row,
            ) from None


def _is_lines(path: Path) -> bool:
    return path.suffix.lower() == ".jsonl"


def _listed(content: Any) -> list[Any]:
    """A list of records, or the columns of a table as such a list."""
    if isinstance(content, dict) and content and all(isinstance(column, list) for column in content.values()):
        lengths = {name: len(column) for name, column in content.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(
                f"columns must have the same length; got {excerpt(f'{a}: {n}' for a, n in lengths.items())}"
            )
        return [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]
    if not isinstance(content, list):
        raise InputError('expected a list of records, or columns: {"logits": [[1.5, 0.2], …], "label": [0, …]}')
    return content


def _columns(path: Path, wanted: Wanted) -> tuple[Record, TableColumns]:
    """The first record, and the roles of its entries."""
    if wanted.multilabel:
        raise InputError(NO_LABELS)
    first = next(_records(path), None)
    if first is None:
        raise InputError("there is no record; expected one for each sample")
    columns = find_columns(first, wanted)
    name, value = columns.scores[0], first[columns.scores[0]]
    has_list = isinstance(value, list)
    if columns.is_list and isinstance(value, dict):
        each = "".join(f', "{name}_{key}": …' for key in list(value)[:2])
        raise InputError(f"{name} must be a list of numbers in each record, or entries of their own: {{{each[2:]}, …}}")
    if columns.is_list and not has_list:
        raise InputError(
            f"{name} must be a list of numbers in each record; in the first it is not. "
            "If it is the score of a binary classifier's positive class, pass positive=1",
            flags={"pass positive=1": "add --binary"},
        )
    return first, replace(columns, is_list=has_list)


def _describe(name: str, value: object, n: int) -> Described:
    """The type of a column, by its first value."""
    if value is None:
        raise InputError(f"{name} must have a value in each record; row 0 has nothing", row=0)
    if isinstance(value, list):
        return Described((n, len(value)), "f", "list")
    kind = "U" if isinstance(value, str) else "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"
    return Described((n,), kind, type(value).__name__)


def _values(block: list[Record], name: str, start: int, like: Described) -> npt.NDArray[Any]:
    """A column of some records, whose values must have the type and length of the file's first one."""
    is_text, shape = like.kind == "U", like.shape[1:]
    dtype = np.str_ if is_text else np.float64
    for row, record in enumerate(block, start):
        value = record.get(name)
        try:
            fits = isinstance(value, str) == is_text and np.array(value, dtype).shape == shape
        except (TypeError, ValueError):
            fits = False
        if value is None or not fits:
            expected = "text" if is_text else f"{shape[0]} numbers" if shape else "a number"
            what = "nothing" if value is None else excerpt([json.dumps(value)])
            raise InputError(f"{name} must be {expected} in each record; row {row} has {what}", row=row)
    return np.array([record[name] for record in block], dtype)


def extras(origin: Origin) -> Extras:
    """The entries that are not predictions, as NumPy arrays."""
    with reading(origin.path):
        first, columns = _columns(origin.path, origin.wanted)
        cells: dict[str, list[Any]] = {name: [] for name in columns.others(first)}
        for record in _records(origin.path):
            for name, column in cells.items():
                column.append(record.get(name))
        return {name: _extra(name, column) for name, column in cells.items()}


def _extra(name: str, values: list[Any]) -> npt.NDArray[Any]:
    kinds = {type(value) for value in values}
    try:
        array = np.array(values)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "biufU" or (str in kinds and len(kinds) > 1):
        raise InputError(f"{name} has values of several kinds, which only .json and .jsonl can hold")
    return array


def write(path: Path, predictions: Predictions, extras: Extras) -> None:
    """Write predictions and their extras as records."""
    if predictions.multilabel:
        raise InputError(NO_LABELS)
    for name, array in extras.items():
        if array.shape[:1] != (predictions.n,) or array.dtype.kind not in "biufU":
            raise InputError(
                f"a record holds numbers or text of one sample, and {name} is {array.dtype} of shape {array.shape}; "
                "write .npz"
            )
    _save(path, _new_records(predictions, extras))


def _new_records(predictions: Predictions, extras: Extras) -> Iterator[Record]:
    kind, row = predictions.kind, 0
    names = None if predictions.class_names is None else class_columns(predictions)
    mark = {} if predictions.calibrated_by is None else {MARK: predictions.calibrated_by}
    for chunk in predictions.chunks(WRITTEN_ROWS):
        for i, scores in enumerate(predictions.written(chunk.scores).double().tolist()):
            record: Record = {kind: scores} if names is None else dict(zip(names, scores, strict=True))
            if predictions.has_labels:
                record[predictions.label_name] = int(chunk.labels[i])
            if chunk.groups is not None:
                record["group"] = str(chunk.groups[i])
            if chunk.weights is not None:
                record["weight"] = float(chunk.weights[i])
            yield record | {name: array[row].tolist() for name, array in extras.items()} | mark
            row += 1


def rewrite(origin: Origin, path: Path, predictions: Predictions) -> None:
    """Write a copy of the records with new predictions: all other entries stay as they are."""
    with reading(origin.path):
        first, columns = _columns(origin.path, origin.wanted)
        new = with_new_scores(first, columns, origin.wanted, predictions)
        values = (
            row
            for chunk in predictions.chunks(WRITTEN_ROWS)
            for row in zip(chunk.scores.double().tolist(), chunk.labels.tolist(), strict=True)
        )

        def records() -> Iterator[Record]:
            for (scores, label), old in zip(values, _records(origin.path), strict=False):
                made = {"scores": scores, "label": label, "mark": predictions.calibrated_by}
                record = {
                    column.name: old.get(column.old)
                    if column.kind == "old"
                    else scores[column.of_class]
                    if column.kind == "score"
                    else made[column.kind]
                    for column in new
                }
                yield record | {name: value for name, value in old.items() if name not in first}

        _save(path, records())


def _save(path: Path, records: Iterator[Record]) -> None:
    is_lines = _is_lines(path)
    with path.open("w", encoding="utf-8") as handle:
        for i, record in enumerate(records):
            handle.write(("" if is_lines else ",\n" if i else "[\n") + json.dumps(record, ensure_ascii=False))
            handle.write("\n" if is_lines else "")
        handle.write("" if is_lines else "\n]\n")
