"""The functions of `_rows.c`, which read rows of numbers once, with torch as the fallback."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from temperance.numerics import bounds
from temperance.threads import with_helpers, workers


class Compiled(NamedTuple):
    """The functions of _rows.c for one type of value."""

    rows: Callable[..., None]
    first: Callable[..., None]
    bins: Callable[..., None]


def _compiled() -> dict[torch.dtype, Compiled]:
    """The compiled functions by type of value; empty if there was no C compiler at installation."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_rows.so")))
        rows, first, bins = ((library[f"{name}_float32"], library[f"{name}_float64"]) for name in Compiled._fields)
    except (OSError, AttributeError):
        return {}
    pointer, size, flag = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
    for function in rows:
        function.argtypes = [pointer, pointer, size, size, pointer, pointer, pointer, pointer, pointer]
    for function in first:
        function.argtypes = [pointer, pointer, size, size, pointer]
    for function in bins:
        function.argtypes = [pointer, pointer, size, pointer, size, flag, pointer, pointer, pointer]
    for function in (*rows, *first, *bins):
        function.restype = None
    return dict(zip((torch.float32, torch.float64), map(Compiled, rows, first, bins), strict=True))


COMPILED = _compiled()

TURNS = 4  # as in _rows.c

# Up to this many values, waking another thread does not pay.
LARGE = 1 << 19


class RowExtremes(NamedTuple):
    """The extremes of rows of numbers. NaN in a row makes the sums NaN; the row's top and hit are then meaningless."""

    top: Tensor  # (n,) the largest value of each row
    low: float  # the smallest value of all
    lightest: float  # the smallest sum of a row
    heaviest: float  # the largest sum of a row
    hit: Tensor | None  # (n,) bool: is the row's label the first of its largest values? None if not determined


def read_once(rows: Tensor) -> bool:
    """Does `row_extremes` read these rows in a single pass, without temporaries of their size?"""
    return rows.ndim == 2 and rows.dtype in COMPILED and rows.device.type == "cpu" and rows.is_contiguous()


def row_extremes(rows: Tensor, labels: Tensor | None = None) -> RowExtremes:
    """The extremes of rows (n, k), and which rows hit their label where that costs nothing extra.

    The compiled code reads the rows once: reading 50,000 × 1000 values from memory takes longer than any arithmetic.
    """
    if not read_once(rows):
        return RowExtremes(rows.amax(1), float(rows.amin()), *bounds(rows.sum(1).double()), None)
    n, k = rows.shape
    top, low, total = (rows.new_empty(n) for _ in range(3))
    hit = rows.new_empty(n, dtype=torch.bool)
    truth = None if labels is None else labels.contiguous()
    next_row = ctypes.c_ssize_t(0)

    def scan() -> None:
        inputs = (rows.data_ptr(), None if truth is None else truth.data_ptr(), n, k)
        outputs = (tensor.data_ptr() for tensor in (top, low, total, hit))
        COMPILED[rows.dtype].rows(*inputs, *outputs, ctypes.byref(next_row))

    with_helpers(scan, workers() - 1 if rows.numel() > LARGE else 0)
    return RowExtremes(top, bounds(low)[0], *bounds(total), None if truth is None else hit)


def first_places(rows: Tensor, values: Tensor) -> Tensor:
    """The first column of each row (n, k) that holds the given value (n,), which the row must contain. (n,) int64"""
    if read_once(rows):
        places, values = rows.new_empty(len(rows), dtype=torch.int64), values.contiguous()
        COMPILED[rows.dtype].first(rows.data_ptr(), values.data_ptr(), *rows.shape, places.data_ptr())
        return places
    # Not argmax: torch does not promise the first of several.
    return torch.where(rows == values[:, None], torch.arange(rows.shape[1], device=rows.device), rows.shape[1]).amin(1)


def bin_sums(values: Tensor, hits: Tensor, edges: Tensor, *, closed: str) -> tuple[Tensor, Tensor, Tensor] | None:
    """The number of values in each bin of equal width, their sum, and the number of hits; None if not compiled.

    Bins are (lo, hi] if `closed` is "right", [lo, hi) if "left"; values beyond 0 or 1 fall into the first or last bin.
    """
    if values.device.type != "cpu" or values.dtype not in COMPILED:
        return None
    values, hits, n_bins = values.contiguous(), hits.contiguous(), len(edges) - 1
    count, hit = torch.zeros(2, TURNS, n_bins, dtype=torch.int64)
    total = torch.zeros(TURNS, n_bins, dtype=torch.float64)
    inputs = (values.data_ptr(), hits.data_ptr(), len(values), edges.data_ptr(), n_bins, closed == "right")
    COMPILED[values.dtype].bins(*inputs, count.data_ptr(), total.data_ptr(), hit.data_ptr())
    return count.sum(0), total.sum(0), hit.sum(0)
