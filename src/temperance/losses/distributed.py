"""One batch over several processes: sums and gathered rows, with gradients.

A batch-level loss is a function of the whole batch, and under `torch.distributed` that batch is spread over processes.
The loss sums or gathers its small statistics (sums, confidences), in the forward and the backward pass, so that
training on several processes equals training on one:

    reduction="mean"   the mean of the processes' values is the value of one process on all rows, and gradients averaged
                       over processes, as `DistributedDataParallel` does, are its gradients; even if the batches differ
                       in size, because each process's value is weighted by its share of the rows
    reduction="sum"    the sum of the processes' values is the value of one process, and summed gradients are its
                       gradients; averaged ones are smaller by the number of processes, as with torch's losses

Rows are in rank order. Every process of the default group must call the loss in the same step, or the others wait for
it forever; after `loss.eval()` each process works alone, as with `SyncBatchNorm`.

Per-sample losses need none of this: the mean over processes is the mean over all rows if the batches (and, with class
weights, their total weights) are equal.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from temperance.losses.base import Loss


class BatchLevel(Loss):
    """A loss of the whole batch, which may be spread over processes."""

    def _all_sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over the processes."""
        return all_sum(values) if self._spread else values

    def _all_rows(self, *columns: Tensor) -> tuple[slice, list[Tensor]]:
        """The slice of this process among the rows of all, and each column of all rows. (n, …), … → (N, …), …"""
        if not self._spread:
            return slice(None), list(columns)
        flat = [column.flatten(1) if column.ndim > 1 else column[:, None] for column in columns]
        rows, own = all_rows(torch.cat([values.to(columns[0].dtype) for values in flat], 1))
        parts = torch.split(rows, [values.shape[1] for values in flat], 1)
        return own, [p.reshape(-1, *c.shape[1:]).to(c.dtype) for p, c in zip(parts, columns, strict=True)]

    def _total(self, total: Tensor) -> Tensor:
        """The total count of the rows, averaged over processes."""
        return all_sum(total) / processes() if self._spread else total

    @property
    def _spread(self) -> bool:
        return self.training and processes() > 1


def processes() -> int:
    """How many processes share the batch: 1 without an initialised process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_sum(values: Tensor) -> Tensor:
    """The sum of `values` over all processes, on each of them; gradients are summed likewise."""
    if processes() == 1:
        return values
    summed: Tensor = _AllSum.apply(values)  # type: ignore[no-untyped-call]
    return summed


def all_rows(values: Tensor) -> tuple[Tensor, slice]:
    """The rows of all processes in rank order, and the slice of this process. (n, …) → (N, …)"""
    if processes() == 1:
        return values, slice(None)
    rank = dist.get_rank()
    sizes = torch.zeros(processes(), dtype=torch.int64, device=values.device)
    sizes[rank] = len(values)
    counts = all_sum(sizes).tolist()
    before, after = sum(counts[:rank]), sum(counts[rank + 1 :])
    # Each process pads its rows with zeros to their place; the sum is all rows, and gradients come from all processes.
    spread = F.pad(values, [0, 0] * (values.ndim - 1) + [before, after])
    return all_sum(spread), slice(before, before + len(values))


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return all_sum(gradients[0])
