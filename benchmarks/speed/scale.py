"""What an evaluation by blocks costs, in one process and on Ray's local cluster: seconds of cores, and memory.

    python -m benchmarks.speed.scale --rows 1e7 --workers 2

Blocks of logits are drawn where they are measured, so that nothing but statistics is ever held or sent. What drawing
them costs is measured, too, and taken off. Seconds are those that the processes were given, so that whatever else the
machine does hardly matters.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from temperance import combine, statistics

BLOCK_ROWS = 1_000_000
METRICS = ["accuracy", "nll", "brier", "confidence-gap", "ece", "mce", "classwise-ece"]


def block(i: int, k: int) -> dict[str, Any]:
    """Float32 logits that are right more often than not, and their labels."""
    generator = torch.Generator().manual_seed(i)
    labels = torch.randint(k, (BLOCK_ROWS,), generator=generator)
    logits = torch.randn(BLOCK_ROWS, k, generator=generator)
    logits[torch.arange(BLOCK_ROWS), labels] += 2
    return {"logits": logits, "label": labels}


def drawn(i: int, k: int) -> tuple[None, float]:
    start = time.process_time()
    block(i, k)
    return None, time.process_time() - start


def measured(i: int, k: int) -> tuple[Any, float]:
    """The statistics of a block, and the seconds of a core that it took to draw and measure it."""
    start = time.process_time()
    found = statistics(block(i, k), METRICS)
    return found, time.process_time() - start


def in_turn(task: Callable[[int, int], Any], blocks: int, k: int) -> Iterator[Any]:
    return (task(i, k) for i in range(blocks))


def on_ray(task: Callable[[int, int], Any], blocks: int, k: int) -> Iterator[Any]:
    from temperance.interop.ray import _run

    return _run(task, [(i, k) for i in range(blocks)])


def megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0, help="of a local Ray cluster; 0: one process")
    args = parser.parse_args()
    blocks, k = round(args.rows / BLOCK_ROWS), args.classes
    torch.set_num_threads(1)
    spread = in_turn
    if args.workers:
        import ray

        ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        spread = on_ray
    # Workers start and import torch, and it is seen what drawing costs.
    drawing = [seconds for _, seconds in spread(drawn, max(2, args.workers) * 2, k)]
    of_blocks = 0.0

    def found_statistics() -> Iterator[Any]:
        nonlocal of_blocks
        for found, seconds in spread(measured, blocks, k):
            of_blocks += seconds
            yield found

    before, start, own = megabytes(), time.perf_counter(), time.process_time()
    found = combine(found_statistics(), bootstrap=200)
    n, own = found.row("ece").n, time.process_time() - own
    cpu = (own + of_blocks if args.workers else own) - blocks * min(drawing)
    line = {
        "rows": n,
        "classes": k,
        "workers": args.workers,
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(cpu, 1),
        "of_driver": round(own, 1) if args.workers else None,
        "rows_per_cpu_second": round(n / cpu),
        "megabytes": megabytes(),
        "megabytes_before": before,
        "ece": found.row("ece").value,
        "nll": found.row("nll").value,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
