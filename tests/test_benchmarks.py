"""The study of losses, on a handful of small images: from training to the table."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.quality import losses
from benchmarks.quality.losses import RUNS, STATES, Setup, control, markdown, measure_all, published, trained
from benchmarks.quality.table import read
from conftest import random_predictions
from small_images import digits
from temperance.errors import InputError
from temperance.losses import LOSSES
from temperance.metrics import ece
from temperance.metrics.detection import auroc

ABLATIONS = {"acls-ranking", "crl-margin"}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads begin sooner than processes, which would not know of the images here."""
    monkeypatch.setattr(losses, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(losses, "images", lambda source: digits(400))
    return Setup("digits", tmp_path, network="small-cnn", epochs=1)


def test_every_loss_is_trained() -> None:
    named = {run.split(":")[0].split()[0] for run in RUNS}
    assert named == set(LOSSES.names) - ABLATIONS
    assert len(set(RUNS)) == len({losses.predictions_of(Path(), run) for run in RUNS}) == len(RUNS)


def test_settings_are_those_of_the_papers() -> None:
    assert published("acls") == "acls:margin=10.0"
    assert published("mmce") == "mmce:strength=2.0:form=weighted:double_norm=True"
    assert published("dual-focal") == "dual-focal"  # the usual gamma is that of ResNet-50 there
    assert published("au", "CIFAR-100, WRN") == "au:low_conf_coverage=0.8:score=margin"


def test_changes_of_the_recipe_follow_the_loss(setup: Setup) -> None:
    job = setup.job("acls:margin=10.0 lr=0.02 mix=mit seed=3")
    assert job.loss == "acls:margin=10.0"
    assert (job.recipe.lr, job.recipe.mix, job.recipe.seed, job.recipe.epochs) == (0.02, "mit", 3, 1)


@pytest.mark.parametrize("run", RUNS)
def test_every_run_leaves_its_predictions(run: str, setup: Setup) -> None:
    line = json.loads(json.dumps(trained(setup, run)))
    with np.load(losses.predictions_of(setup.runs, run)) as found:
        assert found["val_logits"].shape == found["test_logits"].shape == (80, 10)
        logits, labels = torch.from_numpy(found["test_logits"]).double(), found["test_labels"]
    assert line["test"]["ece"] == pytest.approx(ece(logits, labels, from_logits=True), abs=0.02)


def test_a_loss_that_breaks_down_leaves_a_line(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise InputError("the loss became nan")

    monkeypatch.setattr(losses, "train", broken)
    line = trained(setup, "brier")
    assert line["failure"] == "the loss became nan"
    assert "broke down" in markdown([line])


@pytest.mark.usefixtures("threads")
def test_only_what_is_missing_is_trained(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    (setup.runs / "runs.jsonl").write_text(json.dumps({"run": "focal"}) + "\n")
    losses.train_all(setup, ["focal", "no-loss", "brier"])
    assert [line["run"] for line in read(setup.runs / "runs.jsonl")] == ["focal", "brier"]
    assert "no-loss" in capsys.readouterr().out
    losses.train_all(setup, ["brier", "mdca"], seconds=0)
    assert "no time for mdca" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------------- measuring


def write_run(folder: Path, run: str, sharpness: float, failure: str = "") -> None:
    """Predictions of which all have the same best temperature, if made equally sharp."""
    arrays: dict[str, Any] = {}
    for seed, part in enumerate(("val", "test")):
        logits, labels = random_predictions(400, 4, seed, sharpness)
        arrays |= {f"{part}_logits": logits.half().numpy(), f"{part}_labels": labels.numpy().astype(np.uint8)}
    line = {"run": run, "history": []} | ({"failure": failure} if failure else {})
    if not failure:
        np.savez_compressed(losses.predictions_of(folder, run), **arrays)
    with (folder / "runs.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_runs_are_compared_with_cross_entropy(tmp_path: Path) -> None:
    write_run(tmp_path, "brier", 1.0)
    write_run(tmp_path, "cross-entropy", 4.0)
    write_run(tmp_path, "focal", 1.0, failure="the loss became nan")
    measure_all(tmp_path, tmp_path / "out.jsonl", n_resamples=50)
    reference, focal, brier = read(tmp_path / "out.jsonl")
    assert [line["run"] for line in (reference, focal, brier)] == ["cross-entropy", "focal", "brier"]
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
