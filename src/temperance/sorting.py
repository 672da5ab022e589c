"""Stable sorting, by NumPy's fast sort of integers where possible."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.numerics import bounds


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
        if single is not None:  # there is room for the index, too
            single += np.float32(0)  # −0.0 becomes 0.0
            keys = single.view(np.int32).astype(np.int64)
            del single  # with many values, copies take most of the memory
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
            sorted_flags = (keys.astype(np.uint8) & 1).view(np.bool_)
            keys >>= 1
            # Equal numbers with equal flags are interchangeable; with different flags their order matters.
            if not ((keys[1:] == keys[:-1]) & (sorted_flags[1:] != sorted_flags[:-1])).any():
                return torch.from_numpy(keys.view(np.float64)), torch.from_numpy(sorted_flags)
    order = len(values) - 1 - stable_order(values.flip(0)) if last_first else stable_order(values)
    return values[order], flags[order]


# Whether float32 is exact is tested on this many values first; they nearly always decide it.
TRIED_FIRST = 1 << 10


def _as_single(values: Tensor) -> npt.NDArray[np.float32] | None:
    """The same numbers in float32, if they are on the CPU and float32 is exact."""
    if values.device.type != "cpu":
        return None
    array = values.numpy()
    with np.errstate(over="ignore"):
        if not np.array_equal(array[:TRIED_FIRST].astype(np.float32), array[:TRIED_FIRST]):
            return None
        single = array.astype(np.float32)
    return single if np.array_equal(single, array) else None
