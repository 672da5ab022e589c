"""Training on several processes, as `torchrun` starts them: who we are, and what all of them know together."""

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
    """The number of this process, from 0; process 0 writes the files."""
    return dist.get_rank() if processes() > 1 else 0


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """The processes that `torchrun` started, joined; nothing without it, or where someone has joined them already."""
    started = "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
    if not started or dist.is_initialized():
        yield
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        # Whatever still holds on to the group would end it after its threads, with the process, and break that off.
        gc.collect()
        dist.destroy_process_group()


def local_device(device: str | torch.device) -> torch.device:
    """The device of this process: of several GPUs the one that `torchrun` gave it."""
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return chosen


def own_share(n: int) -> Tensor:
    """Which of n samples are this process's. int64"""
    return torch.arange(rank(), n, processes())


def gathered(rows: Tensor, n: int) -> Tensor:
    """All n rows in order, on every process, given everyone's `own_share` of them."""
    if processes() == 1:
        return rows
    found, _ = all_rows(rows)
    order = torch.cat([torch.arange(r, n, processes()) for r in range(processes())]).to(rows.device)
    return found[order.argsort()]


def wait() -> None:
    """Go on when all processes are here."""
    if processes() > 1:
        dist.barrier()
