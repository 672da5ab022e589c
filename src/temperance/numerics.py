"""Numerical building blocks that know nothing of calibration."""

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock, local
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Compiled(NamedTuple):
    """The functions of _rows.c for one type of value."""

    rows: Callable[..., None]
    first: Callable[..., None]
    bins: Callable[..., None]


def _compiled() -> dict[torch.dtype, Compiled]:
    """What was compiled on installation, by the type of value: nothing where there was no C compiler."""
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

# This many values are worth waking another thread for.
LARGE = 1 << 19

LOOKED_AT = 1 << 10


class RowExtremes(NamedTuple):
    """What a look at rows of numbers shows. NaN in a row makes the sums NaN; its top and its hit then mean nothing."""

    top: Tensor  # (n,) the largest value of each row
    low: float  # the smallest value of all
    lightest: float  # the smallest sum of a row
    heaviest: float  # the largest sum of a row
    hit: Tensor | None  # (n,) bool: is the row's label the first of its largest values? None if that was not looked at


def read_once(rows: Tensor) -> bool:
    """Does `row_extremes` read these rows only once, and make nothing of their size?"""
    return rows.ndim == 2 and rows.dtype in COMPILED and rows.device.type == "cpu" and rows.is_contiguous()


def row_extremes(rows: Tensor, labels: Tensor | None = None) -> RowExtremes:
    """The extremes of rows (n, k), and which labels they hit if that costs nothing extra.

    Compiled where it can be: reading 50,000 × 1000 values from memory takes longer than anything done to them.
    """
    if not read_once(rows):
        return RowExtremes(rows.amax(1), float(rows.amin()), *bounds(rows.sum(1).double()), None)
    n, k = rows.shape
    top, low, total = (rows.new_empty(n) for _ in range(3))
    hit = rows.new_empty(n, dtype=torch.bool)
    truth = None if labels is None else labels.contiguous()
    next_row = ctypes.c_ssize_t(0)

    def look() -> None:
        inputs = (rows.data_ptr(), None if truth is None else truth.data_ptr(), n, k)
        outputs = (tensor.data_ptr() for tensor in (top, low, total, hit))
        COMPILED[rows.dtype].rows(*inputs, *outputs, ctypes.byref(next_row))

    with_helpers(look, workers() - 1 if rows.numel() > LARGE else 0)
    return RowExtremes(top, bounds(low)[0], *bounds(total), None if truth is None else hit)


def first_places(rows: Tensor, values: Tensor) -> Tensor:
    """The first place of each row (n, k) that holds its value (n,), one of those in the row. (n,) int64"""
    if read_once(rows):
        places, values = rows.new_empty(len(rows), dtype=torch.int64), values.contiguous()
        COMPILED[rows.dtype].first(rows.data_ptr(), values.data_ptr(), *rows.shape, places.data_ptr())
        return places
    # Torch's argmax may give any of several.
    return torch.where(rows == values[:, None], torch.arange(rows.shape[1], device=rows.device), rows.shape[1]).amin(1)


def bin_edges(n_bins: int, device: torch.device | None = None) -> Tensor:
    """The edges of bins of equal width, each the float64 nearest to i / n_bins, as those of linspace are not."""
    return torch.arange(n_bins + 1, dtype=torch.float64, device=device) / n_bins


def bin_sums(values: Tensor, hits: Tensor, edges: Tensor, *, closed: str) -> tuple[Tensor, Tensor, Tensor] | None:
    """How many values lie in each bin of equal width, their sum, and how many of them hit; None if not compiled.

    Bins are (lo, hi] if `closed` is "right", [lo, hi) if "left"; what is beyond 0 or 1 counts to the first or last.
    """
    if values.device.type != "cpu" or values.dtype not in COMPILED:
        return None
    values, hits, n_bins = values.contiguous(), hits.contiguous(), len(edges) - 1
    count, hit = torch.zeros(2, TURNS, n_bins, dtype=torch.int64)
    total = torch.zeros(TURNS, n_bins, dtype=torch.float64)
    inputs = (values.data_ptr(), hits.data_ptr(), len(values), edges.data_ptr(), n_bins, closed == "right")
    COMPILED[values.dtype].bins(*inputs, count.data_ptr(), total.data_ptr(), hit.data_ptr())
    return count.sum(0), total.sum(0), hit.sum(0)


# Devices that cannot hold float64.
WITHOUT_FLOAT64 = ("mps",)


def working_type(device: torch.device) -> torch.dtype:
    """The most precise type that a device computes in: float64, or float32 where there is no float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


@contextmanager
def one_thread(*, where: bool = True) -> Iterator[None]:
    """Let torch use one thread in this block, for thousands of operations too small to be worth waking another.

    Only the calling thread is limited. Torch keeps a number of threads for each thread, and one for the process that
    new threads start with; it sets both at once. So another thread sets the one for the process back right away, and
    nothing that starts during the block is left with one thread for good.
    """
    before = 1
    try:
        if where:
            with _thread_lock(os.getpid()):
                before = torch.get_num_threads()
                if before > 1:
                    torch.set_num_threads(1)
                    _outside.threads = before
                    _pool(os.getpid()).submit(torch.set_num_threads, before).result()
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
            _outside.threads = None


# How many threads torch had outside of `one_thread`, for each thread that is inside.
_outside = local()


def workers() -> int:
    """How many threads share the work that is cut into blocks: as many as torch may use outside of `one_thread`."""
    return getattr(_outside, "threads", None) or torch.get_num_threads()


@cache
def _thread_lock(process: int) -> Lock:
    """One for each process: a parent may hold its own while it forks."""
    return Lock()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One for each process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(os.cpu_count(), "temperance")


def with_helpers(work: Callable[[], object], helpers: int) -> None:
    """Call `work`, which takes its share until nothing is left to do, here and in some other threads.

    A helper that has not come to start by the end, because the machine is busy, is not waited for. Torch does wait.
    """
    found = [_pool(os.getpid()).submit(work) for _ in range(helpers)]
    work()
    for helper in found:
        if not helper.cancel():
            helper.result()


def bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value; NaN if there is one."""
    if values.device.type == "cpu":
        # By NumPy, on one thread: to wake torch's takes longer than to look, and very much longer on a busy machine.
        array = values.numpy()
        return array.min().item(), array.max().item()
    low, high = values.aminmax()
    return low.item(), high.item()


def true_places(mask: Tensor) -> Tensor:
    """Where a mask of any shape is true, as places in its flattened form. (m,)"""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times as fast as torch
    return mask.reshape(-1).nonzero().squeeze(1)


def stable_order(values: Tensor) -> Tensor:
    """The indices that sort `values`, equal ones in the order they came. (n,)"""
    single = _as_single(values)
    if single is None:
        return torch.argsort(values, stable=True)
    # A float32 and an index make one int64 that sorts like the pair, and whole numbers are what NumPy sorts fastest.
    bits = (single + np.float32(0)).view(np.int32)  # −0.0 becomes 0.0, which equals it
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)  # the bits of negative numbers count down
    keys = bits.astype(np.int64)
    keys <<= 32
    keys |= np.arange(len(keys), dtype=np.uint32)
    keys.sort()
    keys &= 0xFFFFFFFF
    return torch.from_numpy(keys)


def stable_sort(values: Tensor, flags: Tensor, *, last_first: bool = False) -> tuple[Tensor, Tensor]:
    """Values (n,) in ascending order and the booleans (n,) that belong to them.

    Equal ones are in the order they came, or with `last_first` in the opposite one.
    """
    if values.device.type == "cpu" and values.dtype == torch.float64 and _as_single(values) is None:
        low, high = bounds(values)
        if low >= 0 and high < 2:
            # The bits of such numbers sort like the numbers and leave two of their own free, of which one takes the
            # flag. NumPy sorts whole numbers ten times as fast as it finds the order of others.
            keys = (values.numpy() + 0.0).view(np.int64)  # −0.0 becomes 0.0
            keys <<= 1
            keys |= flags.numpy()
            keys.sort()
            sorted_flags = (keys & 1).astype(np.bool_)
            keys >>= 1
            # Equal numbers with equal flags cannot be told apart. If others are equal, their order matters.
            if not ((keys[1:] == keys[:-1]) & (sorted_flags[1:] != sorted_flags[:-1])).any():
                return torch.from_numpy(keys.view(np.float64)), torch.from_numpy(sorted_flags)
    order = len(values) - 1 - stable_order(values.flip(0)) if last_first else stable_order(values)
    return values[order], flags[order]


def _as_single(values: Tensor) -> npt.NDArray[np.float32] | None:
    """The same numbers in float32, if they are on a CPU and that is exact."""
    if values.device.type != "cpu":
        return None
    array = values.numpy()
    with np.errstate(over="ignore"):
        if not np.array_equal(array[:LOOKED_AT].astype(np.float32), array[:LOOKED_AT]):
            return None  # nearly always the first few tell
        single = array.astype(np.float32)
    return single if np.array_equal(single, array) else None


def prefix_sums(values: Tensor) -> Tensor:
    """The sums of the first 0, 1, …, n values or rows, booleans as counts. (n + 1, …)"""
    kind = torch.float64 if values.is_floating_point() else torch.int64
    total = values.new_zeros(len(values) + 1, *values.shape[1:], dtype=kind)
    torch.cumsum(values, 0, dtype=total.dtype, out=total[1:])
    return total


def is_whole(values: Tensor) -> bool:
    """Are these all whole numbers?"""
    return bool((values == values.round()).all())


def root(values: Tensor, p: float = 2) -> Tensor:
    """values^{1/p} of values of at least 0, with a finite gradient: below 1e-10 a straight line to 0."""
    smallest = 1e-10
    return torch.where(values > smallest, values.clamp_min(smallest).pow(1 / p), values * smallest ** (1 / p - 1))


# Importing SciPy takes longer than it takes to fit this many values in Python.
FEW = 20_000


def isotonic(values: Tensor, weights: Tensor) -> Tensor:
    """The non-decreasing sequence nearest to `values` in weighted squares, in float64. (n,)"""
    # Equal neighbours stay equal, and of hits and misses most are.
    different, place = torch.unique_consecutive(values.double().cpu(), return_inverse=True)
    y, w = different.numpy(), torch.bincount(place, weights.double().cpu()).numpy()
    if len(y) > FEW:
        from scipy.optimize import isotonic_regression  # here, because it takes longer to import than all of temperance

        fitted = isotonic_regression(y, weights=w).x
    else:
        fitted = _pool_adjacent_violators(y, w)
    return torch.from_numpy(fitted)[place].to(values.device)


def _pool_adjacent_violators(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The same in Python: a value below the mean of the block before it joins that block."""
    means: list[float] = []
    heavy: list[float] = []
    sizes: list[int] = []
    for mean, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while means and means[-1] >= mean:
            before, other = means.pop(), heavy.pop()
            mean, weight = (other * before + weight * mean) / (other + weight), other + weight
            size += sizes.pop()
        means.append(mean)
        heavy.append(weight)
        sizes.append(size)
    return np.repeat(means, sizes)


# Values that differ by less are the same.
SAME = 1e-9


def chance_below_zero(values: Tensor, shapes: Tensor) -> float:
    """The chance that Σ x_i G_i is below zero, for independent gamma-distributed numbers G_i of these shapes.

    With shapes of 1 these are the random weights of the Bayesian bootstrap.
    """
    x, a = (each.double().cpu().numpy() for each in (values, shapes))
    if float(a @ x) < 0:
        return 1 - chance_below_zero(-values, shapes)
    worst = -float(x.min())
    if worst < SAME:
        return 0.0
    found = tail(x / worst, a)
    return math.erfc(float(a @ x) / math.sqrt(2 * float(a @ np.square(x)))) / 2 if found is None else found


def tail(x: npt.NDArray[np.float64], shapes: npt.NDArray[np.float64]) -> float | None:
    """The same for x ≥ −1, by Lugannani and Rice's saddlepoint formula (1980), within some percent.

    None if it is above one half, or so close to it that the formula has a pole.
    """
    c = _steepest(x, shapes)
    exponent = float(shapes @ np.log1p(c * x))
    if exponent < 0.01:
        return None
    w, u = math.sqrt(2 * exponent), c * math.sqrt(float(shapes @ np.square(x / (1 + c * x))))
    density = math.exp(-exponent) / math.sqrt(2 * math.pi)
    return min(1.0, math.erfc(w / math.sqrt(2)) / 2 + density * (1 / u - 1 / w))


def _steepest(x: npt.NDArray[np.float64], shapes: npt.NDArray[np.float64]) -> float:
    """The c in [0, 1) at which Σ a_i log(1 + c x_i), a concave function, is largest; the least x is −1."""
    low, high, c = 0.0, 1.0, 0.0
    while high - low > 1e-12:
        share = x / (1 + c * x)
        slope = float(shapes @ share)
        if c == 0 and slope <= 0:
            return 0.0
        low, high = (c, high) if slope > 0 else (low, c)
        step = slope / float(shapes @ np.square(share))
        if abs(step) < 1e-13:
            break
        c = c + step if low < c + step < high else (low + high) / 2
    return c
