"""The result of a training: the network, its log and its predictions, in memory and in a folder.

run.json                settings, provenance, how the network and data were made, what was measured
log.jsonl               one line for each epoch
checkpoint.safetensors  to resume from
network.safetensors     the final weights
predictions.npz         val_logits, val_labels, test_logits, test_labels, class_names: what `compare` takes
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.errors import FileError, InputError, plural
from temperance.files import read_tensors, reading, write_tensors, write_text
from temperance.jobs.results import Provenance, Tabular
from temperance.metrics import accuracy, ece, nll
from temperance.predictions import Predictions, read_pair, write_pair
from temperance.showing import percents, two_columns
from temperance.training.prediction import device_of

FORMAT = 1
LOG = "log.jsonl"  # in the folder of a run or of a retrained classifier
HEAD = "head.safetensors"  # in the folder of a retrained classifier
UNFINISHED = "is a run that has not finished; continue it with `temperance train --resume`"


@dataclass(frozen=True, eq=False, repr=False)
class Run(Tabular):
    """A trained network with its log and its predictions.

    history      one row for each epoch: lr, loss, accuracy, val_accuracy, val_ece, val_nll, val_loss, seconds
    predictions  "val" and "test"
    """

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    history: list[dict[str, Any]]
    predictions: dict[str, Predictions]
    folder: Path | None
    details: dict[str, Any]

    @property
    def title(self) -> str:
        """Its folder or its network, and how long it was trained."""
        return f"{self.folder or type(self.network).__name__} · {plural(len(self.history), 'epoch')}"

    def _records(self) -> list[dict[str, Any]]:
        return self.history

    def _printed(self, width: int) -> Iterator[Any]:
        yield from two_columns(self.title, self.history[-1] if self.history else {})


def write_run(run: Run, configuration: Mapping[str, Any]) -> None:
    """Write a finished run to its folder."""
    assert run.folder is not None
    write_weights(run.folder / "network.safetensors", run.network.state_dict())
    write_pair(run.folder / "predictions.npz", run.predictions["val"], run.predictions["test"])
    provenance = Provenance.of({}, dict(configuration), configuration["seed"], str(device_of(run.network)))
    about = {
        "temperance_run": FORMAT,
        "details": run.details,
        "mean": run.mean,
        "std": run.std,
        "measured": {name: headline(found) for name, found in run.predictions.items()},
        "provenance": asdict(provenance),
    }
    write_text(run.folder / "run.json", json.dumps(about, indent=2) + "\n")


def read_run(folder: str | Path, network: nn.Module) -> Run:
    """A finished run from its folder. `network` must be built like the trained one; its weights are replaced."""
    place = Path(folder)
    about = read_about(place)
    weights = read_weights(place / "network.safetensors")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"the weights in {place} belong to another network: {str(error).splitlines()[-1].strip()}"
        ) from error
    history = read_log(place / LOG)
    val, test = read_pair(place / "predictions.npz")
    mean, std = (tuple(about[name]) for name in ("mean", "std"))
    return Run(network, mean, std, history, {"val": val, "test": test}, place, about["details"])


def read_about(folder: Path) -> dict[str, Any]:
    """The contents of a finished run's run.json."""
    if not (folder / "run.json").exists():
        what = "is not the folder of a run"
        if (folder / "checkpoint.safetensors").exists():
            what = UNFINISHED
        elif (folder / HEAD).exists():
            what = f"holds a retrained classifier: name its run instead, with --head {folder / HEAD}"
        raise FileError(f"{folder} {what}")
    with reading(folder / "run.json"):
        about: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if about["temperance_run"] > FORMAT:
            raise FileError(f"{folder} has format {about['temperance_run']}; this version reads formats up to {FORMAT}")
    return about


def refuse_taken(folder: Path, what_to_do: str) -> None:
    """Refuse a folder with a run or a retrained classifier in it: neither is ever overwritten."""
    held = {"a retrained classifier": (HEAD,), "a run": ("checkpoint.safetensors", "run.json")}
    for what, names in held.items():
        if any((folder / name).exists() for name in names):
            raise InputError(f"{folder} already holds {what}: {what_to_do}")


def headline(predictions: Predictions) -> dict[str, float]:
    """Accuracy, ECE and NLL of logits."""
    given = predictions.scores, predictions.labels
    return {metric.name: metric(*given, from_logits=True) for metric in (accuracy, ece, nll)}


def hardly_learnt(predictions: Predictions) -> str:
    """A warning if predictions are hardly better than guessing; otherwise empty.

    Guessing means to predict the class frequencies for every sample. Predictions are hardly better if their NLL is at
    least nine tenths of the NLL of guessing, and their accuracy at most twice that of guessing, or at most a tenth of
    the way from there to 1 if that is less. Both are needed: where one class dominates, accuracy alone says little.
    """
    share = torch.bincount(predictions.labels, minlength=predictions.k).double() / predictions.n
    guessed, entropy = float(share.max()), float(torch.special.entr(share).sum())
    found = headline(predictions)
    if found["accuracy"] > min(2 * guessed, guessed + (1 - guessed) / 10) or found["nll"] < 0.9 * entropy:
        return ""
    better = "no better" if found["accuracy"] <= guessed and found["nll"] >= entropy else "hardly better"
    right, naming = percents((found["accuracy"], guessed))
    return (
        f"It is {better} than guessing. On {predictions.n:,} test samples it is right {right} of the time; always "
        f"predicting the most frequent class would be right {naming} of the time. Its NLL is {found['nll']:.3f}; "
        f"predicting the class frequencies for every sample would give {entropy:.3f}. Look at the loss, train longer "
        "or change the learning rate. What follows is about its confidence alone."
    )


def write_log(path: Path, history: list[dict[str, Any]]) -> None:
    """Write one line for each epoch."""
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in history))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, one for each epoch."""
    with reading(path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the weights of a network."""
    write_tensors(path, weights, {"temperance_weights": str(FORMAT)})


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a network that `write_weights` wrote."""
    return read_tensors(path)[0]
