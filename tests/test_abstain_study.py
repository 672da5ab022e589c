"""How often the promise of `abstain` is broken: the study on a few draws, from the populations to the table."""

from pathlib import Path

import pytest
import torch

from benchmarks.quality import abstain
from benchmarks.quality.table import read
from temperance.jobs.thresholds import THRESHOLDS, counts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abstain, "DRAWS", 20)
    monkeypatch.setattr(abstain, "ROWS", 200_000)


@pytest.mark.parametrize("name", abstain.POPULATIONS)
def test_true_errors_are_those_of_very_many_samples(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    confidence, right = abstain.drawn(name, 200_000, generator)
    kept, wrong = counts(confidence, torch.rand(200_000, generator=generator) < right)
    many = kept > 5000
    assert torch.allclose((wrong / kept)[many].double(), abstain.true_errors(name)[many], atol=0.03)
    assert float(THRESHOLDS[many].max()) > 0.9


def test_from_draws_to_the_table(tmp_path: Path) -> None:
    out = tmp_path / "abstain.jsonl"
    abstain.run(out, (200, 1000))
    rows = read(out)
    assert len(rows) == 2 * len(abstain.POPULATIONS)
    assert all(row["broken"] <= row["found"] <= row["draws"] for row in rows)
    assert all(row["broken"] == row["found"] for row in rows if row["population"] == "no use")
    abstain.run(out, (200, 1000))
    assert read(out) == rows  # what is there is not run again
    head, _, *lines = abstain.markdown(rows).splitlines()
    assert head == "| population | n = 200 | n = 1,000 |" and len(lines) == len(abstain.POPULATIONS)


def test_the_kept_results_keep_the_promise() -> None:
    rows = read(Path(abstain.__file__).parents[1] / "results" / "abstain.jsonl")
    assert rows and all(row["broken"] <= abstain.ALLOWED * row["draws"] for row in rows)
