"""Answers, each with one confidence and right or wrong: read, measured, compared, calibrated and written."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file

import temperance
from commands import applied, run
from temperance.calibrators import Temperature, load_calibrator, make_calibrator
from temperance.diagnose.analysis import analyse
from temperance.errors import FileError, InputError
from temperance.jobs import application
from temperance.jobs.blocks import combine, statistics
from temperance.jobs.evaluation import evaluate
from temperance.jobs.gap import calibration_gap
from temperance.jobs.ood import compare_ood
from temperance.metrics import METRICS, failure_auroc
from temperance.predictions import Predictions, read_predictions, write_predictions
from temperance.report import write_report

SUFFIXES = (".npz", ".safetensors", ".parquet", ".csv", ".jsonl")


def answers(n: int = 2000, seed: int = 0) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Over-confident answers, many of them more likely wrong than right; confidences are rounded, as when stated."""
    generator = np.random.default_rng(seed)
    truth = generator.beta(2, 3, n)
    return np.round(0.3 + 0.7 * truth, 2), generator.random(n) < truth


def saved(path: Path, names: tuple[str, str] = ("confidence", "correct")) -> Path:
    confidence, correct = answers(300)
    arrays: dict[str, Any] = {names[0]: confidence, names[1]: correct, "question": np.arange(300)}
    np.savez(path, **arrays)
    return path


# ----------------------------------------------------------------------------------------------------------- measuring


def test_the_numbers_are_those_of_plain_formulas() -> None:
    confidence, correct = answers()
    found = evaluate(confidence, correct, answers=True, metrics="all", bootstrap=0)
    value = {row.metric: row.value for row in found.rows}
    assert value["accuracy"] == pytest.approx(correct.mean())
    assert value["confidence-gap"] == pytest.approx(confidence.mean() - correct.mean())
    assert value["brier"] == pytest.approx(np.square(confidence - correct).mean())
    given = np.where(correct, confidence, 1 - confidence).clip(1e-12)
    assert value["nll"] == pytest.approx(-np.log(given).mean())
    bins = np.ceil(confidence * 15 - 1e-9).clip(1) - 1
    gaps = [abs((confidence - correct)[bins == j].sum()) for j in range(15)]
    assert value["ece"] == pytest.approx(sum(gaps) / len(correct))
    right, wrong = confidence[correct], confidence[~correct]
    above = (right[:, None] > wrong).mean() + (right[:, None] == wrong).mean() / 2
    assert value["failure-auroc"] == pytest.approx(above)


def test_a_binary_classifier_is_something_else() -> None:
    confidence, correct = answers()
    as_classes = evaluate(confidence, correct.astype(int), positive=1, bootstrap=0)
    as_answers = evaluate(confidence, correct, answers=True, bootstrap=0)
    assert as_classes.row("accuracy").value != pytest.approx(as_answers.row("accuracy").value, abs=0.05)


def test_the_verdict_speaks_of_answers_alone() -> None:
    found = evaluate(*answers(), answers=True, bootstrap=20)
    assert found.title == "arrays · 2,000 answers"
    assert found.verdict.startswith("Over-confident. On 2,000 answers the model is")
    assert "class" not in found.verdict and "probability of" not in found.verdict
    assert json.loads(found.to_json())["provenance"]["settings"]["answers"] is True


@pytest.mark.parametrize(("outcome", "word"), [(1, "right"), (0, "wrong")])
def test_answers_of_one_outcome_are_said(outcome: int, word: str) -> None:
    found = evaluate([0.7, 0.9] * 10, [outcome] * 20, answers=True)
    assert any(note.startswith(f"Every answer is {word}, so nothing shows") for note in found.notes)
    assert np.isnan(evaluate([0.7] * 20, [outcome] * 20, answers=True, metrics=["failure-auroc"]).rows[0].value)


def test_calibrated_answers_are_not_called_off() -> None:
    generator = np.random.default_rng(3)
    truth = generator.beta(2, 3, 5000)
    found = evaluate(truth, generator.random(5000) < truth, answers=True)
    assert found.verdict.startswith("No miscalibration found in 5,000 answers.")


def test_blocks_add_and_groups_and_weights_count() -> None:
    confidence, correct = answers(600)
    groups = np.repeat(["law", "maths"], 300)
    whole = Predictions.of(confidence, correct, answers=True, groups=groups)
    found = evaluate(whole, by_group=True, metrics=["ece"], bootstrap=0)
    tables = [{"confidence": confidence[i::2], "correct": correct[i::2]} for i in (0, 1)]
    together = combine(statistics(table, ["ece"], answers=True) for table in tables)
    assert together.row("ece").value == pytest.approx(found.row("ece").value, abs=1e-12)
    law = evaluate(confidence[:300], correct[:300], answers=True, metrics=["ece"], bootstrap=0)
    assert found.row("ece", group="law").value == pytest.approx(law.row("ece").value, abs=1e-12)
    counts = np.arange(600) % 3
    weighted = evaluate(confidence, correct, answers=True, weights=counts, metrics="all", bootstrap=0)
    repeated = evaluate(confidence.repeat(counts), correct.repeat(counts), answers=True, metrics="all", bootstrap=0)
    for row in repeated.rows:
        assert weighted.row(row.metric).value == pytest.approx(row.value, abs=1e-9), row.metric


def test_the_gap_without_bins() -> None:
    confidence, correct = answers()
    gaps = calibration_gap(confidence, correct, answers=True, method="isotonic")
    assert gaps["top-l1"].value == pytest.approx((confidence - correct).mean(), abs=0.03)
    assert gaps["brier"].value == pytest.approx(gaps["top-l2"].value ** 2, rel=0.2)


def test_auroc_of_a_classifier_is_that_of_its_answers() -> None:
    logits = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    labels = logits.argmax(1).where(torch.rand(500, generator=torch.Generator().manual_seed(1)) < 0.7, 0)
    probs = logits.softmax(1)
    found = evaluate(probs.amax(1), probs.argmax(1) == labels, answers=True, metrics=["failure-auroc"], bootstrap=0)
    assert found.rows[0].value == pytest.approx(failure_auroc(probs, labels), abs=1e-12)
    with pytest.raises(InputError, match="leave out loss"):
        failure_auroc(probs, labels, loss="nll")


@pytest.mark.parametrize("name", ["accuracy", "nll", "brier", "ece"])
def test_what_a_metric_is_holds_for_answers(name: str) -> None:
    assert "class" not in METRICS[name].summary and "label" not in METRICS[name].summary


def test_notes_speak_of_answers() -> None:
    found = evaluate([1.0, 0.0, 0.8, 0.3] * 10, [0, 0, 1, 1] * 10, answers=True, bootstrap=0)
    assert found.notes[0].startswith("10 answers are wrong at a confidence of 1, or right at 0: such an outcome has a")
    assert "on the other 30 answers it is" in found.notes[0]
    assert evaluate([0.9], [1], answers=True).verdict.startswith("One answer cannot tell.")


def test_a_threshold_in_a_report_answers_all_equal_confidences(tmp_path: Path) -> None:
    confidence, correct = np.repeat([0.9, 0.5], [60, 40]), np.tile([1, 1, 0, 1, 0], 20)
    write_report(evaluate(confidence, correct, answers=True, bootstrap=0), tmp_path / "page.html")
    table = (tmp_path / "page.html").read_text().split("Confidence at least")[1].split("</table>")[0]
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", table.replace("\u00a0", " "))
    assert cells == ["100 %", "40.00 %", "50.00 %", "60 %", "40.00 %", "90.00 %"]


# -------------------------------------------------------------------------------------------- comparing and calibrating


def test_comparing_calibrates_and_leaves_accuracy_alone() -> None:
    confidence, correct = answers()
    found = temperance.compare(confidence, correct, answers=True, methods=["temperature", "isotonic"], bootstrap=50)
    assert found.recommended.label == "isotonic" and "1,000 answers" in found.title
    right = found.baseline.measured["accuracy"].value
    assert all(outcome.measured["accuracy"].value == right for outcome in found.ranked)
    assert "classwise-ece" not in found.baseline.measured
    assert found.after.row("ece").value < 0.05 < found.before.row("ece").value
    assert not any("class" in note for note in found.notes)


@pytest.mark.parametrize("target", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_a_file_is_calibrated_and_can_be_read_again(tmp_path: Path, source: str, target: str) -> None:
    confidence, correct = answers(300)
    path = tmp_path / f"in{source}"
    write_predictions(path, read_predictions(saved(tmp_path / "arrays.npz"), answers=True))
    assert (
        read_predictions(path, answers=True).fingerprint
        == Predictions.of(confidence, correct, answers=True).fingerprint
    )
    cal = tmp_path / "cal.safetensors"
    assert run("fit", "platt", path, "--answers", "-o", cal).code == 0
    again = read_predictions(applied(cal, path, tmp_path / f"out{target}", "--answers"), answers=True)
    expected = load_calibrator(cal).predict_proba(np.log(np.stack([1 - confidence, confidence], 1).clip(1e-12)))
    assert again.calibrated_by == "platt" and again.labels.tolist() == correct.astype(int).tolist()
    assert again.scores[:, 1].numpy() == pytest.approx(expected[:, 1], abs=1e-9)
    write_predictions(tmp_path / "back.npz", again)
    back = np.load(tmp_path / "back.npz")
    assert set(back.files) == {"confidence", "correct", "question", "calibrated_by"}
    assert back["question"].tolist() == list(range(300))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_another_confidence_is_not_lost(tmp_path: Path, suffix: str) -> None:
    confidence, correct = answers(300)
    arrays = {"stated": confidence, "is_right": correct.astype(np.int64), "probs": confidence}
    own = {"probs": "stated", "label": "is_right"}
    for extra in ({}, {"confidence": confidence}):
        path = saved_as(tmp_path / f"answers{suffix}", arrays | extra)
        data = read_predictions(path, answers=True, columns=own)
        found = temperance.apply(application.fit(make_calibrator("platt"), data), data)
        if extra:
            with pytest.raises(FileError, match="confidence collides with the new confidence; rename or remove it"):
                write_predictions(tmp_path / f"new{suffix}", found)
        else:
            write_predictions(tmp_path / f"new{suffix}", found)
            back = read_predictions(tmp_path / f"new{suffix}", answers=True, columns={"label": "is_right"})
            assert torch.equal(back.scores[:, 1], found.scores[:, 1])


def saved_as(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        save_file(arrays, path)
    return path


@pytest.mark.parametrize(("outcome", "word"), [(1, "right"), (0, "wrong")])
def test_fitting_needs_right_and_wrong_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: int, word: str
) -> None:
    sentence = f"every answer to fit on is {word}, and a calibrator learns from right and wrong ones"
    with pytest.raises(InputError, match=sentence):
        temperance.compare([0.7, 0.9] * 20, [outcome] * 40, answers=True, methods=["platt"])
    path = tmp_path / "answers.csv"
    path.write_text("confidence,correct\n" + f"0.9,{outcome}\n0.5,{outcome}\n" * 20)
    said = run("fit", "platt", path, "--answers", "-o", tmp_path / "cal.safetensors")
    assert said.code == 2 and f"answers.csv: {sentence}" in said.err
    monkeypatch.setattr(application, "LARGE", 1)  # as if the file were too large for memory
    with pytest.raises(FileError, match=sentence):
        application.fit(Temperature(), read_predictions(path, answers=True))


def test_measuring_on_one_outcome_is_said() -> None:
    test = ([0.7, 0.9] * 10, [1] * 20)
    found = temperance.compare(*answers(100), test=test, answers=True, methods=["platt"])
    assert any(note.startswith("Every answer of the part to measure on is right") for note in found.notes)


def test_sets_of_answers_have_no_classes(tmp_path: Path) -> None:
    path = saved(tmp_path / "answers.npz")
    page = tmp_path / "page.html"
    said = run("compare", "--each", path, "--answers", "--methods", "platt", "--report", page)
    assert said.code == 0 and "2 classes" not in page.read_text()
    row = next(line for line in said.out.splitlines() if "answers.npz" in line)
    assert row.split("│")[2].strip() == "–"


def test_a_calibrator_of_answers_is_not_for_classes(tmp_path: Path) -> None:
    cal, path = tmp_path / "cal.safetensors", saved(tmp_path / "answers.npz")
    assert run("fit", "platt", path, "--answers", "-o", cal).code == 0
    mails = {"probs_ham": [0.9, 0.2], "probs_spam": [0.1, 0.8], "label": ["ham", "spam"]}
    pd.DataFrame(mails).to_csv(tmp_path / "mails.csv", index=False)
    for said in (
        run("apply", cal, tmp_path / "mails.csv", "-o", tmp_path / "out.csv"),
        run("evaluate", tmp_path / "mails.csv", "--calibrator", cal),
    ):
        assert "the calibrator was fitted on answers with a confidence" in said.err
    assert run("fit", "platt", tmp_path / "mails.csv", "-o", cal).code == 0
    assert "the calibrator was fitted on classes" in run("evaluate", path, "--answers", "--calibrator", cal).err


def test_classes_may_be_called_wrong_and_right() -> None:
    marked = Predictions.of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]] * 20, [0, 1, 1] * 20, class_names=["wrong", "right"])
    assert temperance.apply(application.fit(Temperature(), marked), marked).class_names == ("wrong", "right")


def test_new_answers_need_no_marks(tmp_path: Path) -> None:
    cal = tmp_path / "cal.safetensors"
    Temperature().fit([[0.0, 2.0], [0.0, 1.0]] * 20, [1, 0] * 20).save(cal)
    (tmp_path / "new.csv").write_text("id,stated\na,0.9\nb,0.4\n")
    out = applied(cal, tmp_path / "new.csv", tmp_path / "out.csv", "--answers", "--probs", "stated")
    assert list(pd.read_csv(out).columns) == ["id", "stated", "calibrated_by"]


# -------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("words", [("true", "false"), ("True", "False"), ("yes", "no"), ("right", "wrong"), ("1", "0")])
def test_words_for_right_and_wrong(tmp_path: Path, words: tuple[str, str]) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(f"confidence,correct\n0.9,{words[0]}\n0.2,{words[1]}\n")
    assert read_predictions(path, answers=True).labels.tolist() == [1, 0]


def test_marks_of_pandas_and_missing_ones(tmp_path: Path) -> None:
    table = pd.DataFrame({"confidence": [0.9, 0.2, 0.4], "correct": [1.0, 0.0, np.nan]})
    table.to_csv(tmp_path / "answers.csv", index=False)
    with pytest.raises(FileError, match="line 4 has ''"):
        evaluate(tmp_path / "answers.csv", answers=True)
    for kind in ("boolean", object):
        with pytest.raises(InputError, match="the column correct has no value in row 2"):
            evaluate(table.astype({"correct": kind}), answers=True)
    found = evaluate(table[:2].astype({"correct": "boolean"}), answers=True, bootstrap=0)
    assert found.row("accuracy").value == 0.5


def test_own_names_and_two_sets(tmp_path: Path) -> None:
    path = saved(tmp_path / "own.npz", ("stated", "is_right"))
    columns = {"probs": "stated", "label": "is_right"}
    assert read_predictions(path, answers=True, columns=columns).answers
    confidence, correct = answers(100)
    sets: dict[str, Any] = {
        f"{part}_{name}": array
        for part in ("val", "test")
        for name, array in (("confidence", confidence), ("correct", correct))
    }
    np.savez(tmp_path / "both.npz", **sets)
    assert read_predictions(tmp_path / "both.npz", answers=True).split == "test"
    for name, array in (("confidence", confidence), ("correct", correct)):
        np.save(tmp_path / f"{name}.npy", array)
    held = read_predictions(tmp_path / "confidence.npy", answers=True, columns={"label": str(tmp_path / "correct.npy")})
    assert held.labels.tolist() == correct.astype(int).tolist()


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        ("confidence,correct\n0.9,1\n", [], "If these are a model's answers, add --answers"),
        ("confidence,correct\n85,1\n", ["--answers"], "line 2 has 85. If these are percent, divide them by 100"),
        ("confidence,correct\nnan,1\n", ["--answers"], "confidence must"),
        ("confidence,correct\n0.9,maybe\n", ["--answers"], "or true and false; line 2 has 'maybe'"),
        ("confidence,correct\n0.9,2\n", ["--answers"], "correct must be 1 for a right answer and 0 for a wrong one"),
        ("confidence,label\n0.9,1\n", ["--answers"], "expected the column correct beside confidence"),
        ("stated,right\n0.9,1\n", ["--answers"], "expected the columns confidence and correct; found stated, right"),
        ("Confidence,Correct\n0.9,1\n", ["--answers"], "Names must be in lower case"),
        ("stated,right\n0.9,1\n", ["--answers", "--logits", "stated"], "name its column with --probs"),
        ("confidence,correct\n0.9,1\n", ["--answers", "--binary"], "leave out --binary and --positive"),
        (
            "confidence,correct\n0.9,1\n",
            ["--answers", "--metrics", "classwise-ece"],
            "needs the probabilities of classes",
        ),
        ("confidence,correct\n0.9,1\n", ["--answers", "--metrics", "aurc:score=margin"], "aurc:score=margin needs"),
    ],
)
def test_wrong_input_gets_a_sentence(tmp_path: Path, table: str, options: list[str], sentence: str) -> None:
    path = tmp_path / "answers.csv"
    path.write_text(table)
    said = run("evaluate", path, *options)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1


def test_arrays_of_classes_are_not_answers(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="answers=True"):
        evaluate(saved(tmp_path / "answers.npz"))
    with pytest.raises(InputError, match="knows what it holds"):
        evaluate(Predictions.of([[0.9, 0.1]], [0]), answers=True)
    with pytest.raises(InputError, match="leave out from_logits"):
        evaluate([2.0], [1], answers=True, from_logits=True)
    with pytest.raises(InputError, match=r"one confidence each, so it must have shape \(1,\); got \(1, 2\)"):
        evaluate([[0.1, 0.9]], [1], answers=True)
    with pytest.raises(InputError, match="leave out class_names"):
        Predictions.of([0.9], [1], answers=True, class_names=["no", "yes"])
    mine = Predictions.of([0.9, 0.4], [1, 0], answers=True)
    with pytest.raises(InputError, match="both sets must be answers, or neither"):
        temperance.compare(mine, Predictions.of([[0.9, 0.1], [0.2, 0.8]], [0, 1]))
    with pytest.raises(InputError, match="probabilities of classes are needed here"):
        compare_ood(mine, mine)
    with pytest.raises(InputError, match="the answers have only a confidence, but probabilities of classes"):
        analyse(mine)
    (tmp_path / "new.csv").write_text("confidence,correct\n0.9,1\n")
    assert "answers" not in run("ood", tmp_path / "new.csv", tmp_path / "new.csv").err
    (tmp_path / "other.csv").write_text("stated\n0.9\n")
    with pytest.raises(FileError, match="expected the column confidence; found stated"):
        read_predictions(tmp_path / "other.csv", labels="optional", answers=True)


@pytest.mark.shared
def test_stated_confidences_of_language_models(shared_data: Any) -> None:
    path = shared_data / "more" / "verbalised" / "gpt-4o-2024-08-06__verbal.npz"
    before = evaluate(path, answers=True, bootstrap=0)
    assert before.row("accuracy").value == pytest.approx(0.7244, abs=5e-5)
    assert before.row("ece").value == pytest.approx(0.2087, abs=5e-4)
    found = temperance.compare(path, answers=True, methods=["auto", "temperature"], bootstrap=100)
    assert found.recommended.label == "auto" and found.after.row("ece").value < 0.03


def test_every_job_says_how_answers_were_read() -> None:
    confidence, correct = answers(600)
    data = Predictions.of(confidence, correct, answers=True)
    calibrator = Temperature().fit(data.logits(), data.labels)
    jobs = (
        evaluate(data, bootstrap=0),
        temperance.compare(data, methods=["temperature"], bootstrap=20),
        temperance.abstain(data),
        temperance.abstain(data, calibrator=calibrator),
    )
    said = [{name: job.provenance.settings.get(name) for name in ("answers", "rows", "calibrated_by")} for job in jobs]
    plain = {"answers": True, "rows": "answer", "calibrated_by": None}
    assert said == [plain, plain, plain, plain | {"calibrated_by": "temperature"}]
