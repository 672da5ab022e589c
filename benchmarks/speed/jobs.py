"""What whole jobs cost: python -m benchmarks.speed.jobs [JOB …] [--out benchmarks/results/jobs.jsonl]

A job is a command as a user types it, in a process of its own: first all of them on a quiet machine, then beside one
busy process for each core. One JSON line for each: CPU seconds beyond those of `import torch`, seconds on the clock,
and peak memory. The floor is the time that one core takes to read the job's input from memory once. Peers are short
programs that do the same with another library.

A line takes the place of an older one, and those of the same commit are not measured again, so a run that was stopped
goes on where it was. All jobs take about five minutes on two quiet cores: those of more than ten seconds are run
once, and those of more than twenty are not run beside busy processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

from benchmarks.quality.table import read, table, write
from benchmarks.speed.data import synthetic_logits
from temperance.calibrators import Temperature
from temperance.jobs.results import Provenance
from temperance.predictions.disk import write_predictions
from temperance.predictions.given import as_predictions

WAYS = ("quiet", "busy")

# Jobs that take more CPU seconds than these are run once, and not beside busy processes.
RUN_ONCE, NOT_BUSY = 10.0, 20.0

PEERS = {
    "NumPy": """
import sys, numpy as np
with np.load(sys.argv[1]) as found: z, y = found["logits"], found["labels"]
p = np.exp(z - z.max(1, keepdims=True)); p /= p.sum(1, keepdims=True)
guess = p.argmax(1); top, hit = p.max(1), guess == y
place = np.clip(np.ceil(top * 15).astype(int) - 1, 0, 14)
print(np.abs(np.bincount(place, hit, 15) - np.bincount(place, top, 15)).sum() / len(y), hit.mean())
""",
    "torchmetrics": """
import sys, numpy as np, torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error
with np.load(sys.argv[1]) as found: z, y = torch.from_numpy(found["logits"]), torch.from_numpy(found["labels"])
k = z.shape[1]
print(multiclass_calibration_error(z, y, k, n_bins=15), multiclass_accuracy(z, y, k, average="micro"))
""",
}


@dataclass(frozen=True)
class Job:
    """A command on n × k logits; a word in braces stands for a file."""

    name: str
    n: int
    k: int
    arguments: tuple[str, ...]
    suffix: str = ".npz"
    peer: str | None = None

    def command(self, folder: Path) -> list[str]:
        stem = f"{self.n}x{self.k}"
        places = {
            "{fit}": folder / f"{stem}-fit{self.suffix}",
            "{data}": folder / f"{stem}{self.suffix}",
            "{calibrator}": folder / f"{stem}.safetensors",
            "{new calibrator}": folder / "new.safetensors",
            "{out}": folder / f"out{self.suffix}",
        }
        program = ["-c", PEERS[self.peer]] if self.peer else ["-m", "temperance"]
        return [sys.executable, *program, *(str(places.get(word, word)) for word in self.arguments)]

    @property
    def n_bytes(self) -> int:
        return self.n * (4 * self.k + 8) * sum(word in ("{fit}", "{data}") for word in self.arguments)


def jobs() -> dict[str, Job]:
    """Every job by its name; those of one kind and several sizes show how it grows."""
    short = ("evaluate", "{data}", "--metrics", "ece,accuracy", "--bootstrap", "0")
    whole = ("evaluate", "{data}", "--bootstrap", "200")
    found = [Job("ece and accuracy", n, 10, short) for n in (50_000, 500_000, 5_000_000)]
    found += [Job("ece and accuracy", 50_000, k, short) for k in (100, 1000)]
    found += [Job("ece and accuracy", 5_000_000, 10, short, ".parquet")]
    found += [Job("ece and accuracy", 5_000_000, 10, ("{data}",), peer=peer) for peer in PEERS]
    found += [Job("evaluate", n, 10, whole) for n in (50_000, 500_000, 5_000_000)]
    found += [Job("evaluate", 5_000_000, 10, whole, ".parquet")]
    found += [Job("compare", n, k, ("compare", "{fit}", "{data}")) for n, k in ((500, 5), (5_000, 10), (5_000, 100))]
    fitted = ("{fit}", "-o", "{new calibrator}")
    found += [Job("fit temperature", n, 10, ("fit", "temperature", *fitted)) for n in (50_000, 500_000)]
    sizes = ((5_000, 10), (5_000, 100), (100_000, 100), (25_000, 1000))
    found += [Job("fit auto", n, k, ("fit", "auto", *fitted)) for n, k in sizes]
    found += [Job("apply", n, 10, ("apply", "{calibrator}", "{data}", "-o", "{out}")) for n in (50_000, 500_000)]
    return {label(job.name, job.n, job.k, job.suffix, job.peer): job for job in found}


def label(name: str, n: int, k: int, suffix: str, peer: str | None) -> str:
    return f"{name} {n}x{k}{suffix}" + (f" {peer}" if peer else "")


class Cost(NamedTuple):
    """CPU seconds, seconds on the clock and peak memory in MB."""

    cpu: float
    wall: float
    peak: float


# A process begins with the memory of the one that starts it, so a small one starts the job.
LAUNCH = """
import os, sys, time
start, child = time.perf_counter(), os.fork()
if not child: os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print("cost", usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def cost_of(command: Sequence[str], folder: Path) -> Cost:
    """Run a command to its end, with compiled modules kept in a folder, as an installation has them."""
    launched = [sys.executable, "-S", "-c", LAUNCH, *command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    found = subprocess.run(launched, capture_output=True, text=True, check=False, env=environment)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {found.stderr}")
    cpu, wall, peak = map(float, found.stdout.splitlines()[-1].split()[1:])
    return Cost(cpu, wall, peak)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """That many processes that do nothing useful, beside whatever runs in this block."""
    found = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in found:
        process.start()
    try:
        yield
    finally:
        for process in found:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        pass


def floor(n_bytes: int) -> float:
    """Seconds that one core takes to read this much from memory, the least of some tries."""
    values = np.ones(32 << 20, np.float64)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - start)
    return min(seconds) * n_bytes / values.nbytes


def prepare(job: Job, folder: Path) -> None:
    """Write the files that a job reads."""
    stem = f"{job.n}x{job.k}"
    for name, seed in ((f"{stem}-fit", 0), (stem, 1)):
        path = folder / f"{name}{job.suffix}"
        if not path.exists():
            write_predictions(path, as_predictions(*synthetic_logits(job.n, job.k, seed), from_logits=True))
    if "{calibrator}" in job.arguments:
        Temperature().fit(*synthetic_logits(min(job.n, 5_000), job.k)).save(folder / f"{stem}.safetensors")


def measure(command: Sequence[str], folder: Path, rounds: int) -> Cost:
    """The medians of a command, and its largest peak."""
    found = [cost_of(command, folder)]
    while len(found) < rounds and found[0].cpu <= RUN_ONCE:
        found.append(cost_of(command, folder))
    cpu, wall, peak = zip(*found, strict=True)
    return Cost(median(cpu), median(wall), max(peak))


def run(names: Sequence[str], out: Path | None, rounds: int, ways: Sequence[str]) -> None:
    cores = len(os.sched_getaffinity(0))
    about = Provenance.of({}, {}, seed=0)
    rows = {(row["job"], row["how"]): row for row in read(out)} if out else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for how in ways:
            # All quiet ones first: the load of busy processes is on the machine's average for minutes.
            load = os.getloadavg()[0]
            with busy(cores if how == "busy" else 0):
                import_torch = [sys.executable, "-c", "import torch"]
                cost_of(import_torch, folder)  # which compiles its modules
                torch_alone = measure(import_torch, folder, rounds)
                for key in track(names, description=how):
                    job, old, quiet = jobs()[key], rows.get((key, how), {}), rows.get((key, "quiet"), {})
                    measured = about.commit and old.get("commit") == about.commit
                    if measured or (how == "busy" and quiet.get("cpu", 0) > NOT_BUSY):
                        continue
                    prepare(job, folder)
                    found = measure(job.command(folder), folder, rounds if how == "quiet" else 1)
                    row = {"job": key, "name": job.name, "n": job.n, "k": job.k, "suffix": job.suffix}
                    row |= {"peer": job.peer, "how": how, "cpu": round(max(0.0, found.cpu - torch_alone.cpu), 3)}
                    row |= {"torch_cpu": round(torch_alone.cpu, 3), "wall": round(found.wall, 3)}
                    row |= {"peak_mb": round(found.peak), "floor": round(floor(job.n_bytes), 4)}
                    row |= {"rounds": 1 if how == "busy" or found.cpu > RUN_ONCE else rounds}
                    row |= {"cores": cores, "load": load if how == "busy" else os.getloadavg()[0]}
                    rows[key, how] = row | {"commit": about.commit, "versions": about.versions}
                    print(f"{key}, {how}: {found}", flush=True)
                    if out:
                        order = [(each, way) for each in jobs() for way in WAYS if (each, way) in rows]
                        write(out, (rows[each] for each in order))


# --------------------------------------------------------------------------------------------------------- for the docs


def exponent(pairs: Sequence[tuple[float, float]]) -> float:
    """The slope of the straight line through the logarithms of sizes and seconds.

    >>> round(exponent([(10, 2.0), (100, 20.0), (1000, 200.0)]), 6)
    1.0
    """
    x, y = (np.log(column) for column in zip(*pairs, strict=True))
    return float(np.polyfit(x, y, 1)[0])


def markdown(rows: list[dict[str, Any]]) -> str:
    """Each job as it was last measured; seconds on the clock only where the machine had no other work.

    The first row is `import torch`, which is in no other one's CPU seconds: it says how fast the machine was.

    >>> row = {"job": "a", "name": "apply", "n": 5000, "k": 10, "suffix": ".npz", "peer": None, "how": "quiet"}
    >>> row |= {"torch_cpu": 1.5, "cpu": 1.25, "floor": 0.0101, "peak_mb": 250.0, "wall": 2.0, "load": 0.2, "cores": 2}
    >>> print(markdown([row, row | {"how": "busy", "wall": 4.2}]).splitlines()[3])
    | apply | 5,000 × 10 | 1.25 | 0.010 | 250 | 2.0 | 2.1 | 0 |
    """
    heads = ["job", "n × k", "CPU s", "least s", "peak MB", "clock s", "busy ÷ quiet", "load"]
    torch_alone = median(row["torch_cpu"] for row in rows if row["how"] == "quiet")
    lines = [["`import torch`", "", f"{torch_alone:.2f}", *[""] * (len(heads) - 3)]]
    busy_rows = {row["job"]: row for row in rows if row["how"] == "busy"}
    for row in rows:
        if row["how"] != "quiet":
            continue
        beside = busy_rows.get(row["job"])
        who = f"{row['name']}{'' if row['suffix'] == '.npz' else ' ' + row['suffix']}"
        cells = [who + (f", {row['peer']}" if row["peer"] else ""), f"{row['n']:,} × {row['k']:,}"]
        cells += [f"{row['cpu']:.2f}", f"{row['floor']:.3f}", f"{row['peak_mb']:.0f}"]
        alone = row["load"] <= row["cores"]
        cells += [f"{row['wall']:.1f}" if alone else "–"]
        cells += [f"{beside['wall'] / row['wall']:.1f}" if alone and beside else "–", f"{row['load']:.0f}"]
        lines.append(cells)
    return table(heads, lines)


def growth(rows: list[dict[str, Any]]) -> str:
    """How the CPU seconds of a job grow: the exponents in n at the same k, and in k at the same n."""
    lines = []
    quiet = [row for row in rows if row["how"] == "quiet" and row["suffix"] == ".npz" and not row["peer"]]
    for grows, same in (("n", "k"), ("k", "n")):
        series: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for row in quiet:
            series.setdefault((row["name"], row[same]), []).append((row[grows], row["cpu"]))
        for (name, fixed), pairs in series.items():
            sizes = sorted(size for size, _ in pairs)
            if len(sizes) > 1 and all(seconds > 0 for _, seconds in pairs):
                ends = f"{sizes[0]:,}", f"{sizes[-1]:,}"
                lines.append([f"{name}, {same} = {fixed:,}", grows, *ends, f"{exponent(pairs):.2f}"])
    return table(["job", "grows with", "from", "to", "CPU seconds as its power"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="words in the names of jobs; default: all of them")
    parser.add_argument("--out", type=Path, help="where to keep the results, as JSON lines")
    parser.add_argument("--how", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, of which the median counts (3)")
    args = parser.parse_args()
    names = [name for name in jobs() if not args.jobs or any(word in name for word in args.jobs)]
    if not names:
        parser.error(f"there is no such job; there are {', '.join(jobs())}")
    run(names, args.out, args.rounds, args.how)


if __name__ == "__main__":
    main()
