"""Telling unfamiliar data apart between files of predictions."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from commands import refused
from conftest import random_predictions
from temperance.calibrators import make_calibrator
from temperance.cli import main
from temperance.cli.ood import reference_of
from temperance.errors import InputError
from temperance.jobs.ood import OODComparison, compare_ood
from temperance.metrics import SCORES, aupr, auroc, fpr_at_tpr, score
from temperance.metrics.familiarity import FEATURE_SCORES, Reference
from temperance.predictions import Predictions, write_predictions
from temperance.report import write_report


def predictions(seed: int, sharpness: float = 3.0, n: int = 400, k: int = 5) -> Predictions:
    logits, labels = random_predictions(n, k, seed, sharpness)
    return Predictions.of(logits, labels, from_logits=True)


@pytest.fixture(scope="module")
def own() -> Predictions:
    return predictions(0)


@pytest.fixture(scope="module")
def other() -> Predictions:
    return predictions(1, sharpness=1.0, n=300)


# ------------------------------------------------------------------------------------------------------------- numbers


def test_values_are_those_of_the_metrics(own: Predictions, other: Predictions) -> None:
    found = compare_ood(own, other, bootstrap=20)
    assert found.scores == tuple(SCORES.names)
    for name in SCORES.names:
        sides = [score(data.scores, name, from_logits=True) for data in (own, other)]
        assert found.row("auroc", method=name).value == auroc(*sides)
        assert found.row("fpr95", method=name).value == fpr_at_tpr(*sides)
        assert found.row("aupr-in", method=name).value == aupr(*sides)
        assert found.row("aupr-out", method=name).value == aupr(*sides, positive="out")
    for row in found.rows:
        assert 0 <= row.low <= row.value <= row.high <= 1 and row.n == 300 and row.group == ""


def test_few_samples_that_are_told_apart_without_a_mistake_show_less_than_many(tmp_path: Path) -> None:
    def told(n: int) -> OODComparison:
        return compare_ood(*(Predictions.of([[p, 1 - p]] * n) for p in (0.9, 0.6)), scores=["msp"], bootstrap=200)

    found = told(60)  # of its own 60 samples, the lowest score may be above the threshold for 95 %
    assert all(0 <= row.low <= row.value <= row.high <= 1 and row.low < row.high for row in found.rows)
    assert "but these samples cannot tell how much stands out." in found.verdict
    assert told(400).verdict.startswith("Nearly all unfamiliar data stands out.")
    write_report(found, tmp_path / "page.html")
    assert "nan" not in (tmp_path / "page.html").read_text(encoding="utf-8").partition("<body")[2].lower()


def test_intervals_are_the_same_whatever_else_is_measured(own: Predictions, other: Predictions) -> None:
    alone = compare_ood(own, other, scores=["margin"], bootstrap=30, seed=5)
    both = compare_ood(own, {"a": other, "b": predictions(2, 1.5)}, bootstrap=30, seed=5)
    for metric in ("auroc", "fpr95"):
        one, same = alone.row(metric, method="margin"), both.row(metric, group="a", method="margin")
        assert (one.value, one.low, one.high) == (same.value, same.low, same.high)
    assert compare_ood(own, other, bootstrap=30, seed=6).row("auroc").low != alone.row("auroc").low


def test_several_sets_and_their_mean(own: Predictions, other: Predictions) -> None:
    found = compare_ood(own, {"near": predictions(2, 2.0, n=100), "far": other}, bootstrap=20)
    for name in found.scores:
        values = [found.row("auroc", group=group, method=name).value for group in ("near", "far")]
        assert found.row("auroc", method=name).value == pytest.approx(sum(values) / 2, abs=1e-12)
        assert values[0] < values[1]
    assert found.sizes == {"near": 100, "far": 300}
    three = compare_ood(own, {"a": other, "b": other, "c": other}, scores=["msp"], bootstrap=20)
    assert three.title.endswith("against a (300), b (300) and c (300)")


def test_the_same_file_twice_has_two_names(own: Predictions, other: Predictions) -> None:
    assert list(compare_ood(own, [other, other, other], bootstrap=5).sizes) == ["arrays", "arrays (2)", "arrays (3)"]


def test_a_calibrator_is_applied_to_both_sides(own: Predictions, other: Predictions) -> None:
    held_out = predictions(3)
    fitted = make_calibrator("vector").fit(held_out.scores, held_out.labels)
    found = compare_ood(own, other, calibrator=fitted, bootstrap=5)
    assert found.scores == ("msp", "margin", "negative-entropy")
    sides = [score(fitted.predict_proba(data.scores), "msp") for data in (own, other)]
    assert found.row("auroc", method="msp").value == auroc(*sides)
    with pytest.raises(InputError, match="a calibrator makes probabilities, and the score energy needs logits"):
        compare_ood(own, other, scores=["energy"], calibrator=fitted)


def test_labels_of_other_data_do_not_matter(own: Predictions, other: Predictions) -> None:
    elsewhere = Predictions.of(other.scores, other.labels + 90, from_logits=True)
    assert (
        compare_ood(own, elsewhere, bootstrap=5).row("auroc").value
        == compare_ood(own, other, bootstrap=5).row("auroc").value
    )


def test_labels_are_not_needed(own: Predictions, other: Predictions, tmp_path: Path) -> None:
    expected = compare_ood(own, other, bootstrap=5)
    bare = [Predictions.of(data.scores, from_logits=True) for data in (own, other)]
    assert compare_ood(*bare, bootstrap=5).row("auroc").value == expected.row("auroc").value
    # A file may have labels that are no classes of the model, or no class numbers at all.
    inside, outside = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inside, logits=own.scores)
    np.savez(outside, logits=other.scores, labels=np.array(["a street"] * other.n))
    assert compare_ood(inside, outside, bootstrap=5).row("fpr95").value == expected.row("fpr95").value


def test_probabilities_have_no_energy(other: Predictions) -> None:
    probs = Predictions.of(other.scores.softmax(1), other.labels)
    assert "energy" not in compare_ood(probs, other, bootstrap=5).scores
    with pytest.raises(InputError, match="energy score needs logits"):
        compare_ood(probs, other, scores=["energy"], bootstrap=5)


def test_histograms_hold_everything(own: Predictions, other: Predictions) -> None:
    for histogram in compare_ood(own, {"far": other}, bootstrap=5).histograms:
        for shares in (histogram.inside, histogram.outside["far"]):
            assert float(shares.sum()) == pytest.approx(1)
        scores = score(own.scores, histogram.score, from_logits=True)
        assert float((scores >= histogram.limit).double().mean()) >= 0.95
        assert float((scores > histogram.limit).double().mean()) < 0.95


def test_all_scores_equal() -> None:
    flat = Predictions.of(torch.zeros(60, 3), [0] * 60, from_logits=True)
    found = compare_ood(flat, flat, bootstrap=5)
    for name in found.scores:
        assert (found.row("auroc", method=name).value, found.row("fpr95", method=name).value) == (0.5, 1.0)
    assert "does not tell" in found.verdict


def test_a_set_on_both_sides_is_noted(own: Predictions, other: Predictions) -> None:
    said = "are the model's own, so they are not unfamiliar: check the files."
    assert compare_ood(own, own, bootstrap=5).verdict.endswith(f"The predictions on both sides {said}")
    both = compare_ood(own, {"far": other, "near": own}, bootstrap=5)
    assert both.verdict.endswith(f"The predictions of near {said}")
    assert said not in compare_ood(own, other, bootstrap=5).verdict


def test_the_verdict_names_a_better_score() -> None:
    logits = torch.zeros(600, 2, dtype=torch.float64)
    logits[:, 0] = torch.rand(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.zeros(600, dtype=torch.int64)
    found = compare_ood(
        Predictions.of(logits + 5, labels, from_logits=True),
        Predictions.of(logits, labels, from_logits=True),
        bootstrap=20,
    )
    assert found.best == "energy" and "energy does better: 100.0 %" in found.verdict


def test_a_value_that_is_nearly_100_percent_is_not_rounded_to_it() -> None:
    generator = torch.Generator().manual_seed(0)
    own = 3 * torch.randn(10_000, 5, generator=generator, dtype=torch.float64)
    found = compare_ood(
        Predictions.of(own, from_logits=True), Predictions.of(0.1 * own.flip(0), from_logits=True), bootstrap=20
    )
    row = found.row("auroc", method="negative-entropy")
    assert 0.9996 < row.value < 1 and f"negative-entropy does better: {100 * row.value:.2f} %" in found.verdict
    stream = io.StringIO()
    Console(file=stream, width=120).print(found)
    assert f"{100 * row.low:.2f} … {100 * row.high:.2f}" in stream.getvalue()


def test_bad_input(own: Predictions) -> None:
    with pytest.raises(InputError, match="got 5 classes in arrays and 4 in arrays"):
        compare_ood(own, predictions(1, k=4))
    with pytest.raises(InputError, match="at least one set"):
        compare_ood(own, [])
    with pytest.raises(InputError, match="no confidence score named 'mps'; did you mean msp"):
        compare_ood(own, own, scores=["mps"])
    no_sets: list[Any] = [(own, 5), (own, {"a": 5}), (own.scores, own), ([own, own], own)]
    for inside, outside in no_sets:
        with pytest.raises(InputError, match=r"(a file|files) or (a )?Predictions"):
            compare_ood(inside, outside, bootstrap=20)


# -------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def files(own: Predictions, other: Predictions, tmp_path: Path) -> tuple[str, str]:
    write_predictions(tmp_path / "own.npz", own)
    write_predictions(tmp_path / "other.csv", other)
    return str(tmp_path / "own.npz"), str(tmp_path / "other.csv")


def test_a_table(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ood", *files, "--bootstrap", "20"]) == 0
    out = capsys.readouterr().out
    for word in ("own.npz (400 samples) against other.csv (300)", "AUROC", "FPR95", "energy", "By msp"):
        assert word in out
    assert main(["ood", files[0], files[1], files[1], "--bootstrap", "20", "--scores", "msp,energy"]) == 0
    out = capsys.readouterr().out
    # A narrow terminal breaks the words of the first column.
    assert "other.csv (2)" in out and "mean over" in out and "the sets" in out and "margin" not in out


def test_json_and_report(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "ood.html"
    assert main(["ood", *files, "--bootstrap", "20", "--json", "--report", str(report)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 4 * len(SCORES.names) and all(math.isfinite(row["low"]) for row in found["rows"])
    assert report.read_text().count("<svg viewBox") == len(SCORES.names)


def test_wrong_input_is_a_sentence(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.npz" in refused(["ood", files[0], str(tmp_path / "nothing.npz")], capsys)
    np.savez(tmp_path / "ten.npz", logits=np.zeros((4, 10)), labels=np.zeros(4, dtype=np.int64))
    assert "got 5 classes in " in refused(["ood", files[0], str(tmp_path / "ten.npz")], capsys)
    assert "no folder" in refused(["ood", *files, "--report", str(tmp_path / "no" / "r.html")], capsys)


# ------------------------------------------------------------------------------------------------------------ features


@pytest.fixture
def with_features(own: Predictions, other: Predictions, tmp_path: Path) -> tuple[str, str, str]:
    """Files of both sides with features, those of the other far away, and the features of the training data."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(5, 8))
    train = generator.normal(size=(200, 8))
    np.savez(
        tmp_path / "train.npz",
        train_features=train,
        train_labels=(train @ weight.T).argmax(1),
        classifier_weight=weight,
        classifier_bias=np.zeros(5),
    )
    np.savez(tmp_path / "in.npz", logits=own.scores, features=generator.normal(size=(400, 8)))
    np.savez(tmp_path / "out.npz", logits=other.scores, features=generator.normal(size=(300, 8)) + 9)
    return str(tmp_path / "in.npz"), str(tmp_path / "out.npz"), str(tmp_path / "train.npz")


def test_scores_of_features(with_features: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    inside, outside, train = with_features
    assert main(["ood", inside, outside, "--features", train, "--bootstrap", "20", "--json"]) == 0
    rows = {(row["method"], row["metric"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {method for method, _ in rows} == {*SCORES.names, *FEATURE_SCORES.names}
    found = reference_of(Path(train))
    for name in FEATURE_SCORES.names:
        sides = []
        for path in (inside, outside):
            with np.load(path) as arrays:
                sides.append(FEATURE_SCORES[name].fit(found)(torch.from_numpy(arrays["features"])))
        assert rows[name, "auroc"]["value"] == pytest.approx(auroc(*sides), abs=1e-9)
    assert rows["mahalanobis", "auroc"]["value"] > 0.99


def test_wrong_features_are_a_sentence(
    with_features: tuple[str, str, str], files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, outside, train = with_features
    assert "--features FILE" in refused(["ood", inside, outside, "--scores", "knn"], capsys)
    assert "own.npz have no features" in refused(["ood", files[0], outside, "--features", train], capsys)
    with np.load(inside) as arrays:
        np.savez(tmp_path / "narrow.npz", logits=arrays["logits"], features=arrays["features"][:, :3])
    said = refused(["ood", str(tmp_path / "narrow.npz"), outside, "--features", train], capsys)
    assert "narrow.npz: features must have 8 columns" in said


def test_without_the_last_layer_there_is_no_vim(with_features: tuple[str, str, str], tmp_path: Path) -> None:
    inside, outside, train = with_features
    whole = reference_of(Path(train))
    found = compare_ood(inside, outside, reference=Reference(whole.features, whole.labels), bootstrap=5)
    assert found.scores == (*SCORES.names, "mahalanobis", "knn")
    write_report(found, tmp_path / "page.html")
    assert "Mahalanobis distance" in (tmp_path / "page.html").read_text()
