"""A folder of files is one set of predictions: read, measured and calibrated as one file would be."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from commands import run
from temperance import evaluate
from temperance.calibrators import Temperature
from temperance.errors import FileError
from temperance.jobs.application import apply
from temperance.predictions import Predictions, read_predictions, write_predictions
from temperance.predictions.disk import FORMATS

N, K, PARTS = 240, 3, 8
LABELS = np.arange(N) % K
LOGITS = np.random.default_rng(0).normal(size=(N, K)) + np.eye(K)[LABELS]
GROUPS = np.array([f"g{i % 2}" for i in range(N)])
SUFFIXES = [".npz", ".safetensors", ".parquet", ".csv"]


def part(rows: Any, **other: Any) -> Predictions:
    given: dict[str, Any] = {"from_logits": True, "groups": GROUPS[rows]} | other
    return Predictions.of(LOGITS[rows], LABELS[rows], **given)


def shards(folder: Path, suffix: str, parts: int = PARTS) -> Path:
    """The rows in order, in files whose names sort in that order, some of them in sub-folders."""
    for i, rows in enumerate(np.array_split(np.arange(N), parts)):
        path = folder / f"day={i // 10:02}" / f"part-{i:03}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        FORMATS[suffix].write(path, part(rows), {})  # not through write_predictions, which waits for the disk
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Temperature().fit(LOGITS, LABELS).save(tmp_path / "cal.safetensors")
    return tmp_path / "cal.safetensors"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_folder_is_the_file_of_all_its_rows(tmp_path: Path, suffix: str) -> None:
    folder = shards(tmp_path / "all", suffix, parts=12)
    (folder / "_SUCCESS").touch()
    (folder / ".part.crc").touch()
    (folder / "notes.md").touch()
    found, whole = read_predictions(folder), part(slice(None))
    assert found.n == N and found.has_groups and found.fingerprint == whole.fingerprint
    assert max(len(chunk.labels) for chunk in found.chunks(7)) == 7
    assert "whole" not in found.__dict__  # nothing was held
    for row in evaluate(folder, bootstrap=20).rows:
        same = evaluate(whole, bootstrap=20).row(row.metric)
        assert (row.value, row.low, row.high) == (same.value, same.low, same.high)


def test_a_pattern_chooses_files(tmp_path: Path) -> None:
    folder = shards(tmp_path / "all", ".npz")
    write_predictions(folder / "other.csv", part(slice(0, 9)))
    write_predictions(folder / "other.parquet", part(slice(0, 9)))
    for mixed, n in ((folder, N), (folder / "**" / "*", N), (folder / "other.*", 9)):
        with pytest.raises(FileError, match=r"files of different formats .*choose with a pattern, in quotes") as said:
            read_predictions(mixed)
        (suggested,) = re.findall("in quotes: '(.*)'", str(said.value))
        assert read_predictions(suggested).n == n
    assert read_predictions(folder / "**" / "part-*.npz").n == N
    assert read_predictions(str(folder / "day=00" / "part-00[01].npz")).n == N * 2 // PARTS
    assert run("evaluate", folder / "day=*" / "*.npz", "--bootstrap", "0").code == 0
    for nothing in (folder / "none-*.npz", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(FileError, match="file of predictions"):
            read_predictions(nothing)


def test_the_folder_of_a_training_is_its_predictions(tmp_path: Path) -> None:
    write_predictions(tmp_path / "predictions.npz", part(slice(0, 50)))
    write_predictions(tmp_path / "other.npz", part(slice(50, 90)))
    assert read_predictions(tmp_path).n == 50


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_apply_writes_files_of_the_same_names(saved: Path, tmp_path: Path, suffix: str) -> None:
    folder, out = shards(tmp_path / "all", suffix), tmp_path / "out"
    said = run("apply", saved, folder, "-o", out)
    assert said.code == 0, said.err
    for path in (file for file in folder.rglob("*") if file.is_file()):
        single = tmp_path / f"single{suffix}"
        assert run("apply", saved, path, "-o", single).code == 0
        found, expected = read_predictions(out / "day=00" / path.name), read_predictions(single)
        assert found.fingerprint == expected.fingerprint and found.calibrated_by == expected.calibrated_by
        if suffix != ".safetensors":  # whose metadata come in any order
            assert (out / "day=00" / path.name).read_bytes() == single.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "cal.safetensors", "out", f"single{suffix}"]
    assert read_predictions(out).calibrated_by == "temperature"
    assert "exists already; name a new folder" in run("apply", saved, folder, "-o", out).err
    (tmp_path / "empty").mkdir()
    assert run("apply", saved, folder, "-o", tmp_path / "empty").code == 0
    assert read_predictions(tmp_path / "empty").fingerprint == read_predictions(out).fingerprint
    assert "it is a folder" in run("apply", saved, single, "-o", out).err
    with pytest.raises(FileError, match="exists already; name a new folder"):
        write_predictions(out, read_predictions(folder))
    assert "calibrated already" in run("apply", saved, out, "-o", tmp_path / "twice").err


def test_rounded_files_are_calibrated_into_a_folder(saved: Path, tmp_path: Path) -> None:
    """The first file has fewer decimals than the second, which decide for both."""
    for name, probs in (("a", [[0.3, 0.3, 0.3]]), ("b", [[0.333, 0.333, 0.333]])):
        (tmp_path / "in").mkdir(exist_ok=True)
        write_predictions(tmp_path / "in" / f"{name}.npz", Predictions.of(probs, [0]))
    said = run("apply", saved, tmp_path / "in", "--normalise", "-o", tmp_path / "out")
    assert said.code == 2 and "a.npz" in said.err and "to 3 decimals" in said.err
    write_predictions(tmp_path / "in" / "a.npz", Predictions.of([[0.5, 0.25, 0.249]], [0]))
    assert run("apply", saved, tmp_path / "in", "--normalise", "-o", tmp_path / "out").code == 0
    assert read_predictions(tmp_path / "out").scores.sum(1).tolist() == pytest.approx([1, 1], abs=1e-12)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_apply_writes_one_file(saved: Path, tmp_path: Path, suffix: str) -> None:
    folder, out = shards(tmp_path / "all", ".parquet"), tmp_path / f"out{suffix}"
    assert run("apply", saved, folder, "-o", out).code == 0
    expected = apply(Temperature().fit(LOGITS, LABELS), part(slice(None)))
    found = read_predictions(out)
    assert torch.allclose(found.scores, expected.scores, atol=1e-15) and found.labels.tolist() == LABELS.tolist()


def test_one_file_holds_the_other_columns_of_all(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for i, rows in enumerate(np.array_split(np.arange(N), 3)):
        np.savez(tmp_path / "all" / f"{i}.npz", logits=LOGITS[rows], labels=LABELS[rows], id=rows, version=np.array(3))
    assert run("apply", saved, tmp_path / "all", "-o", tmp_path / "out.npz").code == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["id"].tolist() == list(range(N)) and found["version"] == 3
    np.savez(tmp_path / "all" / "9.npz", logits=LOGITS, labels=LABELS, id=LABELS, version=np.array(4))
    said = run("apply", saved, tmp_path / "all", "-o", tmp_path / "two.npz")
    assert said.code == 2 and "version differs from file to file" in said.err and not (tmp_path / "two.npz").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_bad_value_in_a_hundred_files(saved: Path, tmp_path: Path, suffix: str) -> None:
    folder = shards(tmp_path / "all", suffix, parts=100)
    bad = folder / "day=06" / f"part-063{suffix}"
    scores = torch.zeros(3, K)
    scores[1, 2] = float("nan")
    write_predictions(bad, Predictions.of(scores, [0, 1, 2], from_logits=True, groups=["a", "b", "c"]))
    where = "line 3" if suffix == ".csv" else "row 1"
    for said in (
        run("evaluate", folder, "--bootstrap", "0"),
        run("apply", saved, folder, "-o", tmp_path / "out"),
        run("apply", saved, folder, "-o", tmp_path / f"out{suffix}"),
    ):
        assert said.code == 2 and f"part-063{suffix}" in said.err and where in said.err and "class 2 is nan" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "cal.safetensors"]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Predictions.of(np.zeros((5, 4)), LABELS[:5], from_logits=True, groups=GROUPS[:5]), "has 4 classes"),
        (Predictions.of(np.full((5, K), 1 / K), LABELS[:5], groups=GROUPS[:5]), "has probs"),
        (Predictions.of(LOGITS[:5], LABELS[:5], from_logits=True), "has no groups"),
        (part(slice(0, 5), class_names=["a", "b", "c"]), "has the classes a, b, c"),
    ],
)
def test_files_that_differ_are_refused_by_name(tmp_path: Path, other: Predictions, sentence: str) -> None:
    folder = shards(tmp_path / "all", ".npz", parts=3)
    write_predictions(folder / "zebra.npz", other)
    with pytest.raises(FileError, match=rf"part-000.npz has .*, but .*zebra.npz {sentence}"):
        read_predictions(folder)


def test_outputs_that_are_refused(saved: Path, tmp_path: Path) -> None:
    folder = shards(tmp_path / "all", ".npz", parts=2)
    first = folder / "day=00" / "part-000.npz"
    before = first.read_bytes()
    assert "would be overwritten" in run("apply", saved, folder, "-o", first).err
    assert "inside the folder that is read" in run("apply", saved, folder, "-o", folder / "day=00" / "out").err
    assert "only a folder is written as a folder" in run("apply", saved, first, "-o", tmp_path / "out").err
    assert first.read_bytes() == before


def test_columns_have_the_same_names_in_every_file(tmp_path: Path) -> None:
    for i, rows in enumerate(np.array_split(np.arange(N), 2)):
        pq.write_table(pa.table({"scores": list(LOGITS[rows]), "y": LABELS[rows]}), tmp_path / f"{i}.parquet")
    found = read_predictions(tmp_path, columns={"logits": "scores", "label": "y"})
    assert np.array_equal(found.scores, LOGITS) and found.halves()[0].n == N // 2
