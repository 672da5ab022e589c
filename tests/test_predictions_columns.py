"""Columns and keys by the names that the caller gives them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import run
from temperance import evaluate
from temperance.calibrators import Temperature
from temperance.errors import FileError, InputError
from temperance.predictions import read_predictions

N = 300
TRUTH = np.arange(N) % 3
SCORES = np.random.default_rng(0).normal(size=(N, 3)) + np.eye(3)[TRUTH]
OWN = {"logits": "logit_*", "label": "y", "group": "site"}
TABLE = {f"logit_{j}": SCORES[:, j] for j in (2, 0, 1)} | {
    "y": TRUTH,
    "site": [f"s{i % 2}" for i in range(N)],
    "id": TRUTH,
}


def save(path: Path, table: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.asarray(values) for name, values in table.items()}
        np.savez(path, **arrays)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        cells = [
            [repr(cell) if isinstance(cell, float) else str(cell) for cell in np.asarray(column).tolist()]
            for column in table.values()
        ]
        rows = zip(*cells, strict=True)
        path.write_text("\n".join([",".join(table), *map(",".join, rows)]) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_pattern_names_the_columns_of_scores(tmp_path: Path, suffix: str) -> None:
    found = read_predictions(save(tmp_path / f"in{suffix}", TABLE), columns=OWN)
    assert found.from_logits and np.array_equal(found.scores, SCORES) and found.class_names is None
    assert found.labels.tolist() == TRUTH.tolist() and found.groups is not None and found.groups[1] == "s1"
    again = evaluate(tmp_path / f"in{suffix}", columns=OWN, bootstrap=0)
    assert again.row("accuracy").value == float((SCORES.argmax(1) == TRUTH).mean())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_list_names_columns_and_classes_in_order(tmp_path: Path, suffix: str) -> None:
    probs = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    table = {"yes": probs[:, 2], "no": probs[:, 0], "maybe": probs[:, 1], "truth": TRUTH}
    path = save(tmp_path / f"in{suffix}", table)
    found = read_predictions(path, columns={"probs": "no,maybe,yes", "label": "truth"})
    assert not found.from_logits and found.class_names == ("no", "maybe", "yes") and np.array_equal(found.scores, probs)


def test_what_the_star_stands_for_is_the_class(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", {"score_cat_raw": SCORES[:, 0], "score_dog_raw": SCORES[:, 1], "label": TRUTH % 2})
    assert read_predictions(path, columns={"logits": "score_*_raw"}).class_names == ("cat", "dog")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_list_of_columns_whose_names_only_begin_alike_is_told_of_the_pattern(tmp_path: Path, suffix: str) -> None:
    table = {"p cat": [0.5, 0.5], "p cow": [0.5, 0.5], "label": ["cow", "cat"]}
    path = save(tmp_path / f"in{suffix}", table)
    with pytest.raises(FileError, match=r"Name the columns by a pattern, 'p \*', and the classes are cat, cow"):
        _ = read_predictions(path, columns={"probs": "p cat,p cow"}).labels
    assert read_predictions(path, columns={"probs": "p *"}).class_names == ("cat", "cow")


def test_a_column_of_lists_and_an_array_have_one_name(tmp_path: Path) -> None:
    own = {"logits": "scores", "label": "y"}
    table = save(tmp_path / "in.parquet", {"scores": list(SCORES), "y": TRUTH})
    arrays = save(tmp_path / "in.npz", {"scores": SCORES, "y": TRUTH})
    assert read_predictions(table, columns=own).fingerprint == read_predictions(arrays, columns=own).fingerprint


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"logits": "nothing_*"}, "no column matches logits 'nothing_\\*'; found "),
        ({"logits": "logit"}, "A pattern has a star: logit\\*"),
        ({"logits": "logit_0,logit_9"}, "no column 'logit_9' for logits"),
        (OWN | {"logits": "logit_0", "label": "truth"}, "no column 'truth' for label"),
        (OWN | {"logits": "logit_0", "group": "place"}, "no column 'place' for group"),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, suffix: str, columns: dict[str, str], sentence: str) -> None:
    path = save(tmp_path / f"in{suffix}", TABLE)
    with pytest.raises(FileError, match=sentence):
        read_predictions(path, columns=columns)


def test_a_binary_classifier_without_its_column(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", {"score": [0.2, 0.7], "label": [0, 1]})
    with pytest.raises(FileError, match=r"the column logits \(or probs\), the score of the positive class, and label;"):
        read_predictions(path, positive=1)


def test_odd_numbers_of_columns(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", TABLE)
    with pytest.raises(FileError, match=r"'logit_1\*' matches one column, logit_1; .* pass positive=1"):
        read_predictions(path, columns=OWN | {"logits": "logit_1*"})
    gap = save(tmp_path / "gap.csv", {name: column for name, column in TABLE.items() if name != "logit_1"})
    with pytest.raises(FileError, match="numbered 0 … 1; found logit_0, logit_2"):
        read_predictions(gap, columns=OWN)
    with pytest.raises(FileError, match="must be one array"):
        read_predictions(save(tmp_path / "in.npz", TABLE), columns=OWN)
    found = read_predictions(path, columns=OWN | {"logits": "logit_1"}, positive=2, labels="ignored")
    assert found.k == 2 and np.array_equal(found.scores[:, 1], SCORES[:, 1])


@pytest.mark.parametrize("columns", [{"logits": "a", "probs": "b"}, {"labels": "y"}, {"label": 3}])
def test_wrong_names_of_columns(columns: Any) -> None:
    with pytest.raises(InputError, match="columns"):
        read_predictions("in.csv", columns=columns)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_commands_take_names_of_columns(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"in{suffix}", TABLE)
    flags = ["--logits", "logit_*", "--label", "y"]
    assert run("evaluate", path, *flags, "--group", "site", "--by", "group", "--bootstrap", "0").code == 0
    assert "no column matches --logits 'x*'" in run("evaluate", path, "--logits", "x*").err
    assert run("fit", "temperature", path, "-o", tmp_path / "cal.safetensors", *flags).code == 0
    out = tmp_path / f"out{suffix}"
    assert run("apply", tmp_path / "cal.safetensors", path, "-o", out, *flags, "--group", "site").code == 0
    found = read_predictions(out, columns={"label": "y", "group": "site"})
    expected = Temperature().fit(SCORES, TRUTH).predict_proba(SCORES)
    assert np.allclose(found.scores, expected, atol=1e-12) and found.calibrated_by == "temperature"


def test_a_column_is_not_overwritten_by_the_new_one(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", TABLE | {"probs_1": SCORES[:, 0]})
    Temperature().fit(SCORES, TRUTH).save(tmp_path / "cal.safetensors")
    said = run("apply", tmp_path / "cal.safetensors", path, "-o", tmp_path / "out.csv", "--logits", "logit_*")
    assert said.code == 2 and "probs_1 collides with a new one" in said.err and not (tmp_path / "out.csv").exists()
