"""Train the same network once with every loss, and see which claims of the papers hold.

    python -m benchmarks.quality.losses train cifar100.npz --runs FOLDER --device cuda --jobs 5
    python -m benchmarks.quality.losses measure --runs FOLDER --out benchmarks/results/losses.jsonl
    python -m benchmarks.quality.losses pair --runs FOLDER mbls label-smoothing

train    one run for each of RUNS, the most telling first; each leaves FOLDER/NAME.npz, its logits of the validation and
         test parts in half precision, and a line in FOLDER/runs.jsonl as soon as it has ended. A loss that stops being
         a number leaves a line that says so. Runs that have a line are not run again
measure  accuracy, calibration and selective risk on the test part, as trained, after temperature scaling and after
         `auto`, both fitted to the validation part; with the paired bootstrap intervals of the differences from
         cross-entropy. One JSON line a run
pair     those differences between any two runs
"""

from __future__ import annotations

import argparse
import math
import re
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.quality.data import fit_and_test
from benchmarks.quality.table import Results, made_with, read, table, write
from temperance.calibrators import make_calibrator
from temperance.data import ImageData, read_images
from temperance.errors import InputError
from temperance.losses import LOSSES
from temperance.metrics import METRICS
from temperance.metrics.batch import batches
from temperance.metrics.significance import Difference, Draws, deal, resample
from temperance.registry import as_entry, parse_entry
from temperance.settings import defaults_of
from temperance.training import Job, train
from temperance.training.criterion import as_loss
from temperance.training.job import usable_device
from temperance.training.run import headline


def published(name: str, on: str = "CIFAR-100") -> str:
    """A loss with the settings that its paper, or the first program that is known, used there.

    >>> published("kde-xe")
    'kde-xe:strength=0.5'
    """
    return entry(name, next((used.settings for used in LOSSES[name].hyper_parameters if on in used.data), {}))


def entry(name: str, settings: Mapping[str, Any]) -> str:
    """A loss with those of its settings that are not its defaults."""
    usual = defaults_of(LOSSES[name])
    return as_entry(name, {key: value for key, value in settings.items() if value != usual[key]})


# What is trained: a loss, followed by what differs from the recipe of the others, the most telling runs first. ACLS is
# trained with the gradient of eq. 13 and as its program has it; also with the pattern of eq. 12, which makes all logits
# drift, at lower learning rates (with cross-entropy to compare with) and with the clipping of its program. Other seeds
# show how much is chance, and more epochs what happens as networks grow more confident. The AU losses are those of the
# paper for a wide network and for ResNet-50, as printed and as released, and two that hold their weights constant.
PRINTED = ":variant=paper"
RUNS = (
    "cross-entropy",
    published("label-smoothing"),
    published("focal"),
    published("mbls"),
    published("acls") + ":detach=true",
    published("acls") + ":variant=released",
    published("acls"),
    "aurc",
    published("au", "CIFAR-100, WRN") + PRINTED,
    "brier",
    published("flsd"),
    published("inverse-focal"),
    published("dual-focal"),
    "cross-entropy seed=1",
    published("mdca"),
    published("mmce"),
    published("kde-xe"),
    "cross-entropy mix=mixup",
    published("acls") + ":detach=true lr=0.02",
    "cross-entropy lr=0.02",
    published("acls") + ":detach=true lr=0.01",
    "cross-entropy lr=0.01",
    published("acls") + ":detach=true clip=2.0",
    "au" + PRINTED + ":detach_weights=true",
    published("au", "CIFAR-100, WRN") + PRINTED + ":detach_weights=true",
    published("crl"),
    published("adafocal"),
    "cross-entropy mix=mit",
    published("cpc"),
    "soft-ece",
    "soft-avuc",
    "entropy-penalty",
    "cross-entropy mix=cutmix",
    published("au") + PRINTED,
    "cross-entropy seed=2",
    published("label-smoothing") + " seed=1",
    published("mbls") + " seed=1",
    published("acls") + ":variant=released seed=1",
    published("acls") + " seed=1",
    published("adafocal") + " seed=1",
    "cross-entropy mix=mit seed=1",
    "cross-entropy epochs=100",
    published("label-smoothing") + " epochs=100",
    published("acls") + " epochs=100",
    published("au"),
    "au:cdf_bandwidth=0.01",
)
REFERENCE = RUNS[0]


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class Setup:
    """What all runs have in common."""

    data: str
    runs: Path
    network: str = "resnet18"
    epochs: int = 30
    device: str = "cpu"

    def job(self, run: str) -> Job:
        """A run as a training."""
        loss, *changes = run.split()
        _, settings = parse_entry(":".join(["recipe", *changes]))
        fast = {"compile": True, "precision": "bfloat16"} if self.device.startswith("cuda") else {}
        recipe = {"epochs": self.epochs, "warmup": self.epochs // 10, "clip": None, **fast, **settings}
        return Job.of(data=self.data, network=self.network, loss=loss, **recipe)


def train_all(setup: Setup, runs: Sequence[str] = RUNS, *, jobs: int = 1, seconds: float = math.inf) -> None:
    """Train what has no line yet, so many at once; none is begun if the longest so far would not end in time."""
    setup.runs.mkdir(parents=True, exist_ok=True)
    done = {line["run"] for line in read(setup.runs / "runs.jsonl")}
    waiting = [run for run in runs if run not in done]
    begun, longest = time.perf_counter(), 0.0
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        running: dict[Future[dict[str, Any]], tuple[str, float]] = {}
        while True:
            while waiting and len(running) < jobs and time.perf_counter() - begun + longest < seconds:
                run = waiting.pop(0)
                running[pool.submit(trained, setup, run)] = run, time.perf_counter()
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run, start = running.pop(future)
                now = time.perf_counter()
                longest = max(longest, now - start)
                print(f"{now - begun:5.0f} s  {run}  {now - start:.0f} s  {_kept(setup, future)}", flush=True)
    if waiting:
        print(f"no time for {', '.join(waiting)}")


def _kept(setup: Setup, future: Future[dict[str, Any]]) -> str:
    """Write the line of a run that has ended; a few words about it."""
    error = future.exception()
    if error is not None:  # nothing that the loss is to blame for, and to be tried again
        return "".join(traceback.format_exception(error))
    line = future.result()
    Results(setup.runs / "runs.jsonl").add(line)
    return line.get("failure") or f"{line['test']}  {line['seconds_per_epoch']} s an epoch"


def trained(setup: Setup, run: str) -> dict[str, Any]:
    """Train once; the line about it."""
    start = time.perf_counter()
    job, data, device = setup.job(run), images(setup.data), usable_device(setup.device)
    loss = as_loss(job.loss, len(data.train))
    if job.recipe.compile:
        torch.compiler.reset()  # what was compiled for the loss before is of no more use
    line: dict[str, Any] = {"run": run, "network": setup.network, "epochs": setup.epochs, "seed": job.recipe.seed}
    line |= {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    try:
        found = train(job.make_network(data).to(device), data, loss, job.recipe)
    except InputError as error:
        return line | {"failure": str(error)}
    arrays: dict[str, Any] = {}
    for part, predictions in found.predictions.items():
        arrays[f"{part}_logits"] = predictions.scores.half().numpy()
        arrays[f"{part}_labels"] = predictions.labels.numpy().astype(np.uint8)
        line[part] = {name: round(value, 6) for name, value in headline(predictions).items()}
    np.savez_compressed(predictions_of(setup.runs, run), **arrays)
    line["seconds"] = round(time.perf_counter() - start, 1)
    line["seconds_per_epoch"] = round(median(row["seconds"] for row in found.history), 3)
    return line | {"history": found.history}


@cache
def images(source: str) -> ImageData:
    """The data, read once for all runs of a process."""
    return read_images(source)


def predictions_of(folder: Path, run: str) -> Path:
    """Where the predictions of a run are."""
    return folder / (re.sub(r"[^\w.-]+", "_", run) + ".npz")


# ----------------------------------------------------------------------------------------------------------- measuring

STATES = ("as trained", "scaled", "auto")
MEASURED = ("accuracy", "nll", "ece", "adaptive-ece", "brier", "confidence-gap", "aurc", "failure-auroc")
RESAMPLES = 1000


@dataclass(frozen=True)
class Measured:
    """What a metric is on the test part and on resamples of it, the same ones for all runs."""

    value: float
    draws: Draws

    def minus(self, other: Measured) -> Difference:
        return self.draws.minus(other.draws).difference(self.value - other.value, 0.95)


def measured(probs: Tensor, labels: Tensor, n_resamples: int = RESAMPLES) -> dict[str, Measured]:
    """Every metric of predictions."""
    metrics = [METRICS[name] for name in MEASURED]
    dealt = deal(batches(probs, labels), len(labels), [(metric, {}) for metric in metrics], _generator())
    found = {}
    for metric, parts in zip(metrics, dealt, strict=True):
        draws = resample(metric, parts, n_resamples, _generator(), paired=True)
        found[metric.name] = Measured(metric.value(parts.whole), draws)
    return found


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def states(path: Path) -> tuple[dict[str, Tensor], Tensor, float]:
    """The probabilities of a run's test part in every state, its labels, and the temperature that was fitted."""
    fit_z, fit_y, test_z, test_y = fit_and_test(path)
    calibrators = [make_calibrator(name).fit(fit_z, fit_y) for name in ("identity", "temperature", "auto")]
    found = {state: each.predict_proba(test_z) for state, each in zip(STATES, calibrators, strict=True)}
    return found, test_y, float(calibrators[1].get_buffer("temperature"))


def control(run: str, known: Collection[str]) -> str:
    """What a run is compared with: cross-entropy with the same changes of the recipe, if there is such a run."""
    _, *changes = run.split()
    same = " ".join(["cross-entropy", *(change for change in changes if not change.startswith("mix="))])
    return same if same in known and same != run else REFERENCE


def measure_all(folder: Path, out: Path, *, jobs: int = 1, n_resamples: int = RESAMPLES) -> None:
    """Measure all runs that have ended, some at a time, and write the lines anew."""
    lines = read(folder / "runs.jsonl")
    lines.sort(key=lambda line: RUNS.index(line["run"]) if line["run"] in RUNS else len(RUNS))
    found: dict[str, dict[str, dict[str, Measured]]] = {}
    ended = [line["run"] for line in lines if "failure" not in line]
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        results = dict(zip(ended, pool.map(_measured_run, repeat(folder), ended, repeat(n_resamples)), strict=True))
    for line in lines:
        for name in ("history", "val", "test"):
            line.pop(name, None)
        if line["run"] not in results:
            continue
        result = results[line["run"]]
        if isinstance(result, str):
            line["failure"] = result
            continue
        mine, temperature = result
        found[line["run"]] = mine
        line |= {"temperature": round(temperature, 4), "measured_at": made_with()["commit"]}
        line |= {state: {name: round(each.value, 6) for name, each in mine[state].items()} for state in STATES}
    for line in lines:
        against = control(line["run"], found)
        if "failure" not in line and against != line["run"]:
            mine, other = found[line["run"]], found[against]
            line["against"] = against
            line["differences"] = {state: _differences(mine[state], other[state]) for state in STATES}
    write(out, lines)


def _measured_run(folder: Path, run: str, n_resamples: int) -> tuple[dict[str, dict[str, Measured]], float] | str:
    """What is measured of a run in every state, and its temperature; or why there is nothing."""
    try:
        probs, labels, temperature = states(predictions_of(folder, run))
    except InputError as error:  # logits so far out that half precision does not hold them
        return str(error)
    mine = {state: measured(probs[state], labels, n_resamples) for state in STATES}
    as_trained = {name: round(each.value, 4) for name, each in mine["as trained"].items()}
    print(f"{run}  {as_trained}", flush=True)
    return mine, temperature


def _differences(found: dict[str, Measured], reference: dict[str, Measured]) -> dict[str, list[float]]:
    """How much more of each metric than the reference: the value, and its interval."""
    pairs = {name: each.minus(reference[name]) for name, each in found.items()}
    return {name: [round(value, 6) for value in (by.value, by.low, by.high)] for name, by in pairs.items()}


def pair(folder: Path, first: str, second: str, n_resamples: int = RESAMPLES) -> None:
    """Print how much more of each metric the first run has than the second."""
    (one, labels, _), (other, _, _) = (states(predictions_of(folder, run)) for run in (first, second))
    for state in STATES:
        found, reference = (measured(probs[state], labels, n_resamples) for probs in (one, other))
        for name, (value, low, high) in _differences(found, reference).items():
            print(f"{state:12} {name:16} {value:+.4f}  [{low:+.4f}, {high:+.4f}]")


def markdown(rows: list[dict[str, Any]]) -> str:
    """A line for each run. ↓ and ↑: the 95 % interval of the difference from its control is below or above 0."""
    columns = {
        "accuracy": ("as trained", "accuracy", True),
        "NLL": ("as trained", "nll", False),
        "ECE": ("as trained", "ece", True),
        "confidence − accuracy": ("as trained", "confidence-gap", True),
        "AURC": ("as trained", "aurc", True),
        "failure AUROC": ("as trained", "failure-auroc", True),
        "T": ("", "temperature", False),
        "NLL, T": ("scaled", "nll", False),
        "ECE, T": ("scaled", "ece", True),
        "AURC, T": ("scaled", "aurc", True),
        "NLL, auto": ("auto", "nll", False),
        "ECE, auto": ("auto", "ece", True),
    }
    broke_down = ["broke down", *[""] * (len(columns) - 1)]
    lines = [
        [row["run"], *(broke_down if "failure" in row else (_cell(row, *column) for column in columns.values()))]
        for row in rows
    ]
    return table(["loss", *columns], lines)


def _cell(row: dict[str, Any], state: str, metric: str, percent: bool) -> str:
    if not state:
        return f"{row[metric]:.2f}"
    value = f"{100 * row[state][metric]:.2f} %" if percent else f"{row[state][metric]:.4f}"
    _, low, high = row.get("differences", {}).get(state, {}).get(metric, (0.0, 0.0, 0.0))
    return value + (" ↓" if high < 0 else " ↑" if low > 0 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train what is missing")
    training.add_argument("data", help="what `temperance train` takes: the official files, an .npz, or a name")
    training.add_argument("--only", nargs="+", metavar="RUN", help="some of the runs; by default all")
    training.add_argument("--network", default="resnet18")
    training.add_argument("--epochs", type=int, default=30)
    training.add_argument("--device", default="cpu")
    training.add_argument("--seconds", type=float, default=math.inf, help="begin no run that would end later")
    measuring = commands.add_parser("measure", help="measure all runs that have ended")
    measuring.add_argument("--out", type=Path, required=True)
    pairing = commands.add_parser("pair", help="compare two runs")
    pairing.add_argument("first")
    pairing.add_argument("second")
    for command in (training, measuring):
        command.add_argument("--jobs", type=int, default=1, help="runs at the same time, each in a process of its own")
    for command in (training, measuring, pairing):
        command.add_argument("--runs", type=Path, required=True, help="the folder of the predictions")
    args = parser.parse_args()
    if args.command == "train":
        setup = Setup(args.data, args.runs, args.network, args.epochs, args.device)
        train_all(setup, args.only or RUNS, jobs=args.jobs, seconds=args.seconds)
    elif args.command == "measure":
        measure_all(args.runs, args.out, jobs=args.jobs)
        print(markdown(read(args.out)))
    else:
        pair(args.runs, args.first, args.second)


if __name__ == "__main__":
    main()
