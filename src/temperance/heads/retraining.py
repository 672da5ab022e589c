"""Retraining a network's classifier on frozen features, measured before and after."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.data import ImageData
from temperance.errors import FileError, InputError, plural
from temperance.files import check_folder, make_folder, reading, write_text
from temperance.heads.base import Head, load_head, make_head
from temperance.heads.change import JUDGED, differences, is_worse, judgement, moved_by, unproven
from temperance.heads.features import (
    Features,
    FeatureSet,
    check_features,
    extract_features,
    read_features,
    write_features,
)
from temperance.heads.splitting import split
from temperance.jobs.advice import told
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.jobs.outcomes import LEVEL
from temperance.jobs.results import Provenance, Row, Tabular, flat, records, shown
from temperance.losses import Loss
from temperance.metrics import METRICS
from temperance.metrics.significance import Difference
from temperance.predictions import Predictions, read_pair, write_pair
from temperance.progress import Progress, no_progress
from temperance.settings import ResamplesOrNone, of_kind
from temperance.showing import number_table
from temperance.training.balanced import Balanced
from temperance.training.job import Job, open_run, usable_device
from temperance.training.run import FORMAT, HEAD, LOG, Run, refuse_taken, write_log

# The file that says where a retrained classifier came from.
ABOUT = "retrained.json"

# The least number of resamples for the test on the validation part, which decides whether a head is deployed.
FEWEST_FOR_VAL = 200

# What to do about a head that is worse than the classifier it should replace.
WHAT_TO_DO = "try another head or other settings, or save this one with --anyway"

# The classifier that a head replaces.
OWN = "the network's classifier"
STAND_IN = "a plain linear classifier trained on the same features"


@dataclass(frozen=True, eq=False, repr=False)
class Retrained(Tabular):
    """A head, and the test part measured before and after it replaced the classifier.

    replaced         what "before" is: the network's own classifier, or, if the features came without one, a linear
                     classifier trained on them
    differences      of the test part's metrics, after minus before, paired by sample
    predictions      "val" and "test", with the head
    val_differences  as `differences`, of the validation part; they decide whether the head is worse
    """

    before: Evaluation
    after: Evaluation
    replaced: str
    differences: dict[str, Difference]
    head: Head
    predictions: dict[str, Predictions]
    val_differences: dict[str, Difference]
    provenance: Provenance

    @property
    def title(self) -> str:
        """The head's name and the size of the test part."""
        about = self.before.provenance.settings
        return f"{self.head.name} · {plural(about['n'], 'test sample')} · {about['k']} classes"

    @property
    def rows(self) -> list[Row]:
        """The test part's metrics before and after, with the classifiers' names in `method`."""
        sides = ((self.before, self.replaced), (self.after, self.head.name))
        return [replace(row, method=method) for side, method in sides for row in side.rows]

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Every value by its name, as experiment trackers log them: `mac_cal/ece`."""
        return flat(self.rows, prefix)

    def _records(self) -> list[dict[str, Any]]:
        return records(self.rows)

    @property
    def worse(self) -> bool:
        """Is the head significantly worse on the validation part? Then `temperance retrain` does not deploy it."""
        return is_worse(self.val_differences)

    @property
    def warning(self) -> str:
        """Why the head should not be deployed, in plain words; empty if there is no reason."""
        if not self.worse:
            return ""
        val = self.predictions["val"]
        moves = {}
        for name in JUDGED:
            after = METRICS[name](val.scores, val.labels, from_logits=True)
            moves[name] = (after - self.val_differences[name].value, after)
        return (
            f"On the {plural(val.n, 'validation sample')} {self.head.name} is worse than {self.replaced}: "
            f"{told(moves, self.val_differences)}."
        )

    @property
    def verdict(self) -> str:
        """What the second stage changed, in plain words."""
        moves = {name: (self.before.row(name).value, self.after.row(name).value) for name in JUDGED}
        sentences = [
            judgement(self.differences),
            f"With {self.head.name} in place of {self.replaced}, {told(moves, self.differences)}.",
            unproven(self.differences),
            "The features came without a classifier of their network." if self.replaced == STAND_IN else "",
            self.head.caveat,
            self.warning,
        ]
        return " ".join(sentence for sentence in sentences if sentence)

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        tested = not any(math.isnan(by.low) for by in self.differences.values())
        columns = ["before", "after", "difference", *[f"{100 * LEVEL:g} % interval"] * tested]
        table = number_table("metric", *columns, title=Text(self.title, style="bold"))
        for name, by in self.differences.items():
            metric = METRICS[name]
            sides = (shown(side.row(name).value, percent=metric.percent) for side in (self.before, self.after))
            bounds = [f"{moved_by(name, by.low)} … {moved_by(name, by.high)}"] if tested else []
            table.add_row(metric.title, *sides, moved_by(name, by.value), *bounds)
        yield table
        yield Text(f"before: {self.replaced} · {self.head.name} took {self.head.seconds:.3g} s to train", style="dim")
        yield ""
        yield Text(self.verdict)


def retrain(
    features: Features,
    head: Head | str = "mac-cal",
    *,
    loss: Loss | str = "cross-entropy",
    seed: int = 0,
    bootstrap: int = 500,
    progress: Progress = no_progress,
) -> Retrained:
    """Train a head on features, and measure the test part before and after.

    features   from `extract_features(network, data)` or `read_features(file)`, on the device to train on; if they
               have no classifier of their network, "before" is a linear one trained on them
    head       a head, or its name, such as "mac-cal:width=256" or "mac-cal:preset=kept-accuracy"
    bootstrap  resamples for the intervals of the test part; the validation part has at least 200
    """
    check_features(features)
    if features.val is None or features.test is None:
        raise InputError("retraining is judged on held-out data: features need a val and a test part")
    of_kind("bootstrap", bootstrap, ResamplesOrNone)
    chosen = head if isinstance(head, Head) else make_head(head)
    before = _classifier_of(features, seed)
    replaced = STAND_IN if features.classifier is None else OWN
    chosen.fit(features, loss=loss, seed=seed, progress=progress)
    old, new = (
        {
            name: _predicted(logits_of, part, features.class_names)
            for name, part in (("val", features.val), ("test", features.test))
        }
        for logits_of in (before, chosen)
    )
    settings = {"head": chosen.name, **chosen.get_params(), "loss": str(loss)}
    return Retrained(
        before=evaluate(old["test"], bootstrap=bootstrap, seed=seed),
        after=evaluate(new["test"], bootstrap=bootstrap, seed=seed),
        replaced=replaced,
        differences=differences(old["test"], new["test"], bootstrap=bootstrap, seed=seed),
        head=chosen,
        predictions=new,
        val_differences=differences(old["val"], new["val"], bootstrap=max(bootstrap, FEWEST_FOR_VAL), seed=seed),
        provenance=Provenance.of({}, settings, seed, str(features.device)),
    )


def features_from(source: str | Path, *, data: str | None = None, device: str = "cpu", copies: int = 0) -> Features:
    """The features of a run, extracted once and stored in its folder, or those in a file from any network.

    data    where the run's images are now, if they have moved; the features are then extracted again
    copies  the number of additional versions of the training images, cropped and flipped as in the first stage
    """
    place = Path(source)
    if not place.is_dir():
        found = read_features(place)
        if data is not None or copies:
            raise InputError(
                f"{place} is a file of features, without images: leave out data and copies",
                flags={"data and copies": "--data and --copies"},
            )
        return found.to(usable_device(device))
    if (place / HEAD).exists():
        raise FileError(f"{place} holds a retrained classifier: name the run it came from")
    kept = place / (f"features-{copies}.safetensors" if copies else "features.safetensors")
    weights = place / "network.safetensors"
    if data is None and kept.exists() and weights.exists() and kept.stat().st_mtime >= weights.stat().st_mtime:
        return read_features(kept).to(usable_device(device))
    run, images = open_run(place, data=data, device=device)
    if isinstance(run.network, Balanced):
        raise InputError(
            f"{place} was trained with two classifiers (balance), and a head replaces only one: retrain "
            "a run that was trained without balance"
        )
    recipe = Job.of(**run.details["job"]).recipe
    border = recipe.border(*images.train.shape[:2])
    if copies and not border and not recipe.flip:
        raise InputError(
            f"{place} was trained without crops and flips, so copies would be like the images: leave out copies",
            flags={"leave out copies": "leave out --copies"},
        )
    found = extract_features(
        run.network, images, device=usable_device(device), copies=copies, pad=border, flip=recipe.flip
    )
    write_features(kept, found)
    return found


def check_unused(folder: str | Path) -> None:
    """Refuse a folder that cannot be made, or that already holds a retrained classifier or a run."""
    refuse_taken(Path(folder), "retrain into another folder")
    check_folder(folder)


def write_retrained(
    found: Retrained,
    folder: str | Path,
    *,
    source: str | Path | None = None,
    data: str | None = None,
    anyway: bool = False,
) -> bool:
    """Write the head, its log, its predictions and its origin to a folder; return whether the head was written.

    source  the folder of the run that was retrained; anything else, such as a file of features, is not recorded
    data    where the images of the run are, if they have moved
    anyway  write the head even if it is worse than the classifier that it replaces
    """
    place = Path(folder)
    make_folder(place)
    deployed = anyway or not found.worse
    if deployed:
        found.head.save(place / HEAD)
    write_log(place / LOG, found.head.history)
    write_pair(place / "predictions.npz", found.predictions["val"], found.predictions["test"])
    about = {
        "temperance_retrained": FORMAT,
        "run": str(Path(source).resolve()) if source is not None and Path(source).is_dir() else None,
        "data": data,
        "before": found.replaced,
        "verdict": found.verdict,
        "worse": found.worse,
        "deployed": deployed,
        "seconds": round(found.head.seconds, 4),
        "provenance": asdict(found.provenance),
    }
    write_text(place / ABOUT, json.dumps(about, indent=2) + "\n")
    return deployed


def open_retrained(folder: str | Path, *, data: str | None = None, device: str = "cpu") -> tuple[Run, ImageData]:
    """The run of a retrained classifier, with the new classifier in its network, and its data."""
    place = Path(folder)
    origin, saved = origin_of(place)
    run, found = open_run(origin, data=data or _about(place)["data"], device=device)
    head = load_head(saved)
    network = split(run.network).joined(head)
    val, test = read_pair(place / "predictions.npz")
    parts = {"val": val, "test": test}
    return replace(run, network=network, history=head.history, predictions=parts, folder=place), found


def origin_of(folder: str | Path) -> tuple[Path, Path]:
    """The run that a classifier was retrained from, and the file of the new classifier."""
    place = Path(folder)
    about = _about(place)
    if not (place / HEAD).exists():
        raise FileError(f"{place} has no head, because it was worse than {about['before']}: {WHAT_TO_DO}")
    origin = about["run"]
    if origin is None or not Path(origin).is_dir():
        lost = "a file of features" if origin is None else f"{origin}, which no longer exists"
        raise FileError(f"{place} was retrained from {lost}: name its run instead, with --head {place / HEAD}")
    return Path(origin), place / HEAD


def _about(place: Path) -> dict[str, Any]:
    with reading(place / ABOUT):
        about: dict[str, Any] = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        return {name: about[name] for name in ("run", "data", "before")}


def is_retrained(folder: str | Path) -> bool:
    """Is this the folder of a retrained classifier, rather than of a run?"""
    return (Path(folder) / ABOUT).exists()


def _classifier_of(features: Features, seed: int) -> Callable[[Tensor], Tensor]:
    if features.classifier is None:
        return make_head("linear").fit(features, seed=seed)
    weight, bias = features.classifier
    return lambda x: F.linear(x, weight, bias)


def _predicted(
    logits_of: Callable[[Tensor], Tensor], part: FeatureSet, class_names: tuple[str, ...] | None
) -> Predictions:
    with torch.no_grad():
        logits = torch.cat([logits_of(x) for x, _ in part.blocks()])
    return Predictions.of(logits.cpu(), part.labels.cpu(), from_logits=True, class_names=class_names)
