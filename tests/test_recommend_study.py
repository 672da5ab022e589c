"""The study of what `compare` recommends, on two small sets: from predictions to the table."""

from pathlib import Path

import numpy as np

from benchmarks.quality.recommend import markdown, run
from benchmarks.quality.table import read
from conftest import random_predictions


def study(folder: Path, out: Path, labels: str = "real") -> None:
    run([folder], out, "temperature,isotonic", draws=2, sizes=[10, 500], labels=labels)


def test_every_set_and_size_leaves_a_line_once(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for i in range(2):
        logits, labels = random_predictions(900, 3, i, sharpness=4.0)
        np.savez(tmp_path / f"{i}.npz", logits=logits.numpy(), labels=labels.numpy())
    study(tmp_path, out)
    rows = read(out)
    assert len({(row["set"], row["n"]) for row in rows}) == len(rows) == 2 * 2
    for row in rows:
        assert len(row["recommended"]) == len(row["before"]) == len(row["after"]) == 2
        assert row["n"] > 10 or row["recommended"] == ["identity", "identity"]
        unchanged = [before == after for before, after in zip(row["before"], row["after"], strict=True)]
        assert unchanged == [name == "identity" for name in row["recommended"]]
    study(tmp_path, out)
    assert read(out) == rows
    study(tmp_path, out, "drawn")
    rows = read(out)
    assert len(rows) == 2 * 2 * 2
    head, _, few, many = markdown(rows).splitlines()
    assert few.startswith("| temperature, isotonic | 10 | 4 | 0.0 % | 0.0 % |")
    assert many.startswith("| temperature, isotonic | 500 | 4 | 100.0 % | 0.0 % |")
    assert head.count("|") == few.count("|") == many.count("|")
