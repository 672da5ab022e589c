"""Samples that can have several labels: read, measured, compared, calibrated and written."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

import temperance
from commands import run
from temperance.calibrators import make_calibrator
from temperance.errors import FileError, InputError
from temperance.jobs import application
from temperance.jobs.evaluation import evaluate
from temperance.jobs.macro import MEAN_OF_LABELS
from temperance.metrics import METRICS
from temperance.predictions import Predictions, read_predictions, write_predictions
from temperance.report import write_report

SUFFIXES = (".npz", ".safetensors", ".parquet", ".csv")
NAMES = ["edema", "mass", "hernia"]
MEASURED = ["nll", "brier", "confidence-gap", "ece", "adaptive-ece", "failure-auroc"]

Scores = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def made(n: int = 400, n_labels: int = 3, seed: int = 0) -> tuple[Scores, Labels]:
    """Scores that are too high, of labels that apply independently."""
    generator = np.random.default_rng(seed)
    truth = generator.beta(1, 3, (n, n_labels))
    return truth**0.7, (generator.random((n, n_labels)) < truth).astype(np.int64)


def together(n: int, seed: int, n_labels: int = 20) -> tuple[Scores, Labels]:
    """Calibrated scores of labels that apply to a sample all or not at all."""
    generator = np.random.default_rng(seed)
    p = np.repeat(generator.beta(2, 3, (n, 1)), n_labels, axis=1)
    return p, np.repeat((generator.random((n, 1)) < p[:, :1]).astype(np.int64), n_labels, axis=1)


def own(n: int = 400) -> Predictions:
    scores, labels = made(n)
    return Predictions.of(scores, labels, multilabel=True, class_names=NAMES)


# ----------------------------------------------------------------------------------------------------------- measuring


def test_every_label_is_measured_as_answers_are() -> None:
    scores, labels = made()
    found = evaluate(own(), by_group=True, bootstrap=0)
    pooled = evaluate(scores.reshape(-1), labels.reshape(-1), answers=True, metrics=MEASURED, bootstrap=0)
    assert [row.metric for row in found.rows[: len(MEASURED)]] == MEASURED
    for name in MEASURED:
        assert found.row(name).value == pytest.approx(pooled.row(name).value, abs=1e-12), name
        each = [
            evaluate(scores[:, j], labels[:, j], answers=True, metrics=[name], bootstrap=0).rows[0].value
            for j in range(3)
        ]
        shown = [row.value for row in found.rows if row.metric == name and row.group in NAMES]
        assert shown == pytest.approx(each, abs=1e-12), name
        (mean,) = (row.value for row in found.rows if row.metric == name and row.group == MEAN_OF_LABELS)
        assert mean == pytest.approx(np.mean(each), abs=1e-12), name


def test_logits_are_log_odds_however_large() -> None:
    logits = np.array([[-800.0, 3.0], [2.0, -1.0], [900.0, 0.5]] * 20)
    labels = np.array([[0, 1], [1, 0], [1, 0]] * 20)
    found = evaluate(logits, labels, multilabel=True, from_logits=True, bootstrap=0)
    z = torch.tensor(logits)
    nll = torch.nn.functional.binary_cross_entropy_with_logits(z, torch.tensor(labels).double())
    assert found.row("nll").value == pytest.approx(float(nll), rel=1e-12)
    probs = evaluate(z.sigmoid().numpy(), labels, multilabel=True, bootstrap=0)
    for name in ("brier", "ece", "confidence-gap", "failure-auroc"):
        assert found.row(name).value == pytest.approx(probs.row(name).value, abs=1e-12)


def test_labels_of_right_and_wrong_predictions_are_not_measured() -> None:
    names = {row.metric for row in evaluate(own(), metrics="all", bootstrap=0).rows}
    assert "accuracy" not in names and "aurc" not in names and "ks-p-value" not in names
    assert {"ece", "smooth-ece", "mce", "failure-auroc"} <= names
    with pytest.raises(InputError, match="accuracy is about predictions that are right or wrong"):
        evaluate(own(), metrics=["accuracy"])
    with pytest.raises(InputError, match="ks-p-value tests independent samples"):
        evaluate(own(), metrics=["ks-p-value"])
    with pytest.raises(InputError, match="needs the probabilities of classes"):
        evaluate(own(), metrics=["classwise-ece"])


def test_weights_count_samples() -> None:
    scores, labels = made(60)
    counts = np.arange(60) % 3
    weighted = evaluate(scores, labels, multilabel=True, weights=counts, metrics=MEASURED, bootstrap=0)
    repeated = evaluate(
        scores.repeat(counts, 0), labels.repeat(counts, 0), multilabel=True, metrics=MEASURED, bootstrap=0
    )
    for one, other in zip(weighted.rows, repeated.rows, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-9), one.metric


def test_unknown_labels_are_left_out() -> None:
    scores, labels = made()
    unknown = np.random.default_rng(1).random(labels.shape) < 0.3
    marked = np.where(unknown, -1, labels)
    found = evaluate(scores, marked, multilabel=True, ignore_index=-1, by_group=True, bootstrap=40)
    left = evaluate(scores[~unknown], labels[~unknown], answers=True, metrics=["nll"], bootstrap=0)
    assert found.row("nll").value == pytest.approx(left.row("nll").value, abs=1e-12)
    first = ~unknown[:, 0]
    alone = evaluate(scores[first, 0], labels[first, 0], answers=True, metrics=["failure-auroc"], bootstrap=0)
    (auroc,) = (row for row in found.rows if row.group == "0" and row.metric == "failure-auroc")
    assert auroc.value == pytest.approx(alone.rows[0].value, abs=1e-12) and auroc.n == int(first.sum())
    with pytest.raises(InputError, match="If -1 means that this is unknown, pass ignore_index=-1"):
        evaluate(scores, marked, multilabel=True)


@pytest.mark.parametrize("metric", ["brier", "failure-auroc"])
def test_intervals_are_of_samples(metric: str) -> None:
    """Where all labels of a sample apply or none does, intervals of rows would be far too narrow."""
    truth = 0.2 if metric == "brier" else None  # E p(1 − p) for Beta(2, 3)
    if truth is None:
        truth = evaluate(*together(200_000, 999, 1), multilabel=True, metrics=[metric], bootstrap=0).rows[0].value
    covered = {"samples": 0, "rows": 0, "mean": 0}
    for seed in range(60):
        scores, labels = together(300, seed)
        found = evaluate(scores, labels, multilabel=True, metrics=[metric], bootstrap=100)
        rows = evaluate(scores.reshape(-1), labels.reshape(-1), answers=True, metrics=[metric], bootstrap=100)
        for name, row in (("samples", found.rows[0]), ("mean", found.rows[1]), ("rows", rows.rows[0])):
            covered[name] += row.low <= truth <= row.high
    assert covered["samples"] >= 52 and covered["mean"] >= 52 and covered["rows"] <= 42, covered


def test_the_interval_of_a_mean_error_holds_the_true_one() -> None:
    """Noise adds most to the errors of calibrated labels, which are hidden among those of others."""
    shift = np.where(np.arange(10) % 2, 0.8, 0.0)  # of the log-odds of every second label

    def drawn(n: int, generator: np.random.Generator) -> tuple[Scores, Scores]:
        z = 1.5 * generator.standard_normal((n, 10))
        return 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(shift - z))

    says, true = drawn(200_000, np.random.default_rng(9))
    bins = (15 * says).astype(np.int64)
    errors = [np.abs(np.bincount(bins[:, j], says[:, j] - true[:, j])).sum() / len(says) for j in range(10)]
    covered, generator = 0, np.random.default_rng(0)
    for _ in range(30):
        says, true = drawn(1000, generator)
        labels = (generator.random(says.shape) < true).astype(np.int64)
        (_, mean) = evaluate(says, labels, multilabel=True, metrics=["ece"], bootstrap=60).rows
        covered += mean.low <= np.mean(errors) <= mean.high
    assert covered >= 27, covered


def test_a_note_names_means_without_an_interval() -> None:
    for n_labels, names in ((101, "adaptive ECE and AUROC"), (501, "NLL, Brier, mean score − prevalence, ECE, ad")):
        found = evaluate(*made(60, n_labels), multilabel=True, bootstrap=20)
        assert found.notes[-1].startswith(f"The means of labels have no intervals of {names}"), found.notes
        assert all(math.isnan(row.low) for row in found.rows if row.group and row.metric == "failure-auroc")
    assert not any("no intervals of" in note for note in evaluate(*made(60, 501), multilabel=True, bootstrap=0).notes)


def test_few_calibrated_models_are_called_miscalibrated() -> None:
    called = sum(
        not evaluate(*together(300, seed), multilabel=True, metrics=["nll"], bootstrap=0).verdict.startswith(
            "No miscalibration"
        )
        for seed in range(100)
    )
    assert called <= 10


def test_the_verdict_names_the_labels_that_are_off() -> None:
    scores, labels = made(2000)
    scores[:, 1] = np.random.default_rng(5).beta(1, 3, 2000)
    labels[:, 1] = np.random.default_rng(6).random(2000) < scores[:, 1]
    found = evaluate(Predictions.of(scores, labels, multilabel=True, class_names=NAMES), bootstrap=20)
    assert found.title == "arrays · 2,000 samples · 3 labels"
    assert found.verdict.startswith("The scores of 2 of 3 labels are too high. On 2,000 samples the mean probability")
    assert "mass" not in found.verdict and "confident" not in found.verdict
    assert found.metric_title("failure-auroc") == "AUROC"
    settings = json.loads(found.to_json())["provenance"]["settings"]
    assert settings["multilabel"] is True and settings["samples"] == 2000


def test_labels_that_never_or_always_apply() -> None:
    scores, labels = made()
    labels[:, 0], labels[:, 1] = 0, 1
    found = evaluate(Predictions.of(scores, labels, multilabel=True, class_names=NAMES), bootstrap=20, by_group=True)
    assert any(note.startswith("1 label never applies: edema.") for note in found.notes)
    assert any(note.startswith("1 label always applies: mass.") for note in found.notes)
    value = {(row.group, row.metric): row.value for row in found.rows}
    assert math.isnan(value["edema", "failure-auroc"])
    assert value[MEAN_OF_LABELS, "failure-auroc"] == pytest.approx(value["hernia", "failure-auroc"])
    one = evaluate([[0.2, 0.9]], [[0, 1]], multilabel=True)
    assert math.isnan(one.rows[0].low) and "1 sample " in one.verdict


def test_many_labels_and_many_bins_agree_with_few() -> None:
    scores, labels = made(50, 300)
    found = evaluate(scores, labels, multilabel=True, metrics=["ece"], n_bins=300, by_group=True, bootstrap=20)
    for j in (0, 123, 299):
        alone = evaluate(scores[:, j], labels[:, j], answers=True, metrics=["ece"], n_bins=300, bootstrap=0)
        (row,) = (row for row in found.rows if row.group == str(j))
        assert row.value == pytest.approx(alone.rows[0].value, abs=1e-12)


# -------------------------------------------------------------------------------------------------- reading and writing


@pytest.mark.parametrize("target", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_a_file_is_calibrated_and_can_be_read_again(tmp_path: Path, source: str, target: str) -> None:
    scores, labels = made(60)
    given = Predictions.of(scores, labels, multilabel=True, class_names=NAMES, weights=np.arange(1, 61))
    write_predictions(tmp_path / f"in{source}", given)
    data = read_predictions(tmp_path / f"in{source}", multilabel=True)
    assert data.fingerprint == given.fingerprint and data.space == (3,) and data.multilabel and data.has_groups
    assert data.groups is not None and data.groups[:4].tolist() == [*NAMES, NAMES[0]]
    found = temperance.apply(application.fit(make_calibrator("platt"), data), data)
    write_predictions(tmp_path / f"out{target}", found)
    again = read_predictions(tmp_path / f"out{target}", multilabel=True)
    assert torch.allclose(again.scores, found.scores.to(again.scores.dtype), atol=1e-12)
    assert again.labels.tolist() == labels.reshape(-1).tolist() and again.calibrated_by == "platt"
    assert again.class_names == tuple(NAMES) and again.weights is not None and again.weights[3] == 2


def test_other_contents_and_groups_are_carried_over(tmp_path: Path) -> None:
    scores, labels = made(30)
    sites = np.array(["a", "b"] * 15)
    np.savez(tmp_path / "in.npz", probs=scores, labels=labels, groups=sites, ids=np.arange(30))
    data = read_predictions(tmp_path / "in.npz", multilabel=True)
    assert data.groups is not None and set(data.groups.tolist()) == {"0", "1", "2"}
    write_predictions(tmp_path / "out.npz", data)
    back = np.load(tmp_path / "out.npz")
    assert back["groups"].tolist() == sites.tolist() and back["ids"].tolist() == list(range(30))
    assert back["probs"].shape == (30, 3)


def test_own_names_with_and_without_two_sets(tmp_path: Path) -> None:
    scores, labels = made(30)
    np.savez(tmp_path / "two.npz", val_s=scores[:10], val_y=labels[:10], test_s=scores[10:], test_y=labels[10:])
    columns = {"probs": "s", "label": "y"}
    found = read_predictions(tmp_path / "two.npz", multilabel=True, columns=columns)
    assert found.split == "test" and found.n == 60 and found.other_split == "val"
    assert read_predictions(tmp_path / "two.npz", "val", multilabel=True, columns=columns).n == 30
    table = pd.DataFrame({f"p_{name}": scores[:, j] for j, name in enumerate(NAMES)})
    for j in (2, 0, 1):  # columns in another order
        table[f"y_{NAMES[j]}"] = labels[:, j]
    patterns = {"probs": "p_*", "label": "y_*"}
    table.to_csv(tmp_path / "own.csv", index=False)
    for each in (
        read_predictions(tmp_path / "own.csv", multilabel=True, columns=patterns),
        temperance.predictions.given.as_predictions(table, multilabel=True, columns=patterns),
    ):
        assert each.labels.tolist() == labels.reshape(-1).tolist() and each.class_names == tuple(NAMES)


def test_halves_are_of_samples() -> None:
    first, second = own(41).halves()
    samples = [set(half.samples_of_rows().tolist()) for half in (first, second)]
    assert [len(each) for each in samples] == [20, 21] and first.n == 60
    assert first.label_names == tuple(NAMES) and first.n_counted == 20


WRONG: list[tuple[Any, Any, dict[str, Any], str]] = [
    ([[0.2, 0.4]], [[0, 2]], {}, r"labels must be 1 where a label applies and 0 where it does not; row 1 has 2"),
    ([[0.2, 0.4]], [[0, np.nan]], {}, "row 1 has nan. If that .* write -1 in its place and pass ignore_index=-1"),
    ([[0.2, 0.4]], [[0, np.nan]], {"ignore_index": -9}, "row 1 has nan. .* write -9 in its place$"),
    ([[0.2, 0.4]], [[0, 1, 0]], {}, r"in the shape \(1, 2\) of probs; got int64 of shape \(1, 3\)"),
    ([[0.2, 0.4]], [0], {}, r"in the shape \(1, 2\) of probs"),
    ([0.2, 0.4], [0, 1], {}, r"must have shape \(n, L\)"),
    ([[0.2, float("nan")]], [[0, 1]], {}, "probs must lie between 0 and 1; row 1 has nan"),
    ([[20, 40]], [[0, 1]], {}, "if they are percent, divide them by 100"),
    ([[0.2, 0.4]], [[0, 1]], {"positive": 1}, "several labels have no positive class"),
    ([[0.2, 0.4]], [[0, 1]], {"answers": True}, "answers or have several labels, not both"),
    ([[0.2, 0.4]], [[0, 1]], {"ignore_index": 0}, "ignore_index=0 says whether a label applies"),
    ([[0.2, 0.4]], [[-1, -1]], {"ignore_index": -1}, "there is nothing to measure"),
]


@pytest.mark.parametrize(("probs", "labels", "options", "sentence"), WRONG)
def test_wrong_arrays_get_a_sentence(probs: Any, labels: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(np.array(probs), np.array(labels), multilabel=True, **options)


def test_wrong_names_and_kinds_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="class_names must have 3 names"):
        Predictions.of(*made(5), multilabel=True, class_names=["a", "b"])
    with pytest.raises(InputError, match="leave out groups"):
        Predictions.of(*made(5), multilabel=True, groups=["a"] * 5)
    probs = np.full((4, 3), 1 / 3)
    with pytest.raises(InputError, match="If a sample can have several labels, pass multilabel=True"):
        evaluate(probs, np.array([[1, 1, 0]] * 4))
    np.savez(tmp_path / "several.npz", probs=probs, labels=np.array([[1, 1, 0]] * 4))
    (tmp_path / "several.csv").write_text("probs_a,probs_b,label_a,label_b\n0.5,0.5,1,0\n")
    for path in (tmp_path / "several.npz", tmp_path / "several.csv"):
        assert "several labels, add --multilabel\n" in run("evaluate", path).err
        assert "several labels, use evaluate, compare, fit or apply, which can take them\n" in run("abstain", path).err
    (tmp_path / "own.csv").write_text("p_a,p_b,y_a,y_b\n0.5,0.5,1,0\n")
    err = run("evaluate", tmp_path / "own.csv", "--multilabel").err
    assert "expected a column probs_NAME (or logits_NAME) for each label, and a column label_NAME beside it" in err
    assert err.endswith("Name yours by a pattern, --probs 'p_*' --label 'y_*'\n")
    (tmp_path / "no.csv").write_text("probs_a,probs_b,label_a\n0.1,0.2,1\n")
    said = run("evaluate", tmp_path / "no.csv", "--multilabel")
    assert said.code == 2 and "there is no column 'label_b'" in said.err and "--label 'y_*'" in said.err
    (tmp_path / "two.csv").write_text("probs_a,probs_b,label_a,label_b\n0.1,0.2,1,0\n0.3,0.4,2,0\n")
    assert "line 3 has 2" in run("evaluate", tmp_path / "two.csv", "--multilabel").err
    (tmp_path / "a.jsonl").write_text('{"probs": [0.1, 0.2], "labels": [0, 1]}\n')
    with pytest.raises(FileError, match=r"not read from or written to \.json and \.jsonl"):
        read_predictions(tmp_path / "a.jsonl", multilabel=True)
    with pytest.raises(InputError, match="have several labels for each sample, but this needs one"):
        temperance.abstain(own())
    with pytest.raises(InputError, match="only one of them has"):
        temperance.compare(own(), Predictions.of([[0.9, 0.1], [0.2, 0.8]], [0, 1]))


def test_labels_are_the_groups(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=[[0.9, 0.1]] * 4, labels=[[0, 1]] * 4, site=["x", "y"] * 2)
    said = run("evaluate", tmp_path / "a.npz", "--multilabel", "--by", "group", "--group", "site")
    assert said.code == 2 and "--group has no use; leave it out" in said.err


def test_by_label_needs_several_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=[[0.9, 0.1]] * 4, labels=[0, 0, 1, 0], groups=["x", "y"] * 2)
    for command in ("evaluate", "compare", "abstain"):
        said = run(command, tmp_path / "a.npz", "--by", "label")
        assert said.code == 2 and "--by label is for samples with several labels" in said.err
        assert ("--multilabel" in said.err) == (command != "abstain")


# -------------------------------------------------------------------------------------------- comparing and calibrating


def test_comparing_counts_samples(tmp_path: Path) -> None:
    found = temperance.compare(own(2000), methods=["platt", "beta"], bootstrap=50)
    assert found.title == "arrays · 1,000 samples · 3 labels" and "1,000 samples" in found.split
    assert found.recommended.label in ("platt", "beta") and "accuracy" not in found.verdict
    assert found.recommended.n == 1000 and found.after.row("ece").value < found.before.row("ece").value
    write_report(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Accuracy" not in page and "What changed for which label?" in page
    assert ">samples (square-root scale)" not in page and "pairs of sample and label (square-root scale)" in page
    assert "accuracy" not in {row.metric for row in found.rows}


def test_several_sets_of_labels_have_no_accuracy(tmp_path: Path) -> None:
    for seed in (0, 1):
        scores, labels = made(300, seed=seed)
        np.savez(tmp_path / f"{seed}.npz", probs=scores, labels=labels)
    said = run("compare", "--each", tmp_path, "--multilabel", "--methods", "platt", "--report", tmp_path / "a.html")
    assert said.code == 0 and "accuracy" not in said.out and "Accuracy" not in (tmp_path / "a.html").read_text()
    said = run("evaluate", "--each", tmp_path, "--multilabel", "--bootstrap", "0", "--report", tmp_path / "b.html")
    page = (tmp_path / "b.html").read_text()
    assert " 300 " in said.out and " 900 " not in said.out and "mean score" in said.out
    assert "300 samples" in page and "accuracy in the bin" not in page and "failure AUROC" not in page


def test_rare_labels_have_no_intervals_and_notes_say_so() -> None:
    generator = np.random.default_rng(0)
    scores = generator.beta(0.3, 9, (300, 5))
    labels = (generator.random(scores.shape) < scores).astype(np.int64)
    found = temperance.compare(scores, labels, multilabel=True, methods=["platt"], bootstrap=20)
    assert any("apply to 20 samples and do not apply to 20, on average" in note for note in found.notes), found.notes
    never = evaluate(scores, 0 * labels, multilabel=True, bootstrap=20)
    assert never.notes[-1].startswith("There are no intervals: they need 20 pairs of sample and label")
    assert "more than chance: label " in evaluate(scores**0.5, labels, multilabel=True, bootstrap=0).verdict.replace(
        ", these three the most", ""
    )


def test_labels_that_nearly_always_apply_are_not_called_wrong_predictions() -> None:
    generator = np.random.default_rng(0)
    scores = 1 - generator.beta(0.3, 9, (300, 5))
    labels = (generator.random(scores.shape) < scores).astype(np.int64)
    found = temperance.compare(scores, labels, multilabel=True, methods=["platt", "temperature"], bootstrap=20)
    assert "Labels apply to nearly all samples" in found.verdict and "wrong" not in found.verdict


def test_the_gap_without_bins_is_for_independent_rows() -> None:
    """Labels that go together would be in the part to fit on and in the other, and the bound would not hold."""
    with pytest.raises(InputError, match="have several labels for each sample, but this needs one"):
        evaluate(*together(50, 0), multilabel=True, gap="isotonic")
    with pytest.raises(InputError, match="have several labels for each sample"):
        temperance.calibration_gap(own())


def test_gains_of_labels_that_go_together_are_those_of_samples() -> None:
    """Copies of a label add nothing: the evidence is that of the samples."""
    scores, labels = made(400, 1)
    several = []
    for m in (1, 10):
        copies = scores.repeat(m, 1), labels.repeat(m, 1)
        several.append(temperance.compare(*copies, multilabel=True, methods=["platt"], bootstrap=20))
    assert several[0].chance["platt"] == pytest.approx(several[1].chance["platt"], rel=0.5)


def test_a_calibrator_of_labels_is_not_for_answers() -> None:
    calibrator = application.fit(make_calibrator("platt"), own())
    answers = Predictions.of([0.9, 0.4], [1, 0], answers=True)
    with pytest.raises(InputError, match="the calibrator was fitted on several labels"):
        evaluate(answers, calibrator=calibrator)
    with pytest.raises(InputError, match="no label of the samples to fit on applies"):
        application.fit(make_calibrator("platt"), Predictions.of([[0.2, 0.4]] * 9, [[0, 0]] * 9, multilabel=True))


def test_the_page_is_about_labels(tmp_path: Path) -> None:
    sizes = []
    for n_labels in (60, 600):
        write_report(evaluate(*made(40, n_labels), multilabel=True, bootstrap=0), tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text()
        assert "Which labels are off?" in text and "Labels that apply" in text and "accuracy in the bin" not in text
        sizes.append(len(text))
    assert sizes[1] < 4 * sizes[0]


@pytest.mark.shared
def test_findings_of_chest_x_rays(shared_data: Any) -> None:
    path = shared_data / "more" / "multilabel" / "chexnet.npz"
    found = evaluate(path, multilabel=True, columns={"probs": "scores", "label": "labels"}, bootstrap=0)
    mean = {row.metric: row.value for row in found.rows if row.group == MEAN_OF_LABELS}
    assert mean["nll"] == pytest.approx(0.1504, abs=5e-5)
    assert mean["ece"] == pytest.approx(0.0094, abs=5e-5)
    assert mean["failure-auroc"] == pytest.approx(0.8416, abs=5e-5)
    assert METRICS["accuracy"].of_decisions
