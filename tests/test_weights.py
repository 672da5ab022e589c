"""Weights from a file to the answer: read, evaluated, compared, carried over, refused."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import run
from conftest import random_predictions
from temperance import combine, compare, compare_each, evaluate, evaluate_each, statistics
from temperance.calibrators import Temperature
from temperance.diagnose.analysis import analyse
from temperance.errors import TemperanceError
from temperance.jobs import application
from temperance.jobs.comparison import Comparison
from temperance.metrics import METRICS
from temperance.predictions import Predictions, read_predictions, write_predictions

N = 400


def weighted(seed: int = 0, n: int = N) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels, and whole weights of which some are 0."""
    logits, labels = random_predictions(n, 3, seed)
    weights = torch.randint(0, 4, (n,), generator=torch.Generator().manual_seed(seed)).double()
    weights[:9] = 1
    return logits, labels, weights


def csv_of(path: Path, name: str, weights: list[object]) -> Path:
    lines = [f"{0.9 - 0.01 * i},{0.1 + 0.01 * i},{i % 2},{weight}" for i, weight in enumerate(weights)]
    path.write_text("\n".join([f"probs_0,probs_1,label,{name}", *lines]) + "\n")
    return path


def test_evaluate_measures_repeated_samples() -> None:
    logits, labels, weights = weighted()
    rows = torch.repeat_interleave(weights.long())
    found = evaluate(logits, labels, from_logits=True, weights=weights, metrics=["all"], bootstrap=0)
    repeated = evaluate(logits[rows], labels[rows], from_logits=True, metrics=["all"], bootstrap=0)
    assert [row.metric for row in found.rows] == METRICS.names
    for one, other in zip(found.rows, repeated.rows, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-10, abs=1e-10)
    assert "with weights" in found.title and "its tests are for samples that count equally" in found.verdict
    assert "with weights" not in repeated.title
    assert float(found.reliability.n) == float(weights.sum())
    assert len(found.risk_coverage.risk) == len(rows)


def test_every_metric_that_allows_shares_is_measured_and_the_others_are_named() -> None:
    logits, labels, weights = weighted(n=1000)  # enough samples in each bin for every interval
    found = evaluate(logits, labels, from_logits=True, weights=0.3 * weights, metrics=["all"], bootstrap=20)
    counting = [metric.name for metric in METRICS if metric.whole_weights]
    assert {row.metric for row in found.rows} == set(METRICS.names) - set(counting)
    assert counting and found.notes[-1].endswith(f"{', '.join(counting)}.")
    bounded = [row for row in found.rows if METRICS[row.metric].interval != "none" and row.value < 1]
    assert all(row.low <= row.value <= row.high for row in bounded) and len(bounded) > 20
    with pytest.raises(TemperanceError, match="ks-p-value depends on the number of samples"):
        evaluate(logits, labels, from_logits=True, weights=0.3 * weights, metrics=["ks-p-value"])


def test_groups_have_the_weights_of_their_samples() -> None:
    logits, labels, weights = weighted()
    group = np.arange(N) % 2
    data = Predictions.of(logits, labels, from_logits=True, groups=group, weights=weights)
    found = evaluate(data, metrics=["accuracy"], by_group=True, bootstrap=0)
    mine = torch.from_numpy(group == 1)
    alone = METRICS["accuracy"](logits[mine], labels[mine], from_logits=True, weights=weights[mine])
    assert found.row("accuracy", group="1").value == pytest.approx(alone)


def test_a_group_without_weight_is_left_out() -> None:
    logits, labels, weights = weighted()
    group = np.arange(N) % 3
    weights[group == 2] = weights[1] = 0
    data = Predictions.of(logits, labels, from_logits=True, groups=group, weights=weights)
    found = evaluate(data, metrics=["accuracy", "aurc"], by_group=True, bootstrap=20)
    assert {row.group for row in found.rows} == {"", "0", "1"}
    # In the first block, group 1 has no weight.
    blocks = [data.select(np.arange(N) < 2), data.select(np.arange(N) >= 2)]
    parts = [statistics(block, ["accuracy", "aurc"], by_group=True) for block in blocks]
    assert combine(parts, bootstrap=0).row("accuracy", group="1").value == found.row("accuracy", group="1").value


@pytest.mark.parametrize("name", ["weight", "weights", "importance"])
def test_a_column_of_a_table(tmp_path: Path, name: str) -> None:
    path = csv_of(tmp_path / "p.csv", name, [0.5, 2, 0, 1, 1])
    data = read_predictions(path, columns={"weight": name} if name == "importance" else None)
    assert data.has_weights and data.weights is not None and data.weights.tolist() == [0.5, 2, 0, 1, 1]
    assert not read_predictions(csv_of(tmp_path / "q.csv", "other", [1] * 5)).has_weights


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv", ".jsonl"])
def test_parts_and_copies_keep_their_weights(tmp_path: Path, suffix: str) -> None:
    logits, labels, weights = weighted()
    path = tmp_path / f"p{suffix}"
    write_predictions(path, Predictions.of(logits, labels, from_logits=True, weights=weights))
    data = read_predictions(path)
    first, second = data.halves()
    assert first.weights is not None and second.weights is not None
    assert float(first.weights.sum() + second.weights.sum()) == float(weights.sum())
    write_predictions(tmp_path / f"copy{suffix}", data.calibrated(lambda z, _: z.softmax(1), "test"))
    copied = read_predictions(tmp_path / f"copy{suffix}").weights
    assert copied is not None and torch.equal(copied, weights)


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf"])
def test_wrong_weights_name_file_and_line(tmp_path: Path, wrong: str) -> None:
    path = csv_of(tmp_path / "p.csv", "weight", [1, wrong, 1])
    with pytest.raises(
        TemperanceError, match=rf"p\.csv: weights must be finite numbers of at least 0; line 3 has {wrong}"
    ):
        evaluate(path)


def test_weights_that_are_all_zero_or_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(TemperanceError, match=r"p\.csv.*every weight is 0"):
        evaluate(csv_of(tmp_path / "p.csv", "weight", [0, 0, 0]))
    with pytest.raises(TemperanceError, match="weight must be a number in each line; line 3 has 'heavy'"):
        evaluate(csv_of(tmp_path / "q.csv", "weight", [1, "heavy", 1]))
    with pytest.raises(TemperanceError, match="brings its own weights"):
        evaluate(csv_of(tmp_path / "r.csv", "weight", [1, 1, 1]), weights=[1, 1, 1])


def compared(weights: torch.Tensor | None, rows: torch.Tensor | slice) -> Comparison:
    """A comparison of two methods, on other samples than they were fitted on."""
    fit, test = weighted(1), weighted(2)
    sides = [(logits[rows].softmax(1), labels[rows]) for logits, labels, _ in (fit, test)]
    if weights is None:
        return compare(*sides[0], test=sides[1], methods=["temperature", "vector"])
    return compare(*sides[0], weights=weights[rows], test=(*sides[1], weights[rows]), methods=["temperature", "vector"])


def test_compare_weighs_both_sides() -> None:
    weights = weighted(3)[2]
    found, repeated = compared(weights, slice(None)), compared(None, torch.repeat_interleave(weights.long()))
    for row in found.rows:
        same = repeated.row(row.metric, method=row.method)
        assert row.value == pytest.approx(same.value, abs=1e-6)
    assert found.test.n == int((weights > 0).sum()) and "by their weights" in found.split
    for outcome in found.ranked:
        assert outcome.gains is not None and outcome.gains.least <= float(outcome.gains.values.min())
        mean = found.baseline.measured["nll"].value - outcome.measured["nll"].value
        assert outcome.gains.mean == pytest.approx(mean, abs=1e-9)
    # Repeated samples look like more of them, and so like more evidence than there is.
    assert found.chance["temperature"] >= repeated.chance["temperature"]
    assert found.calibrator(refit=True).info["fitted_on"].startswith(f"{2 * found.test.n:,} samples")


def test_samples_without_weight_are_counted_nowhere(tmp_path: Path) -> None:
    logits, labels, weights = weighted()
    weights[:50], weights[50:] = 0, weights[50:].clamp_min(1)
    groups = ["a", "b"] * (N // 2)
    data = Predictions.of(logits, labels, from_logits=True, weights=weights, groups=groups)
    found = evaluate(data, bootstrap=20, by_group=True)
    assert found.title == f"arrays · {N - 50} samples with weights above 0 · {data.k} classes"
    assert {row.n for row in found.rows if not row.group} == {N - 50}
    assert {row.n for row in found.rows if row.group} == {(N - 50) // 2}
    assert found.verdict.endswith("samples that count equally; the intervals are of the weighted samples.")
    assert evaluate(data, bootstrap=0).verdict.endswith("samples that count equally.")
    ranked = compare(data, methods=["temperature"], bootstrap=20)
    half = (N - 50) // 2
    assert ranked.title == f"arrays · {half} samples with weights above 0 · {data.k} classes"
    assert ranked.split == f"split at random: fitted on {half} samples, measured on the other {half}, by their weights"
    write_predictions(tmp_path / "p.npz", data)
    said = run("fit", "temperature", tmp_path / "p.npz", "-o", tmp_path / "c.safetensors")
    assert said.out.startswith(f"fitted temperature on {N - 50} samples with weights above 0; saved in ")


def test_a_few_heavy_mistakes_are_too_few_for_an_interval() -> None:
    """Half of the samples, a group, have two mistakes that weigh more than all others."""
    probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64).repeat(1000, 1)
    wrong, weights = torch.arange(1000) % 500 < 40, np.ones(1000)
    names = np.where(np.arange(1000) < 500, "uneven", "even")
    even = Predictions.of(probs, wrong.long(), groups=names, weights=weights)
    assert not any("interval" in note for note in evaluate(even, by_group=True, bootstrap=20).notes)
    weights[:2] = 100
    data = Predictions.of(probs, wrong.long(), groups=names, weights=weights)
    found = evaluate(data, by_group=True, metrics=["nll"], bootstrap=20)
    assert [(row.group, math.isnan(row.low)) for row in found.rows] == [("", True), ("even", False), ("uneven", True)]
    assert "the wrong ones are worth 3" in found.notes[0]
    labels = np.stack([wrong.long()[:500], wrong.long()[500:]], 1)
    several = evaluate(
        probs[:500, :1].repeat(1, 2), labels, multilabel=True, weights=weights[:500], by_group=True, bootstrap=20
    )
    assert all(math.isnan(row.low) for row in several.rows)
    compared = compare(even, test=data, methods=["temperature"], bootstrap=20)
    assert all(math.isnan(row.low) for row in compared.rows) and not compared.tells_apart
    assert any("methods cannot be told apart: both need 20 right" in note for note in compared.notes)


def test_equal_weights_make_the_same_comparison() -> None:
    found, plain = compared(torch.full((N,), 0.7), slice(None)), compared(None, slice(None))
    assert found.verdict == plain.verdict and found.chance == pytest.approx(plain.chance)
    for one, other in zip(found.rows, plain.rows, strict=True):
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), nan_ok=True)


def test_sets_must_both_have_weights_or_none() -> None:
    logits, labels, weights = weighted()
    one = Predictions.of(logits, labels, from_logits=True, weights=weights)
    with pytest.raises(TemperanceError, match="both sets must have weights, or neither; only the"):
        compare(one, Predictions.of(logits, labels, from_logits=True))


def test_the_page_of_weighted_samples(tmp_path: Path) -> None:
    from temperance.report import write_report

    logits, labels, weights = weighted()
    found = evaluate(logits, labels, from_logits=True, weights=0.01 * weights, bootstrap=20)
    write_report(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"{int((weights > 0).sum())} samples with weights above 0" in page and "Clopper" not in page
    assert "nan" not in page.split("</style>")[1][:20000]
    assert math.isclose(float(found.reliability.n), 0.01 * float(weights.sum()))


def test_labels_without_probability_are_counted_by_their_weights() -> None:
    probs, labels = torch.tensor([[1.0, 0.0], [0.75, 0.25]]).repeat(20, 1), torch.arange(40) % 2
    labels[0] = 1
    weights = 1 + torch.arange(40) % 3
    rows = torch.repeat_interleave(weights)
    (note,) = evaluate(probs, labels, weights=weights, metrics=["nll"], bootstrap=0).notes
    (repeated,) = evaluate(probs[rows], labels[rows], metrics=["nll"], bootstrap=0).notes
    assert note.startswith("1 label has a probability of 0")
    assert note.rpartition(" ")[2] == repeated.rpartition(" ")[2]


def test_a_large_file_with_weights_is_fitted_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels, weights = weighted()
    path = tmp_path / "p.npz"
    write_predictions(path, Predictions.of(logits, labels, from_logits=True, weights=weights))
    monkeypatch.setattr(application, "LARGE", 100)
    found = application.fit(Temperature(), read_predictions(path)).learnt
    assert torch.equal(found["temperature"], Temperature().fit(logits, labels, weights=weights).temperature)


def test_several_sets_have_their_own_weights() -> None:
    logits, labels, weights = weighted()
    sets = {
        "alike": Predictions.of(logits, labels, from_logits=True),
        "weighted": Predictions.of(logits, labels, from_logits=True, weights=weights),
    }
    found = evaluate_each(sets, metrics=["nll"], bootstrap=0)
    alone = evaluate(sets["weighted"], metrics=["nll"], bootstrap=0)
    assert found.each["weighted"].row("nll").value == alone.row("nll").value
    assert found.each["alike"].row("nll").value != alone.row("nll").value
    compared = compare_each(sets, methods=["temperature"], bootstrap=20)
    assert "by their weights" in compared.findings["weighted"].split


def test_an_analysis_refuses_weights() -> None:
    logits, labels, weights = weighted()
    with pytest.raises(TemperanceError, match="an analysis counts all samples equally"):
        analyse(Predictions.of(logits, labels, from_logits=True, weights=weights))
