"""Time temperance and its peers side by side: python -m benchmarks.speed [TASK …] [--out FILE.jsonl]

The contenders of a task take turns, so that whatever else the machine does hits all alike; the table gives medians and
how many times longer a peer takes than temperance in the same run. All tasks are timed on a quiet machine first, then
beside one busy process for each core. A line of the file takes the place of an older one.
"""

import argparse
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.quality.table import read, write
from benchmarks.speed.jobs import WAYS, busy, floor
from benchmarks.speed.tasks import Task, all_tasks
from temperance.jobs.results import Provenance

# Contenders take this many turns, more than the least until this many seconds are over.
LEAST_ROUNDS, MOST_ROUNDS, ENOUGH_SECONDS = 3, 31, 5.0


def timed(task: Task) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds of each contender, and why one is missing."""
    ready, missing = {}, {}
    for name, make in task.contenders.items():
        try:
            run = make()
            run()
            ready[name] = run
        except Exception as error:  # a peer may fail in any way; that is a finding, not our failure
            missing[name] = f"{type(error).__name__}: {error}"
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    began = time.perf_counter()
    while (rounds := len(seconds["temperance"])) < LEAST_ROUNDS or (
        rounds < MOST_ROUNDS and time.perf_counter() - began < ENOUGH_SECONDS
    ):
        for name, run in ready.items():
            time.sleep(0.05)  # until threads that the one before has left spinning are at rest
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}, missing


def run(names: Sequence[str], out: Path | None, ways: Sequence[str]) -> None:
    cores = len(os.sched_getaffinity(0))
    rows = {(row["task"], row["how"]): row for row in read(out)} if out else {}
    table = Table("task", "how", "contender", "median s", "times temperance")
    for how in ways:
        before = os.getloadavg()[0]  # later the busy processes are on the average
        for key in names:
            task = all_tasks()[key]()
            load, least = before if how == "busy" else os.getloadavg()[0], floor(task.n_bytes)
            with busy(cores if how == "busy" else 0):
                medians, missing = timed(task)
            ours = medians["temperance"]
            for name, value in sorted(medians.items(), key=lambda item: item[1]):
                times = "" if name == "temperance" else f"{value / ours:.1f}"
                table.add_row(task.name, how, name, f"{value:.4f}", times)
            for name, why in missing.items():
                table.add_row(task.name, how, name, "–", why)
            table.add_section()
            if out:
                row = {"task": task.name, "how": how, "seconds": medians, "missing": missing, "floor": least}
                row |= {"threads": torch.get_num_threads(), "cores": cores, "load": load}
                about = Provenance.of({}, {}, seed=0)
                rows[task.name, how] = row | {"versions": about.versions, "commit": about.commit}
                write(out, rows.values())
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(all_tasks())}; default: all of them")
    parser.add_argument("--out", type=Path, help="where to keep the medians, as JSON lines")
    parser.add_argument("--how", nargs="*", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    for key in args.tasks:
        if key not in all_tasks():
            parser.error(f"there is no task {key}; there are {', '.join(all_tasks())}")
    warnings.simplefilter("ignore")
    run(args.tasks or list(all_tasks()), args.out, args.how)


if __name__ == "__main__":
    main()
