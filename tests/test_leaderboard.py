"""The leaderboard on small sets: measured once, resumed, measured again on request, tables and picture."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.quality import leaderboard
from benchmarks.quality.measuring import Task, all_methods, measured, run
from benchmarks.quality.peers import PEERS
from benchmarks.quality.table import read
from conftest import random_predictions
from temperance.calibrators import CALIBRATORS
from temperance.errors import InputError
from temperance.jobs.comparison import compare

ROOT = Path(__file__).resolve().parent.parent
METHODS = ["identity", "temperature", "vector"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A halved set of logits, and one of probabilities with two classes and a split of its own."""
    logits, labels = (part.numpy() for part in random_predictions(200, 3, sharpness=3.0))
    (tmp_path / "sets" / "tabular").mkdir(parents=True)
    np.savez(tmp_path / "sets" / "c10_one.npz", logits=logits, labels=labels)
    parts: dict[str, Any] = {}
    for seed, part in enumerate(("val", "test")):
        logits_of, truth = random_predictions(80, 2, seed, sharpness=3.0)
        parts |= {f"{part}_probs": logits_of.softmax(1).numpy(), f"{part}_labels": truth.numpy()}
    np.savez(tmp_path / "sets" / "tabular" / "two__rf.npz", **parts)
    np.savez(tmp_path / "sets" / "other.npz", confidence=np.ones(3))  # not predictions of classes
    return tmp_path / "sets"


def test_what_is_there_is_not_measured_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run([folder], out, ["identity", "temperature"])
    first = out.read_text()
    assert [(row["set"], row["method"]) for row in read(out)] == [
        (name, method) for name in ("two__rf", "c10_one") for method in ("identity", "temperature")
    ]
    run([folder], out, METHODS)
    assert out.read_text().startswith(first) and len(read(out)) == 6
    rows = read(out)
    out.write_text("".join(json.dumps(row | {"nll": 9.0}) + "\n" for row in rows))
    run([folder], out, METHODS, redo=["vector"])
    again = {(row["set"], row["method"]): row["nll"] for row in read(out)}
    for row in rows:
        expected = row["nll"] if row["method"] == "vector" else 9.0
        assert again[row["set"], row["method"]] == expected
    run([folder], out, ["vector"], samples=30)
    assert len(read(out)) == 8 and [row["n_fit"] for row in read(out)[-2:]] == [30, 30]


@pytest.mark.slow
def test_several_processes_measure_the_same(folder: Path, tmp_path: Path) -> None:
    alone, several = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    run([folder], alone, METHODS)
    command = [sys.executable, "-m", "benchmarks.quality", str(folder), "--methods", ",".join(METHODS)]
    subprocess.run([*command, "--out", str(several), "--jobs", "2"], cwd=ROOT, check=True, capture_output=True)
    found = [[row | {"seconds": 0} for row in read(out)] for out in (alone, several)]
    assert found[0] == found[1] and len(found[0]) == 6


def test_numbers_are_those_of_a_comparison(folder: Path) -> None:
    found = compare(folder / "c10_one.npz", methods=["vector"], bootstrap=20)
    line = measured(Task(folder / "c10_one.npz", "vector", 0))
    for metric in ("nll", "brier", "ece", "classwise-ece", "accuracy"):
        assert line[metric] == pytest.approx(found.row(metric, method="vector").value, abs=1e-7)
    assert (line["k"], line["n_fit"], line["n_test"]) == (3, 100, 100) and line["seconds"] >= 0


@pytest.mark.parametrize("name", PEERS)
def test_methods_of_other_libraries(folder: Path, name: str) -> None:
    if not PEERS[name].version:
        pytest.skip(f"{PEERS[name].package} is not installed")
    for path in sorted(folder.rglob("*_*.npz")):
        line = measured(Task(path, name, 0))
        assert "failure" not in line and line["brier"] < 1 - 1 / line["k"], path  # better than knowing nothing
    if name.endswith("temperature"):
        ours = measured(Task(folder / "c10_one.npz", "temperature", 0))["nll"]
        assert measured(Task(folder / "c10_one.npz", name, 0))["nll"] == pytest.approx(ours, abs=1e-3)


def test_every_calibrator_takes_part() -> None:
    assert set(CALIBRATORS.names) <= set(all_methods()) <= {*CALIBRATORS.names, *PEERS}


def test_a_method_that_cannot_be_fitted_is_a_line(folder: Path) -> None:
    np.savez(folder / "tiny.npz", logits=np.eye(2) * 3, labels=np.array([0, 1]))
    found = [measured(Task(folder / "tiny.npz", name, 0)) for name in CALIBRATORS.names]
    assert all(("failure" in row) != ("nll" in row) for row in found)


def test_two_sets_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "c10_one.npz").write_bytes((folder / "c10_one.npz").read_bytes())
    with pytest.raises(InputError, match="two are called c10_one"):
        run([folder], tmp_path / "out.jsonl", METHODS)


# -------------------------------------------------------------------------------------------------------------- tables


def lines(**more: Any) -> list[dict[str, Any]]:
    values = {"identity": 0.5, "vector": 0.4, "platt": 0.6}
    common = {"samples": 0, "brier": 0.1, "ece": 0.1, "classwise-ece": 0.1, "accuracy": 0.9, "seconds": 1.0} | more
    return [common | {"method": method, "nll": value} for method, value in values.items()]


def test_sets_have_kinds_sizes_and_families() -> None:
    row = {"k": 10, "folder": "logits", "set": "c10_vgg", "n_fit": 5000}
    assert (leaderboard.kind_of(row), leaderboard.size_of(row)) == ("vision", "from 4,000")
    assert leaderboard.kind_of(row | {"k": 2}) == "binary"
    assert leaderboard.kind_of(row | {"folder": "mine"}) == "mine"
    assert leaderboard.size_of(row | {"n_fit": 299}) == "under 300"
    assert leaderboard.size_of(row | {"n_fit": 300}) == "300 to 999"
    same = [
        row,
        row | {"folder": "longtail", "set": "c10lt_resnet110"},
        row | {"folder": "vision_cv", "set": "cifar10"},
    ]
    assert {leaderboard.family_of(each) for each in same} == {"c10"}
    assert leaderboard.family_of(row | {"folder": "tabular", "set": "abalone__rf"}) == "abalone"


def test_tables_and_picture() -> None:
    rows = [
        row
        for i in range(6)
        for row in lines(folder="tabular", set=f"set{i}__rf", k=2 + i % 2, n_fit=100 + 300 * (i % 2), n_test=9)
    ]
    rows += [row | {"samples": 50, "nll": 9.0} for row in rows]  # another study
    rows += lines(folder="tabular", set="begun__rf", k=2, n_fit=100, n_test=9)[:2]
    first, _, *table = leaderboard.markdown(rows).splitlines()
    assert first == "6 sets, 3 methods. 1 other set not finished yet."
    assert [line.split(" | ")[0] for line in table[2:]] == ["| vector", "| identity", "| platt"]
    assert "| vector | 1.0 | 100 % | 0 % | 0.4000 |" in table[2] and "| 0.00 |" in table[2]
    assert "100 %" in table[4].split(" | ")[3]  # harm
    assert leaderboard.markdown(rows, "kinds").startswith("| method | binary (3 sets) | tabular (3 sets) |")
    assert "| vector | 100 %, 0 % | 100 %, 0 % |" in leaderboard.markdown(rows, "samples")
    drawn = ElementTree.fromstring(leaderboard.picture(rows))
    assert drawn.tag.endswith("svg") and "vector" in "".join(drawn.itertext())
