"""The study of losses, on a handful of small images: from training to the table."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.papers import queue
from benchmarks.papers.trainings import Training
from benchmarks.quality import losses
from benchmarks.quality.losses import RUNS, STATES, control, markdown, measure_all, training_of_run
from benchmarks.quality.table import read
from conftest import random_predictions
from temperance.losses import LOSSES
from temperance.metrics import ece
from temperance.metrics.detection import auroc
from test_queue import write_images

ABLATIONS = {"acls-ranking", "crl-margin"}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads begin sooner than processes."""
    monkeypatch.setattr(losses, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))


def test_every_loss_is_trained() -> None:
    named = {run.split(":")[0].split()[0] for run in RUNS}
    assert named == set(LOSSES.names) - ABLATIONS
    assert len(set(RUNS)) == len({losses.predictions_of(Path(), run) for run in RUNS}) == len(RUNS)


def test_settings_are_those_of_the_papers() -> None:
    for run in ("acls:margin=10.0", "mmce:strength=2.0:form=weighted:double_norm=True", "dual-focal"):
        assert run in RUNS  # the usual gamma of dual focal loss is that of ResNet-50 on CIFAR-100


@pytest.mark.parametrize("run", RUNS)
def test_every_run_is_a_job(run: str) -> None:
    recipe = training_of_run(run).job("images").recipe
    assert (recipe.epochs, recipe.warmup, recipe.clip) in ((30, 3, None), (100, 3, None), (30, 3, 2.0))


def test_changes_of_the_recipe_follow_the_loss() -> None:
    job = training_of_run("acls:margin=10.0 lr=0.02 mix=mit seed=3").job("images")
    assert job.loss == "acls:margin=10.0"
    assert (job.recipe.lr, job.recipe.mix, job.recipe.seed, job.recipe.epochs) == (0.02, "mit", 3, 30)


@pytest.mark.usefixtures("threads")
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")  # twelve samples say little
def test_runs_are_trained_by_the_queue_and_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(run: str) -> Training:
        return Training("cifar100", "small-cnn", 1, run.split(":")[0].split()[0], ("batch_size=32",))

    monkeypatch.setattr(losses, "training_of_run", small)
    monkeypatch.setattr(losses, "RUNS", ("cross-entropy", "brier", "focal"))
    monkeypatch.setattr(queue, "HEADS", ())
    monkeypatch.setattr(queue, "CORRUPTIONS", ())
    write_images(tmp_path, "cifar100", 4, 0)
    folders = ["--images", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["losses", "train", *folders, "--only", "cross-entropy", "brier"])
    losses.main()
    measure_all(tmp_path / "runs", tmp_path / "out.jsonl", n_resamples=2)
    reference, brier = read(tmp_path / "out.jsonl")
    assert (brier["run"], brier["against"]) == ("brier", "cross-entropy")
    with np.load(losses.predictions_of(tmp_path / "runs", "brier")) as found:
        logits, labels = found["test_logits"].astype(np.float64), found["test_labels"]
    assert brier["as trained"]["ece"] == pytest.approx(ece(logits, labels, from_logits=True), abs=1e-6)
    assert reference["as trained"] != brier["as trained"]


# ----------------------------------------------------------------------------------------------------------- measuring


def write_run(folder: Path, run: str, sharpness: float, failure: str = "") -> None:
    """Predictions of which all have the same best temperature, if made equally sharp."""
    arrays: dict[str, Any] = {}
    for seed, part in enumerate(("val", "test")):
        logits, labels = random_predictions(400, 4, seed, sharpness)
        arrays |= {f"{part}_logits": logits.half().numpy(), f"{part}_labels": labels.numpy().astype(np.uint8)}
    about = {"training": training_of_run(run).line, "history": []} | ({"failure": failure} if failure else {})
    written = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)} | ({} if failure else arrays)
    np.savez_compressed(losses.predictions_of(folder, run), **written)


def test_runs_are_compared_with_cross_entropy(tmp_path: Path) -> None:
    write_run(tmp_path, "brier", 1.0)
    write_run(tmp_path, "cross-entropy", 4.0)
    write_run(tmp_path, "focal", 1.0, failure="the loss became nan")
    measure_all(tmp_path, tmp_path / "out.jsonl", n_resamples=50)
    reference, focal, brier = read(tmp_path / "out.jsonl")
    assert [line["run"] for line in (reference, focal, brier)] == ["cross-entropy", "focal", "brier"]
    assert not any("history" in line for line in (reference, focal, brier))
    assert "differences" not in reference and "temperature" not in focal
    # The same predictions, four times as sharp: one temperature makes up for it.
    assert reference["temperature"] == pytest.approx(4 * brier["temperature"], rel=0.02)
    assert brier["scaled"]["nll"] == pytest.approx(reference["scaled"]["nll"], abs=1e-3)
    for state in STATES:
        for metric, (value, low, high) in brier["differences"][state].items():
            assert value == pytest.approx(brier[state][metric] - reference[state][metric], abs=1e-5), metric
            assert low <= high
    assert brier["differences"]["as trained"]["ece"][2] < 0
    table = markdown([reference, focal, brier]).splitlines()
    assert "↓" in table[-1] and "↓" not in table[2] and "broke down" in table[3]
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.usefixtures("threads")
def test_logits_beyond_half_precision_are_a_breakdown(tmp_path: Path) -> None:
    write_run(tmp_path, "cross-entropy", 1.0)
    write_run(tmp_path, "focal", 1e6)
    measure_all(tmp_path, tmp_path / "out.jsonl", n_resamples=2)
    reference, focal = read(tmp_path / "out.jsonl")
    assert "failure" not in reference and "finite" in focal["failure"]


def test_failures_are_told_by_the_confidence() -> None:
    logits, labels = random_predictions(300, 3)
    probs = logits.softmax(1)
    confidence, predicted = probs.max(1)
    right = predicted == labels
    found = losses.measured(probs, labels, 50)["failure-auroc"]
    assert found.value == pytest.approx(auroc(confidence[right], confidence[~right]), abs=1e-12)
    assert float(found.draws.values.mean()) == pytest.approx(found.value, abs=0.02)


def test_a_run_is_compared_with_cross_entropy_trained_alike() -> None:
    known = {"cross-entropy", "cross-entropy lr=0.02"}
    assert control("acls:margin=10.0 lr=0.02", known) == "cross-entropy lr=0.02"
    assert control("cross-entropy lr=0.02", known) == "cross-entropy"
    assert control("cross-entropy mix=mixup", known) == "cross-entropy"
    assert control("brier seed=1", known) == "cross-entropy"
