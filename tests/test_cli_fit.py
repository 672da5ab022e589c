"""temperance fit: its prior, and files that are larger than the memory."""

from pathlib import Path

import pytest
import torch

from commands import run
from conftest import random_predictions
from temperance import evaluate
from temperance.calibrators import load_calibrator
from temperance.predictions import Predictions, write_predictions

K = 3


def test_a_prior_of_a_fit(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    write_predictions(path, Predictions.of(*random_predictions(40, K), from_logits=True))
    said = run("fit", "temperature", path, "-o", tmp_path / "cal.safetensors", "--prior", "uniform")
    assert said.code == 0, said.err
    found = load_calibrator(tmp_path / "cal.safetensors")
    assert found.get_params()["prior"] == "uniform" and found.target_prior.tolist() == pytest.approx([1 / 3] * 3)
    said = run("fit", "temperature", path, "-o", tmp_path / "cal.safetensors", "--prior", "adapt")
    assert said.code == 2 and "--prior must be uniform, same or a file of numbers; got 'adapt'" in said.err


@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("method", ["temperature", "isotonic", "vector"])
def test_a_large_file_is_fitted_in_several_passes(
    method: str, from_logits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, labels = random_predictions(4000, K)
    scores = logits if from_logits else logits.softmax(1)
    write_predictions(tmp_path / "in.npz", Predictions.of(scores, labels, from_logits=from_logits))
    assert run("fit", method, tmp_path / "in.npz", "-o", tmp_path / "memory.safetensors").code == 0
    for limit in ("LARGE", "MOST_VALUES"):
        monkeypatch.setattr(f"temperance.jobs.application.{limit}", 1000)
    monkeypatch.setattr(Predictions, "logits", None)  # would load all rows
    said = run("fit", method, tmp_path / "in.npz", "-o", tmp_path / "stream.safetensors")
    assert said.code == 0, said.err
    memory, stream = (load_calibrator(tmp_path / f"{kind}.safetensors") for kind in ("memory", "stream"))
    away = (stream.predict_proba(logits) - memory.predict_proba(logits)).abs()
    assert float(away.mean() if method == "isotonic" else away.max()) < (2e-3 if method == "isotonic" else 1e-5)


def test_a_bad_row_of_a_large_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = random_predictions(4000, K)
    logits[3456, 1] = torch.nan
    write_predictions(tmp_path / "in.npz", Predictions.of(logits, labels, from_logits=True))
    for limit in ("LARGE", "MOST_VALUES"):
        monkeypatch.setattr(f"temperance.jobs.application.{limit}", 1000)
    said = run("fit", "temperature", tmp_path / "in.npz", "-o", tmp_path / "cal.safetensors")
    assert "in.npz: logits must be finite; row 3456 (counting from 0), class 1 is nan" in said.err
    assert not (tmp_path / "cal.safetensors").exists()


@pytest.mark.parametrize("method", ["temperature", "auto", "isotonic", "class-temperature"])
def test_labels_that_have_nothing_to_do_with_the_predictions_are_the_cause(method: str, tmp_path: Path) -> None:
    """A fit to them fails in many ways, from too few samples to saturated logits; only their cause can be corrected."""
    logits, labels = random_predictions(200, K)
    unrelated = labels[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    data = Predictions.of(logits, unrelated, from_logits=True)
    (note,) = evaluate(data, metrics="accuracy", bootstrap=0).notes
    for name, each in (("unrelated", unrelated), ("right", labels)):
        write_predictions(tmp_path / f"{name}.npz", Predictions.of(logits, each, from_logits=True))
    said = run("fit", method, tmp_path / "unrelated.npz", "-o", tmp_path / "cal.safetensors")
    assert said.code == 0 and said.err == f"temperance: warning: {note}\n"
    assert load_calibrator(tmp_path / "cal.safetensors").info["caution"] == note
    assert note not in run("fit", method, tmp_path / "right.npz", "-o", tmp_path / "cal.safetensors").err
