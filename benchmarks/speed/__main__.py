"""Time temperance and its peers side by side: python -m benchmarks.speed [TASK …] [--out FILE.jsonl]

The contenders of a task take turns, so that whatever else the machine does hits all alike; the table gives medians and
how many times longer a peer takes than temperance in the same run.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.speed.data import median
from benchmarks.speed.tasks import Task, all_tasks
from temperance.jobs.results import Provenance


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
    for _ in range(task.rounds):
        for name, run in ready.items():
            time.sleep(0.05)  # until threads that the one before has left spinning are at rest
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(all_tasks())}; default: all of them")
    parser.add_argument("--out", type=Path, help="append the medians as JSON lines")
    args = parser.parse_args()
    for key in args.tasks:
        if key not in all_tasks():
            parser.error(f"there is no task {key}; there are {', '.join(all_tasks())}")
    warnings.simplefilter("ignore")
    table = Table("task", "contender", "median s", "times temperance")
    for key in args.tasks or all_tasks():
        task = all_tasks()[key]()
        medians, missing = timed(task)
        ours = medians["temperance"]
        for name, value in sorted(medians.items(), key=lambda item: item[1]):
            table.add_row(task.name, name, f"{value:.4f}", "" if name == "temperance" else f"{value / ours:.1f}")
        for name, why in missing.items():
            table.add_row(task.name, name, "–", why)
        table.add_section()
        if args.out:
            machine = {"threads": torch.get_num_threads(), "load": os.getloadavg()[0]}
            record = {"task": task.name, "seconds": medians, "missing": missing, **machine}
            found = Provenance.of({}, {"rounds": task.rounds}, seed=0)
            with args.out.open("a") as file:
                file.write(json.dumps(record | {"versions": found.versions, "commit": found.commit}) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
