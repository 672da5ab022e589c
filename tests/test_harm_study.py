"""The study of stated harm, on a small set: from a file of predictions to the tables."""

from pathlib import Path
from typing import Any

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
        harm.run([tmp_path / "tabular"], out, [0, 50, 500])
    whole, few = read(out)
    assert (whole["samples"], whole["n_fit"], few["samples"], few["n_fit"]) == (0, 200, 50, 50)
    assert whole["nll"] == whole["whole"] < whole["identity"] and whole["stated"] < harm.EDGES[2]
    assert harm.markdown([whole], "stated").count("\n") == 2
    by_samples = harm.markdown([whole, few], "samples").splitlines()[2:]
    assert [line.split(" | ")[0] for line in by_samples] == ["| 50", "| all"]


def test_stated_probabilities_are_counted_by_what_happened() -> None:
    common: dict[str, Any] = {"set": "one", "folder": "tabular", "samples": 0, "identity": 1.0}
    rows = [common | {"stated": 0.9, "nll": 1.0, "whole": 1.2}, common | {"stated": 1.0, "nll": 1.0, "whole": 0.9}]
    row = "| 80 % to 100 % | 2 | 95.0 % | 50.0 % | 0.0 % | 0.0000 | 1.000 → 1.000 |"
    assert harm.markdown(rows, "stated").splitlines()[2:] == [row]
    assert harm.markdown([common | {"stated": 0.1, "nll": 1.2, "whole": 1.2}], "samples").endswith(
        "| all | 1 | 10.0 % | 100.0 % | 100.0 % | 0.2000 | 1.000 → 1.200 |"
    )
