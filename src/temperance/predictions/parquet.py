"""Predictions in .parquet: a column of lists, or a column for each class; read and written in batches of rows.

Written as a list column, with checksums, and with class names as JSON in the schema's metadata under `class_names`.
The name of the calibrator is a column, `calibrated_by`: most programs that rewrite a table drop its metadata.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from temperance.errors import InputError, optional
from temperance.files import reading
from temperance.predictions.checks import (
    MARK,
    Described,
    Wanted,
    as_class_names,
    binary_names,
    check_set,
    excerpt,
    names_from_json,
)
from temperance.predictions.columns import (
    NewColumn,
    TableColumns,
    class_columns,
    find_columns,
    label_columns,
    with_new_scores,
)
from temperance.predictions.core import WRITTEN_ROWS, Extras, Origin, Predictions
from temperance.predictions.dense import line_chunks
from temperance.predictions.rows import Chunk, Meaning, Taker, as_numpy, in_file, placed, regrouped

# A column is read through a buffer of this size, rather than as a whole row group at once.
BUFFER_BYTES = 1 << 16


def read(path: Path, wanted: Wanted) -> Predictions:
    """Open the predictions in a .parquet file."""
    with _open(path) as file:
        schema, columns = file.schema_arrow, _find_columns(file.schema_arrow, wanted)
        part = _row_groups(file, *wanted.part)
        first, n = _n_rows(file, range(part.start)), _n_rows(file, part)
        k = _list_length(file, columns.scores[0]) if columns.is_list else len(columns.scores)
        marks = set() if columns.mark is None else _texts(file, columns.mark, part)
    stored = (schema.metadata or {}).get(b"class_names")
    names = columns.class_names if stored is None else as_class_names(names_from_json("class_names", stored))
    names = binary_names(names, wanted)
    scores = _describe_scores(schema, columns, (n, k))
    truth, counted = (
        None if name is None else _describe(schema.field(name).type, (n,)) for name in (columns.labels, columns.weights)
    )
    groups = [_describe(schema.field(name).type, (n,)) for name in columns.groups]
    width = k
    if columns.label_columns:
        kinds = [_describe(schema.field(name).type, (n, k)) for name in columns.label_columns]
        truth = next((each for each in kinds if each.kind not in "bif"), kinds[0])
    n, k, space = check_set(columns.name, scores, truth, groups, names, wanted, counted)
    meaning = Meaning(columns.name, names, wanted)

    def read_rows(rows: int) -> Iterator[Chunk]:
        start = first
        with reading(path), placed(in_file), _open(path) as opened:
            # Arrow holds several times the memory of a batch while it reads one, so batches are short.
            size = max(1, min(rows, WRITTEN_ROWS) // math.prod(space))
            for batch in opened.iter_batches(size, row_groups=part, columns=columns.used, use_threads=False):
                labels, weights = (
                    None if name is None else _values(batch, name, start) for name in (columns.labels, columns.weights)
                )
                of_group = [_values(batch, name, start) for name in columns.groups]
                if columns.label_columns:
                    labels = np.stack([_values(batch, name, start) for name in columns.label_columns], axis=1)
                at = start * math.prod(space)
                yield meaning.chunk(_scores(batch, columns, width, start), labels, of_group, at, weights)
                start += batch.num_rows
        _pyarrow()[0].default_memory_pool().release_unused()

    def place(row: int) -> str:
        return in_file(first + row // math.prod(space))

    def in_chunks(rows: int) -> Iterator[Chunk]:
        return regrouped(read_rows(rows), rows) if space else read_rows(rows)

    return columns.opened(path, wanted, names, n, k, read=in_chunks, place=place, marks=marks, space=space)


def _find_columns(schema: Any, wanted: Wanted) -> TableColumns:
    columns = find_columns(schema.names, wanted)
    if not wanted.one_score or wanted.multilabel:
        return columns
    # The one score of a binary classifier or an answer may hold numbers, or lists of one number.
    return replace(columns, is_list=_is_list(schema.field(columns.scores[0]).type))


def n_row_groups(path: Path) -> int:
    """How many parts a file can be read in."""
    with reading(path), _open(path) as file:
        return int(file.metadata.num_row_groups)


def _row_groups(file: Any, i: int, m: int) -> range:
    """The row groups of the i-th of m parts of a file."""
    n_groups = file.metadata.num_row_groups
    return range(n_groups * i // m, n_groups * (i + 1) // m)


def _n_rows(file: Any, groups: range) -> int:
    return sum(file.metadata.row_group(i).num_rows for i in groups)


def _texts(file: Any, column: str, groups: range) -> set[str]:
    """The different texts in a column; usually there is one."""
    batches = file.iter_batches(row_groups=groups, columns=[column])
    return {str(text or "") for batch in batches for text in batch.column(column).unique().to_pylist()}


def extras(origin: Origin) -> Extras:
    """The columns that are not predictions, as NumPy arrays."""
    with reading(origin.path), _open(origin.path) as file:
        schema = file.schema_arrow
        names = _find_columns(schema, origin.wanted).others(schema.names)
        table = file.read(columns=names)
    return {name: _extra(table.column(name), name) for name in table.column_names}


def _extra(column: Any, name: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = column.to_numpy()
    if column.null_count and not _pyarrow()[0].types.is_floating(column.type):
        raise InputError(f"the column {excerpt([name])} has empty cells, which only .parquet can hold")
    if array.dtype.kind == "O":
        try:
            array = np.array(column.to_pylist())
        except ValueError:
            array = np.array(None)
    if array.dtype.kind == "O":
        raise InputError(f"the column {excerpt([name])} has the type {column.type}, which only .parquet can hold")
    return array


def write(path: Path, predictions: Predictions, extras: Extras) -> None:
    """Write predictions and their extras as a .parquet file."""
    names = predictions.class_names
    n_lines = predictions.n // math.prod(predictions.space)
    others = {name: _as_arrow(name, array, n_lines) for name, array in extras.items()}
    batches = _batches(predictions, others)
    first = next(batches)
    schema = first.schema if names is None else first.schema.with_metadata({"class_names": json.dumps(names)})
    _save(path, schema, chain([first], batches), predictions)


def _batches(predictions: Predictions, others: dict[str, Any]) -> Iterator[Any]:
    pyarrow, _ = _pyarrow()
    start = 0
    for chunk in line_chunks(predictions, WRITTEN_ROWS):
        size = len(chunk.labels)
        scores = as_numpy(chunk.scores if predictions.multilabel else predictions.written(chunk.scores))
        if predictions.multilabel:
            columns = zip(class_columns(predictions), scores.T, strict=True)
            arrays = {name: pyarrow.array(np.ascontiguousarray(column)) for name, column in columns}
        else:
            arrays = {predictions.kind: pyarrow.array(scores) if scores.ndim == 1 else _lists(scores)}
        if predictions.multilabel and predictions.has_labels:
            truth = zip(label_columns(predictions), chunk.labels.cpu().numpy().T, strict=True)
            arrays |= {name: pyarrow.array(np.ascontiguousarray(column)) for name, column in truth}
        elif predictions.has_labels:
            arrays[predictions.label_name] = pyarrow.array(chunk.labels.cpu().numpy())
        if chunk.groups is not None:
            arrays["group"] = pyarrow.array(chunk.groups.tolist(), pyarrow.string())
        if chunk.weights is not None:
            arrays["weight"] = pyarrow.array(chunk.weights.cpu().numpy())
        arrays |= {name: array.slice(start, size) for name, array in others.items()}
        if predictions.calibrated_by is not None:
            arrays[MARK] = pyarrow.array([predictions.calibrated_by] * size, pyarrow.string())
        yield pyarrow.record_batch(arrays)
        start += size


def rewrite(origin: Origin, path: Path, predictions: Predictions) -> None:
    """Write a copy of a .parquet file with new predictions: all other columns and the metadata stay."""
    pyarrow, _ = _pyarrow()
    types = {
        "score": pyarrow.float64(),
        "scores": pyarrow.list_(pyarrow.float64(), predictions.k),
        "label": pyarrow.int64(),
        "mark": pyarrow.string(),
    }
    with reading(origin.path), _open(origin.path) as file:
        old = file.schema_arrow
        new = with_new_scores(old.names, _find_columns(old, origin.wanted), origin.wanted, predictions)
        fields = [
            old.field(column.old) if column.kind == "old" else pyarrow.field(column.name, types[column.kind])
            for column in new
        ]
        schema = pyarrow.schema(fields, old.metadata)
        _save(path, schema, _new_batches(file, schema, new, predictions), predictions)


def _new_batches(file: Any, schema: Any, new: Sequence[NewColumn], predictions: Predictions) -> Iterator[Any]:
    pyarrow, _ = _pyarrow()
    taker = Taker(line_chunks(predictions, WRITTEN_ROWS))
    for batch in file.iter_batches(batch_size=WRITTEN_ROWS):
        chunk = taker.take(batch.num_rows)
        scores = chunk.scores.double().cpu().contiguous().numpy()
        arrays = []
        for column in new:
            if column.kind == "old":
                arrays.append(batch.column(column.old))
            elif column.kind == "score":
                arrays.append(pyarrow.array(scores[:, column.of_class]))
            elif column.kind == "scores":
                arrays.append(_lists(scores))
            elif column.kind == "label":
                arrays.append(pyarrow.array(chunk.labels.cpu().numpy()))
            else:
                arrays.append(pyarrow.array([predictions.calibrated_by] * len(scores), pyarrow.string()))
        yield pyarrow.record_batch(arrays, schema=schema)


def _save(path: Path, schema: Any, batches: Iterator[Any], predictions: Predictions) -> None:
    # Scores rarely repeat, so a dictionary would only cost time.
    repeating = [name for name in schema.names if not name.startswith(predictions.kind)]
    options = {"use_dictionary": repeating, "write_page_checksum": True}
    with _pyarrow()[1].ParquetWriter(path, schema, **options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _lists(scores: npt.NDArray[Any]) -> Any:
    """Scores as a column of lists."""
    pyarrow, _ = _pyarrow()
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(scores.reshape(-1)), scores.shape[1])


def _as_arrow(name: str, array: npt.NDArray[Any], n: int) -> Any:
    """An array as a column: rows of any shape become nested lists."""
    pyarrow, _ = _pyarrow()
    if array.shape[:1] != (n,):
        raise InputError(
            f"a .parquet holds one value or list for each sample, and {name} has shape {array.shape}; write .npz"
        )
    try:
        column = pyarrow.array(array.reshape(-1))
        for size in reversed(array.shape[1:]):
            column = pyarrow.FixedSizeListArray.from_arrays(column, size)
    except pyarrow.ArrowException:
        raise InputError(f"a .parquet cannot hold {name}, which is {array.dtype}; write .npz") from None
    return column


def _pyarrow() -> tuple[Any, Any]:
    with optional("pyarrow", "parquet", "reading and writing .parquet files"):
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def _open(path: Path) -> Any:
    options = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
    return _pyarrow()[1].ParquetFile(path, **options)


def _describe(arrow_type: Any, shape: tuple[int, ...]) -> Described:
    types = _pyarrow()[0].types
    inner = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    kinds = {"i": types.is_integer, "f": types.is_floating, "U": _is_text, "b": types.is_boolean}
    return Described(shape, next((kind for kind, fits in kinds.items() if fits(inner)), "V"), str(arrow_type))


def _is_list(arrow_type: Any) -> bool:
    return hasattr(arrow_type, "value_type") and not _pyarrow()[0].types.is_dictionary(arrow_type)


def _is_text(arrow_type: Any) -> bool:
    types = _pyarrow()[0].types
    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type))


def _list_length(file: Any, column: str) -> int:
    """The number of values in the first row's list."""
    first = next(file.iter_batches(batch_size=1, columns=[column]), None)
    if first is None:
        return 0
    if not hasattr(first.column(column).type, "value_type"):
        raise InputError(
            f"the column {column} must hold a list of numbers in each row; got {first.column(column).type}. "
            "If it is the score of a binary classifier's positive class, pass positive=1",
            flags={"pass positive=1": "add --binary"},
        )
    row = first.column(column)[0].as_py()
    if row is None:
        raise _missing(column, 0)
    return len(row)


def _describe_scores(schema: Any, columns: TableColumns, shape: tuple[int, int]) -> Described:
    """The scores as they will be read; if columns differ in type, the first that does not hold numbers is described."""
    types = [schema.field(column).type for column in columns.scores]
    found = [_describe(each.value_type if columns.is_list else each, shape) for each in types]
    return next((column for column in found if column.kind not in "fi"), found[0])


def _scores(batch: Any, columns: TableColumns, k: int, start: int) -> npt.NDArray[Any]:
    """The scores of a batch. (rows, k)"""
    if not columns.is_list:
        return np.stack([_values(batch, column, start) for column in columns.scores], axis=1)
    lists = batch.column(columns.scores[0])
    lengths = _lengths(lists)
    if (lengths != k).any():
        row = int((lengths != k).argmax())
        raise InputError(
            f"each row of {columns.name} must be a list of {k} numbers, as in the first; row {start + row} has "
            f"{lengths[row]}",
            row=start + row,
        )
    return _to_numpy(lists.flatten(), columns.name, start, per_row=k).reshape(-1, k)


def _lengths(lists: Any) -> npt.NDArray[Any]:
    """The length of each list; 0 where there is no list. (rows,)"""
    types = _pyarrow()[0].types
    # `value_lengths` imports pyarrow.compute, and `fill_null` pandas: most columns can do without them.
    if types.is_fixed_size_list(lists.type) and not lists.null_count:
        return np.full(len(lists), lists.type.list_size)
    if (types.is_list(lists.type) or types.is_large_list(lists.type)) and not lists.null_count:
        return np.diff(np.from_dlpack(lists.offsets))
    return np.from_dlpack(lists.value_lengths().fill_null(0))


def _values(batch: Any, column: str, start: int) -> npt.NDArray[Any]:
    """The numbers or the text of a column. (rows,)"""
    return _to_numpy(batch.column(column), column, start, per_row=1)


def _to_numpy(values: Any, column: str, start: int, *, per_row: int) -> npt.NDArray[Any]:
    if values.null_count:
        raise _missing(column, start + int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // per_row)
    types = _pyarrow()[0].types
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if types.is_integer(values.type) or types.is_floating(values.type):
        return np.from_dlpack(values)
    array: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def _missing(column: str, row: int) -> InputError:
    return InputError(
        f"the column {excerpt([column])} has no value in row {row}; fill it in or leave the row out", row=row
    )
