"""Predictions in .parquet: a column of lists, or a column for each class; read and written in batches of rows.

Written as a list column, with checksums, and with class names as JSON in the schema's metadata under `class_names`.
"""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from temperance.arrays import as_scores
from temperance.errors import InputError, MissingExtraError
from temperance.files import reading
from temperance.predictions.checks import (
    Described,
    Labels,
    as_class_names,
    check_set,
    label_numbers,
    names_from_json,
    no_labels,
    shown,
)
from temperance.predictions.columns import Columns, find_columns
from temperance.predictions.core import Chunk, Predictions

# A column is read through a buffer of this size, rather than as a whole row group at once.
BUFFER_BYTES = 1 << 16


def read(path: Path, split: str | None, labels: Labels) -> Predictions:
    """Open the predictions in a .parquet file."""
    with _open(path) as file:
        schema, n = file.schema_arrow, file.metadata.num_rows
        columns = find_columns(schema.names, split, labels)
        k = _list_length(file, columns.name) if columns.is_list else len(columns.scores)
    stored = (schema.metadata or {}).get(b"class_names")
    names = columns.class_names if stored is None else as_class_names(names_from_json("class_names", stored))
    scores = _describe_scores(schema, columns, (n, k))
    groups = None if columns.groups is None else _describe(schema.field(columns.groups).type, (n,))
    truth = None if columns.labels is None else _describe(schema.field(columns.labels).type, (n,))
    check_set(columns.name, scores, truth, groups, names)

    def read_rows(rows: int) -> Iterator[Chunk]:
        start = 0
        with reading(path), _open(path) as opened:
            for batch in opened.iter_batches(batch_size=rows, columns=columns.used):
                yield Chunk(
                    as_scores(_scores(batch, columns, k, start), columns.name),
                    no_labels(batch.num_rows)
                    if columns.labels is None
                    else label_numbers(_values(batch, columns.labels, start), names, start),
                    None if columns.groups is None else _values(batch, columns.groups, start).astype(np.str_),
                )
                start += batch.num_rows

    has = {"has_labels": truth is not None, "has_groups": groups is not None}
    return Predictions(str(path), None, columns.from_logits, n, k, **has, class_names=names, _read=read_rows)


def write(path: Path, predictions: Predictions) -> None:
    """Write predictions as a .parquet file."""
    batches = (_batch(chunk, predictions) for chunk in predictions.chunks())
    first = next(batches)
    names = predictions.class_names
    schema = first.schema if names is None else first.schema.with_metadata({"class_names": json.dumps(names)})
    options = {"use_dictionary": ["label", "group"], "write_page_checksum": True}
    with _pyarrow()[1].ParquetWriter(path, schema, **options) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)


def _batch(chunk: Chunk, predictions: Predictions) -> Any:
    pyarrow, _ = _pyarrow()
    # Parquet has no bfloat16; float32 holds its values exactly.
    scores = chunk.scores.float() if chunk.scores.dtype == torch.bfloat16 else chunk.scores
    flat = pyarrow.array(scores.cpu().contiguous().numpy().reshape(-1))
    arrays = {
        "logits" if predictions.from_logits else "probs": pyarrow.FixedSizeListArray.from_arrays(flat, predictions.k)
    }
    if predictions.has_labels:
        arrays["label"] = pyarrow.array(chunk.labels.cpu().numpy())
    if chunk.groups is not None:
        arrays["group"] = pyarrow.array(chunk.groups.tolist(), pyarrow.string())
    return pyarrow.record_batch(arrays)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading and writing .parquet files") from None
    return pyarrow, pyarrow.parquet


def _open(path: Path) -> Any:
    options = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
    return _pyarrow()[1].ParquetFile(path, **options)


def _describe(arrow_type: Any, shape: tuple[int, ...]) -> Described:
    types = _pyarrow()[0].types
    inner = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    kinds = {"i": types.is_integer, "f": types.is_floating, "U": _is_text, "b": types.is_boolean}
    return Described(shape, next((kind for kind, fits in kinds.items() if fits(inner)), "V"), str(arrow_type))


def _is_text(arrow_type: Any) -> bool:
    types = _pyarrow()[0].types
    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type))


def _list_length(file: Any, column: str) -> int:
    """How many numbers the list in the first row has."""
    first = next(file.iter_batches(batch_size=1, columns=[column]), None)
    if first is None:
        return 0
    if not hasattr(first.column(column).type, "value_type"):
        raise InputError(
            f"the column {column} must hold a list of numbers in each row; got {first.column(column).type}"
        )
    row = first.column(column)[0].as_py()
    if row is None:
        raise _missing(column, 0)
    return len(row)


def _describe_scores(schema: Any, columns: Columns, shape: tuple[int, int]) -> Described:
    """The scores as they will be read; if the columns differ in type, one that does not hold numbers speaks for all."""
    types = [schema.field(column).type for column in columns.scores]
    found = [_describe(each.value_type if columns.is_list else each, shape) for each in types]
    return next((column for column in found if column.kind not in "fi"), found[0])


def _scores(batch: Any, columns: Columns, k: int, start: int) -> npt.NDArray[Any]:
    """The scores of a batch. (rows, k)"""
    if not columns.is_list:
        return np.stack([_values(batch, column, start) for column in columns.scores], axis=1)
    lists = batch.column(columns.name)
    lengths = _pyarrow()[0].compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    if (lengths != k).any():
        row = int((lengths != k).argmax())
        raise InputError(
            f"each row of {columns.name} must be a list of {k} numbers, as in the first; row {start + row} has "
            f"{lengths[row]}"
        )
    return _to_numpy(lists.flatten(), columns.name, start, per_row=k).reshape(-1, k)


def _values(batch: Any, column: str, start: int) -> npt.NDArray[Any]:
    """The numbers or the text of a column. (rows,)"""
    return _to_numpy(batch.column(column), column, start, per_row=1)


def _to_numpy(values: Any, column: str, start: int, *, per_row: int) -> npt.NDArray[Any]:
    if values.null_count:
        raise _missing(column, start + int(values.is_null().to_numpy(zero_copy_only=False).argmax()) // per_row)
    if _pyarrow()[0].types.is_dictionary(values.type):
        values = values.dictionary_decode()
    array: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array.astype(np.str_) if array.dtype.kind == "O" else array


def _missing(column: str, row: int) -> InputError:
    return InputError(f"the column {shown([column])} has no value in row {row}; fill it in or leave the row out")
