"""Training on several processes that `torchrun` started: their ranks, their shares of the data, their results."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from temperance.losses.distributed import all_rows, processes


def rank() -> int:
    """The rank of this process; rank 0 writes the files."""
    return dist.get_rank() if processes() > 1 else 0


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that `torchrun` started. Without `torchrun`, or if the caller has joined them, do nothing."""
    started = "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
    if not started or dist.is_initialized():
        yield
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        # Collect objects that still refer to the group. Otherwise they are freed when the process exits, after the
        # threads of the group have ended, and the process crashes.
        gc.collect()
        dist.destroy_process_group()


def local_device(device: str | torch.device) -> torch.device:
    """The device of this process; with several GPUs, the one that `torchrun` assigned to it."""
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return chosen


def own_share(n: int) -> Tensor:
    """The indices of this process's share of n samples. int64"""
    return torch.arange(rank(), n, processes())


def gathered(rows: Tensor, n: int) -> Tensor:
    """All n rows in order, on every process, from each process's `own_share` of them."""
    if processes() == 1:
        return rows
    found, _ = all_rows(rows)
    order = torch.cat([torch.arange(r, n, processes()) for r in range(processes())]).to(rows.device)
    return found[order.argsort()]


def wait() -> None:
    """Wait until all processes get here."""
    if processes() > 1:
        dist.barrier()
