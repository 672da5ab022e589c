"""Many classes and many bins stay within the memory that is stated, and what cannot is refused with its size."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from programs import Ended, Run, runner
from temperance.jobs.measuring import statistics_of
from temperance.metrics.gather import STATISTIC_BYTES
from temperance.predictions import read_predictions

BLOCK = 16_000_000  # what is read of a file at a time

# What is imported late is imported before the limit holds.
WARM_UP = """
import contextlib, io, resource
from pathlib import Path
from temperance.cli import main

with contextlib.redirect_stdout(io.StringIO()):
    assert main(["evaluate", {!r}]) == 0
"""
# The limit is one of what the process writes to: torch reserves addresses that it never uses.
WITHIN = """
import resource, sys
from pathlib import Path
from temperance.cli import main

line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
limit = 1024 * int(line.split()[1]) + {allowed}
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
sys.exit(main(["evaluate", {path!r}, "--n-bins", "{n_bins}", "--bootstrap", "60"]))
"""


def save(path: Path, n: int, k: int, size: float) -> Path:
    draw = np.random.default_rng(0)
    logits = size * draw.standard_normal((n, k), dtype=np.float32)
    np.savez(path, logits=logits.astype(np.float16), labels=draw.integers(0, k, n))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    small = save(tmp_path_factory.mktemp("small") / "small.npz", 10, 3, 1.0)
    # What is freed goes back to the system at once, and no thread has memory of its own.
    around = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    with runner(WARM_UP.format(str(small)), **around) as found:
        yield found


def within(run: Run, path: Path, n_bins: int, allowed: int) -> Ended:
    """`evaluate` in a process that may take so many bytes more than it takes for a few rows."""
    return run(WITHIN.format(path=str(path), n_bins=n_bins, allowed=allowed), path.parent)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux counts it")


@on_linux
@pytest.mark.parametrize(
    ("n", "k", "n_bins"),
    [(60, 32_000, 1000), (20, 200_000, 15), (899, 10, 1_000_000)],
)
def test_memory_is_three_times_the_block_and_the_statistics(
    run: Run, tmp_path: Path, n: int, k: int, n_bins: int
) -> None:
    path = save(tmp_path / "large.npz", n, k, 3.0)
    parts = statistics_of(read_predictions(path), [], n_bins=n_bins).groups[None].parts
    held = sum({id(part.stats): part.stats.nbytes for part in parts}.values())
    done = within(run, path, n_bins, 3 * (BLOCK + held))
    assert done.code == 0, done.err
    assert "classwise ECE" in done.out


@on_linux
def test_what_takes_more_is_refused_with_its_size(run: Run, tmp_path: Path) -> None:
    """Of nearly even probabilities every one has a bin of its own."""
    path = save(tmp_path / "large.npz", 50, 200_000, 1.0)
    done = within(run, path, 1_000_000, 3 * (BLOCK + STATISTIC_BYTES))
    assert done.code == 2, done.err
    assert re.search(r"classwise-ece would need about \d+ MB of memory for 50 rows, which is too much\.", done.err)


@on_linux
def test_the_limit_is_one(run: Run, tmp_path: Path) -> None:
    """With a limit that is too low the same command runs out of memory: the tests above can fail."""
    path = save(tmp_path / "large.npz", 20, 200_000, 1.0)
    done = within(run, path, 15, 4_000_000)
    assert done.code and "which is too much" not in done.err
