"""Train what the papers' tables need, as far as the minutes go, and measure what was trained.

    python -m benchmarks.papers.queue list
    python -m benchmarks.papers.queue train --images FOLDER --work FOLDER --out FOLDER --device cuda --seconds 560
    python -m benchmarks.papers.queue measure --out FOLDER

list     every training with its state: measured, or not trained yet
train    what has no results yet, in order. A training leaves one file in OUT: the logits of all parts in half
         precision, and those of classifiers that MaC-Cal trained again on its features; of cross-entropy, also how sure
         all of them are of images of other data sets, and what they measure on corrupted test images. One that keeps
         its best network leaves a second file, of its last. It is checkpointed after every epoch in WORK and goes on
         from there when the command is called again; none starts that could not end in time
measure  each file in OUT, as trained and after calibration; one JSON line for each state is added to the results

FOLDER/cifar10.npz and FOLDER/cifar100.npz are what `temperance train` reads; FOLDER/svhn.npz is shown to the networks
too if it is there. Without a GPU, `--only cifar10-5k` trains small networks on a part of CIFAR-10, about a minute each.
Several commands can run at once if each has its share, `--share 1/2` and `--share 2/2`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers import mac_cal, measuring
from benchmarks.papers.measuring import doubt
from benchmarks.papers.small import write_small
from benchmarks.papers.trainings import SMALL, Training, queue
from benchmarks.quality.table import read
from temperance.data import ImageData, Part
from temperance.diagnose.shift import Corrupted
from temperance.errors import InputError
from temperance.files import atomic_write
from temperance.heads import Head, extract_features, make_head, masked_inference, split
from temperance.jobs.results import Provenance
from temperance.metrics import accuracy, ece, nll
from temperance.registry import parse_entry
from temperance.training import Balanced, Run, predict, train
from temperance.training.checkpoint import network_of
from temperance.training.job import usable_device
from temperance.training.prediction import device_of

# Classifiers that are trained again on the features of every network.
HEADS = (mac_cal.MASKED, mac_cal.KEPT_ACCURACY, mac_cal.HELD_OUT, mac_cal.ONE_LAYER)

# Other images that networks of cross-entropy are shown: data sets that it does not know, and test images made worse.
OTHERS = ("cifar10", "cifar100", "svhn")
CORRUPTIONS = ("gaussian-noise", "defocus-blur", "pixelate", "contrast", "brightness")
SEVERITIES = (1, 3, 5)
SHIFTED = (accuracy, nll, ece)

# A training that was begun is believed to need this share more than the longest epoch so far says.
RESERVE = 1.1


# ------------------------------------------------------------------------------------------------------------ training


def train_all(
    images: Path,
    work: Path,
    out: Path,
    *,
    device: str,
    seconds: float,
    only: Sequence[str] = (),
    share: tuple[int, int] = (1, 1),
    commit: str = "",
    trainings: Sequence[Training] = (),
) -> None:
    """Train what has no results and no file yet, in order, until the time is over; by default, the queue."""
    first, step = share
    begun = time.perf_counter()
    for folder in (work / "done", out):
        folder.mkdir(parents=True, exist_ok=True)
    measured = {line["training"] for line in read(measuring.RESULTS)}

    def waits(training: Training) -> bool:
        return training.line not in measured and not (work / "done" / training.file).exists()

    chosen = trainings or queue()
    for training in chosen[first - 1 :: step]:
        left = seconds - (time.perf_counter() - begun)
        if not waits(training):
            continue
        if not set(only) <= set(training.line.split()) or not _has_images(images, training.data):
            continue
        if left < _needed(training, work):
            break
        print(f"{time.perf_counter() - begun:5.0f} s  {training.line}", flush=True)
        last = training.of_last_epoch
        also = last if last != training and last in chosen and waits(last) else None
        for each, arrays in _trained(training, also, images, work, device, commit):
            with atomic_write(out / each.file) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)
            (work / "done" / each.file).touch()
            print(f"{time.perf_counter() - begun:5.0f} s  {bytes(arrays['about']).decode()[:300]}", flush=True)


def _has_images(images: Path, data: str) -> bool:
    """Are the images there? Those of SMALL are made from CIFAR-10."""
    file, source = images / f"{data}.npz", images / "cifar10.npz"
    if data == SMALL and source.exists() and not file.exists():
        write_small(source, file)
    return file.exists()


def _needed(training: Training, work: Path) -> float:
    """The seconds that a training is expected to take: epochs left times the slowest epoch of its kind, and set-up."""
    logs = {log.parent: read(log) for log in work.glob("*/log.jsonl")}
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
    """What decides the seconds of an epoch: the data, the network, a long tail, and whether images are mixed."""
    return (*name.split("_")[:2], "_long_tail_" in name, "_mix_" in name)


def _folder(training: Training, work: Path) -> Path:
    return work / training.file.removesuffix(".npz")


def _trained(
    training: Training, last: Training | None, images: Path, work: Path, device: str, commit: str
) -> Iterator[tuple[Training, dict[str, Any]]]:
    """Train one network; the arrays of its file. A failure of the loss is a result too.

    last  the training whose network is the one of the last epoch, if that is wanted, too
    """
    fast = device.startswith("cuda")
    job, place = training.job(str(images), fast=fast), usable_device(device)
    data = _images(job.data, **job.data_options)
    about: dict[str, Any] = {"seed": job.recipe.seed}
    about["hardware"] = torch.cuda.get_device_name() if fast else "cpu"
    if fast:
        torch.compiler.reset()
    about |= {"commit": commit or Provenance.of({}, {}, seed=0).commit, "torch": torch.__version__}
    folder = _folder(training, work)
    try:
        network = job.make_network(data).to(place)
        run = train(network, data, job.loss, job.recipe, folder=folder, resume=folder.exists())
    except InputError as error:
        yield training, {"about": _as_bytes(about | {"training": training.line, "failure": str(error)})}
        return
    about["seconds_per_epoch"] = round(median(row["seconds"] for row in run.history), 3)
    about["history"] = run.history
    if last is not None:  # first, because a training that is done is not begun again
        kept = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
        run.network.load_state_dict(network_of(folder / "checkpoint.safetensors"))
        yield last, _recorded(last, run, data, images, about)
        run.network.load_state_dict(kept)
    yield training, _recorded(training, run, data, images, about)


def _recorded(training: Training, run: Run, data: ImageData, images: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a trained network's file."""
    seed, about = about["seed"], {"training": training.line, **about}
    arrays = dict(_logits(run, data))
    heads: dict[str, Head] = {}
    if not isinstance(run.network, Balanced):  # a head replaces one classifier, not two
        features = extract_features(run.network, data, device=device_of(run.network))
        about["masked"] = [
            {"ratio": each.ratio, "accuracy": round(each.accuracy, 5), "confidence": round(each.confidence, 5)}
            for each in masked_inference(features, seed=seed)
        ]
        for name in HEADS:
            start = time.perf_counter()
            kind, settings = parse_entry(name)
            heads[name] = make_head(kind, **settings).fit(features, seed=seed)
            about.setdefault("head_seconds", {})[name] = round(time.perf_counter() - start, 2)
            for part in ("val", "test"):
                with torch.no_grad():
                    rows = getattr(features, part)
                    arrays[f"{name}/{part}_logits"] = _half(torch.cat([heads[name](x) for x, _ in rows.blocks()]))
    about["head_history"] = {name: head.history for name, head in heads.items()}
    if training.loss == "cross-entropy":
        own = training.data.split("-")[0]
        for name in OTHERS:
            if name != own and (images / f"{name}.npz").exists():
                other = _images(str(images / f"{name}.npz"), size=data.test.shape[0]).test
                for state, logits in _states(run, heads, other).items():
                    arrays[f"{state}/{name}_doubt"] = doubt(logits)
        about["corrupted"] = _corrupted(run, heads, data.test)
    return arrays | {"about": _as_bytes(about)}


def _states(run: Run, heads: dict[str, Head], part: Part) -> dict[str, Tensor]:
    """The logits of the network, "as trained", and of every head."""
    if not heads:
        return {"as trained": predict(run.network, part, mean=run.mean, std=run.std)}
    parts = split(run.network)
    features = predict(parts.body, part, mean=run.mean, std=run.std)
    with torch.no_grad():
        return {"as trained": parts.classifier(features)} | {name: head(features) for name, head in heads.items()}


def _corrupted(run: Run, heads: dict[str, Head], test: Part) -> dict[str, dict[str, dict[str, float]]]:
    """Accuracy, NLL and ECE of every state by corruption and severity: {state: {"contrast:3": {metric: value}}}."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            for state, logits in _states(run, heads, Corrupted(test, name, severity)).items():
                given = logits.cpu(), test.labels.cpu()
                numbers = {metric.name: round(metric(*given, from_logits=True), 6) for metric in SHIFTED}
                found.setdefault(state, {})[f"{name}:{severity}"] = numbers
    return found


def _logits(run: Run, data: ImageData) -> Iterator[tuple[str, Any]]:
    for name, part in (("val", data.val), ("test", data.test), ("train", data.train)):
        yield f"{name}_logits", _half(predict(run.network, part, mean=run.mean, std=run.std))
        yield f"{name}_labels", part.labels.cpu().numpy().astype(np.uint8)


def _half(logits: Tensor) -> Any:
    return logits.half().cpu().numpy()


def _as_bytes(about: dict[str, Any]) -> Any:
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


@cache
def _images(source: str, **options: Any) -> ImageData:
    from temperance.data import read_images

    return read_images(source, **options)


def _share(text: str) -> tuple[int, int]:
    """
    >>> _share("2/3")
    (2, 3)
    """
    part, whole = map(int, text.split("/"))
    if not 1 <= part <= whole:
        raise ValueError
    return part, whole


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """What every study that trains takes."""
    parser.add_argument("--images", type=Path, required=True, help="the folder of cifar10.npz and cifar100.npz")
    parser.add_argument("--work", type=Path, required=True, help="the folder of checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="the folder of predictions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no training that would end later")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every training and its state")
    training = commands.add_parser("train", help="train what is missing")
    add_train_options(training)
    training.add_argument("--only", nargs="+", default=(), metavar="WORD", help="trainings whose line has these words")
    training.add_argument("--share", type=_share, default=(1, 1), metavar="I/N", help="the I-th of N equal parts")
    training.add_argument("--commit", default="", help="of the source, where it is not a checkout")
    measure = commands.add_parser("measure", help="measure what was trained")
    measure.add_argument("--out", type=Path, required=True, help="the folder of predictions")
    args = parser.parse_args()
    if args.command == "list":
        done = {line["training"] for line in read(measuring.RESULTS)}
        for one in queue():
            print(f"{'measured' if one.line in done else 'waiting ':8}  {one.line}")
    elif args.command == "train":
        options = {name: getattr(args, name) for name in ("device", "seconds", "only", "share", "commit")}
        train_all(args.images, args.work, args.out, **options)
    else:
        measuring.measure_all(args.out)


if __name__ == "__main__":
    main()
