"""The study of class frequencies that shift, on a small set: from a file of predictions to the tables."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import shift
from benchmarks.quality.table import read
from conftest import random_predictions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logits, labels = random_predictions(2000, 4, sharpness=3.0)
    (tmp_path / "sets").mkdir()
    np.savez(tmp_path / "sets" / "c10_small.npz", logits=logits.numpy(), labels=labels.numpy())
    return tmp_path / "sets"


def test_estimates_are_measured_once_and_tabled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift, "DRAWS", 2)
    for _ in range(2):
        shift.run([folder], tmp_path / "out.jsonl", "estimated")
    rows = read(tmp_path / "out.jsonl")
    assert [row["shift"] for row in rows] == list(shift.KINDS) and all(row["draws"] == 2 for row in rows)
    by_kind = {row["shift"]: row for row in rows}
    assert by_kind["classes"]["shifted"] == by_kind["noisy"]["other"] == 1 and by_kind["classes"]["error"] < 0.05
    assert shift.estimated_markdown(rows).count("\n") == 5


def test_what_is_told_is_tabled_by_method(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        names = ("temperature", "structured-vector")

    monkeypatch.setattr(shift, "CALIBRATORS", Two)
    shift.run([folder], tmp_path / "out.jsonl", "told")
    rows = read(tmp_path / "out.jsonl")
    assert len(rows) == 6 and {row["prior"] for row in rows} == {"none", "uniform", "adapted"}
    assert shift.told_markdown(rows).count("\n") == 3


def test_few_predictions_are_tabled_by_their_number(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "DRAWS", 2)
    monkeypatch.setattr(shift, "FEW_METHODS", ("temperature",))
    for _ in range(2):
        shift.run([folder], tmp_path / "out.jsonl", "few")
    rows = read(tmp_path / "out.jsonl")
    assert [(row["shift"], row["n"]) for row in rows][:5] == [*(("none", n) for n in shift.FEW), ("classes", 20)]
    assert all(row["before"] == row["after"] for row in rows if not row["shifted"])
    assert shift.few_markdown(rows).count("\n") == 1 + len(rows)
