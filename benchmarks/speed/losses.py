"""Time a training step with every loss beside the same step with torch's cross-entropy.

    python -m benchmarks.speed.losses --device cuda --out benchmarks/results/steps.jsonl

A step is what a user pays for: network, loss, backward pass, optimiser, and the memory of a loss that has one. Blocks
of steps with a loss and with cross-entropy alternate, in both orders, so that whatever else the machine does hits both
alike; a ratio is the median over such pairs of blocks. Network and loss run eagerly, then compiled. Images are random.
Runs from source (PYTHONPATH=src) without a network connection, in about five minutes on a GPU, half of it compiling.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.quality.table import table
from temperance.losses import LOSSES
from temperance.registry import parse_entry
from temperance.training.criterion import as_loss
from temperance.training.networks import make_network

CLASSES = 100

# How many times a cross-entropy step a step may take on a GPU. Losses of pairs of classes or samples have no target.
PER_SAMPLE, BATCH_LEVEL = 1.10, 1.25
NO_TARGET = ("mmce", "cpc", "kde-xe")

Step = Callable[[], None]


@dataclass(frozen=True)
class Setting:
    """What is trained on a device: as CIFAR-100 on a GPU, less on a CPU."""

    network: str
    batch_size: int
    precision: torch.dtype
    block: int  # steps that are timed together

    def __str__(self) -> str:
        return f"{self.network}, {self.batch_size} × {CLASSES}, {str(self.precision).removeprefix('torch.')}"


SETTINGS = {
    "cpu": Setting("small-cnn", 128, torch.float32, 1),
    "cuda": Setting("resnet18", 128, torch.bfloat16, 8),
}


class Trainer:
    """One network that is trained with any loss, on one batch."""

    def __init__(self, setting: Setting, device: str, *, compiled: bool) -> None:
        torch.manual_seed(0)
        self.setting, self.device, self.compiled = setting, device, compiled
        network = make_network(setting.network, classes=CLASSES).to(device)
        self.forward: Callable[[Tensor], Tensor] = self._made(network)
        # Small steps, so that no loss changes much of what the next one finds.
        self.optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
        self.images = torch.randn(setting.batch_size, 3, 32, 32, device=device)
        self.labels = torch.randint(CLASSES, (setting.batch_size,), device=device)
        self.indices = torch.arange(setting.batch_size, device=device)

    def step(self, name: str) -> Step:
        """One step with a loss, or with torch's cross-entropy."""
        loss = None if name == "torch" else as_loss(name, len(self.labels)).to(self.device)
        value_of = self._made(loss or torch.nn.CrossEntropyLoss())
        half = self.setting.precision != torch.float32
        more = (self.indices,) if loss is not None and loss.needs_indices else ()

        def run() -> None:
            self.optimiser.zero_grad()
            with torch.autocast(self.device, self.setting.precision, enabled=half):
                logits = self.forward(self.images)
                value = value_of(logits, self.labels, *more)
            torch.autograd.backward(value)
            self.optimiser.step()
            if loss is not None and loss.learns_from == "training":
                loss.update(logits.detach(), self.labels, *more)

        return run

    def _made(self, module: torch.nn.Module) -> Callable[..., Tensor]:
        return torch.compile(module, dynamic=False) if self.compiled else module

    def timed(self, step: Step) -> float:
        """Seconds that a step takes, in a block of them; on a CPU those that the processor spends on it."""
        clock = time.perf_counter if self.device == "cuda" else time.process_time
        self._wait()
        start = clock()
        for _ in range(self.setting.block):
            step()
        self._wait()
        return (clock() - start) / self.setting.block

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measured(trainer: Trainer, names: Sequence[str], seconds: float) -> tuple[float, dict[str, float]]:
    """Seconds of a step with torch's cross-entropy, and how many times that a step with each loss takes."""
    base, steps = trainer.step("torch"), {name: trainer.step(name) for name in names}
    for step in (base, *steps.values()):
        trainer.timed(step)
    of_base: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in names}
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < 4:
        rounds += 1
        for name, step in steps.items():
            pair = (step, base) if rounds % 2 else (base, step)
            first, second = (trainer.timed(each) for each in pair)
            with_loss, with_base = (first, second) if rounds % 2 else (second, first)
            of_base.append(with_base)
            ratios[name].append(with_loss / with_base)
    return median(of_base), {name: median(values) for name, values in ratios.items()}


def target(loss: str) -> float | None:
    name, _ = parse_entry(loss)
    if name in NO_TARGET:
        return None
    return PER_SAMPLE if LOSSES[name].per_sample else BATCH_LEVEL


def markdown(rows: list[dict[str, Any]], names: Collection[str]) -> str:
    """Training steps as multiples of one with cross-entropy, as last measured in each way; a dash if not measured."""
    latest = {(row["device"], row["how"]): row for row in rows}
    found = [latest[way] for way in ((d, h) for d in ("cuda", "cpu") for h in ("eager", "compiled")) if way in latest]
    heads = [f"{row['about']}, {row['how']}" for row in found]
    lines = [
        [name, *(f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "–" for row in found)] for name in names
    ]
    return table(["loss", *heads], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", nargs="*", metavar="LOSS", default=LOSSES.names, help="default: all of them")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=tuple(SETTINGS))
    parser.add_argument("--how", nargs="*", choices=("eager", "compiled"), default=("eager", "compiled"))
    parser.add_argument("--seconds", type=float, default=75.0, help="time for each way (75)")
    parser.add_argument("--out", type=Path, help="append the results as JSON lines")
    args = parser.parse_args()
    setting = SETTINGS[args.device]
    torch._dynamo.config.recompile_limit = len(LOSSES) + 1  # all losses share one forward
    threads = torch.get_num_threads()
    about = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {threads} thread{'s' * (threads > 1)}"
    for how in args.how:
        trainer = Trainer(setting, args.device, compiled=how == "compiled")
        seconds, ratios = measured(trainer, args.losses, args.seconds)
        print(f"\n{setting}, {how}, {about}: {1000 * seconds:.2f} ms a step with torch's cross-entropy")
        for name, ratio in sorted(ratios.items(), key=lambda item: item[1]):
            goal = target(name) if args.device == "cuda" else None
            verdict = "" if goal is None else f"  {goal:.2f} {'met' if ratio <= goal else 'missed'}"
            print(f"{name:18} {ratio:6.3f}{verdict}", flush=True)
        if args.out:
            record = {"task": f"training step, {setting}", "how": how, "device": args.device, "about": about}
            record |= {"seconds": round(seconds, 6), "ratios": {name: round(r, 4) for name, r in ratios.items()}}
            record |= {"versions": {"torch": torch.__version__, "python": platform.python_version()}}
            with args.out.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
