"""What the processes of the distributed tests do; in a module of its own, so that a new process can import it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from temperance.losses import LOSSES, Loss

FEATURES, CLASSES = 4, 5
SIZES = {"equal": (9, 9), "unequal": (7, 11)}


def batch(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels (a few of them to be ignored) and the numbers of the samples."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, FEATURES, dtype=torch.float64, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    labels[[2, n - 3]] = -100
    return features, labels, torch.randperm(n, generator=generator)


def network() -> nn.Module:
    found = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(found.weight, std=3, generator=generator)
    nn.init.normal_(found.bias, generator=generator)
    return found


def make(cls: type[Loss], n: int, **options: Any) -> Loss:
    """A loss with its default settings, class weights and, where it needs it, a record of n samples."""
    weight = torch.linspace(0.5, 1.5, CLASSES, dtype=torch.float64) if not cls.per_sample else None
    if cls.needs_indices:
        options["n_samples"] = n
    return cls(weight=weight, **options)


def step(loss: Loss, model: nn.Module, rows: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Value, gradients and memory of one batch, for a loss that has already seen another one."""
    features, labels, indices = rows
    numbers = (indices,) if loss.needs_indices else ()
    if loss.learns_from is not None:
        loss.update(model(-features).detach(), labels, *numbers)
        if loss.needs_indices:
            loss.end_epoch()
    model.zero_grad()
    value = loss(model(features), labels, *numbers)
    value.backward()
    gradients = {str(i): p.grad.clone() for i, p in enumerate(model.parameters()) if p.grad is not None}
    return {"value": value.detach(), **gradients, **loss.state_dict()}


def worker(rank: int, n_processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=n_processes)
    model = DistributedDataParallel(network())
    found = {}
    for case, sizes in SIZES.items():
        rows = tuple(torch.split(part, list(sizes))[rank] for part in batch(sum(sizes)))
        for cls in LOSSES:
            for reduction in ("mean", "sum"):
                loss = make(cls, sum(sizes), reduction=reduction)
                found[f"{cls.name} {reduction} {case}"] = step(loss, model, rows)
    torch.save(found, folder / f"{rank}.pt")
    leave()


def leave() -> NoReturn:
    """End this process of a group when all have come this far, without taking the group apart.

    Torch can wait for ever there: the main thread, with Python's lock, for a thread of the group that needs this lock.
    """
    dist.barrier()
    os._exit(0)


def run(folder: Path, n_processes: int = 2) -> list[dict[str, dict[str, Tensor]]]:
    """What each process found."""
    forked(worker, n_processes, n_processes, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(n_processes)]


def forked(
    function: Callable[..., None],
    n_processes: int,
    *arguments: Any,
    imported: tuple[str, ...] = (__name__, "torch._dynamo"),
) -> None:
    """Run a function in several processes: forks of one that has done nothing but import modules."""
    set_forkserver_preload(list(imported))
    start_processes(function, arguments, n_processes, start_method="forkserver")  # type: ignore[no-untyped-call]


def synced(rank: int, pieces: list[tuple[Tensor, Tensor]], folder: Path) -> None:
    """One of two processes that measure with torchmetrics, with fewer or more samples than the other."""
    from temperance.interop.torchmetrics import CalibrationMetric

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    values = {}
    for name in ("ece", "aurc", "classwise-ece", "smooth-ece"):
        found = CalibrationMetric(name, from_logits=True)
        for logits, labels in pieces[:2] if rank == 0 else pieces[2:]:
            found.update(logits, labels)
        values[name] = float(found.compute())
    (folder / str(rank)).write_text(json.dumps(values))
    leave()
