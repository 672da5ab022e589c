"""temperance compare, fit and apply as a user meets them: real files, and wrong input on purpose."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import refused
from conftest import random_predictions
from temperance.calibrators import load_calibrator, make_calibrator
from temperance.cli import main
from temperance.jobs.comparison import Comparison, compare
from temperance.jobs.evaluation import evaluate
from temperance.predictions import Predictions, read_predictions, write_predictions

QUICK = ["--methods", "temperature,vector", "--bootstrap", "20"]


def predictions(seed: int = 0, n: int = 400, k: int = 4) -> Predictions:
    logits, labels = random_predictions(n, k, seed, sharpness=4.0)
    groups = ["day", "night"] * (n // 2)
    names = ["ant", "bee", "cat", "dog"][:k]
    return Predictions.of(logits, labels, from_logits=True, class_names=names, groups=groups)


@pytest.fixture
def val(tmp_path: Path) -> Path:
    write_predictions(tmp_path / "val.npz", predictions(0))
    return tmp_path / "val.npz"


@pytest.fixture
def test(tmp_path: Path) -> Path:
    write_predictions(tmp_path / "test.npz", predictions(1))
    return tmp_path / "test.npz"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    sets = {"val": predictions(0, n=300), "test": predictions(1)}
    arrays = {f"{name}_{part}": getattr(data, kind) for name, data in sets.items() for part, kind in PARTS.items()}
    np.savez(tmp_path / "pair.npz", **arrays)
    return tmp_path / "pair.npz"


PARTS = {"logits": "scores", "labels": "labels"}


# ------------------------------------------------------------------------------------------------------------- compare


def test_a_table_and_a_verdict(val: Path, test: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(val), str(test), *QUICK]) == 0
    out = capsys.readouterr().out
    assert "fitted on 400 samples, measured on 400 others" in out
    for word in ("identity", "temperature", "vector", "recommended", "significantly better than no calibration"):
        assert word in out


def test_one_file_is_halved_and_one_with_both_sets_is_not(
    val: Path, pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(val), *QUICK]) == 0
    assert "split at random: fitted on 200 samples, measured on the other 200" in capsys.readouterr().out
    assert main(["compare", str(pair), *QUICK]) == 0
    assert "fitted on its 300 val samples, measured on its 400 test samples" in capsys.readouterr().out


def test_json_and_csv_are_those_of_the_library(
    val: Path, test: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    options = ["--n-bins", "10", "--seed", "3", "--json", "--csv", str(out)]
    assert main(["compare", str(val), str(test), *QUICK, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = compare(val, test, methods=["temperature", "vector"], n_bins=10, bootstrap=20, seed=3)
    assert found["recommended"] == expected.recommended.label and found["verdict"] == expected.verdict
    assert [row["value"] for row in found["rows"]] == [row.value for row in expected.rows]
    lows = [float(row["low"]) for row in csv.DictReader(io.StringIO(out.read_text()))]
    assert lows == pytest.approx([row.low for row in expected.rows], rel=0, abs=0, nan_ok=True)
    assert found["p_values"] == expected.chance


def test_what_fails_is_a_row(val: Path, test: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["--methods", "temperature, meta-acc:accuracy=0.01", "--bootstrap", "20"]
    assert main(["compare", str(val), str(test), *methods, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recommended"] == "temperature"
    assert "accuracy must lie between" in found["failures"]["meta-acc:accuracy=0.01"]
    assert main(["compare", str(val), str(test), *methods]) == 0
    assert "meta-acc:accuracy=0.01" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_a_mistyped_setting_is_refused_before_any_file_is_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method, nowhere = "class-temperature-greedy:sweeps=abc", str(tmp_path / "nowhere.npz")
    arguments = {
        "fit": [method, nowhere, "-o", str(tmp_path / "cal.safetensors")],
        "compare": [nowhere, "--methods", f"temperature,{method}"],
    }
    assert main([command, *arguments[command]]) == 2
    expected = "temperance: class-temperature-greedy: sweeps must be a whole number of at least 0; got 'abc'\n"
    assert capsys.readouterr().err == expected


def test_the_recommended_one_is_saved_and_can_be_used(
    val: Path, test: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, report = tmp_path / "cal.safetensors", tmp_path / "report.html"
    options = ["-o", str(saved), "--report", str(report), "--json"]
    assert main(["compare", str(val), str(test), *QUICK, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert load_calibrator(saved).name == found["recommended"]
    assert found["recommended"] in report.read_text() and "Comparison of calibrators" in report.read_text()
    assert main(["evaluate", str(test), "--calibrator", str(saved), "--json", "--bootstrap", "0"]) == 0
    rows = {row["metric"]: row["value"] for row in json.loads(capsys.readouterr().out)["rows"]}
    for row in found["rows"]:
        if row["method"] == found["recommended"] and row["metric"] in rows:
            assert rows[row["metric"]] == pytest.approx(row["value"], abs=1e-12)


def test_what_is_saved_says_what_it_was_fitted_on(
    val: Path, test: Path, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "cal.safetensors"
    for arguments, fitted_on in (
        ([val], "200 samples (a random half of val.npz)"),
        ([val, "--refit"], "400 samples (all of val.npz)"),
        ([val, test], "400 samples (val.npz)"),
        ([val, test, "--refit"], "800 samples (val.npz and test.npz)"),
        ([pair], "300 samples (val of pair.npz)"),
        ([pair, "--refit"], "700 samples (all of pair.npz)"),
    ):
        assert main(["compare", *map(str, arguments), "-o", str(saved), "--methods", "temperature"]) == 0
        assert capsys.readouterr().err == f"temperature, fitted on {fitted_on}, is in {saved}\n"
        assert load_calibrator(saved).info["fitted_on"] == fitted_on


def test_refit_fits_what_is_saved_on_everything(val: Path, test: Path, tmp_path: Path) -> None:
    saved = tmp_path / "cal.safetensors"
    assert main(["compare", str(val), str(test), *QUICK, "-o", str(saved), "--refit"]) == 0
    parts = [read_predictions(path) for path in (val, test)]
    logits, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("scores", "labels"))
    found = load_calibrator(saved)
    expected = make_calibrator(found.name).fit(logits, labels)
    assert torch.equal(found.predict_proba(logits), expected.predict_proba(logits))


def test_refit_without_a_file_to_save_it_in_is_refused(val: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "add -o CAL to save it" in refused(["compare", str(val), "--refit"], capsys)


def test_where_nothing_is_recommended_nothing_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, saved = tmp_path / "few.npz", tmp_path / "cal.safetensors"
    write_predictions(few, predictions(n=12))
    assert main(["compare", str(few), *QUICK, "-o", str(saved)]) == 2
    said = capsys.readouterr()
    assert "Leave it as it is" in said.out and not saved.exists()
    remedy = f"temperance fit METHOD {few} -o {saved}"
    assert said.err == (
        f"temperance: no calibrator is recommended, so nothing is written to {saved}. To save a method anyway: "
        f"{remedy}\n"
    )
    assert main(remedy.replace("METHOD", "temperature").split()[1:]) == 0 and saved.exists()


def test_where_nothing_could_be_fitted_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "one_class.npz", tmp_path / "best.safetensors"
    np.savez(path, logits=predictions(n=40).scores, labels=[1] * 40)
    for options in ([], ["--json"]):
        assert main(["compare", str(path), "-o", str(out), "--methods", "temperature", *options]) == 2
        said = capsys.readouterr()
        assert "Nothing to recommend" in said.out and "recommended, no" not in said.out
        assert said.err == f"temperance: no calibrator could be fitted, so nothing is written to {out}\n"
        assert not out.exists()


def test_jobs_are_passed_on(val: Path, test: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That two jobs find what one finds is a test of `compare`."""
    asked = []

    def compared(*sets: Any, jobs: int, **options: Any) -> Comparison:
        asked.append(jobs)
        return compare(*sets, **options)

    monkeypatch.setattr("temperance.jobs.comparison.compare", compared)
    for jobs in ([], ["--jobs", "2"]):
        assert main(["compare", str(val), str(test), *QUICK, *jobs]) == 0
    assert asked == [1, 2]


# ------------------------------------------------------------------------------------------------------- fit and apply


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_fit_and_apply(suffix: str, val: Path, test: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "cal.safetensors", tmp_path / f"out{suffix}"
    assert main(["fit", "vector", str(val), "-o", str(saved)]) == 0
    assert f"fitted vector on 400 samples; saved in {saved}" in "".join(capsys.readouterr().out.splitlines())
    assert main(["apply", str(saved), str(test), "-o", str(out)]) == 0
    assert "calibrated 400 samples with vector" in capsys.readouterr().out
    fitted = make_calibrator("vector").fit(predictions(0).scores, predictions(0).labels)
    found = read_predictions(out)
    assert torch.allclose(found.scores, fitted.predict_proba(predictions(1).scores), atol=1e-12)
    assert torch.equal(found.labels, predictions(1).labels) and not found.from_logits
    assert found.class_names == ("ant", "bee", "cat", "dog")
    assert found.groups is not None and found.groups[:2].tolist() == ["day", "night"]
    assert evaluate(found, bootstrap=0).row("nll").value < evaluate(test, bootstrap=0).row("nll").value


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
@pytest.mark.parametrize("from_logits", [True, False])
def test_new_predictions_need_no_labels(
    suffix: str, from_logits: bool, val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, new, out = tmp_path / "cal.safetensors", tmp_path / f"new{suffix}", tmp_path / f"out{suffix}"
    assert main(["fit", "temperature", str(val), "-o", str(saved)]) == 0
    logits = predictions(1).scores
    write_predictions(new, Predictions.of(logits if from_logits else logits.softmax(1), from_logits=from_logits))
    assert main(["apply", str(saved), str(new), "-o", str(out)]) == 0
    found = read_predictions(out, labels="optional")
    assert not found.has_labels and not found.from_logits
    assert torch.allclose(found.scores, load_calibrator(saved).predict_proba(logits), atol=1e-6)
    # What measures or fits still needs them.
    capsys.readouterr()
    for command in (["evaluate"], ["compare"], ["fit", "temperature"]):
        output = [] if command == ["evaluate"] else ["-o", str(tmp_path / "no.safetensors")]
        assert re.search("labels beside |the column label", refused([*command, str(new), *output], capsys))


def test_fit_with_settings(val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "cal.safetensors"
    assert main(["fit", "temperature", str(val), "-o", str(saved), "--objective", "brier"]) == 0
    assert "fitted temperature:objective=brier" in capsys.readouterr().out
    assert load_calibrator(saved).get_params()["objective"] == "brier"
    wanted = "temperature:objective=class-scaled:objective.normalise=mm"
    for written in (
        [wanted],
        ["temperature", "--objective", "class-scaled:normalise=mm"],
        ["temperature", "--objective", "class-scaled", "--set", "objective.normalise=mm"],
    ):
        assert main(["fit", *written, str(val), "-o", str(saved)]) == 0
        assert f"fitted {wanted} on" in capsys.readouterr().out
        assert load_calibrator(saved).get_params()["objective"] == "class-scaled:normalise=mm"
    assert main(["fit", "histogram", str(val), "-o", str(saved), "--set", "n-bins=5"]) == 0
    assert load_calibrator(saved).get_params()["n_bins"] == 5


def test_fit_shows_what_it_found(val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "cal.safetensors"

    def said(*arguments: str) -> list[str]:
        assert main(["fit", *arguments, str(val), "-o", str(saved)]) == 0
        return capsys.readouterr().out.splitlines()

    lines = said("temperature", "--objective", "class-scaled")
    fitted = load_calibrator(saved)
    assert lines[1] == f"  temperature: {float(fitted.state_dict()['temperature']):.4g}"
    assert len(fitted.info["class_weights"]) == 4 and not any("class_weights" in line for line in lines)
    lines = said("class-temperature")
    each = load_calibrator(saved).state_dict()["temperatures"]
    assert lines[1] == f"  temperature of each class: 4 numbers, {float(each.min()):.4g} … {float(each.max()):.4g}"
    assert not any("n_classes" in line or "[" in line for line in lines)


@pytest.mark.parametrize("method", ["auto", "isotonic", "dirichlet", "class-temperature-greedy", "identity"])
def test_what_fit_shows_is_short(method: str, val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", method, str(val), "-o", str(tmp_path / "cal.safetensors")]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert method in first
    if method == "auto":
        assert lines.pop(0).startswith("The probability that calibrating does harm")
    assert all(line.startswith("  ") and len(line) < 250 and "[" not in line for line in lines)
    assert len(lines) <= 10


def test_a_calibrator_does_not_replace_predictions(
    val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.npz"
    other.write_bytes(val.read_bytes())
    for command in (["fit", "temperature"], ["compare", *QUICK]):
        said = refused([*command, str(val), "-o", str(other)], capsys)
        assert f"a calibrator is saved as .safetensors; call it {tmp_path / 'other.safetensors'}" in said
    assert other.read_bytes() == val.read_bytes()


def test_fit_takes_the_method_first(val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["fit", str(val), "auto", "-o", str(tmp_path / "cal.safetensors")], capsys)
    assert f"the method comes first: temperance fit auto {val}" in said


def test_of_a_file_with_both_sets_val_is_fitted_and_test_calibrated(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = tmp_path / "cal.safetensors", tmp_path / "out.npz"
    assert main(["fit", "temperature", str(pair), "-o", str(saved)]) == 0
    assert "on 300 samples" in capsys.readouterr().out
    for split, n in (([], 400), (["--split", "val"], 300)):
        assert main(["apply", str(saved), str(pair), "-o", str(out), *split]) == 0
        assert read_predictions(out).n == n


# ----------------------------------------------------------------------------------------------------- wrong on purpose


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Predictions over another number of classes."""
    write_predictions(tmp_path / "three.npz", predictions(2, k=3))
    return tmp_path / "three.npz"


def test_compare_refuses(val: Path, three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        return refused(["compare", str(val), *arguments], capsys)

    assert "same classes; got 4 and 3" in said(str(three))
    assert "measured on samples that it was not fitted on" in said(str(val))
    assert "did you mean temperature" in said("--methods", "temprature")
    assert "no setting of vector named 'bins'" in said("--methods", "vector:bins=3")
    assert "key=value" in said("--methods", "vector:3")
    assert "temperance: --jobs must be a whole number of at least 1" in said("--jobs", "0")
    assert "temperance: --bootstrap must be a whole number from 20 to 2^20" in said("--bootstrap", "5")
    assert "temperance: --n-bins must be a whole number from 1 to 2^30" in said(
        "--n-bins", "0", "--methods", "temperature"
    )
    assert "does not exist" in said(str(tmp_path / "nowhere.npz"))


def test_fit_refuses(val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cal.safetensors"

    def said(method: str, path: Path, *arguments: str) -> str:
        return refused(["fit", method, str(path), "-o", str(out), *arguments], capsys)

    assert "did you mean temperature" in said("temprature", val)
    assert "no objective named 'nll2'" in said("temperature", val, "--objective", "nll2")
    assert "no setting of temperature named 'x'" in said("temperature", val, "--set", "x=1")
    assert "key=value" in said("temperature", val, "--set", "x")
    few, one_label = tmp_path / "few.npz", tmp_path / "one.npz"
    write_predictions(few, predictions(n=4))
    np.savez(one_label, logits=predictions(n=4).scores, labels=[1] * 4)
    assert "needs at least 10 samples" in said("meta-mis", few)
    assert "labels of at least two classes" in said("temperature", one_label)
    assert not out.exists()


def test_apply_refuses(val: Path, three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = tmp_path / "cal.safetensors", tmp_path / "out.npz"
    main(["fit", "temperature", str(val), "-o", str(saved)])
    capsys.readouterr()
    assert "fitted on 4 classes; these logits have 3" in refused(
        ["apply", str(saved), str(three), "-o", str(out)], capsys
    )
    assert "not a calibrator saved by temperance" in refused(
        ["apply", wrong_file(tmp_path), str(val), "-o", str(out)], capsys
    )
    assert f"{val} is not a calibrator saved by temperance" in refused(
        ["apply", str(val), str(val), "-o", str(out)], capsys
    )
    assert f"the calibrator comes first: temperance apply {saved} {val} -o" in refused(
        ["apply", str(val), str(saved), "-o", str(out)], capsys
    )
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(saved.read_bytes()[:200])
    assert "damaged" in refused(["apply", str(cut), str(val), "-o", str(out)], capsys)
    assert "does not exist" in refused(["apply", str(tmp_path / "no"), str(val), "-o", str(out)], capsys)
    # The output is looked at before anything is read.
    nowhere, text = str(tmp_path / "no"), str(tmp_path / "out.txt")
    assert "out.txt must be a file in one of the formats" in refused(["apply", nowhere, nowhere, "-o", text], capsys)
    assert not out.exists() and not (tmp_path / "out.txt").exists()


def wrong_file(folder: Path) -> str:
    """A file of the right format that is no calibrator."""
    write_predictions(folder / "pred.safetensors", predictions(n=4))
    return str(folder / "pred.safetensors")


def test_unwritable_outputs_are_refused_first(val: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrator = tmp_path / "cal.safetensors"
    main(["fit", "temperature", str(val), "-o", str(calibrator)])
    capsys.readouterr()
    before = sorted(tmp_path.iterdir())
    for path in (str(tmp_path), str(tmp_path / "no" / "file")):
        for option in ("-o", "--json", "--csv", "--report"):
            assert "cannot be written" in refused(["compare", "nowhere.npz", option, path], capsys)
        assert "cannot be written" in refused(["fit", "temperature", "nowhere.npz", "-o", path], capsys)
        assert "cannot be written" in refused(["apply", str(calibrator), "nowhere.npz", "-o", path], capsys)
    assert sorted(tmp_path.iterdir()) == before


def test_odd_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are markup to the terminal library; in a file's or a class's name they are only brackets."""
    folder = tmp_path / "[b]["
    folder.mkdir()
    path, saved, out = folder / "[red]a].npz", folder / "cal].safetensors", folder / "out].npz"
    logits, labels = random_predictions(200, 3, sharpness=4.0)
    names = ["[/a]", "[bold]b", "c]"]
    write_predictions(path, Predictions.of(logits, labels, from_logits=True, class_names=names))

    def told(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return "".join(capsys.readouterr().out.splitlines())

    assert "[red]a].npz" in told("compare", str(path), *QUICK, "-o", str(saved))
    assert str(saved) in told("fit", "temperature", str(path), "-o", str(saved))
    assert str(out) in told("apply", str(saved), str(path), "-o", str(out))
    said = told("evaluate", str(path), "--bootstrap", "0")
    assert "[red]a].npz" in said and "[bold]b: " in said
