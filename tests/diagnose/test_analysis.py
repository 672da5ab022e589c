"""Angles of prototypes, maps of logits, and the page of an analysis."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import refused
from conftest import random_predictions
from pages import Page
from temperance.cli import main
from temperance.diagnose.analysis import analyse, angles_between, class_means, simplex_angle, tsne
from temperance.errors import FileError, InputError
from temperance.heads.features import Features, write_features
from temperance.predictions import Predictions, write_pair, write_predictions
from temperance.report import write_report
from temperance.report.pages.analysis import analysis_page
from temperance.report.svg.angles import between_classes
from temperance.training.run import write_log, write_weights


def predictions(seed: int = 0, n: int = 120, k: int = 4) -> Predictions:
    logits, labels = random_predictions(n, k, seed, sharpness=4.0)
    return Predictions.of(logits, labels, from_logits=True, class_names=[f"<{j}>" for j in range(k)])


# -------------------------------------------------------------------------------------------------------------- angles


def test_angles_are_those_of_numpy() -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centred = (rows - rows.mean(0)).numpy()
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    expected = np.degrees(np.arccos(np.clip(unit @ unit.T, -1, 1)))
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(angles_between(rows).numpy(), expected, atol=1e-6)
    assert len(between_classes(angles_between(rows))) == 15


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_a_simplex_has_one_angle(k: int) -> None:
    found = between_classes(angles_between(torch.eye(k)))
    assert float(found.min()) == pytest.approx(simplex_angle(k), abs=1e-6)
    assert float(found.max()) == pytest.approx(simplex_angle(k), abs=1e-6)


def test_a_small_angle_is_not_lost() -> None:
    found = angles_between([[1.0, 0.0], [math.cos(1e-7), math.sin(1e-7)]], centre=False)
    assert float(found[0, 1]) == pytest.approx(math.degrees(1e-7), rel=1e-6)


def test_what_all_classes_share_does_not_matter() -> None:
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(angles_between(rows), angles_between(3 * rows + 7))


def test_class_means() -> None:
    found = class_means([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 0, 1])
    assert found.tolist() == [[3.0, 4.0], [3.0, 4.0]]
    with pytest.raises(InputError, match="class 1 has no samples"):
        class_means([[1.0], [2.0]], [0, 2])
    with pytest.raises(InputError, match="class 3 has no samples"):
        class_means([[1.0], [2.0], [3.0]], [0, 2, 1], k=4)


def test_prototypes_must_be_rows() -> None:
    with pytest.raises(InputError, match=r"prototypes must have shape \(n, d\)"):
        angles_between([1.0, 2.0])
    with pytest.raises(InputError, match=r"prototypes must be .* one row per class"):
        angles_between([[1.0, 2.0]])
    with pytest.raises(InputError, match="finite"):
        angles_between([[1.0, math.nan], [0.0, 1.0]])


# ---------------------------------------------------------------------------------------------------------------- maps


def test_a_map() -> None:
    pytest.importorskip("sklearn")
    data = predictions()
    found = tsne(data.scores, data.labels, n=60)
    again = tsne(data.scores, data.labels, n=60)
    assert torch.equal(found.points, again.points) and found.points.shape == (60, 2)
    assert torch.equal(found.labels, data.labels[found.rows]) and len(set(found.rows.tolist())) == 60
    assert not torch.equal(found.rows, tsne(data.scores, data.labels, n=60, seed=1).rows)
    assert bool(((found.entropy >= 0) & (found.entropy <= 1)).all())
    with pytest.raises(InputError, match="nothing to map"):
        tsne(torch.zeros(10, 3), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    with pytest.raises(InputError, match="at least 4 samples; got 3"):
        tsne(torch.zeros(3, 2), [0, 1, 0])


# ------------------------------------------------------------------------------------------------------------- the page


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "resnet"
    folder.mkdir()
    write_pair(folder / "predictions.npz", predictions(0), predictions(1))
    rows = [
        {"epoch": e, "lr": 0.1, "loss": 1 / e, "accuracy": 0.5, "val_accuracy": 0.5, "val_ece": 0.1} for e in (1, 2, 3)
    ]
    write_log(folder / "log.jsonl", rows)
    write_weights(
        folder / "network.safetensors", {"classifier.weight": torch.randn(4, 6), "a.weight": torch.randn(4, 4)}
    )
    x, y = torch.randn(20, 6), torch.arange(20) % 4
    features = Features.of(
        x, y, test_features=x, test_labels=y, classifier_weight=torch.randn(4, 6), classifier_bias=torch.zeros(4)
    )
    write_features(folder / "features.safetensors", features)
    return folder


@pytest.fixture
def head_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "head"
    folder.mkdir()
    write_pair(folder / "predictions.npz", predictions(0), predictions(1))
    write_log(folder / "log.jsonl", [{"epoch": e, "loss": 1 / e, "keep_rate": 0.5 - 0.1 * e} for e in (1, 2, 3)])
    return folder


def test_a_run_and_a_head_side_by_side(
    run_folder: Path, head_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    page = tmp_path / "page.html"
    sources = [str(run_folder), str(head_folder)]
    assert main(["analyse", *sources, "-o", str(page), "--steps", "6", "--points", "40"]) == 0
    assert f"analysed resnet, head; the page is in {page}" in "".join(capsys.readouterr().out.splitlines())
    text = page.read_text()
    found = Page(text)
    titles = {title for _, title in found.all("b")}
    for title in (
        "Learning rate",
        "Keep rate",
        "resnet: classifier weights",
        "head: mean logits",
        "Loss of each class",
    ):
        assert title in titles
    assert "What if weights of the classifier are masked?" in {title for _, title in found.all("h2")}
    assert len(found.all("circle")) >= 80 and len(found.all("image", "cells")) == 3
    assert all((a["href"] or "").startswith("data:image/png;base64,") for a, _ in found.all("image"))
    assert "http:" not in text and "https:" not in text and "<0>" not in text


def test_predictions_alone() -> None:
    found = analyse(predictions(), predictions(), objectives=["nll"], steps=4, points=20)
    assert [subject.name for subject in found.subjects] == ["arrays", "arrays (2)"]
    assert [trace.objective for trace in found.traces] == ["nll"] and found.toy is not None
    page = Page(analysis_page(found))
    assert len(page.all("h2")) == (5 if found.maps else 4)


def test_one_column_of_a_binary_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{(i % 7) - 3 + i % 2},{i % 2}" for i in range(40)]
    (tmp_path / "scores.csv").write_text("\n".join(["score,y", *rows]), encoding="utf-8")
    page = tmp_path / "page.html"
    call = ["analyse", str(tmp_path / "scores.csv"), "-o", str(page), "--steps", "3", "--points", "10"]
    assert main([*call, "--logits", "score", "--label", "y", "--binary"]) == 0
    assert "analysed scores.csv" in capsys.readouterr().out
    assert page.exists()


def test_a_file_that_is_too_small_to_be_halved_is_not_trained_on(tmp_path: Path) -> None:
    write_predictions(tmp_path / "few.npz", predictions(n=7))
    found = analyse(tmp_path / "few.npz", points=10)
    assert not found.traces and found.toy is None
    write_report(found, tmp_path / "page.html")
    assert "get there" not in (tmp_path / "page.html").read_text()


def test_without_scikit_learn_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    found = analyse(predictions(), objectives=[], steps=2)
    assert not found.maps
    assert found.notes == (
        "arrays: no map of the logits, because t-SNE needs scikit-learn: pip install 'temperance[analysis]'.",
    )
    assert "pip install" in analysis_page(found)


def test_an_analysis_of_several_says_whose_logits_were_trained_on() -> None:
    found = analyse(
        predictions(n=120), predictions(n=1200), predictions(n=1200), objectives=["nll"], steps=4, points=20
    )
    text = analysis_page(found)
    assert "A vector layer on the logits of arrays, trained" in text
    assert "arrays, arrays (2) and arrays (3)" in text and "60 and 600 test samples" in text


def test_networks_of_other_classes_are_not_drawn_side_by_side() -> None:
    with pytest.raises(InputError, match=r"with the same classes .* arrays has 4 and arrays \(2\) 6"):
        analyse(predictions(k=4), predictions(k=6))


def test_what_is_said_of_masks_holds_for_a_network_that_is_not_sure_enough(run_folder: Path) -> None:
    """Its confidence is below its accuracy before any weight is masked, so masks did not lower it too far."""
    text = analysis_page(analyse(run_folder, objectives=[], steps=2, points=10))
    assert "lowered it too far" not in text and "recovers" not in text
    assert "masking alone makes it as sure as it is right on average" in text


def test_wrong_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="nothing to analyse"):
        analyse()
    with pytest.raises(FileError, match=r"has no predictions\.npz"):
        analyse(tmp_path)
    output = ["-o", str(tmp_path / "page.html")]
    assert "does not exist" in refused(["analyse", str(tmp_path / "no.npz"), *output], capsys)
