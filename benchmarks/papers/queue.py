"""Train what the papers' tables need, as far as the minutes go, and measure what was trained.

    python -m benchmarks.papers.queue list
    python -m benchmarks.papers.queue train --images FOLDER --work FOLDER --out FOLDER --device cuda --seconds 560
    python -m benchmarks.papers.queue measure --out FOLDER

list     every training with its state: measured, or not trained yet
train    what has no results yet, in order. A training leaves one file in OUT: the logits of all parts in half
         precision, and those of classifiers that MaC-Cal trained again on its features. It is checkpointed after every
         epoch in WORK and goes on from there when the command is called again; none starts that could not end in time
measure  each file in OUT, as trained and after calibration; one JSON line for each state is added to the results

FOLDER/cifar10.npz and FOLDER/cifar100.npz are what `temperance train` reads.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.trainings import Training, queue
from benchmarks.quality.table import read
from temperance.calibrators import make_calibrator
from temperance.data import ImageData
from temperance.errors import InputError
from temperance.files import atomic_write
from temperance.heads import extract_features, make_head
from temperance.jobs.evaluation import evaluate
from temperance.jobs.results import Provenance
from temperance.predictions import Predictions
from temperance.registry import parse_entry
from temperance.training import Run, predict, train
from temperance.training.job import usable_device

RESULTS = Path(__file__).resolve().parent.parent / "results" / "papers.jsonl"

# Classifiers that are trained again on the features of every network.
HEADS = ("mac-cal", "mac-cal:preset=kept-accuracy")

# What is fitted to the validation part; the selective-risk paper fits the temperature to the training part too.
CALIBRATORS = ("temperature", "temperature-ece", "class-temperature-greedy", "auto")
METRICS = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "adaptive-ece",
    "classwise-ece",
    "mce",
    "confidence-gap",
    "aurc",
)
RESAMPLES = 1000

# A training that was begun is believed to need this share more than the longest epoch so far says.
RESERVE = 1.1


# ------------------------------------------------------------------------------------------------------------ training


def train_all(
    images: Path, work: Path, out: Path, *, device: str, seconds: float, only: str = "", commit: str = ""
) -> None:
    """Train what has no results and no file yet, in order, until the time is over."""
    begun = time.perf_counter()
    (work / "done").mkdir(parents=True, exist_ok=True)
    done = {line["training"] for line in read(RESULTS)}
    for training in queue():
        left = seconds - (time.perf_counter() - begun)
        if only not in training.line or training.line in done or (work / "done" / training.file).exists():
            continue
        if not (images / f"{training.data}.npz").exists():
            continue
        if left < _needed(training, work):
            break
        print(f"{time.perf_counter() - begun:5.0f} s  {training.line}", flush=True)
        trained = _trained(training, images, work, device, commit)
        with atomic_write(out / training.file) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **trained)
        (work / "done" / training.file).touch()
        print(f"{time.perf_counter() - begun:5.0f} s  {bytes(trained['about']).decode()[:300]}", flush=True)


def _needed(training: Training, work: Path) -> float:
    """The seconds that a training is expected to take: epochs left times the slowest epoch of its kind, and set-up."""
    logs = {log.parent: [json.loads(line) for line in log.read_text().splitlines()] for log in work.glob("*/log.jsonl")}
    kind = _kind(training.file)
    known = [
        row["seconds"] + row["seconds_of_validation"]
        for folder, rows in logs.items()
        if _kind(folder.name) == kind
        for row in rows[1:]
    ]
    left = training.epochs - len(logs.get(_folder(training, work), []))
    return RESERVE * left * (median(known) if known else 2.1 if kind[-1] else 1.2) + 30


def _kind(name: str) -> tuple[object, ...]:
    """What decides the seconds of an epoch: the data, the network, and whether images are mixed."""
    return (*name.split("_")[:2], "_mix_" in name)


def _folder(training: Training, work: Path) -> Path:
    return work / training.file.removesuffix(".npz")


def _trained(training: Training, images: Path, work: Path, device: str, commit: str) -> dict[str, Any]:
    """Train one network; the arrays of its file. A failure of the loss is a result too."""
    fast = device.startswith("cuda")
    job, place = training.job(str(images), fast=fast), usable_device(device)
    data = _images(str(images / f"{training.data}.npz"))
    about: dict[str, Any] = {"training": training.line, "seed": job.recipe.seed}
    about["hardware"] = torch.cuda.get_device_name() if fast else "cpu"
    if fast:
        torch.compiler.reset()
    about |= {"commit": commit or Provenance.of({}, {}, seed=0).commit, "torch": torch.__version__}
    try:
        folder = _folder(training, work)
        network = job.make_network(data).to(place)
        run = train(network, data, job.loss, job.recipe, folder=folder, resume=folder.exists())
    except InputError as error:
        return {"about": _as_bytes(about | {"failure": str(error)})}
    about["seconds_per_epoch"] = round(median(row["seconds"] for row in run.history), 3)
    about["history"] = run.history
    arrays = dict(_logits(run, data))
    features = extract_features(run.network, data, device=place)
    for name in HEADS:
        start = time.perf_counter()
        kind, settings = parse_entry(name)
        head = make_head(kind, **settings).fit(features, seed=job.recipe.seed)
        about.setdefault("head_seconds", {})[name] = round(time.perf_counter() - start, 2)
        about.setdefault("head_history", {})[name] = head.history
        for part in ("val", "test"):
            with torch.no_grad():
                rows = getattr(features, part)
                arrays[f"{name}/{part}_logits"] = _half(torch.cat([head(x) for x, _ in rows.blocks()]))
    return arrays | {"about": _as_bytes(about)}


def _logits(run: Run, data: ImageData) -> Iterator[tuple[str, Any]]:
    for part, predictions in run.predictions.items():
        yield f"{part}_logits", _half(predictions.scores)
        yield f"{part}_labels", predictions.labels.numpy().astype(np.uint8)
    yield "train_logits", _half(predict(run.network, data.train, mean=run.mean, std=run.std))
    yield "train_labels", data.train.labels.cpu().numpy().astype(np.uint8)


def _half(logits: Tensor) -> Any:
    return logits.half().cpu().numpy()


def _as_bytes(about: dict[str, Any]) -> Any:
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


@cache
def _images(source: str) -> ImageData:
    from temperance.data import read_images

    return read_images(source)


# ----------------------------------------------------------------------------------------------------------- measuring


def measure_all(out: Path) -> None:
    """Measure every file that has no results yet, and add them."""
    done = {line["training"] for line in read(RESULTS)}
    for path in sorted(out.glob("*.npz")):
        with np.load(path) as file:
            about = json.loads(bytes(file["about"]))
            if about["training"] in done:
                continue
            lines = [about] if "failure" in about else list(_measured(about, file))
        with RESULTS.open("a", encoding="utf-8") as results:
            results.writelines(json.dumps(line) + "\n" for line in lines)
        print(f"{about['training']}: {len(lines)} states", flush=True)


def _measured(about: dict[str, Any], file: Any) -> Iterator[dict[str, Any]]:
    """A line for each state of a training: as it is, after each calibrator, with each head."""
    history, heads = about.pop("history"), about.pop("head_history")
    logits = {part: torch.from_numpy(file[f"{part}_logits"]).float() for part in ("train", "val", "test")}
    labels = {part: torch.from_numpy(file[f"{part}_labels"]).long() for part in ("train", "val", "test")}
    truth = labels["test"]
    last = {name: history[-1][name] for name in ("loss", "accuracy", "val_accuracy", "val_ece", "val_nll")}
    common = about | {"measured_at": Provenance.of({}, {}, seed=0).commit}
    yield common | {"state": "as trained", "last_epoch": last} | _metrics(logits["test"], truth)
    for name in CALIBRATORS:
        yield common | {"state": name} | _calibrated(name, logits["val"], labels["val"], logits["test"], truth)
    fitted = _calibrated("temperature", logits["train"], labels["train"], logits["test"], truth)
    yield common | {"state": "temperature of the training part"} | fitted
    for name in HEADS:
        head = {part: torch.from_numpy(file[f"{name}/{part}_logits"]).float() for part in ("val", "test")}
        rates = [round(row["keep_rate"], 4) for row in heads[name] if "keep_rate" in row]
        yield common | {"state": name, "keep_rates": rates} | _metrics(head["test"], truth)
        scaled = _calibrated("temperature", head["val"], labels["val"], head["test"], truth)
        yield common | {"state": f"{name} + temperature"} | scaled


def _calibrated(name: str, fit: Tensor, fit_labels: Tensor, test: Tensor, labels: Tensor) -> dict[str, Any]:
    """Test metrics after a calibrator, and its temperature where it has one."""
    kind, settings = parse_entry(name)
    calibrator = make_calibrator(kind, **settings).fit(fit, fit_labels)
    found = _metrics(calibrator.predict_proba(test), labels, from_logits=False)
    learnt = dict(calibrator.named_buffers()).get("temperature")
    if learnt is not None:
        found["temperature"] = round(float(learnt.double().mean()), 4)
    return found


def _metrics(scores: Tensor, labels: Tensor, *, from_logits: bool = True) -> dict[str, Any]:
    """Each metric with its 95 % interval over test samples."""
    predictions = Predictions.of(scores, labels, from_logits=from_logits)
    found = evaluate(predictions, metrics=METRICS, bootstrap=RESAMPLES)
    return {
        row.metric: [None if math.isnan(value) else round(value, 6) for value in (row.value, row.low, row.high)]
        for row in found.rows
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every training and its state")
    training = commands.add_parser("train", help="train what is missing")
    training.add_argument("--images", type=Path, required=True, help="the folder of cifar10.npz and cifar100.npz")
    training.add_argument("--work", type=Path, required=True, help="the folder of checkpoints")
    training.add_argument("--device", default="cpu")
    training.add_argument("--seconds", type=float, default=math.inf, help="start no training that would end later")
    training.add_argument("--only", default="", metavar="TEXT", help="trainings whose line has this in it")
    training.add_argument("--commit", default="", help="of the source, where it is not a checkout")
    measuring = commands.add_parser("measure", help="measure what was trained")
    for command in (training, measuring):
        command.add_argument("--out", type=Path, required=True, help="the folder of predictions")
    args = parser.parse_args()
    if args.command == "list":
        done = {line["training"] for line in read(RESULTS)}
        for one in queue():
            print(f"{'measured' if one.line in done else 'waiting ':8}  {one.line}")
    elif args.command == "train":
        options = {name: getattr(args, name) for name in ("device", "seconds", "only", "commit")}
        train_all(args.images, args.work, args.out, **options)
    else:
        measure_all(args.out)


if __name__ == "__main__":
    main()
