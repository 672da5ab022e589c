"""Calibrating into another kind of file: every column and key goes with it, or it is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import applied, run
from conftest import random_predictions
from temperance.calibrators import Temperature
from temperance.predictions import read_predictions, write_predictions

N, K = 40, 3
SUFFIXES = (".npz", ".safetensors", ".parquet", ".csv")
LOGITS, LABELS = (tensor.numpy() for tensor in random_predictions(N, K))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrator") / "cal.safetensors"
    Temperature().fit(*random_predictions(300, K, seed=1)).save(path)
    return path


@pytest.mark.parametrize("target", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_numbers_go_from_any_format_to_any_other(saved: Path, tmp_path: Path, source: str, target: str) -> None:
    costs = np.random.default_rng(0).random(N)
    path = tmp_path / f"in{source}"
    np.savez(tmp_path / "arrays.npz", logits=LOGITS, labels=LABELS, cost=costs, number=np.arange(N))
    write_predictions(path, read_predictions(tmp_path / "arrays.npz"))
    out = applied(saved, path, tmp_path / f"out{target}")
    assert read_predictions(out).calibrated_by == "temperature"
    write_predictions(tmp_path / "back.npz", read_predictions(out))
    back = np.load(tmp_path / "back.npz")
    assert np.array_equal(back["cost"], costs) and np.array_equal(back["number"], np.arange(N))
    assert back["number"].dtype.kind == "i" and back["calibrated_by"] == "temperature"


@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in SUFFIXES for b in SUFFIXES if ".safetensors" not in (a, b)]
)
def test_text_goes_from_table_to_arrays_and_back(saved: Path, tmp_path: Path, source: str, target: str) -> None:
    ids = np.array([f"{i:03}" for i in range(N)])
    np.savez(tmp_path / "arrays.npz", logits=LOGITS, labels=LABELS, id=ids, flag=LABELS > 0)
    path = tmp_path / f"in{source}"
    write_predictions(path, read_predictions(tmp_path / "arrays.npz"))
    applied(saved, path, tmp_path / f"out{target}")
    write_predictions(tmp_path / "back.npz", read_predictions(tmp_path / f"out{target}"))
    assert np.load(tmp_path / "back.npz")["id"].tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("extra", "target", "sentence"),
    [
        ({"note": np.array(3)}, ".csv", "note is int64 of shape (); write .npz"),
        ({"note": np.array(3)}, ".parquet", "note has shape (); write .npz"),
        ({"features": np.ones((N, 2))}, ".csv", "features is float64 of shape (40, 2); write .npz"),
        ({"id": np.array(["a"] * N)}, ".safetensors", "id is <U1; write .npz or .parquet"),
        ({"z": np.ones(N, dtype=complex)}, ".parquet", "cannot hold z, which is complex128"),
        ({"notes": np.array([{}] * N)}, ".csv", "unpickling"),
    ],
)
def test_what_another_format_cannot_hold_is_refused(
    saved: Path, tmp_path: Path, extra: dict[str, Any], target: str, sentence: str
) -> None:
    np.savez(tmp_path / "in.npz", logits=LOGITS, labels=LABELS, **extra)
    said = run("apply", saved, tmp_path / "in.npz", "-o", tmp_path / f"out{target}")
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1
    assert not (tmp_path / f"out{target}").exists()


def test_a_column_may_be_called_as_an_argument_of_numpy(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("file,allow_pickle,logits_0,logits_1,logits_2\na.png,no,1,2,3\n")
    found = np.load(applied(saved, tmp_path / "in.csv", tmp_path / "out.npz"))
    assert found["file"].tolist() == ["a.png"] and found["allow_pickle"].tolist() == ["no"]


def test_lists_in_lists_fit_in_a_parquet(saved: Path, tmp_path: Path) -> None:
    features = np.random.default_rng(0).random((N, 2, 3))
    np.savez(tmp_path / "in.npz", logits=LOGITS, labels=LABELS, features=features)
    applied(saved, tmp_path / "in.npz", tmp_path / "out.parquet")
    applied(saved, tmp_path / "out.parquet", tmp_path / "out.npz", "--again")
    assert np.array_equal(np.load(tmp_path / "out.npz")["features"], features)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pa.array([1] * (N - 1) + [None]), "extra has empty cells, which only .parquet can hold"),
        (pa.array([[1] * (i % 3) for i in range(N)]), "extra has the type list<"),
        (pa.array([{"a": 1}] * N), "extra has the type struct<"),
    ],
)
def test_what_only_a_parquet_can_hold(saved: Path, tmp_path: Path, column: Any, sentence: str) -> None:
    pq.write_table(pa.table({"logits": list(LOGITS), "label": LABELS, "extra": column}), tmp_path / "in.parquet")
    said = run("apply", saved, tmp_path / "in.parquet", "-o", tmp_path / "out.npz")
    assert said.code == 2 and sentence in said.err


@pytest.mark.parametrize("after", [".csv", ".parquet", ".npz", ".jsonl", ".safetensors"])
@pytest.mark.parametrize("before", [".csv", ".parquet", ".npz", ".jsonl"])
def test_text_labels_stay_text_in_every_format(before: str, after: str, tmp_path: Path) -> None:
    """Of a binary classifier whose labels are spam, ham and eggs, through two formats and back."""
    kinds = ["spam", "ham", "eggs", "spam"] * 10
    scores = np.random.default_rng(0).normal(size=40)
    first = tmp_path / "first.csv"
    first.write_text("logits,label\n" + "".join(f"{x},{kind}\n" for x, kind in zip(scores, kinds, strict=True)))
    data = read_predictions(first, positive="spam")
    paths = [tmp_path / f"second{before}", tmp_path / f"third{after}", tmp_path / "last.jsonl"]
    for path in paths:
        write_predictions(path, data)
        data = read_predictions(path)
        assert data.labels.tolist() == [int(kind == "spam") for kind in kinds]
    written = [json.loads(line)["label"] for line in paths[-1].read_text().splitlines()]
    assert written == (data.labels.tolist() if after == ".safetensors" else kinds)
