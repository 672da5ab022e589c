"""Kernels in Triton, which comes with torch on a GPU: from their text, and started with little ado."""

from __future__ import annotations

import hashlib
import importlib
import linecache
from typing import Any

import torch
from torch import Tensor

from temperance.losses.formula import once

READABLE = {torch.int64, torch.bool, torch.float32}

# Memory at a multiple of this many bytes is read faster.
ALIGNED = 16


class Kernel:
    """What is called `kernel` in a text, where `triton` and `tl` are known. It must not specialise whole numbers.

    For each start Triton looks at every argument, to find what it made for such arguments, and that takes longer than
    most losses take. All that can differ here is how memory is aligned: what was made is kept by that.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.made: dict[tuple[int | bool, ...], Any] = {}

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
        device = arguments[0].device.index
        key = (device, *[isinstance(each, Tensor) and each.data_ptr() % ALIGNED == 0 for each in arguments])
        made = self.made.get(key)
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self(programs, arguments, warps=warps)
        elif made is None:
            self.made[key] = self.function[(programs,)](*arguments, num_warps=warps)
        else:
            made[(programs, 1, 1)](*arguments)


def readable(array: Tensor) -> Tensor:
    """As kernels read it: whole numbers and truth values as they are, and anything else in single precision."""
    return (array if array.dtype in READABLE else array.float()).contiguous()
