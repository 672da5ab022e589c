"""temperance train and retrain, as a user runs them: small real images, whole folders, wrong input."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import run
from small_images import digits
from temperance.cli import parser
from temperance.cli.train import lines_now_and_then
from temperance.data import Images
from temperance.errors import InputError
from temperance.heads import extract_features, open_retrained
from temperance.heads.features import Features, write_features
from temperance.heads.retraining import features_from
from temperance.predictions import read_pair, read_predictions
from temperance.training import Job, make_network, open_run, predict, train

QUICK = ("--network", "small-cnn", "--epochs", "2", "--batch-size", "40", "--lr", "0.05", "--crop", "1", "--no-flip")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "digits.npz"
    data = digits(800)
    parts: dict[str, Any] = {}
    for name, part in (("train", data.train), ("val", data.val), ("test", data.test)):
        assert isinstance(part, Images)
        parts |= {f"{name}_images": part.pixels.numpy(), f"{name}_labels": part.labels.numpy()}
    np.savez(path, **parts)
    return path


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    found = run("train", images, "-o", folder, *QUICK, "--loss", "focal:gamma=2", "--bootstrap", "20")
    assert found.code == 0, found.err
    assert "ECE" in found.out and "temperance compare" in found.out
    (folder / "stderr.txt").write_text(found.err)
    return folder


def test_a_run_holds_everything(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names >= {"network.safetensors", "predictions.npz", "report.html", "log.jsonl", "run.json"}
    about = json.loads((trained / "run.json").read_text())
    assert about["details"]["job"]["loss"] == "focal:gamma=2" and about["provenance"]["settings"]["epochs"] == 2
    assert "Training report" in (trained / "report.html").read_text()


def test_predictions_of_its_own_images_are_those_of_the_run(trained: Path, images: Path, tmp_path: Path) -> None:
    found = run("predict", trained, images, "-o", tmp_path / "test.npz")
    assert found.code == 0, found.err
    assert "predicted 160 test images of digits" in found.out and "next: temperance evaluate" in found.out
    _, expected = read_pair(trained / "predictions.npz")
    again = read_predictions(tmp_path / "test.npz")
    assert torch.equal(again.scores, expected.scores) and torch.equal(again.labels, expected.labels)


def test_images_are_split_and_resized_as_in_the_training(images: Path, tmp_path: Path) -> None:
    arrays = np.load(images)
    whole = {name: arrays[name] for name in arrays.files if not name.startswith("val")}
    np.savez(tmp_path / "whole.npz", **whole)
    how = ("--size", "16", "--val-fraction", "0.3", "--split-seed", "1")
    assert run("train", tmp_path / "whole.npz", "-o", tmp_path / "run", *QUICK, *how, "--bootstrap", "0").code == 0
    expected, _ = read_pair(tmp_path / "run" / "predictions.npz")
    found = run("predict", tmp_path / "run", tmp_path / "whole.npz", "--part", "val", "-o", tmp_path / "val.npz")
    assert found.code == 0, found.err
    again = read_predictions(tmp_path / "val.npz")
    assert torch.equal(again.scores, expected.scores) and torch.equal(again.labels, expected.labels)


def test_a_retrained_classifier_predicts_with_its_head(retrained: Path, images: Path, tmp_path: Path) -> None:
    found = run("predict", retrained, images, "--part", "val", "-o", tmp_path / "val.npz")
    assert found.code == 0, found.err
    expected, _ = read_pair(retrained / "predictions.npz")
    again = read_predictions(tmp_path / "val.npz")
    assert torch.allclose(again.scores, expected.scores, atol=1e-4) and torch.equal(again.labels, expected.labels)
    twice = run("predict", retrained, images, "--head", retrained / "head.safetensors", "-o", tmp_path / "out.npz")
    assert twice.code == 2 and "has a head of its own" in twice.err


def test_labels_of_other_classes_are_left_out(trained: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (30, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(30) % 3
    np.savez(tmp_path / "other.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
    found = run("predict", trained, tmp_path / "other.npz", "-o", tmp_path / "other.csv")
    assert found.code == 0, found.err
    assert "the labels are left out" in found.out and "next: temperance ood" in found.out
    again = read_predictions(tmp_path / "other.csv", labels="optional")
    assert (again.n, again.k, again.has_labels) == (30, 10, False)
    assert run("ood", trained / "predictions.npz", tmp_path / "other.csv").code == 0


def test_images_of_another_kind_are_refused(trained: Path, tmp_path: Path) -> None:
    pixels, labels = np.zeros((30, 8, 8, 3), np.uint8), np.arange(30) % 3
    np.savez(tmp_path / "rgb.npz", train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
    found = run("predict", trained, tmp_path / "rgb.npz", "-o", tmp_path / "out.npz")
    assert found.code == 2 and "takes images of 1 channel; these have 3" in found.err
    assert run("predict", tmp_path, tmp_path / "rgb.npz", "-o", tmp_path / "out.npz").code == 2
    assert not (tmp_path / "out.npz").exists()


def test_without_a_terminal_every_epoch_is_a_line(trained: Path) -> None:
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    lines = (trained / "stderr.txt").read_text().splitlines()
    assert [line.split("  ")[:4] for line in lines] == [
        [
            f"epoch {row['epoch']}/2",
            f"loss {row['loss']:.4f}",
            f"held-out accuracy {100 * row['val_accuracy']:.2f} %",
            f"ECE {100 * row['val_ece']:.2f} %",
        ]
        for row in log
    ]
    assert all(line.endswith(" s") for line in lines)


def test_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    clock = itertools.count(step=4)
    monkeypatch.setattr("temperance.cli.train.time.monotonic", lambda: next(clock))
    tell = lines_now_and_then(lambda done, steps, what: told.append(done), every=8)
    for epoch in range(1, 7):
        tell(epoch, 6, f"loss {epoch}")
    assert told == [1, 2, 3, 4, 5, 6]
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines() == ["2/6  loss 2", "4/6  loss 4", "6/6  loss 6"]
    monkeypatch.setattr("temperance.cli.train.on_terminal", lambda: True)
    lines_now_and_then(lambda done, steps, what: None, every=0)(1, 1, "seen in the bar")
    assert capsys.readouterr().err == ""


def test_its_predictions_are_what_compare_takes(trained: Path) -> None:
    found = run("compare", trained / "predictions.npz", "--methods", "temperature,vector", "--bootstrap", "20")
    assert found.code == 0 and "temperature" in found.out


def test_a_run_is_opened_again(trained: Path) -> None:
    found, data = open_run(trained)
    pixels = data.test.to("cpu")
    assert isinstance(pixels, Images)
    _, test = read_pair(trained / "predictions.npz")
    assert len(data.test) == test.n and torch.equal(found.predictions["test"].scores, test.scores)


def test_retraining_a_run_and_again_from_its_features(trained: Path, tmp_path: Path) -> None:
    options = ("--head", "mac-cal:epochs=2", "--anyway")
    first = run("retrain", trained, *options, "-o", tmp_path / "a", "--bootstrap", "60")
    assert first.code == 0, first.err
    assert "in place of the network's classifier" in " ".join(first.out.split())
    assert all(word in first.out for word in ("before", "after", "difference", "95 % interval", "NLL", "classwise ECE"))
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"head.safetensors", "predictions.npz", "report.html", "log.jsonl", "retrained.json"}
    again = run("retrain", trained / "features.safetensors", *options, "-o", tmp_path / "b", "--bootstrap", "0")
    assert again.code == 0, again.err
    one, other = (read_pair(tmp_path / name / "predictions.npz")[1] for name in "ab")
    assert torch.equal(one.scores, other.scores)
    for option in ("--data", "--copies"):
        said = run("retrain", trained / "features.safetensors", option, "3", "-o", tmp_path / "c").err
        assert said.endswith("is a file of features, without images: leave out --data and --copies\n")


def test_copies_are_cropped_and_flipped_as_in_the_training(trained: Path, images: Path, tmp_path: Path) -> None:
    found, data = open_run(trained)  # trained with a border of one pixel, and without flips
    expected = extract_features(found.network, data, copies=2, pad=1, flip=False).copies
    copies = features_from(trained, copies=2).copies
    assert expected is not None and copies is not None and torch.equal(copies, expected)
    plain = ("--crop", "0", "--no-flip", "--bootstrap", "0")
    assert run("train", images, "-o", tmp_path / "run", *QUICK[:8], *plain).code == 0
    said = run("retrain", tmp_path / "run", "--copies", "2", "-o", tmp_path / "out").err
    assert said.endswith("so copies would be like the images: leave out --copies\n")


@pytest.fixture(scope="module")
def retrained(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retrained") / "again"
    found = run("retrain", trained, "--head", "tst:epochs=1:latent=8", "-o", folder, "--bootstrap", "0", "--anyway")
    assert found.code == 0, found.err
    return folder


def test_a_worse_head_is_saved_only_if_asked_for(trained: Path, tmp_path: Path) -> None:
    command = ("retrain", trained, "--head", "linear:lr=50:epochs=1", "-o", tmp_path / "out", "--bootstrap", "0")
    found = run(*command)
    assert found.code == 2 and len(found.err.splitlines()) == 1
    assert "the head was not saved, because it is worse on the validation part" in found.err and "--anyway" in found.err
    said = " ".join(found.out.split())
    assert "validation samples linear is worse than the network's classifier: accuracy goes from" in said
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"predictions.npz", "report.html", "log.jsonl", "retrained.json"}
    about = json.loads((tmp_path / "out" / "retrained.json").read_text())
    assert (about["worse"], about["deployed"]) == (True, False) and about["seconds"] >= 0
    shifted = run("shift", tmp_path / "out")
    assert shifted.code == 2 and "has no head, because it was worse than the network's classifier" in shifted.err
    assert run(*command, "--anyway").code == 0
    about = json.loads((tmp_path / "out" / "retrained.json").read_text())
    assert (about["worse"], about["deployed"]) == (True, True)
    assert (tmp_path / "out" / "head.safetensors").exists()


def test_nothing_is_overwritten(trained: Path, retrained: Path, images: Path) -> None:
    for folder, held in ((retrained, "a retrained classifier"), (trained, "a run")):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        commands = [("retrain", trained, "--head", "linear:epochs=1"), ("train", images, *QUICK)]
        if folder is retrained:
            commands.append(("train", images, *QUICK, "--resume"))
        for command in commands:
            found = run(*command, "-o", folder)
            assert found.code == 2 and f"already holds {held}" in found.err and len(found.err.splitlines()) == 1
            assert "in another folder" in found.err or "into another folder" in found.err
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_retrained_classifier_under_shift(trained: Path, retrained: Path, tmp_path: Path) -> None:
    options = ("--corruptions", "fog", "--severities", "1", "--csv")
    found = run("shift", retrained, *options)
    assert found.code == 0, found.err
    by_hand = run("shift", trained, "--head", retrained / "head.safetensors", *options)
    numbers = [
        [(row["metric"], row["group"], row["value"]) for row in csv.DictReader(said.out.splitlines())]
        for said in (found, by_hand)
    ]
    assert numbers[0] == numbers[1] and len(numbers[0]) > 3
    opened, data = open_retrained(retrained)
    _, test = read_pair(retrained / "predictions.npz")
    assert torch.equal(opened.predictions["test"].scores, test.scores) and len(opened.history) == 1
    logits = predict(opened.network, data.test, mean=opened.mean, std=opened.std)
    assert torch.allclose(logits, test.scores.float(), atol=1e-4)


@pytest.mark.parametrize("known", ["gone", "features", "nothing"])
def test_a_retrained_classifier_without_its_run(retrained: Path, tmp_path: Path, known: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(retrained, folder)
    about = json.loads((folder / "retrained.json").read_text())
    (folder / "retrained.json").write_text(
        json.dumps(about | {"run": str(tmp_path / "x") if known == "gone" else None})
    )
    if known == "nothing":
        (folder / "retrained.json").unlink()
    found = run("shift", folder)
    assert found.code == 2 and f"name its run instead, with --head {folder / 'head.safetensors'}" in found.err
    again = run("retrain", folder, "-o", tmp_path / "out")
    assert again.code == 2 and "name the run it came from" in again.err


def test_retraining_features_of_any_network(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    x = torch.nn.functional.one_hot(labels, 6).float() + 0.3 * torch.randn(60, 6, generator=generator)
    parts: dict[str, Any] = {f"{name}_features": x for name in ("train", "val", "test")} | {
        f"{name}_labels": labels for name in ("train", "val", "test")
    }
    write_features(tmp_path / "features.npz", Features.of(**parts))
    arguments = ("--head", "linear", "-o", tmp_path / "out", "--bootstrap", "20")
    found = run("retrain", tmp_path / "features.npz", *arguments)
    assert found.code == 0, found.err
    assert "in place of a plain linear classifier trained on the same features" in " ".join(found.out.split())


def test_settings_from_a_file_and_flags_that_count_more(images: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        f'data = "{images}"\nnetwork = "small-cnn"\nloss = "mbls"\n'
        "epochs = 5\nbatch_size = 40\nflip = false\ncrop = 0\n"
    )
    found = run("train", "-o", tmp_path / "run", "--config", tmp_path / "job.toml", "--epochs", "1", "--bootstrap", "0")
    assert found.code == 0, found.err
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["details"]["job"]["epochs"] == 1 and about["details"]["job"]["loss"] == "mbls"


@pytest.mark.parametrize(("flag", "wrong"), [("clip", "two"), ("balance", "half"), ("freeze", "all")])
def test_none_takes_away_what_a_preset_sets(flag: str, wrong: str) -> None:
    given = parser().parse_args(["train", "images.npz", "-o", "run", "--preset", "balcal", f"--{flag}", "none"])
    settings = {name: vars(given)[name] for name in ("data", "preset", flag)}
    assert getattr(Job.of(**settings).recipe, flag) is None
    assert getattr(Job.of(data="images.npz", **{flag: 2 if flag == "freeze" else 0.5}).recipe, flag) is not None
    with pytest.raises(InputError, match=f"--{flag} must be a number or none; got '{wrong}'"):
        parser().parse_args(["train", "images.npz", "-o", "run", f"--{flag}", wrong])


def test_a_setting_that_is_needed_may_not_be_none() -> None:
    with pytest.raises(InputError, match="epochs must be a whole number of at least 1; got None"):
        Job.of(data="images.npz", epochs="none")


def test_resuming_a_finished_run_changes_nothing(images: Path, tmp_path: Path) -> None:
    arguments = ("train", images, "-o", tmp_path / "run", *QUICK, "--bootstrap", "0")
    assert run(*arguments).code == 0
    before = (tmp_path / "run" / "network.safetensors").read_bytes()
    found = run(*arguments)
    assert found.code == 2 and "already holds a run: continue it with --resume" in found.err
    assert run(*arguments, "--resume").code == 0
    assert (tmp_path / "run" / "network.safetensors").read_bytes() == before
    other = run(*arguments, "--resume", "--lr", "0.2")
    assert other.code == 2 and "with lr 0.05, not 0.2" in other.err


def test_what_hardly_learnt_is_said_before_anything_else(images: Path, tmp_path: Path) -> None:
    found = run("train", images, "-o", tmp_path / "run", *QUICK, "--epochs", "1", "--lr", "1e-6", "--bootstrap", "0")
    assert found.code == 0, found.err
    warning = found.out.partition(".")[0]
    assert warning in ("It is hardly better than guessing", "It is no better than guessing")
    assert "95 % interval" not in found.out
    assert warning in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.npz",), "nowhere.npz does not exist"),
        ((), "a training needs data"),
        (("digits", "--network", "resnet19"), "did you mean resnet"),
        (("nowhere", "--loss", "focall"), "did you mean focal"),
        (("nowhere", "--loss", "acls:base=focal:base.detach=1"), "did you mean detach_weight"),
        (
            ("nowhere", "--network", "wrn-28-10:dropout=2"),
            "wrn-28-10: dropout must be a number of at least 0",
        ),
        (("nowhere", "--lr", "-1"), "--lr must be a number of at least 0; got -1.0"),
        (("digits", "--preset", "cifra"), "preset must be one of"),
        (("digits", "--batch-size", "100000"), "--batch-size 100000 exceeds the"),
        (("digits", "--device", "tpu"), "the device 'tpu' cannot be used here"),
        (("nowhere", "--mix", "blend"), "there is no mix named 'blend'"),
        (("cifar10",), "add --download to fetch"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    network = () if "--network" in arguments else ("--network", "small-cnn")
    found = run("train", *arguments, "-o", tmp_path / "run", *network)
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("{tmp}",), "is not the folder of a run"),
        (("{run}", "--head", "mac-call"), "did you mean mac-cal"),
        (("{run}", "--head", "mac-cal:widht=3"), "did you mean width"),
        (("{run}", "--data", "elsewhere.npz"), "elsewhere.npz does not exist"),
        # Wrong settings are noticed before any data is looked for.
        (
            ("nowhere", "--head", "mac-cal:epochs=forty"),
            "mac-cal: epochs must be a whole number of",
        ),
        (("nowhere", "--head", "tst:latent=0"), "tst: latent must be a whole number of at least 1; got 0"),
        (("nowhere", "--loss", "focall"), "did you mean focal"),
    ],
)
def test_wrong_input_for_retraining(trained: Path, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (trained / "features.safetensors").unlink(missing_ok=True)
    filled = [text.format(tmp=tmp_path, run=trained) for text in arguments]
    found = run("retrain", *filled, "-o", tmp_path / "out")
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_images_that_are_not_there_are_noticed_though_features_were_kept(trained: Path, tmp_path: Path) -> None:
    first = run(
        "retrain", trained, "--head", "linear:epochs=1", "-o", tmp_path / "first", "--bootstrap", "0", "--anyway"
    )
    assert first.code == 0 and (trained / "features.safetensors").exists()
    found = run("retrain", trained, "--data", "elsewhere.npz", "-o", tmp_path / "second")
    assert found.code == 2 and "elsewhere.npz does not exist" in found.err


def test_an_unfinished_run_is_not_retrained(images: Path, tmp_path: Path) -> None:
    def stop(done: int, steps: int, what: str) -> None:
        if what.startswith("epoch 2/"):
            raise KeyboardInterrupt

    job = Job.of(data=str(images), network="small-cnn", epochs=2, batch_size=40, crop=0, flip=False)
    with pytest.raises(KeyboardInterrupt):
        job.run(tmp_path / "run", progress=stop)
    for command in ("retrain", "analyse"):
        found = run(command, tmp_path / "run", "-o", tmp_path / f"{command}.html")
        assert found.code == 2 and "has not finished; continue it with `temperance train --resume`" in found.err


def test_a_run_from_python_is_read_with_its_network(tmp_path: Path) -> None:
    network = make_network("small-cnn", classes=10, image_size=8, channels=1)
    job = Job.of(data="digits", epochs=1, batch_size=40, crop=0, flip=False)
    train(network, digits(200), recipe=job.recipe, folder=tmp_path / "run")
    with pytest.raises(InputError, match="trained from Python"):
        open_run(tmp_path / "run")


def test_a_network_of_other_classes_is_refused(trained: Path, tmp_path: Path) -> None:
    data = digits(800)
    assert isinstance(data.train, Images) and isinstance(data.test, Images)
    few = data.train.labels < 5
    np.savez(
        tmp_path / "five.npz",
        train_images=data.train.pixels[few].numpy(),
        train_labels=data.train.labels[few].numpy(),
        test_images=data.test.pixels[data.test.labels < 5].numpy(),
        test_labels=data.test.labels[data.test.labels < 5].numpy(),
    )
    (trained / "features.safetensors").unlink(missing_ok=True)
    found = run("retrain", trained, "--data", tmp_path / "five.npz", "-o", tmp_path / "out")
    assert found.code == 2 and "belong to another network" in found.err
