"""What a file cannot say of itself and the caller does: one column of a binary classifier.

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
