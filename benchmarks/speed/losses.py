"""Time every loss beside torch's cross-entropy, forward and backward: python -m benchmarks.speed.losses

Runs from source with torch and NumPy alone: PYTHONPATH=src python -m benchmarks.speed.losses --device cuda. The losses
take turns, so that whatever else the machine does hits all alike; the ratio is of medians in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.speed.data import median
from temperance.losses import LOSSES, Loss

SHAPES = {"128x10": (128, 10), "128x1000": (128, 1000), "8x21x256x256": (8, 21, 256, 256)}

# How many times cross-entropy a loss may take at 128 × 1000. Pairs of classes or samples have no target.
TARGETS = dict.fromkeys(("mdca", "aurc", "au"), 2.0)
NO_TARGET = {"cpc", "kde-xe", "mmce", "soft-ece", "soft-avuc", "crl", "acls-ranking"}

# Losses whose cost grows with the square of the rows are left out beyond this many.
QUADRATIC = {"kde-xe": 10_000}

Run = Callable[[], None]


def batch(shape: tuple[int, ...], device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 logits as of a network in training, labels of which most are predicted, and the samples' numbers."""
    generator = torch.Generator().manual_seed(0)
    n, k, *space = shape
    labels = torch.randint(k, (n, *space), generator=generator)
    logits = 3 * torch.randn(shape, generator=generator)
    logits.scatter_add_(1, labels[:, None], torch.full((n, 1, *space), 6.0))
    numbers = torch.arange(labels.numel()).reshape(labels.shape)
    return logits.to(device).requires_grad_(), labels.to(device), numbers.to(device)


def contenders(shape: tuple[int, ...], device: str, names: list[str], *, compiled: bool) -> dict[str, Run]:
    """Forward and backward of torch's cross-entropy and of each loss."""
    logits, labels, numbers = batch(shape, device)

    def of(function: Callable[..., Tensor], *extra: Tensor) -> Run:
        if compiled:
            function = torch.compile(function, fullgraph=True, dynamic=False)

        def run() -> None:
            logits.grad = None
            torch.autograd.backward(function(logits, labels, *extra))

        return run

    found = {"torch": of(F.cross_entropy)}
    for name in names:
        if labels.numel() <= QUADRATIC.get(name, labels.numel()):
            loss = made(LOSSES[name], labels.numel()).to(device)
            found[name] = of(loss, numbers) if loss.needs_indices else of(loss)
    return found


def made(kind: type[Loss], n_samples: int) -> Loss:
    settings: dict[str, Any] = {"n_samples": n_samples} if kind.needs_indices else {}
    return kind(**settings)


def timed(runs: dict[str, Run], device: str, seconds: float) -> dict[str, float]:
    """Median seconds of each; `seconds` is spent on each but the slowest, which take three turns."""
    wait: Run = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    wait()
    spent = dict.fromkeys(runs, 0.0)
    while any(spent[name] < seconds or len(found[name]) < 3 for name in runs):
        for name, run in runs.items():
            if spent[name] >= seconds and len(found[name]) >= 3 and name != "torch":
                continue
            start = time.perf_counter()
            run()
            wait()
            found[name].append(time.perf_counter() - start)
            spent[name] += found[name][-1]
    return {name: median(values) for name, values in found.items()}


def target(kind: type[Loss]) -> float | None:
    return None if kind.name in NO_TARGET else TARGETS.get(kind.name, 1.3)


def markdown(rows: list[dict[str, Any]], names: Collection[str]) -> str:
    """How many times torch's cross-entropy losses take, as last measured on each device; a dash where they were not."""
    latest = {(row["device"], row["task"]): row for row in rows if "device" in row}
    found = {
        (device, shape): latest[device, task]
        for device in ("cpu", "cuda")
        for shape in SHAPES
        if (device, task := f"losses {shape}, eager") in latest
    }
    heads = [f"{_machine(row)}, {shape.replace('x', ' × ')}" for (_, shape), row in found.items()]
    lines = [f"| loss | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name in names:
        cells = [_times(row["seconds"], name) for row in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _machine(row: dict[str, Any]) -> str:
    return str(row["about"]) if row["device"] == "cuda" else f"CPU, {row['about'].replace('1 threads', 'one thread')}"


def _times(seconds: dict[str, float], name: str) -> str:
    if name not in seconds:
        return "–"
    ratio = seconds[name] / seconds["torch"]
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", nargs="*", metavar="LOSS", help="default: all of them")
    parser.add_argument("--shapes", nargs="*", choices=tuple(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each loss at each shape (1)")
    parser.add_argument("--compile", action="store_true", help="torch.compile them, and torch's cross-entropy too")
    parser.add_argument("--out", type=Path, help="append the medians as JSON lines")
    args = parser.parse_args()
    about = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    how = "compiled" if args.compile else "eager"
    torch._dynamo.config.recompile_limit = 2 * len(LOSSES)  # each loss is another version of the same forward
    print(f"{args.device} ({about}), torch {torch.__version__}, {how}; forward and backward, median")
    for name in args.shapes:
        torch.compiler.reset()
        runs = contenders(SHAPES[name], args.device, args.losses or LOSSES.names, compiled=args.compile)
        medians = timed(runs, args.device, args.seconds)
        print(f"\n{name:18} {'milliseconds':>14} {'times torch':>12}  target")
        for loss, value in sorted(medians.items(), key=lambda item: item[1]):
            goal = target(LOSSES[loss]) if loss in LOSSES and name == "128x1000" else None
            ratio = value / medians["torch"]
            verdict = "" if goal is None else f"  {goal:g} {'met' if ratio <= goal else 'missed'}"
            print(f"{loss:18} {1000 * value:14.4f} {ratio:12.2f}{verdict}")
        sys.stdout.flush()
        if args.out:
            record = {"task": f"losses {name}, {how}", "device": args.device, "about": about, "seconds": medians}
            versions = {"torch": torch.__version__, "python": platform.python_version()}
            with args.out.open("a") as file:
                file.write(json.dumps(record | {"versions": versions}) + "\n")


if __name__ == "__main__":
    main()
