"""How often intervals hold the true value: the study on a few draws, from the data to the table."""

from pathlib import Path

import pytest
import torch

from benchmarks.quality import coverage
from benchmarks.quality.table import read
from temperance.metrics import ece


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "DRAWS", 4)
    monkeypatch.setattr(coverage, "RESAMPLES", 20)
    monkeypatch.setattr(coverage, "ROWS", 4000)
    monkeypatch.setattr(coverage, "SIZES", (100, 300))


def test_true_values_are_those_of_very_many_samples() -> None:
    assert coverage.true_values("calibrated")["ece"] == 0
    says, true = coverage.drawn("over-confident", 200_000, torch.Generator().manual_seed(0))
    labels = torch.multinomial(true, 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
    assert coverage.true_values("over-confident")["ece"] == pytest.approx(ece(says, labels), abs=0.006)


def test_from_draws_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "CASES", {name: coverage.CASES[name] for name in ("calibrated", "steep")})
    out = tmp_path / "coverage.jsonl"
    coverage.run(out, (100,))
    rows = read(out)
    assert len(rows) == 2 * 2 * len(coverage.METRIC_NAMES)
    by_rule = {(row["rule"], row["case"], row["metric"]): row for row in rows}
    assert by_rule["ours", "steep", "mce"]["shown"] == 0 < by_rule["basic", "steep", "mce"]["shown"]
    assert by_rule["ours", "calibrated", "ece"]["held"] >= by_rule["basic", "calibrated", "ece"]["held"]
    coverage.run(out, (100,))
    assert read(out) == rows  # what is there is not run again
    table = coverage.markdown(rows).splitlines()
    assert len([line for line in table if line.startswith("| ECE |")]) == 2
    assert "| MCE | as shown | none | none |" in table and "| accuracy | basic" not in "".join(table)
