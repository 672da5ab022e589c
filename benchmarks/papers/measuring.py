"""Measure what the queue trained: each file of predictions, as trained and after calibration.

What was trained on a long tail is also measured with every row of SCTL's tables. Small networks were trained several
times, so they need no intervals over test samples.

One JSON line for each state is added to benchmarks/results/papers.jsonl; what is there already is not measured again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers import sctl
from benchmarks.papers.trainings import RATIO, SMALL, Training
from benchmarks.quality.table import made_with, read
from temperance.calibrators import make_calibrator
from temperance.jobs.evaluation import evaluate
from temperance.metrics.detection import ood_intervals
from temperance.predictions import Predictions
from temperance.registry import parse_entry

RESULTS = Path(__file__).resolve().parent.parent / "results" / "papers.jsonl"

# What is fitted to the validation part; the selective-risk paper fits the temperature to the training part too.
CALIBRATORS = ("temperature", "temperature-ece", "class-temperature-greedy", "auto", "meta-mis", "meta-acc")
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
    corrupted, masked = about.pop("corrupted", {}), about.pop("masked", [])
    logits = {part: torch.from_numpy(file[f"{part}_logits"]).float() for part in ("train", "val", "test")}
    labels = {part: torch.from_numpy(file[f"{part}_labels"]).long() for part in ("train", "val", "test")}
    truth = labels["test"]
    resamples = 0 if Training.parse(about["training"]).data == SMALL else RESAMPLES
    calibrated, metrics = partial(_calibrated, resamples=resamples), partial(_metrics, resamples=resamples)
    last = {name: history[-1][name] for name in ("loss", "accuracy", "val_accuracy", "val_ece", "val_nll")}
    common = about | {"measured_at": made_with()["commit"]}
    seen = {
        state: _unfamiliar(file, state) | _entry("corrupted", corrupted.get(state)) for state in ("as trained", *heads)
    }
    by_epoch = {"val_ece": [round(row["val_ece"], 4) for row in history]}
    own = {"state": "as trained", "last_epoch": last} | by_epoch | seen["as trained"] | _entry("masked", masked)
    yield common | own | metrics(logits["test"], truth)
    for name in CALIBRATORS:
        yield common | {"state": name} | calibrated(name, logits["val"], labels["val"], logits["test"], truth)
    fitted = calibrated("temperature", logits["train"], labels["train"], logits["test"], truth)
    yield common | {"state": "temperature of the training part"} | fitted
    for row in sctl.ROWS if RATIO in about["training"].split() else ():
        probs = sctl.calibrated(row, logits["val"].double(), labels["val"], logits["test"].double())
        yield common | {"state": row} | metrics(probs, truth, from_logits=False)
    for name in heads:
        head = {part: torch.from_numpy(file[f"{name}/{part}_logits"]).float() for part in ("val", "test")}
        rates = [round(row["keep_rate"], 4) for row in heads[name] if "keep_rate" in row]
        yield common | {"state": name, "keep_rates": rates} | metrics(head["test"], truth) | seen[name]
        scaled = calibrated("temperature", head["val"], labels["val"], head["test"], truth)
        yield common | {"state": f"{name} + temperature"} | scaled


def _unfamiliar(file: Any, state: str) -> dict[str, Any]:
    """How well confidence tells each other data set from the test part: AUROC and FPR95 with their intervals."""
    own = file["test_logits" if state == "as trained" else f"{state}/test_logits"]
    found = {}
    for key in file:
        if key.startswith(f"{state}/") and key.endswith("_doubt"):
            name = key.removeprefix(f"{state}/").removesuffix("_doubt")
            inside, outside = -doubt(torch.from_numpy(own)), -file[key]
            intervals = ood_intervals(inside.astype(np.float64), outside.astype(np.float64), n_resamples=RESAMPLES)
            found[name] = {
                metric: [round(number, 6) for number in (each.value, each.low, each.high)]
                for metric, each in intervals.items()
                if metric in ("auroc", "fpr95")
            }
    return _entry("unfamiliar", found)


def doubt(logits: Tensor) -> Any:
    """1 − confidence of each row, which keeps its digits in half precision where confidence is near 1."""
    return (1 - logits.double().softmax(1).amax(1)).half().cpu().numpy()


def _entry(name: str, found: Any) -> dict[str, Any]:
    """An entry of a line, if there is something to say: files of older trainings have less."""
    return {name: found} if found else {}


def _calibrated(
    name: str, fit: Tensor, fit_labels: Tensor, test: Tensor, labels: Tensor, *, resamples: int
) -> dict[str, Any]:
    """Test metrics after a calibrator, and its temperature where it has one."""
    kind, settings = parse_entry(name)
    calibrator = make_calibrator(kind, **settings).fit(fit, fit_labels)
    found = _metrics(calibrator.predict_proba(test), labels, resamples=resamples, from_logits=False)
    learnt = dict(calibrator.named_buffers()).get("temperature")
    if learnt is not None:
        found["temperature"] = round(float(learnt.double().mean()), 4)
    return found


def _metrics(scores: Tensor, labels: Tensor, *, resamples: int, from_logits: bool = True) -> dict[str, Any]:
    """Each metric with its 95 % interval over test samples, or without if there are no resamples."""
    predictions = Predictions.of(scores, labels, from_logits=from_logits)
    found = evaluate(predictions, metrics=METRICS, bootstrap=resamples)
    return {
        row.metric: [None if math.isnan(value) else round(value, 6) for value in (row.value, row.low, row.high)]
        for row in found.rows
    }
