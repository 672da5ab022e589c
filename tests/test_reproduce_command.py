"""temperance reproduce as a command: what it prints and draws, and what it refuses."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from benchmarks.papers import (
    cts_figures,
    evidence,
    outputs,
    sctl,
    sctl_figures,
)
from benchmarks.papers.figures import bins_of
from benchmarks.papers.outputs import PAPERS, Output, outputs_of, stored
from commands import refused, run
from conftest import random_predictions
from pages import Page
from temperance import cli
from temperance.calibrators import make_calibrator
from temperance.cli import reproduce
from temperance.diagnose.traces import pearson
from temperance.metrics import classwise_ece, ece

ALL = [(paper, output) for paper in PAPERS for output in outputs_of(paper)]
DRAWN = [(paper, output) for paper, output in ALL if output.figure is not None]


def test_the_list_names_everything() -> None:
    said = run("reproduce")
    assert said.code == 0
    for paper, output in ALL:
        assert f"{paper}: " in said.out and output.name in said.out


def test_a_table_that_is_not_there_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "cts", "--table", "2", "--quick"]) == 0  # the paper's Table II
    assert "cts, table II: " in capsys.readouterr().out
    assert "there is no table 9; there are table 1, " in refused(["reproduce", "sctl", "--table", "9"], capsys)
    assert "name a paper: temperance reproduce PAPER" in refused(["reproduce", "--table", "1"], capsys)
    assert "did you mean sctl" in refused(["reproduce", "sclt", "--list"], capsys)


def test_missing_predictions_are_a_sentence(tmp_path: Path) -> None:
    said = run("reproduce", "sctl", "--table", "1", "--data", tmp_path)
    assert said.code == 2
    assert said.err.count("\n") == 1 and "c10_densenet40.npz" in said.err and "--data FOLDER" in said.err


def test_a_folder_without_networks_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logits").mkdir()
    for table in ("II", "III"):
        said = refused(["reproduce", "cts", "--table", table, "--data", str(tmp_path)], capsys)
        assert f"cts, table {table} needs logits/c100_*.npz" in said and "--data FOLDER" in said


def test_damaged_predictions_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "logits").mkdir()
    (tmp_path / sctl_figures.FILE).write_text("not an archive")
    (tmp_path / cts_figures.FILE).touch()
    published = run("reproduce", "sctl", "--figure", "1", "--data", tmp_path)
    assert published.code == 2 and published.err.count("\n") == 1
    assert f"{tmp_path / sctl_figures.FILE} cannot be read" in published.err
    own = run("reproduce", "cts", "--figure", "1", "--predictions", tmp_path)
    assert own.code == 2 and f"{tmp_path / cts_figures.FILE} is empty" in own.err


def test_flags_that_would_do_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--quick measures nothing" in refused(["reproduce", "sctl", "--quick", "--save"], capsys)
    assert "--list measures nothing" in refused(["reproduce", "sctl", "--list", "--save"], capsys)
    svg = str(tmp_path / "figure.svg")
    assert "--list draws nothing" in refused(["reproduce", "sctl", "--list", "--figure", "1", "-o", svg], capsys)


def test_without_a_checkout_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    assert "needs a source checkout" in refused(["reproduce"], capsys)


def test_a_figure_says_what_was_done() -> None:
    said = run("reproduce", "sctl", "--figure", "2")
    assert said.code == 0 and "not run: there is nothing to measure" in said.out


@pytest.mark.parametrize(("paper", "output"), DRAWN, ids=lambda value: getattr(value, "name", value))
def test_every_figure_is_drawn_from_what_was_kept(paper: str, output: Output, tmp_path: Path) -> None:
    number = output.name.removeprefix("figure ")
    for name in ("figure.svg", "figure.html"):
        said = run("reproduce", paper, "--figure", number, "--quick", "-o", tmp_path / name)
        assert said.code == 0, said.err
        assert f"The picture is in {tmp_path / name}." in "".join(said.out.splitlines())
    svg = ElementTree.fromstring((tmp_path / "figure.svg").read_text())
    captions = [each.text for each in svg.iter() if each.get("class") == "caption"]
    page = Page((tmp_path / "figure.html").read_text())
    assert captions and captions == [text for _, text in page.all("b")]
    assert all(line.name in "".join(svg.itertext()) for line in evidence.drawing(paper, number).legend)


def test_a_picture_needs_a_figure_and_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = str(tmp_path / "figure.svg")
    assert "name it with --figure N" in refused(["reproduce", "cts", "-o", svg], capsys)
    assert "name it with --figure N" in refused(["reproduce", "cts", "--table", "I", "-o", svg], capsys)
    png = ["reproduce", "cts", "--figure", "1", "-o", str(tmp_path / "figure.png")]
    assert f"call it {svg}" in refused(png, capsys)
    assert "nothing draws figure 2 of sctl" in refused(["reproduce", "sctl", "--figure", "2", "-o", svg], capsys)
    assert not list(tmp_path.iterdir())


def test_missing_trainings_are_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["reproduce", "cts", "--figure", "1", "--predictions", str(tmp_path)], capsys)
    assert "cifar100_resnet18_100_cross-entropy.npz" in said and "--predictions FOLDER" in said


def test_figures_are_of_the_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What figures measure is what the metrics say, and it is kept if asked."""
    monkeypatch.setattr(outputs, "FIGURES", tmp_path / "figures.jsonl")
    parts = {part: random_predictions(400, 4, seed) for seed, part in enumerate(("val", "test"))}
    arrays: dict[str, Any] = {f"{part}_logits": (2 * logits).half().numpy() for part, (logits, _) in parts.items()}
    arrays |= {f"{part}_labels": labels.numpy().astype("uint8") for part, (_, labels) in parts.items()}
    np.savez(tmp_path / cts_figures.FILE, **arrays)
    logits, labels = torch.from_numpy(arrays["test_logits"]).double(), parts["test"][1]
    for number in ("1", "2", "3"):
        said = run("reproduce", "cts", "--figure", number, "--predictions", tmp_path, "--save")
        assert said.code == 0 and "Draw it with -o" in said.out, said.err
    classes = outputs.stored_numbers("cts", "figure 1")
    by_class = [a + b for a, b in zip(classes["under"], classes["over"], strict=True)]
    assert sum(by_class) / 4 == pytest.approx(classwise_ece(logits.softmax(1), labels), abs=1e-6)
    assert sum(classes["under by bin"]) == pytest.approx(sum(classes["under"]), abs=1e-5)
    hits = [float((logits.argmax(1) == j)[labels == j].double().mean()) for j in range(4)]
    assert classes["accuracy"] == pytest.approx(hits, abs=1e-5)
    kept = outputs.stored_numbers("cts", "figure 2")["before"]
    assert ece.value(bins_of(kept)) == pytest.approx(ece(logits.softmax(1), labels), abs=1e-6)
    found = outputs.stored_numbers("cts", "figure 3")
    fitted = make_calibrator("class-temperature-greedy").fit(arrays["val_logits"].astype(float), parts["val"][1])
    assert found["temperatures"] == pytest.approx(dict(fitted.named_buffers())["temperatures"].tolist(), abs=1e-4)


def test_sentences_about_figures_rest_on_their_numbers() -> None:
    numbers = outputs.stored_numbers("cts", "figure 3")
    r = pearson(torch.tensor(numbers["accuracy"]), torch.tensor(numbers["temperatures"]))
    assert abs(r) < 0.2, "class temperatures do not follow accuracy"


def test_what_is_measured_is_kept_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "CELLS", tmp_path / "cells.jsonl")
    monkeypatch.setattr(sctl, "measured", lambda file, row: (5.0, 92.0))
    (tmp_path / "logits").mkdir()
    for file in (sctl.DENSENET, *sctl.PUBLISHED["CIFAR-10"], *sctl.PUBLISHED["CIFAR-100"]):
        (tmp_path / file).touch()
    said = run("reproduce", "sctl", "--table", "3", "--data", tmp_path)
    assert said.code == 0 and "0 of 16 numbers are within 0.03 points of the paper's" in " ".join(said.out.split())
    assert not outputs.CELLS.exists()
    assert run("reproduce", "sctl", "--table", "3", "--data", tmp_path, "--save").code == 0
    assert {cell.ours for cell in stored("sctl", "table 3") if cell.metric == "ECE"} == {5.0}
