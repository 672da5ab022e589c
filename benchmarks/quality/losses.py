"""Train the same network once with every loss, and see which claims of the papers hold.

    python -m benchmarks.quality.losses train --images FOLDER --work FOLDER --out RUNS --device cuda
    python -m benchmarks.quality.losses measure --runs RUNS --out benchmarks/results/losses.jsonl
    python -m benchmarks.quality.losses pair --runs RUNS mbls label-smoothing

train    what RUNS does not have yet, as `benchmarks.papers.queue` does
measure  accuracy, calibration and selective risk on the test part, as trained, after temperature scaling and after
         `auto`, both fitted to the validation part; with the paired bootstrap intervals of the differences from
         cross-entropy. One JSON line a run, which says so if the loss stopped being a number
pair     those differences between any two runs
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.queue import add_train_options, train_all
from benchmarks.papers.trainings import Training, published_on
from benchmarks.quality.data import fit_and_test
from benchmarks.quality.table import made_with, read, table, write
from temperance.calibrators import make_calibrator
from temperance.errors import InputError
from temperance.metrics import METRICS
from temperance.metrics.batch import batches
from temperance.metrics.significance import Difference, Draws, deal, resample

# What is trained: a loss, followed by what differs from the recipe of the others, the most telling runs first. ACLS is
# trained with the gradient of eq. 13 and as its program has it; also with the pattern of eq. 12, which makes all logits
# drift, at lower learning rates (with cross-entropy to compare with) and with the clipping of its program. Other seeds
# show how much is chance, and more epochs what happens as networks grow more confident. The AU losses are those of the
# paper for a wide network and for ResNet-50, as printed and as released, and two that hold their weights constant.
PRINTED, ON = ":variant=paper", "CIFAR-100"
RUNS = (
    "cross-entropy",
    published_on("label-smoothing", ON),
    published_on("focal", ON),
    published_on("mbls", ON),
    published_on("acls", ON) + ":detach=true",
    published_on("acls", ON) + ":variant=released",
    published_on("acls", ON),
    "aurc",
    published_on("au", "CIFAR-100, WRN") + PRINTED,
    "brier",
    published_on("flsd", ON),
    published_on("inverse-focal", ON),
    published_on("dual-focal", ON),
    "cross-entropy seed=1",
    published_on("mdca", ON),
    published_on("mmce", ON),
    published_on("kde-xe", ON),
    "cross-entropy mix=mixup",
    published_on("acls", ON) + ":detach=true lr=0.02",
    "cross-entropy lr=0.02",
    published_on("acls", ON) + ":detach=true lr=0.01",
    "cross-entropy lr=0.01",
    published_on("acls", ON) + ":detach=true clip=2.0",
    "au" + PRINTED + ":detach_weights=true",
    published_on("au", "CIFAR-100, WRN") + PRINTED + ":detach_weights=true",
    published_on("crl", ON),
    published_on("adafocal", ON),
    "cross-entropy mix=mit",
    published_on("cpc", ON),
    "soft-ece",
    "soft-avuc",
    "entropy-penalty",
    "cross-entropy mix=cutmix",
    published_on("au", ON) + PRINTED,
    "cross-entropy seed=2",
    published_on("label-smoothing", ON) + " seed=1",
    published_on("mbls", ON) + " seed=1",
    published_on("acls", ON) + ":variant=released seed=1",
    published_on("acls", ON) + " seed=1",
    published_on("adafocal", ON) + " seed=1",
    "cross-entropy mix=mit seed=1",
    "cross-entropy epochs=100",
    published_on("label-smoothing", ON) + " epochs=100",
    published_on("acls", ON) + " epochs=100",
    published_on("au", ON),
    "au:cdf_bandwidth=0.01",
)
REFERENCE = RUNS[0]


EPOCHS = 30


def training_of_run(run: str) -> Training:
    """A run as a training of the queue.

    >>> training_of_run("cross-entropy lr=0.02").line
    'cifar100 resnet18 30 cross-entropy warmup=3 lr=0.02'
    >>> training_of_run("cross-entropy epochs=100").line
    'cifar100 resnet18 100 cross-entropy warmup=3'
    """
    loss, *changes = run.split()
    epochs = [int(change.removeprefix("epochs=")) for change in changes if change.startswith("epochs=")] or [EPOCHS]
    others = (change for change in changes if not change.startswith("epochs="))
    return Training("cifar100", "resnet18", epochs[0], loss, (f"warmup={EPOCHS // 10}", *others))


def predictions_of(folder: Path, run: str) -> Path:
    """Where the predictions of a run are."""
    return folder / training_of_run(run).file


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
    lines = [_about(run, path) for run in RUNS if (path := predictions_of(folder, run)).exists()]
    found: dict[str, dict[str, dict[str, Measured]]] = {}
    ended = [line["run"] for line in lines if "failure" not in line]
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        results = dict(zip(ended, pool.map(_measured_run, repeat(folder), ended, repeat(n_resamples)), strict=True))
    for line in lines:
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


def _about(run: str, path: Path) -> dict[str, Any]:
    """What a file says of its run, but for what happened in each epoch."""
    with np.load(path) as file:
        about = json.loads(bytes(file["about"]))
    known = ("training", "seed", "hardware", "commit", "torch", "seconds_per_epoch", "failure")
    return {"run": run} | {name: about[name] for name in known if name in about}


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
    add_train_options(training)
    training.add_argument("--only", nargs="+", default=RUNS, metavar="RUN", help="some of the runs; by default all")
    measuring = commands.add_parser("measure", help="measure all runs that have ended")
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--jobs", type=int, default=1, help="runs at the same time, each in a process of its own")
    pairing = commands.add_parser("pair", help="compare two runs")
    pairing.add_argument("first")
    pairing.add_argument("second")
    for command in (measuring, pairing):
        command.add_argument("--runs", type=Path, required=True, help="the folder of the predictions")
    args = parser.parse_args()
    if args.command == "train":
        trainings = [training_of_run(run) for run in args.only]
        train_all(args.images, args.work, args.out, device=args.device, seconds=args.seconds, trainings=trainings)
    elif args.command == "measure":
        measure_all(args.runs, args.out, jobs=args.jobs)
        print(markdown(read(args.out)))
    else:
        pair(args.runs, args.first, args.second)


if __name__ == "__main__":
    main()
