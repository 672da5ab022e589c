"""The tables of CTS: how their cells come from results and from predictions."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import cts
from benchmarks.papers.outputs import stored
from conftest import random_predictions
from temperance.metrics import ece


def test_the_papers_means_are_those_of_its_networks(tmp_path: Path) -> None:
    cells = {(cell.column, cell.row, cell.metric): cell for cell in cts.table_1(tmp_path)}
    found = cells["CIFAR-100, mean of 8", "CTS", "ECE"]
    assert found.printed == pytest.approx((2.72 + 1.74 + 2.14 + 2.06) / 4)
    assert cells["CIFAR-10, mean of 15", "CTS", cts.BELOW].printed == 100


def test_table_3_is_measured_in_the_papers_25_bins(tmp_path: Path) -> None:
    (tmp_path / "logits").mkdir()
    errors = []
    for seed in range(2):
        logits, labels = random_predictions(400, 3, seed)
        np.savez(
            tmp_path / "logits" / f"c100_{seed}.npz",
            val_logits=logits[:200],
            val_labels=labels[:200],
            test_logits=logits[200:],
            test_labels=labels[200:],
        )
        errors.append(100 * ece(logits[200:], labels[200:], from_logits=True, n_bins=25))
    found = {cell.row: cell for cell in cts.table_3(tmp_path)}
    assert found["uncalibrated"].ours == pytest.approx(sum(errors) / 2)
    assert found["uncalibrated"].column.endswith("mean of 2")
    assert list(found) == [cell.row for cell in stored("cts", "table III")]


def test_the_sentence_about_table_3() -> None:
    """docs/evidence.md: CTS has the lowest mean ECE, here and in the paper."""
    cells = stored("cts", "table III")
    for number in ("ours", "printed"):
        assert min(cells, key=lambda cell: getattr(cell, number)).row == "CTS"
