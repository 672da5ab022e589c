"""Many classes and many bins stay within the memory that is stated, and what cannot is refused with its size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from temperance.jobs.measuring import statistics_of
from temperance.metrics.gather import STATISTIC_BYTES
from temperance.predictions import read_predictions

BLOCK = 16_000_000  # what is read of a file at a time

# What is imported late is imported before the limit holds. It is one of what the process writes to: torch reserves
# addresses that it never uses.
WITHIN = """
import contextlib, io, resource, sys
from pathlib import Path
from temperance.cli import main

small, path, n_bins, allowed = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["evaluate", small]) == 0
line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
limit = 1024 * int(line.split()[1]) + int(allowed)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
sys.exit(main(["evaluate", path, "--n-bins", n_bins, "--bootstrap", "60"]))
"""


def save(path: Path, n: int, k: int, size: float) -> Path:
    draw = np.random.default_rng(0)
    logits = size * draw.standard_normal((n, k), dtype=np.float32)
    np.savez(path, logits=logits.astype(np.float16), labels=draw.integers(0, k, n))
    return path


def within(folder: Path, path: Path, n_bins: int, allowed: int) -> subprocess.CompletedProcess[str]:
    """`evaluate` in a process that may take so many bytes more than it takes for a few rows."""
    small = save(folder / "small.npz", 10, 3, 1.0)
    command = [sys.executable, "-c", WITHIN, str(small), str(path), str(n_bins), str(allowed)]
    # What is freed goes back to the system at once, and no thread has memory of its own.
    around = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    return subprocess.run(command, capture_output=True, text=True, env=around)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux counts it")


@on_linux
@pytest.mark.parametrize(
    ("n", "k", "n_bins"),
    [(60, 32_000, 1000), (20, 200_000, 15), (899, 10, 1_000_000)],
)
def test_memory_is_three_times_the_block_and_the_statistics(tmp_path: Path, n: int, k: int, n_bins: int) -> None:
    path = save(tmp_path / "large.npz", n, k, 3.0)
    parts = statistics_of(read_predictions(path), [], n_bins=n_bins).groups[None].parts
    held = sum({id(part.stats): part.stats.nbytes for part in parts}.values())
    done = within(tmp_path, path, n_bins, 3 * (BLOCK + held))
    assert done.returncode == 0, done.stderr
    assert "classwise ECE" in done.stdout


@on_linux
def test_what_takes_more_is_refused_with_its_size(tmp_path: Path) -> None:
    """Of nearly even probabilities every one has a bin of its own."""
    path = save(tmp_path / "large.npz", 50, 200_000, 1.0)
    done = within(tmp_path, path, 1_000_000, 3 * (BLOCK + STATISTIC_BYTES))
    assert done.returncode == 2, done.stderr
    assert re.search(r"classwise-ece would need about \d+ MB of memory for 50 rows, which is too much\.", done.stderr)


@on_linux
def test_the_limit_is_one(tmp_path: Path) -> None:
    """With a limit that is too low the same command runs out of memory: the tests above can fail."""
    path = save(tmp_path / "large.npz", 20, 200_000, 1.0)
    done = within(tmp_path, path, 15, 4_000_000)
    assert done.returncode not in (0, 2)
