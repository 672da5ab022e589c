"""What many classes and many bins cost: python -m benchmarks.speed.memory --out benchmarks/results/memory.jsonl

`temperance evaluate FILE --n-bins BINS`, the default table with its intervals, on 64 MB of float16 logits: the more
classes, the fewer rows. One JSON line for each: peak memory beyond that of a file of ten rows, and CPU seconds. What
would take too much is refused, and its sentence kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.table import Results, table
from benchmarks.speed.jobs import LAUNCH

CLASSES = (1_000, 32_000, 200_000)
BINS = (15, 1_000, 1_000_000)
VALUES = 32_000_000  # of a file: 64 MB


def write(path: Path, n: int, k: int) -> None:
    """Logits that are right more often than not."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, k, n)
    logits = draw.standard_normal((n, k), dtype=np.float32)
    logits[np.arange(n), labels] += 2 + np.log(k)
    np.savez(path, logits=logits.astype(np.float16), labels=labels)


def measured(path: Path, n_bins: int) -> dict[str, Any]:
    """Peak memory in MB, CPU seconds, and what was said if it was refused."""
    command = [sys.executable, "-m", "temperance", "evaluate", str(path), "--n-bins", str(n_bins)]
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCH, *command], capture_output=True, text=True)
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    cpu, _, peak = map(float, done.stdout.splitlines()[-1].split()[1:])
    refused = done.stderr.strip().rpartition(": ")[2] if done.returncode else ""
    return {"peak": round(peak), "cpu": round(cpu, 1), "refused": refused}


def run(out: Path) -> None:
    """Measure what is not in the file yet."""
    results = Results(out)
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.npz"
        write(small, 10, 10)
        alone = measured(small, 15)["peak"]
        for k in CLASSES:
            todo = [n_bins for n_bins in BINS if {"k": k, "n_bins": n_bins} not in results]
            path = Path(folder) / f"{k}.npz"
            if todo:
                write(path, VALUES // k, k)
            for n_bins in todo:
                found = measured(path, n_bins)
                found["peak"] = max(found["peak"] - alone, 0)
                results.add({"n": VALUES // k, "k": k, "n_bins": n_bins, **found})


def markdown(rows: list[dict[str, Any]]) -> str:
    """Peak memory and CPU seconds for each number of classes and bins."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["k"], row["n_bins"])):
        size = f"{row['n']:,} × {row['k']:,}"
        refused = f"refused: {row['refused']}" if row["refused"] else ""
        lines.append([size, f"{row['n_bins']:,}", f"{row['peak']:,}", f"{row['cpu']:.1f}", refused])
    return table(["n × k", "bins", "MB", "CPU s", ""], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    run(parser.parse_args().out)


if __name__ == "__main__":
    main()
