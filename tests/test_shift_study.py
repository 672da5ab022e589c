"""The study of class frequencies that shift, on a small set: from a file of predictions to the tables."""

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from benchmarks.quality import shift
from benchmarks.quality.table import read
from conftest import random_predictions

ROOT = Path(__file__).resolve().parent.parent


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


def test_what_the_pages_say_of_the_study_is_in_its_results() -> None:
    found = read(ROOT / "benchmarks" / "results" / "shift.jsonl")
    rows = [row for row in found if row["study"] == "estimated"]
    few = [row for row in found if row["study"] == "few"]

    def mean(key: str, kind: str, group: tuple[str, ...] = ("",)) -> float:
        return fmean(row[key] for row in rows if row["shift"] == kind and row["set"].startswith(group))

    def of_few(key: str, kind: str, n: int, method: str = shift.FEW_METHODS[0]) -> float:
        mine = [r for r in few if (r["shift"], r["n"], r["method"]) == (kind, n, method) and r["set"] in models]
        return float(sum(row["draws"] * row[key] for row in mine) / sum(row["draws"] for row in mine))

    models = tuple({row["set"] for row in rows if not row["set"].startswith(("c10_", "c100_", "fmnist"))})
    assert len(rows) == 34 * len(shift.KINDS) and len(models) == 9
    alarms = " and ".join(f"{mean(key, 'none'):.1%}" for key in ("shifted", "other"))
    alarms_of_models = " and ".join(f"{mean(key, 'none', models):.1%}" for key in ("shifted", "other"))
    anew = [of_few("other", "none", n, method) for n in shift.FEW for method in shift.FEW_METHODS]
    harm = f"from {mean('before', 'noisy', models):.3f} to {mean('after', 'noisy', models):.3f}"
    power = f"{of_few('shifted', 'classes', 300):.1%}"
    for page, says in (
        ("results.md", f"Over all sets, {alarms} of the samples without a shift raise a false alarm"),
        ("results.md", f"for the language models, it is {alarms_of_models}"),
        ("results.md", f"in the table below, they are {min(anew):.1%} to {max(anew):.1%}"),
        ("results.md", f"predictions of language models {harm}"),
        ("results.md", f"is found on images, and {power} on language models"),
        ("shift.md", f"every shift that was made on images and {power} of those on language models"),
        ("shift.md", f"the NLL rose {harm} by adapting"),
        (
            "calibrators.md",
            f"alarm in {alarms} of the samples, and every sample with another kind of shift was recognised",
        ),
    ):
        assert says.replace("%", " %") in " ".join((ROOT / "docs" / page).read_text().split())
    assert mean("other", "hard") == mean("other", "noisy") == 1
    assert mean("shifted", "none") <= 0.05 and mean("other", "none") <= 0.05
    images = [row for row in few if row["shift"] == "classes" and row["set"] not in models]
    assert {row["shifted"] for row in images if row["n"] == 300} == {1.0}
    assert min(fmean(row["shifted"] for row in images if row["n"] == 100), of_few("shifted", "classes", 100)) > 0.5
