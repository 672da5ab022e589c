"""What a file cannot say of itself and the caller does: one column of a binary classifier, rounded probabilities.

And what everyone is told of a wrong value: the file, and the row or the line.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from commands import run
from conftest import random_predictions
from temperance import abstain, apply, compare, decide, evaluate
from temperance.calibrators import Temperature
from temperance.errors import FileError, InputError
from temperance.jobs.ood import compare_ood
from temperance.metrics import nll
from temperance.predictions import Predictions, read_pair, read_predictions, write_predictions

Save = Callable[..., Path]
SUFFIXES = (".npz", ".safetensors", ".parquet", ".csv")


def save(path: Path, **columns: Any) -> Path:
    """Arrays of n values each in any of the formats, named as they are given."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".safetensors":
        save_file({name: torch.from_numpy(np.array(array)) for name, array in columns.items()}, path)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join(",".join(map(str, row)) for row in ([*columns], *rows)) + "\n")
    return path


# --------------------------------------------------------------------------------------------------- binary classifiers

SCORES = np.random.default_rng(0).normal(size=60)
TRUTH = (np.random.default_rng(1).random(60) < 1 / (1 + np.exp(-SCORES))).astype(int)
BOTH = np.stack([0 * SCORES, SCORES], axis=1)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("labels", [TRUTH, 2 * TRUTH - 1, TRUTH.astype(bool), TRUTH.astype(float)])
def test_one_column_is_the_positive_class(tmp_path: Path, suffix: str, labels: Any) -> None:
    expected = nll(BOTH, TRUTH, from_logits=True)
    path = save(tmp_path / f"logits{suffix}", logits=SCORES, labels=labels)
    found = read_predictions(path, positive=1)
    assert (found.n, found.k, found.from_logits) == (60, 2, True) and found.labels.tolist() == TRUTH.tolist()
    assert evaluate(path, positive=1, bootstrap=0).row("nll").value == pytest.approx(expected)
    path = save(tmp_path / f"probs{suffix}", probs=1 / (1 + np.exp(-SCORES)), labels=labels)
    assert evaluate(path, positive=1, bootstrap=0).row("nll").value == pytest.approx(expected)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_command_line_suggests_binary(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"in{suffix}", logits=SCORES, label=2 * TRUTH - 1)
    refused = run("evaluate", path)
    assert refused.code == 2 and "add --binary" in refused.err
    assert run("evaluate", path, "--binary", "--bootstrap", "0").code == 0
    cal, out = tmp_path / "cal.safetensors", tmp_path / f"out{suffix}"
    assert run("compare", path, "--binary", "--methods", "temperature", "--bootstrap", "20").code == 0
    assert run("fit", "temperature", path, "--binary", "-o", cal).code == 0
    assert run("ood", path, path, "--binary", "--bootstrap", "2").code == 0
    assert run("apply", cal, path, "--binary", "-o", out).code == 0
    # The result has both columns and says so by itself.
    found = read_predictions(out)
    assert found.k == 2 and found.labels.tolist() == TRUTH.tolist() and found.calibrated_by == "temperature"


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_the_positive_label_may_be_text_or_another_number(tmp_path: Path, suffix: str) -> None:
    words = np.where(TRUTH == 1, "spam", "ham")
    path = save(tmp_path / f"words{suffix}", probs=1 / (1 + np.exp(-SCORES)), label=words)
    found = read_predictions(path, positive="spam")
    assert found.class_names == ("not spam", "spam") and found.labels.tolist() == TRUTH.tolist()
    assert run("evaluate", path, "--positive", "spam", "--bootstrap", "0").code == 0
    said = run("evaluate", path, "--binary")
    assert said.code == 2 and "labels are text ('ham', 'spam'): name the positive one, --positive LABEL" in said.err
    path = save(tmp_path / f"numbers{suffix}", logits=SCORES, label=np.where(TRUTH == 1, 2, 7))
    assert read_predictions(path, positive=2).labels.tolist() == TRUTH.tolist()
    assert run("evaluate", path, "--positive", "2", "--bootstrap", "0").code == 0
    said = run("evaluate", path, "--binary")
    assert said.code == 2 and "must be 1 and 0, or 1 and -1" in said.err and "name it: --positive" in said.err
    said = run("evaluate", path, "--positive", "spam")
    assert said.code == 2 and "--positive spam is text, but the labels are numbers" in said.err


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".jsonl"])
def test_text_labels_of_one_column_stay_when_it_is_calibrated(tmp_path: Path, suffix: str) -> None:
    words = np.where(TRUTH == 1, "spam", np.where(SCORES > 0, "ham", "news")).tolist()
    path, out, cal = (tmp_path / name for name in (f"in{suffix}", f"out{suffix}", "cal.safetensors"))
    if suffix == ".jsonl":
        records = ({"logits": [score], "label": word} for score, word in zip(SCORES.tolist(), words, strict=True))
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        save(path, logits=SCORES, label=words)
    assert run("fit", "temperature", path, "--positive", "spam", "-o", cal).code == 0
    assert run("apply", cal, path, "--positive", "spam", "-o", out).code == 0
    if suffix == ".npz":
        assert np.load(out)["label"].tolist() == words
    elif suffix == ".parquet":
        assert pq.read_table(out)["label"].to_pylist() == words
    elif suffix == ".csv":
        assert [line.split(",")[2] for line in out.read_text().splitlines()[1:]] == words
    else:
        assert [json.loads(line)["label"] for line in out.read_text().splitlines()] == words
    # Read without a flag, whatever is not spam is of the class "not spam".
    found = read_predictions(out)
    assert found.class_names == ("not spam", "spam") and found.labels.tolist() == TRUTH.tolist()


@pytest.mark.parametrize("label", ["Spam", "spam "])
def test_a_positive_label_in_another_spelling_is_refused(tmp_path: Path, label: str) -> None:
    """It would make every sample negative, without a word."""
    path = save(tmp_path / "in.npz", logits=SCORES, label=np.where(TRUTH == 1, label, "ham").tolist())
    said = run("evaluate", path, "--positive", "spam", "--bootstrap", "0")
    assert (
        said.code == 2 and f"class names not spam, spam; row {TRUTH.argmax()} " in said.err and repr(label) in said.err
    )
    assert run("evaluate", path, "--positive", label, "--bootstrap", "0").code == 0


def test_a_column_may_be_named_after_its_class(tmp_path: Path) -> None:
    for name in ("probs_1", "probs_spam", "probs"):
        path = save(tmp_path / "in.csv", **{name: [0.25, 0.75], "label": [0, 1], "id": ["a", "b"]})
        assert read_predictions(path, positive=1).scores.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    lists = save(tmp_path / "in.parquet", probs=[[0.25], [0.75]], label=[0, 1])
    assert read_predictions(lists, positive=True).scores.tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_names_of_both_classes_are_used(tmp_path: Path) -> None:
    path = save(
        tmp_path / "in.npz", probs=np.array([[0.25], [0.75]]), labels=["ham", "spam"], class_names=["ham", "spam"]
    )
    found = read_predictions(path, positive=1)
    assert found.labels.tolist() == [0, 1] and found.class_names == ("ham", "spam")
    assert read_predictions(path, positive="spam").labels.tolist() == [0, 1]
    with pytest.raises(FileError, match="positive class 'ham' must be the second of class_names; got ham, spam"):
        read_predictions(path, positive="ham")
    with pytest.raises(InputError, match="positive must be a label"):
        read_predictions(path, positive="")


def test_binary_arrays() -> None:
    expected = nll(BOTH, TRUTH, from_logits=True)
    probs = 1 / (1 + np.exp(-SCORES))
    for scores in (SCORES, SCORES[:, None], torch.tensor(SCORES)):
        found = evaluate(scores, TRUTH, from_logits=True, positive=1, bootstrap=0)
        assert found.row("nll").value == pytest.approx(expected)
    assert evaluate(probs, TRUTH, positive=1, bootstrap=0).row("nll").value == pytest.approx(expected)
    words = np.where(TRUTH == 1, "yes", "no")
    assert evaluate(probs, words, positive="yes", bootstrap=0).class_names == ("not yes", "yes")
    assert Predictions.of(probs.astype(np.float16), TRUTH, positive=1).scores.dtype == torch.float32
    dense = SCORES.reshape(3, 1, 4, 5)
    found = evaluate(dense, TRUTH.reshape(3, 4, 5), from_logits=True, positive=1, bootstrap=0)
    assert found.row("nll").value == pytest.approx(expected)
    some = np.where(np.arange(60) < 10, -100, TRUTH)
    found = evaluate(SCORES, some, from_logits=True, positive=1, ignore_index=-100, bootstrap=0)
    assert found.row("nll").value == pytest.approx(nll(BOTH[10:], TRUTH[10:], from_logits=True))
    assert Predictions.of([1, 0], positive=1).scores.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("scores", "labels", "options", "sentence"),
    [
        (BOTH, TRUTH, {"positive": 1}, r"positive=… means that probs is one column.*got shape \(60, 2\)"),
        (SCORES, TRUTH, {"positive": 1}, r"must lie between 0 and 1; row \d+ has .*pass from_logits=True"),
        ([0.5, math.nan], [0, 1], {"positive": 1}, "row 1, class 0 is nan"),
        ([0.5, 0.5], [0, 5], {"positive": 1}, "row 1 has 5. If another label is the positive one, name it: positive=5"),
        ([0.5, 0.5], ["a", "b"], {"positive": 1}, "labels are text"),
        ([0.5, 0.5], [0, 1], {"positive": "a"}, "positive='a' is text, but the labels are numbers"),
        ([0.5, 0.5], [0, 1], {"positive": 0.5}, "positive must be a label"),
        ([0.5, 0.5], [0, 1], {"positive": [1]}, "positive must be a label"),
        ([0.5, 0.5], [0, 1], {"positive": float("inf")}, "positive must be a label"),
        ([0.5, 0.5], [[0, 1], [1, 0]], {"positive": 1}, r"labels must have shape \(2,\)"),
        ([0.5, 0.5], [0, 1], {}, r"stack both columns: numpy.stack\(\[1 - p, p\], axis=1\), or pass positive=1$"),
        ([[0.5], [0.5]], [0, 0], {}, "or pass positive=1$"),
        ([0.5, 0.5], [9, 9], {"positive": 1, "ignore_index": 9}, "every label is ignore_index=9"),
        ([0.5, 0.5], [0, 1], {"positive": 1, "ignore_index": 0}, "ignore_index=0 is one of the classes 0 and 1"),
        ([[0.9, 0.1]], [9], {"ignore_index": 9}, "every label is ignore_index=9"),
        (np.ones((2, 1, 3)), [1, 1], {"positive": 1}, r"labels must have shape \(2, 3\), a label for each pixel"),
    ],
)
def test_binary_arrays_that_are_refused(scores: Any, labels: Any, options: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(scores, labels, bootstrap=0, **options)


# ------------------------------------------------------------------------------------------------ rounded probabilities


def rounded(decimals: int, k: int = 4) -> tuple[Any, Any]:
    logits, labels = random_predictions(400, k, sharpness=3.0)
    return logits.softmax(1).numpy().round(decimals), labels.numpy()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_rounded_probabilities_are_accepted_with_normalise(tmp_path: Path, suffix: str, decimals: int) -> None:
    probs, labels = rounded(decimals)
    path = tmp_path / f"in{suffix}"
    write_predictions(path, Predictions.of(probs, labels))
    if decimals < 4:
        refused = run("evaluate", path)
        assert refused.code == 2 and "If they are rounded, add --normalise" in refused.err
    found = read_predictions(path, normalise=True)
    assert found.decimals == decimals
    assert torch.allclose(found.scores.sum(1), torch.ones(400, dtype=torch.float64))
    assert (found.scores - torch.tensor(probs)).abs().max() < 2 * 10.0**-decimals
    true, _ = random_predictions(400, 4, sharpness=3.0)
    exact = nll(true, labels, from_logits=True)
    # The note says how many labels were zero; NLL is nearly that of the numbers before they were rounded.
    zeros = int((probs[np.arange(400), labels] == 0).sum())
    measured = evaluate(path, normalise=True, bootstrap=0, metrics=["nll"])
    assert measured.row("nll").value == pytest.approx(exact, abs=0.03)
    (note,) = measured.notes or ("",)
    if zeros:
        without = [i for i in range(400) if probs[i, labels[i]] > 0]
        others = nll(found.scores[without], labels[without])
        count = "1 label has" if zeros == 1 else f"{zeros} labels have"
        assert note.startswith(f"{count} a probability that was rounded to 0")
        assert f"on the other {400 - zeros} samples it is {others:.4g}" in note
        assert f"with 1e-12 it would be {(others * (400 - zeros) + zeros * 27.631) / 400:.4g}" in note
    assert run("evaluate", path, "--normalise", "--bootstrap", "0", "--metrics", "nll").code == 0


@pytest.mark.parametrize("decimals", [2, 3])
def test_a_calibrator_is_not_misled_by_rounding(decimals: int) -> None:
    probs, labels = rounded(decimals)
    true, _ = random_predictions(400, 4, sharpness=3.0)
    options: dict[str, Any] = {"methods": ["temperature"], "bootstrap": 20}
    exact = compare(true, labels, from_logits=True, **options)
    found = compare(probs, labels, normalise=True, **options)
    assert found.notes == evaluate(found.test, bootstrap=0, metrics=["nll"]).notes != ()
    assert found.notes[0] in found.to_json()
    best, expected = (each.row("nll", method="temperature").value for each in (found, exact))
    assert best == pytest.approx(expected, abs=0.03)


def test_zeros_and_ones_do_not_show_how_they_were_rounded() -> None:
    """A certain model is not made unsure, as if 1.000 stood for anything from 0.95 on."""
    probs = np.eye(4)[np.arange(400) % 4]
    labels = np.where(np.arange(400) < 2, 3, np.arange(400) % 4)
    found = evaluate(probs, labels, normalise=True, bootstrap=0, metrics=["confidence-gap"])
    assert found.row("confidence-gap").value == pytest.approx(2 / 400, abs=1e-6)
    assert found.verdict.startswith("Over-confident")
    fine = np.concatenate([probs, [[0.001, 0.999, 0, 0]]])
    data = Predictions.of(fine, np.append(labels, 1)).normalised()
    assert data.decimals == 3 and Predictions.of(probs, labels).normalised().decimals == 6


def sure_of_ten(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a calibrated model that is nearly always sure, and labels."""
    rng = np.random.default_rng(seed)
    wrong = 10 ** rng.uniform(-5, -1, n)
    others = rng.dirichlet(np.ones(9), n) * wrong[:, None]
    probs = rng.permuted(np.column_stack([1 - wrong, others]), axis=1)
    return probs, (probs.cumsum(1) < rng.random((n, 1))).sum(1)


def test_what_rounding_explains_is_no_miscalibration() -> None:
    """Of two decimals 1.00 stands for anything from 0.995 on, so an error of half a point is none."""
    probs, labels = sure_of_ten(40_000, 0)
    names = np.where(np.arange(40_000) % 2, "odd", "even")
    rounded = Predictions.of(probs.round(2), labels, groups=names).normalised()
    found = evaluate(rounded, by_group=True, bootstrap=0)
    assert found.verdict.startswith("No miscalibration found in 40,000 samples.")
    assert "Chance and rounding give up to 0.6 %" in found.verdict
    assert any(note.startswith("None of 2 groups is over- or under-confident") for note in found.notes)
    # Without rounding such an error is one, and one that rounding does not explain is found.
    shown = torch.cat([chunk.scores for chunk in rounded.chunks()])
    assert evaluate(shown, labels, bootstrap=0).verdict.startswith("Under-confident")
    labels[::100] = (labels[::100] + 1) % 10
    wrong = evaluate(probs.round(2), labels, normalise=True, bootstrap=0)
    assert wrong.verdict.startswith("Over-confident")


def test_what_rounding_explains_is_no_miscalibration_of_labels() -> None:
    rng = np.random.default_rng(0)
    scores = rng.uniform(0, 0.002, (40_000, 2))
    scores[::100] = 0.37
    labels = (rng.random((40_000, 2)) < scores).astype(int)
    found = evaluate(scores.round(2), labels, multilabel=True, normalise=True, bootstrap=0)
    assert found.verdict.startswith("No miscalibration found")


def test_exact_zeros_are_noted_too() -> None:
    probs = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]
    (note,) = evaluate(probs, [0, 0, 1, 0], bootstrap=0).notes
    assert note.startswith("1 label has a probability of 0") and "on the other 3 samples it is 0.4621" in note
    assert evaluate(probs, [0, 1, 1, 0], bootstrap=0).notes == ()
    assert evaluate(probs, [0, 0, 1, 0], bootstrap=0, metrics=["ece"]).notes == ()
    assert evaluate([[1.0, 0.0]], [1], bootstrap=0).notes[0].endswith("counts as 1e-12. So NLL is 27.6310.")
    assert evaluate(np.log(np.array(probs) + 1e-30), [0, 0, 1, 0], from_logits=True, bootstrap=0).notes == ()


@pytest.mark.parametrize(
    ("probs", "sentence"),
    [
        (
            [[0.333, 0.333, 0.333], [0.9, 0.9, 0.9]],
            r"row 1 sums to 2.7, and rounding 3 numbers to 3 decimals explains a difference of at most 0.003\. If",
        ),
        ([[0.333, 0.333, 0.333], [0.5, 0.3, 0.2], [0.7, 0.4, -0.1]], r"row 2 contains -0.1"),
        ([[0.5, 0.3, 0.2], [0.0, 0.0, 0.0]], r"row 1 sums to 0"),
        ([[0.5, 0.3, 0.2], [0.5, math.nan, 0.2]], r"row 1 contains nan"),
        (
            [[0.5, 0.3, 0.2], [0.123456789, 0.3, 0.2]],
            r"row 1 sums to 0.623457.*to 6 decimals explains .* at most 3e-06\.",
        ),
    ],
)
def test_sums_that_rounding_cannot_explain_are_refused(probs: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(probs, [0] * len(probs), normalise=True, bootstrap=0)


def test_sums_that_rounding_cannot_explain_name_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", probs_0=[0.333, 0.9], probs_1=[0.666, 0.9], label=[0, 1])
    said = run("evaluate", path, "--normalise")
    assert said.code == 2 and f"{path}: rounded probs" in said.err and "line 3 sums to 1.8" in said.err
    path = save(tmp_path / "in.csv", logits_0=[0.333, 0.9], logits_1=[0.666, 0.9], label=[0, 1])
    said = run("evaluate", path, "--normalise")
    assert said.code == 2 and "--normalise is for probabilities, and these are logits; leave it out" in said.err


def test_decimals_are_those_of_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    # One row in a chunk: a row of whole numbers must not be taken for one that was rounded to one decimal.
    monkeypatch.setattr("temperance.predictions.core.CHUNK_BYTES", 8 * 3)
    found = Predictions.of([[1.0, 0.0, 0.0], [0.334, 0.333, 0.332]], [0, 1], normalise=True)
    assert found.decimals == 3 and found.scores[0, 1].item() == pytest.approx(0.0005 / 3, rel=1e-3)


# ---------------------------------------------------------------------------------------------------- where it is wrong

GOOD_LOGITS, GOOD_LABELS = (tensor.numpy() for tensor in random_predictions(90, 3))


def wrong_file(folder: Path, suffix: str, what: str) -> tuple[Path, str]:
    """A file that is wrong in row 77, and what its reader should be told."""
    logits, labels = GOOD_LOGITS.copy(), GOOD_LABELS.copy()
    where = "line 80" if suffix == ".csv" else "row 77 (counting from 0)"
    if what == "label":
        labels[77] = 5
    elif what == "nan":
        logits[77, 2] = math.nan
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if what == "sum":
        probs[77] *= 2
    said = {"label": f"{where} has 5", "nan": f"{where}, class 2 is nan", "sum": f"{where} sums to 2"}[what]
    scores = {"probs": probs} if what == "sum" else {"logits": logits}
    if suffix in (".parquet", ".csv"):
        ((name, array),) = scores.items()
        scores = {f"{name}_{j}": array[:, j] for j in range(3)}
    path = save(folder / f"in{suffix}", **scores, label=labels)
    if suffix == ".csv":  # a blank line, so that lines and rows differ by more than the header
        first, *rest = path.read_text().splitlines()
        path.write_text("\n".join([first, "", *rest]))
    return path, said


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", ["nan", "sum", "label"])
def test_a_wrong_value_names_the_file_and_the_place(
    tmp_path: Path, suffix: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The wrong row is not in the first chunk.
    monkeypatch.setattr("temperance.predictions.core.CHUNK_BYTES", 8 * 3 * 10)
    monkeypatch.setattr("temperance.predictions.csv_parsing.BLOCK_BYTES", 1000)
    path, sentence = wrong_file(tmp_path, suffix, what)
    good, cal, out = tmp_path / "good.npz", tmp_path / "cal.safetensors", tmp_path / f"out{suffix}"
    np.savez(good, logits=GOOD_LOGITS, labels=GOOD_LABELS)
    assert run("fit", "temperature", good, "-o", cal).code == 0
    calls: list[list[Any]] = [
        ["evaluate", path],
        ["evaluate", path, "--calibrator", cal],
        ["compare", path],
        ["compare", good, path],
        ["compare", path, good],
        ["fit", "temperature", path, "-o", tmp_path / "new.safetensors"],
        ["apply", cal, path, "-o", out],
        ["ood", good, path, "--bootstrap", "2"],
        ["ood", path, good, "--bootstrap", "2", "--calibrator", cal],
    ]
    for arguments in calls:
        said = run(*arguments)
        if what == "label" and arguments[0] in ("ood", "apply"):
            assert said.code == 0  # labels are not read, or copied
        else:
            assert said.code == 2 and f"{path}: " in said.err and sentence in said.err, (arguments, said.err)
            assert said.err.count("\n") == 1 and not said.out
    assert out.exists() == (what == "label")


def test_parts_of_arrays_count_rows_as_the_whole_does() -> None:
    logits = GOOD_LOGITS.copy()
    logits[77, 2] = math.inf
    with pytest.raises(InputError, match=r"^logits must be finite; row 77, class 2 is inf$"):
        compare(logits, GOOD_LABELS, from_logits=True, bootstrap=20)
    whole = Predictions.of(logits, GOOD_LABELS, from_logits=True)
    after = whole.select(np.arange(50, 90))
    for part in (after, after.select([3, 27]), whole.select(np.arange(90)[::-1])):
        with pytest.raises(InputError, match="row 77, class 2 is inf"):
            part.logits()


# --------------------------------------------------------------------------------------------------- arrays, like files


def test_compare_takes_arrays_as_evaluate_does(tmp_path: Path) -> None:
    logits, labels = random_predictions(40, 3, sharpness=4.0)
    more, others = random_predictions(30, 3, seed=1, sharpness=4.0)
    options: dict[str, Any] = {"methods": ["temperature"], "bootstrap": 20}

    def value(*arguments: Any, **more_options: Any) -> float:
        return compare(*arguments, **(options | more_options)).row("nll", method="temperature").value

    halved = value(Predictions.of(logits, labels, from_logits=True))
    assert value(logits, labels, from_logits=True) == halved
    assert value(logits.numpy(), labels.tolist(), from_logits=True) == halved
    assert value(logits.softmax(1), labels) == pytest.approx(halved)
    sets = [Predictions.of(*pair, from_logits=True) for pair in ((logits, labels), (more, others))]
    apart = value(*sets)
    paths = [tmp_path / "a.npz", tmp_path / "b.csv"]
    for path, data in zip(paths, sets, strict=True):
        write_predictions(path, data)
    assert value(logits, labels, test=(more, others), from_logits=True) == apart
    assert value(logits, labels, test=sets[1], from_logits=True) == apart
    assert value(logits, labels, test=paths[1], from_logits=True) == pytest.approx(apart)
    assert value(sets[0], test=(more, others), from_logits=True) == apart
    assert value(str(paths[0]), test=str(paths[1])) == value(*paths) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((GOOD_LOGITS,), {}, "arrays need labels"),
        ((["a.npz", Path("b.npz")],), {}, "several sets, and here is room for one: give them to evaluate_each"),
        (
            (GOOD_LOGITS, GOOD_LABELS),
            {"from_logits": True, "methods": [Temperature]},
            "a list of names, .* was expected",
        ),
        ((GOOD_LOGITS, GOOD_LABELS), {}, "pass from_logits=True"),
        (
            (GOOD_LOGITS, GOOD_LABELS),
            {"from_logits": True, "test": GOOD_LOGITS},
            r"a pair of arrays, \(probs, labels\)",
        ),
        ((GOOD_LOGITS, GOOD_LABELS), {"from_logits": True, "test": (GOOD_LOGITS,)}, "three with weights; got 1"),
        (("a.npz", "b.npz"), {"test": "c.npz"}, "there are two sets to measure on; give one"),
        (("a.npz", GOOD_LABELS), {}, "a file or a Predictions brings its own labels"),
        ((Predictions.of(GOOD_LOGITS, GOOD_LABELS, from_logits=True), GOOD_LABELS), {}, "brings its own labels"),
    ],
)
def test_wrong_calls_of_compare(arguments: Any, options: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        compare(*arguments, bootstrap=20, **options)


def test_a_calibrator_is_given_itself_and_not_its_file() -> None:
    file: Any = "cal.safetensors"
    data = Predictions.of(GOOD_LOGITS, GOOD_LABELS, from_logits=True)
    for job in (
        partial(evaluate, data, calibrator=file),
        partial(abstain, data, calibrator=file),
        partial(decide, data, costs=np.eye(2), calibrator=file),
        partial(compare_ood, data, data, calibrator=file),
        partial(apply, file, data),
    ):
        with pytest.raises(InputError, match=r"calibrator must be a calibrator.*; got 'cal\.safetensors'"):
            job()


def test_options_of_arrays_are_refused_for_a_set() -> None:
    data = Predictions.of(GOOD_LOGITS, GOOD_LABELS, from_logits=True)
    every: list[dict[str, Any]] = [{"positive": 1}, {"normalise": True}, {"answers": True}, {"multilabel": True}]
    for options in every:
        with pytest.raises(InputError, match="columns=, answers= and multilabel= when you make it"):
            evaluate(data, **options)


def test_a_pair_is_read_alike(tmp_path: Path) -> None:
    column = {"val_logits": SCORES, "val_labels": TRUTH, "test_logits": -SCORES, "test_labels": 1 - TRUTH}
    path = save(tmp_path / "pair.npz", **column)
    val, test = read_pair(path, positive=1)
    assert val.k == test.k == 2 and torch.equal(val.scores[:, 1], -test.scores[:, 1])
    assert run("compare", path, "--binary", "--methods", "temperature", "--bootstrap", "20").code == 0
    with pytest.raises(FileError, match="stack both columns"):
        read_pair(path)
