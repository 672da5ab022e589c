"""The queue of trainings: what it trains, and what it measures, on small made-up predictions."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.papers import measuring, outputs, sctl, sctl_tables, selective_risk, small, trained
from benchmarks.papers import queue as study
from benchmarks.papers.measuring import CALIBRATORS, measure_all
from benchmarks.papers.outputs import stored
from benchmarks.papers.queue import train_all
from benchmarks.papers.trainings import (
    BEST_OF_LONGER,
    COVERAGES,
    GAMMAS,
    METHODS,
    ON_LONG_TAIL,
    RATIO,
    SMALL,
    TRAINED_LONGER,
    Training,
    published,
    queue,
    training_of,
)
from benchmarks.quality.table import read
from commands import run
from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import ece


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file of results, and little to measure."""
    monkeypatch.setattr(measuring, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(measuring, "CALIBRATORS", ("temperature",))
    monkeypatch.setattr(measuring, "RESAMPLES", 20)
    monkeypatch.setattr(study, "HEADS", ("mac-cal:epochs=1",))
    return tmp_path / "results.jsonl"


def write_predictions(folder: Path, line: str, **about: Any) -> Training:
    training = Training.parse(line)
    arrays: dict[str, Any] = {}
    if "failure" not in about:
        for seed, part in enumerate(("train", "val", "test")):
            logits, labels = random_predictions(200, 4, seed)
            arrays |= {f"{part}_logits": logits.half().numpy(), f"{part}_labels": labels.numpy().astype(np.uint8)}
            arrays[f"mac-cal/{part}_logits"] = (logits / 2).half().numpy()
        last = dict.fromkeys(("loss", "accuracy", "val_accuracy", "val_ece", "val_nll"), 0.5)
        about |= {"history": [last], "head_history": {"mac-cal": [{"keep_rate": 0.5}, {}]}}
    written = json.dumps({"training": training.line, "seed": 0, **about}).encode()
    np.savez(folder / training.file, about=np.frombuffer(written, np.uint8), **arrays)
    return training


def test_no_training_is_queued_twice() -> None:
    trainings = queue()
    assert len({training.file for training in trainings}) == len({training.line for training in trainings})
    assert len(set(trainings)) == len(trainings)


@pytest.mark.parametrize("training", queue(), ids=lambda training: training.line)
def test_every_training_is_a_job(training: Training) -> None:
    assert Training.parse(training.line) == training
    job = training.job("images")
    assert (job.recipe.epochs, job.recipe.seed) == (training.epochs, training.seed)


def test_losses_have_the_settings_of_their_papers() -> None:
    assert published("acls", "cifar10") == "acls"
    assert published("acls", "cifar100") == "acls:margin=10.0"
    assert published("au", "cifar100") == "au:cdf_bandwidth=0.01"


def test_each_state_is_measured_once(tmp_path: Path, results: Path) -> None:
    training = write_predictions(tmp_path, "cifar100 resnet18 100 brier")
    measure_all(tmp_path)
    measure_all(tmp_path)
    lines = read(results)
    assert [line["state"] for line in lines] == [
        "as trained",
        "temperature",
        "temperature of the training part",
        "mac-cal",
        "mac-cal + temperature",
    ]
    assert {line["training"] for line in lines} == {training.line}
    logits, labels = random_predictions(200, 4, 2)
    assert lines[0]["ece"][0] == pytest.approx(ece(logits.half().double(), labels, from_logits=True), abs=1e-6)
    assert lines[3]["ece"][0] == pytest.approx(ece((logits / 2).half().double(), labels, from_logits=True), abs=1e-6)
    assert lines[3]["keep_rates"] == [0.5]
    assert lines[1]["temperature"] > 1.2  # the logits are too sharp


def test_meta_cal_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"meta-mis", "meta-acc"} <= set(CALIBRATORS)
    monkeypatch.setattr(measuring, "CALIBRATORS", ("meta-mis", "meta-acc"))
    monkeypatch.setattr(measuring, "RESULTS", tmp_path / "papers.jsonl")
    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    assert selective_risk.with_meta().endswith(": none yet")
    write_predictions(tmp_path, "cifar100 resnet18 100 kde-xe:strength=0.5")
    measure_all(tmp_path)
    lines = {line["state"]: line for line in read(tmp_path / "papers.jsonl")}
    found = {(cell.row, cell.metric): cell for cell in selective_risk.table_s4(tmp_path)}
    for name, state, printed in (("MetaMis", "meta-mis", (1.20, 74.3)), ("MetaAcc", "meta-acc", (0.68, 38.6))):
        cells = [found[f"KDE-XE + {name}", metric] for metric in ("AECE", "accuracy")]
        assert tuple(cell.printed for cell in cells) == printed
        assert cells[0].ours == pytest.approx(100 * lines[state]["adaptive-ece"][0])
    assert selective_risk.with_meta().endswith(": KDE-XE")


def write_images(folder: Path, name: str, k: int, seed: int) -> None:
    """Pictures of noise, brighter for higher classes: 120 to train on, 40 to test."""
    draw = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part, n in (("train", 120), ("test", 40)):
        labels = np.arange(n) % k
        noise = draw.integers(0, 100, (n, 8, 8, 3))
        arrays |= {f"{part}_images": (noise + 155 * labels[:, None, None, None] / k).astype(np.uint8)}
        arrays |= {f"{part}_labels": labels}
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")  # twelve samples say little
@pytest.mark.parametrize("change", ["seed=0", "balance=0.95"])
def test_a_network_is_shown_other_images(
    change: str, tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training("cifar10", "small-cnn", 1, "cross-entropy", (change, "batch_size=32"))
    monkeypatch.setattr(study, "queue", lambda: [training])
    monkeypatch.setattr(study, "CORRUPTIONS", ("contrast",))
    write_images(tmp_path, "cifar10", 4, 0)
    write_images(tmp_path, "cifar100", 8, 1)
    train_all(tmp_path, tmp_path / "work", tmp_path / "out", device="cpu", seconds=1e6)
    measure_all(tmp_path / "out")
    lines = {line["state"]: line for line in read(results)}
    heads = ["mac-cal:epochs=1"] if change == "seed=0" else []  # a head replaces one classifier, not two
    for state in ("as trained", *heads):
        assert set(lines[state]["corrupted"]) == {"contrast:1", "contrast:3", "contrast:5"}
        assert set(lines[state]["unfamiliar"]) == {"cifar100"}
        value, low, high = lines[state]["unfamiliar"]["cifar100"]["auroc"]
        assert 0 <= low <= value <= high <= 1
    assert ("mac-cal:epochs=1" in lines) == bool(heads)
    ratios = [each["ratio"] for each in lines["as trained"].get("masked", [])]
    assert ratios == ([i / 10 for i in range(10)] if heads else [])
    with np.load(tmp_path / "out" / training.file) as file:
        logits, doubt = file["test_logits"].astype(np.float64), file["as trained/cifar100_doubt"]
    assert doubt.shape == (40,) and doubt.dtype == np.float16
    confidence = np.exp(logits).max(1) / np.exp(logits).sum(1)
    higher = (confidence[:, None] > 1 - doubt.astype(np.float64)).mean()
    assert lines["as trained"]["unfamiliar"]["cifar100"]["auroc"][0] == pytest.approx(higher, abs=0.01)


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")  # twelve samples say little
def test_one_training_gives_the_best_network_and_the_last(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels of the validation part are wrong, so its loss is lowest at the start."""
    best = Training("cifar10", "small-cnn", 3, "brier", ("batch_size=32", "keep_from=0", "keep=best"))
    last = best.of_last_epoch
    write_images(tmp_path, "cifar10", 4, 0)
    with np.load(tmp_path / "cifar10.npz") as file:
        wrong = {"val_images": file["test_images"], "val_labels": (file["test_labels"] + 1) % 4}
        np.savez(tmp_path / "cifar10.npz", **file, **wrong)
    for folder, trainings in (("together", [best, last]), ("alone", [last])):
        monkeypatch.setattr(study, "queue", lambda trainings=trainings: trainings)
        train_all(tmp_path, tmp_path / folder, tmp_path / folder / "out", device="cpu", seconds=1e6)
    assert len(list((tmp_path / "together").glob("cifar10_*"))) == 1  # it was trained once
    kept, also = (np.load(tmp_path / "together" / "out" / each.file) for each in (best, last))
    alone = np.load(tmp_path / "alone" / "out" / last.file)
    losses = [row["val_loss"] for row in json.loads(bytes(kept["about"]))["history"]]
    assert min(losses) < losses[-1]
    for name in ("val_logits", "test_logits", "train_logits", "mac-cal:epochs=1/test_logits"):
        np.testing.assert_array_equal(also[name], alone[name])
        assert not np.array_equal(also[name], kept[name])


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")  # 26 samples say little
def test_a_long_tail_is_measured_with_the_rows_of_sctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From images to the columns of SCTL's tables: half of a long-tailed subset is for calibration."""
    training = Training("cifar10", "small-cnn", 1, "cross-entropy", (*ON_LONG_TAIL, "batch_size=16"))
    monkeypatch.setattr(study, "queue", lambda: [training])
    monkeypatch.setattr(study, "CORRUPTIONS", ())
    monkeypatch.setattr(measuring, "RESULTS", tmp_path / "papers.jsonl")
    monkeypatch.setattr(sctl, "ROWS", ["TS CE", "CTS ND", f"TS {sctl.BALANCED}"])
    write_images(tmp_path, "cifar10", 4, 0)
    train_all(tmp_path, tmp_path / "work", tmp_path / "out", device="cpu", seconds=1e6)
    with np.load(tmp_path / "out" / training.file) as file:
        counts = np.bincount(file["train_labels"]) + np.bincount(file["val_labels"])
        assert counts.tolist() == [30, 13, 6, 3] and len(file["val_labels"]) == 26
        assert np.bincount(file["test_labels"]).tolist() == [10] * 4
        parts = [torch.from_numpy(file[name]) for name in ("val_logits", "val_labels", "test_logits", "test_labels")]
    measure_all(tmp_path / "out")
    lines = {line["state"]: line for line in read(tmp_path / "papers.jsonl")}
    assert set(lines) >= {"as trained", "temperature", *sctl.ROWS}
    probs = sctl.calibrated("CTS ND", parts[0].double(), parts[1].long(), parts[2].double())
    assert lines["CTS ND"]["ece"][0] == pytest.approx(ece(probs, parts[3].long()), abs=1e-6)

    monkeypatch.setattr(trained, "RESULTS", tmp_path)
    monkeypatch.setattr(trained, "training_of", lambda method, data: replace(training, data=data))
    found = {(cell.column, cell.row, cell.metric): cell for cell in sctl.own_networks(["uncalibrated", *sctl.ROWS])}
    cell = found["CIFAR-10-LT, WRN-28, trained here", "CTS ND", "ECE"]
    assert (cell.printed, cell.exact) == (1.99, False)
    assert cell.ours == pytest.approx(100 * lines["CTS ND"]["ece"][0])
    assert found["CIFAR-10-LT, WRN-28, trained here", "uncalibrated", "accuracy"].printed == 85.38
    assert "CIFAR-10-LT, WRN-28, trained here" in sctl_tables.class_scaling()
    said = " ".join(run("reproduce", "sctl", "--table", "4", "--quick").out.split())
    assert said.count("trained here") == 4 and outputs.agreement(stored("sctl", "table 4")) in said


def test_refined_networks_come_after_the_seeds() -> None:
    lines = [training.line for training in queue() if training.data != SMALL]
    seeds, refined, larger = (
        [i for i, line in enumerate(lines) if part in line] for part in (" seed=2", " keep=refined", " resnet50 ")
    )
    assert max(seeds) < min(refined) <= max(refined) < min(larger) and len(refined) == 4
    assert lines[min(larger)] == "cifar100 resnet50 200 cross-entropy keep=best"
    assert "cifar10 resnet18 100 acls clip=2.0 keep=refined" in lines
    assert {training.job("").recipe.keep for training in queue()} == {"last", "refined", "best"}


def test_what_may_explain_differences_is_trained_with_small_networks() -> None:
    longer = [training for training in queue() if training.data == SMALL and training.epochs == 160]
    best = {training.loss for training in longer if training.job("").recipe.keep == "best"}
    assert best == set(BEST_OF_LONGER) < {training.loss.split(":")[0] for training in longer} == set(TRAINED_LONGER)
    assert all(sum(other.of_any_seed == each.of_any_seed for other in longer) == 3 for each in longer)


def test_epochs_of_a_long_tail_are_timed_by_themselves() -> None:
    long, usual = (Training.parse(f"cifar100 resnet18 200 cross-entropy{more}") for more in (f" {RATIO}", ""))
    assert study._kind(long.file) != study._kind(usual.file) == study._kind("cifar100_resnet18_100_acls_seed_1.npz")


def test_choices_of_settings_come_last() -> None:
    last = [training_of(method, "cifar100") for method in GAMMAS.values()]
    last += [training_of(method, "cifar10") for method in COVERAGES.values()]
    large = [training for training in queue() if training.data != SMALL]
    assert large[-len(last) :] == last
    assert last[0].line == "cifar100 resnet18 100 inverse-focal:gamma=1.5"
    assert last[-1].line == "cifar10 resnet18 100 au:cdf_bandwidth=0.05" and len(COVERAGES) == 8


def test_long_tails_have_the_settings_of_the_paper() -> None:
    lines = {training.line for training in queue() if RATIO in training.changes}
    assert len(lines) == 8
    rates = "lr=0.05 weight_decay=0.001"
    assert f"cifar100 resnet110-sd 200 cross-entropy {' '.join(ON_LONG_TAIL)} {rates}" in lines
    job = training_of("long-tail:network=wrn-28-10", "cifar10").job("images")
    assert (job.recipe.drops, job.recipe.lr, job.data_options["val_fraction"]) == ((100, 150), 0.1, 0.5)


def test_a_training_that_broke_down_is_a_result(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise InputError("the loss became nan")

    monkeypatch.setattr(study, "train", broken)
    write_images(tmp_path, "cifar100", 8, 1)
    training = Training("cifar100", "small-cnn", 1, "mmce")
    train_all(tmp_path, tmp_path / "work", tmp_path / "out", device="cpu", seconds=1e6, trainings=[training])
    measure_all(tmp_path / "out")
    assert [line["failure"] for line in read(results)] == ["the loss became nan"]


def test_only_what_has_no_results_is_trained(tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def trained(training: Training, *args: Any) -> Iterator[tuple[Training, dict[str, Any]]]:
        tried.append(training.line)
        yield training, {"about": np.frombuffer(b"{}", np.uint8)}

    monkeypatch.setattr(study, "_trained", trained)
    (tmp_path / "cifar100.npz").touch()
    results.write_text(json.dumps({"training": "cifar100 resnet18 100 focal"}) + "\n")
    for _ in range(2):  # the second time it is done
        train_all(tmp_path, tmp_path / "work", tmp_path, device="cpu", seconds=1e6, only=["100", "focal"])
    assert tried == ["cifar100 resnet18 100 focal seed=1", "cifar100 resnet18 100 focal seed=2"]
    train_all(tmp_path, tmp_path / "work", tmp_path, device="cpu", seconds=10, only=["brier"])
    assert len(tried) == 2  # too little time for 100 epochs
    for part in (1, 2, 3):
        train_all(tmp_path, tmp_path / "work", tmp_path, device="cpu", seconds=1e6, only=["acls"], share=(part, 3))
    assert sorted(tried[2:]) == sorted(each.line for each in queue() if (each.data, each.loss) == ("cifar100", "acls"))


def test_small_networks_come_last_and_have_the_settings_of_cifar10() -> None:
    data = [training.data for training in queue()]
    assert data.index(SMALL) == len(data) - data.count(SMALL)
    for method in METHODS:
        large, own = (training_of(method, each) for each in ("cifar10", SMALL))
        assert (own.loss, own.changes) == (large.loss, large.changes)
        seeds = [each.seed for each in queue() if each.of_any_seed == own]
        assert sorted(seeds) == [0, 1, 2, 3, 4]


def test_small_images_are_means_of_squares_and_parts_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "SIZE", 50)
    write_images(tmp_path, "cifar10", 4, 0)
    with np.load(tmp_path / "cifar10.npz") as file:
        given = dict(file)
    given["train_labels"] = np.arange(120)  # so that every image is known by its label
    np.savez(tmp_path / "cifar10.npz", **given)
    assert not study._has_images(tmp_path, "cifar100") and study._has_images(tmp_path, SMALL)
    with np.load(tmp_path / f"{SMALL}.npz") as file:
        made = dict(file)
    assert made["test_images"].shape == (40, 4, 4, 3)
    label = made["train_labels"][0]
    square = given["train_images"][label, :2, 2:4].astype(float).mean((0, 1))
    assert np.abs(made["train_images"][0, 0, 1] - square).max() <= 0.5
    together = np.concatenate([made["train_labels"], made["val_labels"]])
    assert len(set(together.tolist())) == len(together) == 100


def test_the_list_says_what_was_measured(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results.write_text(json.dumps({"training": "cifar100 resnet18 100 focal"}) + "\n")
    monkeypatch.setattr(sys, "argv", ["queue", "list"])
    study.main()
    said = capsys.readouterr().out.splitlines()
    assert "measured  cifar100 resnet18 100 focal" in said
    assert "waiting   cifar100 resnet18 100 brier" in said
    assert len(said) == len(queue())
