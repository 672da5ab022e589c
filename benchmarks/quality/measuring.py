"""Fit every calibrator to real predictions: python -m benchmarks.quality FOLDERS --out results.jsonl [--methods …]

One JSON line for each set and method: metrics of the test part, and the CPU seconds of the fit. Methods of other
libraries take part where they are installed. Lines that are in the file already are not measured again, so a stopped
run goes on where it was; `--redo auto` measures a method again. Small sets come first.
"""

import math
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.peers import PEERS
from benchmarks.quality.table import METRICS, Results, Row, arguments, markdown, read, write
from temperance.calibrators import CALIBRATORS
from temperance.errors import InputError
from temperance.files import atomic_write
from temperance.jobs.outcomes import CANNOT_BE_FITTED, Method
from temperance.metrics import METRICS as REGISTRY


class Task(NamedTuple):
    """One method on one set, fitted on so many samples drawn at random; 0 are all."""

    path: Path
    method: str
    samples: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells its line from others."""
        return self.path.stem, self.method, self.samples


def key_of(row: Row) -> tuple[str, str, int]:
    """`Task.key` of a line; older lines do not say that they are of all samples."""
    return row["set"], row["method"], row.get("samples", 0)


def all_methods() -> list[str]:
    """Every calibrator, and those of other libraries that are installed."""
    return [*CALIBRATORS.names, *(name for name, peer in PEERS.items() if peer.version)]


def tasks(folders: Sequence[Path], methods: Sequence[str], samples: int) -> Iterator[Task]:
    """What there is to measure, small files first."""
    found = [path for _, path in sets(*folders)]
    twice = [name for name, n in Counter(path.stem for path in found).items() if n > 1]
    if twice:
        raise InputError(f"sets are told apart by their names, and two are called {twice[0]}; rename one")
    for path in sorted(found, key=lambda path: path.stat().st_size):
        yield from (Task(path, method, samples) for method in methods)


def measured(task: Task) -> Row:
    """The line of one method on one set."""
    fit_z, fit_y, test_z, test_y = _pair(task.path)
    some = torch.randperm(len(fit_y), generator=torch.Generator().manual_seed(task.samples))[: task.samples or None]
    some = some.sort().values
    row: Row = {"set": task.path.stem, "folder": task.path.parent.name, "method": task.method, "samples": task.samples}
    row |= {"k": fit_z.shape[1], "n_fit": len(some), "n_test": len(test_y)}
    peer = PEERS.get(task.method)
    cannot_be_fitted = (Exception,) if peer else CANNOT_BE_FITTED
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if peer:
                predict = peer.fit(fit_z[some], fit_y[some])
            else:
                found = Method.parse(task.method).make().fit(fit_z[some], fit_y[some])
                predict = found.predict_proba
                row |= {"stated": round(found.info["harm"], 6)} if "harm" in found.info else {}
            row["seconds"] = round(time.process_time() - start, 3)
            probs = torch.as_tensor(predict(test_z)).double()
        probs = probs / probs.sum(1, keepdim=True) if peer else probs
        row |= {name: round(_finite(REGISTRY[name](probs, test_y)), 7) for name in METRICS}
    except cannot_be_fitted as error:
        row["failure"] = " ".join(str(error).split())[:200]
    return row | ({peer.package: peer.version} if peer else {})


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ArithmeticError("a metric is not finite")
    return value


@lru_cache(maxsize=1)
def _pair(path: Path) -> Pair:
    return fit_and_test(path)


def run(
    folders: Sequence[Path],
    out: Path,
    methods: Sequence[str],
    *,
    samples: int = 0,
    jobs: int = 1,
    redo: Sequence[str] = (),
) -> None:
    """Measure what is not in the file yet, and the methods in `redo` again."""
    wanted = list(tasks(folders, methods, samples))
    again = {task.key for task in wanted if task.method in redo}
    known = read(out)
    if again:
        with atomic_write(out) as temporary:
            write(temporary, (row for row in known if key_of(row) not in again))
    done = {key_of(row) for row in known} - again
    todo = [task for task in wanted if task.key not in done]
    results = Results(out)
    for row in track(_measured(todo, jobs), total=len(todo), description="methods on sets"):
        results.add(row)


def _measured(todo: list[Task], jobs: int) -> Iterator[Row]:
    if jobs < 2:
        yield from map(measured, todo)
        return
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        yield from pool.map(measured, todo)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--methods", default=",".join(all_methods()), help="comma-separated, name:setting=value")
    parser.add_argument("--redo", default="", help="of these methods, measure the lines that are there again")
    parser.add_argument("--samples", type=int, default=0, help="of the fit part, drawn at random (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="methods fitted at the same time")
    args = parser.parse_args()
    methods, redo = (list(filter(None, text.split(","))) for text in (args.methods, args.redo))
    run(args.folders, args.out, methods, samples=args.samples, jobs=args.jobs, redo=redo)
    print(markdown(read(args.out)))
