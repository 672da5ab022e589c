"""Kernels in Triton, which comes with torch on a GPU: from their text, and started with little ado."""

from __future__ import annotations

import hashlib
import importlib
import linecache
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from temperance.losses.formula import once
from temperance.losses.plain import elsewhere

READABLE = {torch.int64, torch.bool, torch.float32}

# Memory at a multiple of this many bytes is read faster.
ALIGNED = 16


class Kernel:
    """What is called `kernel` in a text, where `triton` and `tl` are known. It must not specialise whole numbers.

    For each start Triton looks at every argument, to find what it made for such arguments, and asks the driver where
    each tensor is; that takes longer than most losses take. All that can differ here is how memory is aligned: what was
    made is kept by that, and told places.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.made: dict[tuple[int, ...], Any] = {}

    @once
    def function(self) -> Any:
        """What Triton makes of it."""
        triton = importlib.import_module("triton")
        names = {"__name__": __name__, "triton": triton, "tl": importlib.import_module("triton.language")}
        # Triton reads the text again, of a file that there is not.
        file = f"<a kernel of temperance.losses, {hashlib.sha256(self.text.encode()).hexdigest()}>"
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(keepends=True), file)
        exec(compile(self.text, file, "exec"), names)
        return names["kernel"]

    def __call__(self, programs: int, arguments: list[Any], *, warps: int = 4) -> None:
        """Start so many programs. Arguments are tensors on one GPU, of the same types each time, and numbers."""
        device = arguments[0].get_device()
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self(programs, arguments, warps=warps)
            return
        places, key = [], [device]
        for each in arguments:
            if isinstance(each, Tensor):
                if each.get_device() != device:
                    raise elsewhere(arguments[0].device, each.device)
                each = each.data_ptr()
                key.append(each % ALIGNED == 0)
            places.append(each)
        made = self.made.get(tuple(key))
        if made is None:
            self.made[tuple(key)] = self.function[(programs,)](*arguments, num_warps=warps)
        else:
            # As Triton itself starts it; nothing is to be called before and after.
            start = (programs, 1, 1, current_stream()(device), made.function, made.packed_metadata, None, None, None)
            made.run(*start, *places)


@cache
def current_stream() -> Callable[[int], int]:
    """What tells the stream of a device that kernels are started on."""
    found: Callable[[int], int] = importlib.import_module("triton.runtime").driver.active.get_current_stream
    return found


def counter(device: torch.device) -> Tensor:
    """A zero, with which the programs of one kernel count themselves; the last of them leaves it as it was. () int32

    Kernels on a stream come one after the other and can have the same. Those of a graph cannot, as that may run beside
    others: they have their own, which is set to 0 whenever the graph is replayed.
    """
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros((), dtype=torch.int32, device=device)
    return _counter(device, current_stream()(device.index))


@cache
def _counter(device: torch.device, stream: int) -> Tensor:
    return torch.zeros((), dtype=torch.int32, device=device)


def readable(array: Tensor) -> Tensor:
    """As kernels read it: whole numbers and truth values as they are, and anything else in single precision."""
    return (array if array.dtype in READABLE else array.float()).contiguous()
