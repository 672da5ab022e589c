"""The study of harm, on a small set: from a file of predictions to the tables."""

from pathlib import Path

import numpy as np

from benchmarks.quality import harm
from benchmarks.quality.table import read
from conftest import random_predictions


def test_harm_is_measured_once_and_tabled(tmp_path: Path) -> None:
    logits, labels = random_predictions(400, 3, sharpness=3.0)
    probs = logits.softmax(1).numpy()
    (tmp_path / "tabular").mkdir()
    np.savez(
        tmp_path / "tabular" / "one.npz",
        val_probs=probs[:200],
        val_labels=labels[:200].numpy(),
        test_probs=probs[200:],
        test_labels=labels[200:].numpy(),
    )
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        harm.run([tmp_path / "tabular"], out, ("auto", "temperature"), 0)
    rows = read(out)
    assert [row["method"] for row in rows] == ["auto", "temperature"]
    assert rows[0]["nll"] == rows[0]["whole"] < rows[0]["identity"] and rows[0]["stated"] < harm.EDGES[2]
    table = harm.markdown(rows).splitlines()
    assert len(table) == 4 and all(
        line.startswith("| 130 sets |") and "| 0.0 % | 0.0000 |" in line for line in table[2:]
    )
    assert harm.stated_markdown(rows).count("\n") == 2


def test_stated_probabilities_are_counted_by_what_happened() -> None:
    common = {"set": "one", "folder": "tabular", "method": "auto", "samples": 0, "identity": 1.0, "ece": 0.1}
    rows = [common | {"stated": 0.9, "nll": 1.0, "whole": 1.2}, common | {"stated": 1.0, "nll": 1.0, "whole": 0.9}]
    assert "| 80 % to 100 % | 2 | 95.0 % | 50.0 % | 0.0 % |" in harm.stated_markdown(rows)
