"""Comparing: never on what was fitted, always on the same samples, nothing recommended that chance could explain."""

import dataclasses
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from commands import run
from conftest import ROOT, over_confident, random_predictions
from temperance.calibrators import CALIBRATORS, Matrix, Temperature
from temperance.errors import FileError, InputError, plural
from temperance.jobs import comparison
from temperance.jobs.comparison import Comparison, compare
from temperance.jobs.evaluation import evaluate
from temperance.jobs.outcomes import MEASURED, Method, Outcome
from temperance.jobs.sides import fit_and_test, read_for_fitting
from temperance.metrics import METRICS
from temperance.metrics.evidence import Evidence
from temperance.predictions import Predictions, read_predictions, write_predictions


def numbered(n: int, first: int = 0) -> Predictions:
    """Predictions of which every row can be told from the others."""
    logits = torch.zeros(n, 3, dtype=torch.float64)
    logits[:, 0] = torch.arange(first, first + n)
    return Predictions.of(logits, torch.arange(n) % 3, from_logits=True)


def row_numbers(part: Predictions) -> set[float]:
    return set(part.scores[:, 0].tolist())


def pair_file(path: Path, n_val: int, n_test: int) -> Path:
    val, test = numbered(n_val), numbered(n_test, first=n_val)
    np.savez(path, val_logits=val.scores, val_labels=val.labels, test_logits=test.scores, test_labels=test.labels)
    return path


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(over_confident(), methods=["temperature", "vector", "temperature-ece", "isotonic"], bootstrap=50)


# ------------------------------------------------------------------------------------------------------ an honest split


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_file_with_only_one_of_two_sets_is_halved(split: str, tmp_path: Path) -> None:
    with np.load(pair_file(tmp_path / "pair.npz", 60, 80)) as both:
        np.savez(tmp_path / "one.npz", **{name: both[name] for name in both if name.startswith(split)})
    one = read_predictions(tmp_path / "one.npz")
    fit, test, said = fit_and_test(tmp_path / "one.npz", None, seed=0)
    assert said.startswith("split at random") and row_numbers(fit) | row_numbers(test) == row_numbers(one)
    np.savez(tmp_path / "no-labels.npz", val_logits=one.scores, test_logits=one.scores, test_labels=one.labels)
    with pytest.raises(FileError, match=r"no-labels\.npz: expected val_labels beside val_logits; found val_logits"):
        fit_and_test(tmp_path / "no-labels.npz", None, seed=0)
    said_by = run("compare", tmp_path / "no-labels.npz")
    assert said_by.err.startswith(f"temperance: {tmp_path / 'no-labels.npz'}: expected val_labels beside val_logits; ")


@pytest.mark.parametrize("n", [2, 7, 100])
def test_halves_have_no_row_in_common(n: int) -> None:
    fit, test, said = fit_and_test(numbered(n), None, seed=0)
    assert not row_numbers(fit) & row_numbers(test)
    assert row_numbers(fit) | row_numbers(test) == set(range(n))
    assert said == f"split at random: fitted on {plural(fit.n, 'sample')}, measured on the other {test.n}"
    again, *_ = fit_and_test(numbered(n), None, seed=0)
    assert torch.equal(again.scores, fit.scores)


def test_a_file_with_both_sets_is_fitted_on_val_and_measured_on_test(tmp_path: Path) -> None:
    path = pair_file(tmp_path / "pair.npz", 4, 6)
    fit, test, said = fit_and_test(path, None, seed=0)
    assert (fit.split, test.split) == ("val", "test")
    assert (row_numbers(fit), row_numbers(test)) == (set(range(4)), set(range(4, 10)))
    assert said == "fitted on its 4 val samples, measured on its 6 test samples"
    assert read_for_fitting(path).split == "val"


def test_with_another_file_to_measure_on_the_val_set_of_the_first_is_fitted(tmp_path: Path) -> None:
    path = pair_file(tmp_path / "pair.npz", 4, 6)
    other = tmp_path / "other.npz"
    write_predictions(other, numbered(5, first=100))
    fit, test, _ = fit_and_test(path, other, seed=0)
    assert (row_numbers(fit), row_numbers(test)) == (set(range(4)), set(range(100, 105)))
    fit, test, _ = fit_and_test(other, path, seed=0)
    assert (row_numbers(fit), row_numbers(test)) == (set(range(100, 105)), set(range(4, 10)))
    fit, test, _ = fit_and_test(path, path, seed=0)
    assert not row_numbers(fit) & row_numbers(test)


def test_sets_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the same classes; got 4 and 3"):
        compare(over_confident(k=4), over_confident(k=3))
    with pytest.raises(InputError, match="must be measured on samples that it was not fitted on"):
        compare(numbered(6), numbered(6))
    named = [
        Predictions.of(*random_predictions(9, 2), class_names=names, from_logits=True)
        for names in (["a", "b"], ["a", "c"])
    ]
    with pytest.raises(InputError, match="class 1 is 'b' in one, 'c' in the other"):
        compare(*named)


# ------------------------------------------------------------------------------------------------------------- numbers


def test_measurements_are_the_metrics_on_the_test_part(found: Comparison) -> None:
    fit, test = over_confident().halves(0)
    for outcome in found.ranked:
        probs = outcome.method.make().fit(fit.scores, fit.labels).predict_proba(test.scores)
        for name in MEASURED:
            assert outcome.measured[name].value == pytest.approx(METRICS[name](probs, test.labels), abs=1e-12)
            row = found.row(name, method=outcome.label)
            assert (row.value, row.n) == (outcome.measured[name].value, test.n)
            if name in ("nll", "ece", "accuracy"):
                assert row.low == outcome.measured[name].low <= row.value <= outcome.measured[name].high == row.high


@pytest.mark.parametrize("given", ["logits", "probs", "probs in float32"])
def test_no_calibration_is_measured_as_evaluate_measures_it(tmp_path: Path, given: str) -> None:
    """Also where labels have less than 1e-12, and where confidences lie on the edges of bins."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(300, 10, generator=generator, dtype=torch.float64)
    logits[:, 0] -= 40
    labels = torch.multinomial((logits / 1.3).softmax(1), 1, generator=generator).squeeze(1)
    labels[:5] = 0
    probs = logits.softmax(1)
    rows = torch.arange(100)
    edges = (9 + rows % 7).double() / 15
    probs[rows] = ((1 - edges) / 9)[:, None]
    probs[rows, rows % 10] = edges
    scores = {"logits": logits, "probs": probs, "probs in float32": probs.float()}[given]
    fit, test = tmp_path / "fit.npz", tmp_path / "test.npz"
    np.savez(fit, logits=logits[:150], labels=labels[:150])
    np.savez(test, labels=labels, **{given.split()[0]: scores.numpy()})  # type: ignore[arg-type]
    found, alone = compare(fit, test, methods=["temperature"], bootstrap=20), evaluate(test, bootstrap=0)
    for name in MEASURED:
        if (name, given) == ("nll", "logits"):
            continue  # which has a floor here, as that of every calibrator; see the next test
        expected = pytest.approx(alone.row(name).value, rel=1e-13)
        assert found.row(name, method="identity").value == expected and found.before.row(name).value == expected


def test_nll_has_one_floor_for_all_methods() -> None:
    """Of logits, too: a label of probability 1e-30 counts as 1e-12, whatever is done to the logits."""
    logits, labels = random_predictions(200, 3, sharpness=2.0)
    logits[:7] = -70.0
    logits[range(7), (labels[:7] + 1) % 3] = 0.0
    data = Predictions.of(logits, labels, from_logits=True)
    found = compare(data, methods=["temperature", "histogram"], bootstrap=20)
    test = found.test
    floored = test.logits().softmax(1).gather(1, test.labels[:, None]).clamp_min(1e-12).log().neg()
    n = int((floored > 27).sum())
    assert n and found.baseline.measured["nll"].value == pytest.approx(float(floored.mean()))
    assert found.before.row("nll").value == found.baseline.measured["nll"].value
    assert evaluate(test, metrics=["nll"], bootstrap=0).row("nll").value > float(floored.mean()) + 1e-3
    for outcome in found.ranked:
        assert outcome.gains is not None
        by = found.baseline.measured["nll"].value - outcome.measured["nll"].value
        assert outcome.gains.mean == pytest.approx(by, abs=1e-9)
    have = "1 label has" if n == 1 else f"{n} labels have"
    assert found.notes[0].startswith(f"{have} a probability of 0, or below 1e-12, which NLL counts as 1e-12. So ")
    assert found.notes[0].endswith("`temperance evaluate` has no such floor for logits.")


def test_gains_are_what_each_sample_gains_over_no_calibration(found: Comparison) -> None:
    fit, test = over_confident().halves(0)
    old = test.scores.log_softmax(1)
    for outcome in found.ranked:
        change = (
            outcome.method.make().fit(fit.scores, fit.labels).predict_proba(test.scores).clamp_min(1e-12).log() - old
        )
        assert outcome.gains
        assert torch.allclose(outcome.gains.values, change.gather(1, test.labels[:, None]).squeeze(1), atol=1e-12)
        assert (outcome.gains.least, outcome.gains.most) == pytest.approx((float(change.min()), float(change.max())))


def test_before_and_after_are_no_calibration_and_the_recommended_one(found: Comparison) -> None:
    for side, outcome in ((found.before, found.baseline), (found.after, found.recommended)):
        for name in ("nll", "ece", "accuracy"):
            row = side.row(name)
            assert (row.value, row.low, row.high) == pytest.approx(dataclasses.astuple(outcome.measured[name])[:3])
        assert side.row("brier").low < side.row("brier").value  # what the ranking has no interval for keeps its own


def test_nothing_is_measured_for_a_page_that_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["temperance.jobs.comparison"], "evaluate", None)
    found = compare(over_confident(60), methods=["temperature"], bootstrap=20)
    Console(file=io.StringIO()).print(found)
    found.to_json()
    with pytest.raises(TypeError):
        found.before  # noqa: B018


def test_resamples_are_paired(found: Comparison) -> None:
    one, other = found.ranked[:2]
    for name in one.draws:
        itself = one.minus(one, name)
        assert (itself.value, itself.low, itself.high, itself.p_value) == (0, 0, 0, 1)
        by, back = one.minus(other, name), other.minus(one, name)
        assert by.value == pytest.approx(-back.value) and by.p_value == back.p_value
    # Much of what one resample does to a method it does to the other: the difference varies less than either.
    by = one.minus(other, "nll")
    assert by.high - by.low < 0.5 * (one.measured["nll"].high - one.measured["nll"].low)


def test_the_seed_decides(found: Comparison) -> None:
    same, other = (compare(over_confident(), methods=["temperature"], bootstrap=50, seed=seed) for seed in (0, 1))
    outcome = next(o for o in found.outcomes if o.label == "temperature")
    assert same.row("nll", method="temperature").low == outcome.measured["nll"].low
    assert other.row("nll", method="temperature").value != outcome.measured["nll"].value


def test_probabilities_are_as_good_as_logits() -> None:
    logits, labels = random_predictions(300, 3)
    as_logits = compare(Predictions.of(logits, labels, from_logits=True), methods=["temperature"], bootstrap=20)
    as_probs = compare(Predictions.of(logits.softmax(1), labels), methods=["temperature"], bootstrap=20)
    for one, other in zip(as_logits.rows, as_probs.rows, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)


def test_two_jobs_are_as_good_as_one(found: Comparison) -> None:
    methods = [outcome.label for outcome in found.outcomes if outcome is not found.baseline]
    spread = compare(over_confident(), methods=methods, bootstrap=50, jobs=2)
    assert [row.metric for row in spread.rows] == [row.metric for row in found.rows]
    for one, other in zip(found.rows, spread.rows, strict=True):
        assert (one.method, one.params, one.n) == (other.method, other.params, other.n)
        assert (one.value, one.low, one.high) == pytest.approx(
            (other.value, other.low, other.high), abs=1e-9, nan_ok=True
        )
    assert spread.verdict == found.verdict
    _, test = over_confident().halves(0)
    for alone, beside in zip(found.ranked, spread.ranked, strict=True):
        assert alone.fitted and beside.fitted
        assert torch.allclose(alone.fitted.predict_proba(test.scores), beside.fitted.predict_proba(test.scores))


# ------------------------------------------------------------------------------------------- what is ranked and advised


def test_the_lowest_nll_is_first_and_no_calibration_among_them(found: Comparison) -> None:
    values = [outcome.measured["nll"].value for outcome in found.ranked]
    assert values == sorted(values)
    assert found.baseline.label == "identity" and found.baseline in found.ranked
    assert found.recommended is found.ranked[0]
    assert found.verdict.startswith(
        f"Use {found.recommended.label}: it is significantly better than no calibration (p ≤ 0.001, "
        "corrected for the number of methods). The probability that it does harm, "
        "a higher NLL on new data like these, is less"
    )


def test_no_calibration_is_recommended_where_the_model_is_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(1000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    data = Predictions.of(logits, labels, from_logits=True)
    found = compare(data, methods=["temperature", "vector", "isotonic"], bootstrap=50)
    assert found.recommended is found.baseline and found.verdict.startswith("Leave it as it is")


def test_a_less_accurate_method_is_not_recommended_however_low_its_nll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 0 is given a head start: far better in NLL than a model that is wildly sure, but often wrong."""

    class HeadStart(Temperature):
        def _calibrate(self, logits: Tensor) -> Tensor:
            favour = torch.zeros(logits.shape[1], dtype=logits.dtype)
            favour[0] = 1.5
            return super()._calibrate(logits).add(favour).log_softmax(1)

    HeadStart.name = "head-start"
    monkeypatch.setitem(CALIBRATORS._entries, "head-start", HeadStart)
    data = Predictions.of(*random_predictions(1500, 4, sharpness=20.0), from_logits=True)
    found = compare(data, methods=["head-start"], bootstrap=50)
    assert found.ranked[0].label == "head-start"
    assert found.recommended is found.baseline
    assert found.chance["head-start"] < 0.05
    assert "head-start has a lower NLL, but a lower accuracy than no calibration." in found.verdict


# ------------------------------------------------------------------------------------------------------ what comes out


def test_provenance_knows_both_parts(found: Comparison) -> None:
    fit, test = over_confident().halves(0)
    assert found.provenance.inputs == {"fit: arrays": fit.fingerprint, "test: arrays": test.fingerprint}
    assert (found.provenance.settings["n_fit"], found.provenance.settings["n_test"]) == (300, 300)


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="needs a checkout, and git")
def test_provenance_knows_the_commit(found: Comparison) -> None:
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert found.provenance.commit and commit.startswith(found.provenance.commit)


def test_json_and_csv(found: Comparison) -> None:
    read = json.loads(found.to_json())
    assert (read["recommended"], read["verdict"], read["split"]) == (
        found.recommended.label,
        found.verdict,
        found.split,
    )
    assert len(read["rows"]) == len(found.rows) == len(found.ranked) * len(MEASURED)
    assert found.to_csv().count("\n") == len(found.rows) + 1


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_table_fits_the_terminal(found: Comparison, width: int) -> None:
    why, nothing = "what [/failed] [red]so[/red]", Evidence.counted(0, 0)
    failed = Outcome(Method("odd", {}), None, why, 0.1, {}, {}, None, float("nan"), 0, nothing)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(dataclasses.replace(found, outcomes=(*found.outcomes, failed)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert all(outcome.label in text for outcome in found.outcomes)
    assert found.verdict[:40] in text
    if width >= 80:
        assert "[/failed]" in text and "recommended" in text
    assert ("parameters" in text) == (width >= 110)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    compare(
        over_confident(60),
        methods=["temperature", "vector"],
        bootstrap=20,
        progress=lambda done, steps, what: told.append((done, steps)),
    )
    assert told == sorted(told) and told[-1][0] == told[-1][1]


def test_wrong_calls() -> None:
    with pytest.raises(InputError, match="jobs must be a whole number of at least 1"):
        compare(over_confident(60), jobs=0)
    with pytest.raises(InputError, match="bootstrap must be a whole number from 20 to 2"):
        compare(over_confident(60), bootstrap=19)
    with pytest.raises(InputError, match="n_bins must be a whole number from 1 to 2"):
        compare(over_confident(60), methods=["temperature"], n_bins=0, bootstrap=20)


def test_options_that_no_set_can_use_are_refused(tmp_path: Path) -> None:
    data, other = over_confident(), over_confident(seed=1)
    path = tmp_path / "p.npz"
    write_predictions(path, data)
    options: list[dict[str, Any]] = [{"positive": 1}, {"normalise": True}, {"columns": {"label": "y"}}]
    for option in options:
        for sets in ((data,), (data, other)):
            with pytest.raises(InputError, match="a Predictions knows what it holds"):
                compare(*sets, methods=["temperature"], bootstrap=20, **option)
    for given in (data, path):
        with pytest.raises(InputError, match="says whether it holds logits"):
            compare(given, methods=["temperature"], bootstrap=20, from_logits=True)
    # Here they are for the other set.
    arrays = other.scores, other.labels
    for given in (data, path):
        found = compare(given, test=arrays, from_logits=True, methods=["temperature"], bootstrap=20)
        assert found.test.from_logits and found.test.n == other.n


def test_slow_methods_are_left_out_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Matrix, "most_classes", 2)
    some = [Method("temperature", {}), Method("matrix", {})]
    monkeypatch.setattr(comparison, "chosen_methods", lambda methods, by_group: some)
    logits, labels = random_predictions(200, 3)
    found = compare(logits, labels, from_logits=True, bootstrap=20)
    assert found.left_out == ("matrix",) and [each.label for each in found.outcomes if each.label == "matrix"] == []
    assert any(note.startswith("With 3 classes, these methods can take minutes") for note in found.notes)
    named = compare(logits, labels, from_logits=True, bootstrap=20, methods=["temperature", "matrix"])
    assert not named.left_out and "matrix" in [each.label for each in named.outcomes]
