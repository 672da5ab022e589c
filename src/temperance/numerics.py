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

# Only for more values than this is it worth waking another thread.
LARGE = 1 << 19


class RowExtremes(NamedTuple):
    """The extremes of rows of numbers. NaN in a row makes the sums NaN; the row's top and hit then mean nothing."""

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


def softmax(logits: Tensor) -> Tensor:
    """The probabilities of logits (n, k): torch's own takes four times as long where rows are short."""
    powers = (logits - logits.amax(1, keepdim=True)).exp_()
    return powers.div_(powers.sum(1, keepdim=True))


def bin_edges(n_bins: int, device: torch.device | None = None) -> Tensor:
    """The edges of bins of equal width, each the float64 nearest to i / n_bins, as those of linspace are not."""
    return torch.arange(n_bins + 1, dtype=torch.float64, device=device) / n_bins


def soft_bins(values: Tensor, n_bins: int, temperature: float) -> Tensor:
    """How much each value belongs to each of the bins of [0, 1], whose middles are ξ_b. (n,) → (n, n_bins)

    softmax_b(−(c_i − ξ_b)² / temperature) (Karandikar et al. 2021, eq. 11).
    """
    middles = (torch.arange(n_bins, dtype=values.dtype, device=values.device) + 0.5) / n_bins
    return (-(values[:, None] - middles).square() / temperature).softmax(1)


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


# Devices that cannot hold float64.
WITHOUT_FLOAT64 = ("mps",)


def working_type(device: torch.device) -> torch.dtype:
    """The most precise type that a device computes in: float64, or float32 where there is no float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


@contextmanager
def one_thread(*, where: bool = True) -> Iterator[None]:
    """Limit torch to one thread in this block, for thousands of operations too small to share.

    Only the calling thread is limited. Torch keeps a thread count for each thread and a default for new ones, and
    `set_num_threads` sets both. So another thread restores the default right away, and no thread that starts during
    the block keeps a count of one for good.
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


# Torch's thread count outside of `one_thread`, for each thread that is inside.
_outside = local()


def workers() -> int:
    """How many threads may share work that comes in blocks: torch's thread count outside of `one_thread`."""
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
    """Call `work`, which takes chunks until none is left, in this thread and in as many others as `helpers`.

    A helper that has not started by the end, because the machine is busy, is cancelled. Torch would wait for it.
    """
    found = [_pool(os.getpid()).submit(work) for _ in range(helpers)]
    work()
    for helper in found:
        if not helper.cancel():
            helper.result()


def bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value; NaN if there is one."""
    if values.device.type == "cpu":
        # By NumPy, on one thread: waking torch's threads takes longer than the search, on a busy machine far longer.
        array = values.numpy()
        return array.min().item(), array.max().item()
    low, high = values.aminmax()
    return low.item(), high.item()


def true_places(mask: Tensor) -> Tensor:
    """The indices at which a mask of any shape, flattened, is true. (m,)"""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times as fast as torch
    return mask.reshape(-1).nonzero().squeeze(1)


def stable_order(values: Tensor) -> Tensor:
    """The indices that sort `values`; equal values keep their order. (n,)"""
    single = _as_single(values)
    if single is None:
        return torch.argsort(values, stable=True)
    # A float32 and its index fit into one int64 that sorts like the pair, and NumPy sorts integers fastest.
    bits = (single + np.float32(0)).view(np.int32)  # −0.0 becomes 0.0, which equals it
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)  # the bits of negative numbers count down
    keys = bits.astype(np.int64)
    keys <<= 32
    keys |= np.arange(len(keys), dtype=np.uint32)
    keys.sort()
    keys &= 0xFFFFFFFF
    return torch.from_numpy(keys)


def stable_sort(values: Tensor, flags: Tensor, *, last_first: bool = False) -> tuple[Tensor, Tensor]:
    """Values (n,) in ascending order, and their booleans (n,) in the same order.

    Equal values keep their order, or with `last_first` are reversed.
    """
    if values.device.type == "cpu" and len(values) and (limits := bounds(values))[0] >= 0 and limits[1] < 2:
        # The bits of such numbers sort like the numbers, and their two highest are 0, so that they share an int64 with
        # the flag. NumPy sorts integers ten times as fast as it finds the order of floats, and nothing is gathered.
        marks, single = flags.numpy(), _as_single(values)
        if single is not None:  # there is room for the place, too
            single += np.float32(0)  # −0.0 becomes 0.0
            keys = single.view(np.int32).astype(np.int64)
            del single  # of many values the copies are what takes most memory
            keys <<= 32
            keys |= np.arange(len(keys), dtype=np.uint32)[:: -1 if last_first else 1]
            keys <<= 1
            keys |= marks
            keys.sort()
            sorted_flags = keys.astype(np.uint8) & 1  # the lowest byte is enough
            keys >>= 33
            found = torch.from_numpy(keys.astype(np.int32).view(np.float32))
            return found.to(values.dtype), torch.from_numpy(sorted_flags.view(np.bool_))
        if values.dtype == torch.float64:
            keys = (values.numpy() + 0.0).view(np.int64)
            keys <<= 1
            keys |= marks
            keys.sort()
            sorted_flags = (keys & 1).astype(np.bool_)
            keys >>= 1
            # Equal numbers with equal flags are interchangeable; with different flags their order matters.
            if not ((keys[1:] == keys[:-1]) & (sorted_flags[1:] != sorted_flags[:-1])).any():
                return torch.from_numpy(keys.view(np.float64)), torch.from_numpy(sorted_flags)
    order = len(values) - 1 - stable_order(values.flip(0)) if last_first else stable_order(values)
    return values[order], flags[order]


# Whether float32 is exact is tried on this many values first: nearly always they decide it.
TRIED_FIRST = 1 << 10


def _as_single(values: Tensor) -> npt.NDArray[np.float32] | None:
    """The same numbers in float32, if they are on a CPU and that is exact."""
    if values.device.type != "cpu":
        return None
    array = values.numpy()
    with np.errstate(over="ignore"):
        if not np.array_equal(array[:TRIED_FIRST].astype(np.float32), array[:TRIED_FIRST]):
            return None
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
    """values^(1/p) for values ≥ 0, with a finite gradient: below 1e-10 it is a straight line to 0."""
    smallest = 1e-10
    return torch.where(values > smallest, values.clamp_min(smallest).pow(1 / p), values * smallest ** (1 / p - 1))


def zero_of(rising: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-3) -> float:
    """Where a rising function is zero, by bisection; if it is zero nowhere in between, the nearer end.

    >>> round(zero_of(lambda x: x - 0.3, 0, 1), 2)
    0.3
    """
    if rising(high) <= 0:
        return high
    if rising(low) >= 0:
        return low
    while high - low > tolerance:
        middle = (low + high) / 2
        if rising(middle) > 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2


# Up to this many values, fitting in Python takes less time than importing SciPy.
FEW = 20_000


def isotonic(values: Tensor, weights: Tensor) -> Tensor:
    """The non-decreasing sequence with the least weighted squared distance from `values`, in float64. (n,)"""
    # Equal neighbours stay equal, so they are fitted as one. Among hits and misses most neighbours are equal.
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
    masses: list[float] = []
    sizes: list[int] = []
    for mean, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while means and means[-1] >= mean:
            before, other = means.pop(), masses.pop()
            mean, weight = (other * before + weight * mean) / (other + weight), other + weight
            size += sizes.pop()
        means.append(mean)
        masses.append(weight)
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
    found = saddlepoint_tail(x / worst, a)
    return math.erfc(float(a @ x) / math.sqrt(2 * float(a @ np.square(x)))) / 2 if found is None else found


def saddlepoint_tail(x: npt.NDArray[np.float64], shapes: npt.NDArray[np.float64]) -> float | None:
    """The same for x ≥ −1, by Lugannani and Rice's saddlepoint formula (1980), within a few percent.

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
    """The c in [0, 1) at which Σ a_i log(1 + c x_i), a concave function, is largest; the smallest x is −1."""
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
