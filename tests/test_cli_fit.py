"""temperance fit: its prior, and files that are larger than the memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from calibrators.fits import Method, data, each, few
from commands import run
from conftest import random_predictions
from temperance import evaluate
from temperance.calibrators import load_calibrator
from temperance.jobs import application
from temperance.jobs.measuring import checked_batches
from temperance.metrics.batch import Batch
from temperance.predictions import Predictions, write_predictions
from temperance.settings import settings_of

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


@each
@few
def test_what_a_fit_prints_is_in_words(method: Method, tmp_path: Path) -> None:
    """What a solver records, such as its gradient, is for `info`; names with underscores are those of the code."""
    path, saved = tmp_path / "in.npz", tmp_path / "cal.safetensors"
    logits, labels = data()
    write_predictions(path, Predictions.of(logits, labels, from_logits=True, groups=labels.numpy() % 2))
    said = run("fit", method.name, path, "-o", saved)
    assert said.code == 0, said.err
    head, *lines = said.out.splitlines()
    assert head == f"fitted {method.name} on 240 samples; saved in {saved}"
    entries = dict(line.strip().split(": ", 1) for line in lines if line.startswith("  "))
    assert entries["numbers learnt"] == f"{load_calibrator(saved).n_parameters:,}"
    internal = {"converged", "gradient", "value", "steps", "at_bound", "remaining", "knots", "tried"}
    assert not internal & set(entries)
    settings = {f"({name})" for name in settings_of(method)}
    assert not [words for words in entries if "_" in words and not any(name in words for name in settings)]


def test_a_fit_says_what_is_missing(tmp_path: Path) -> None:
    logits, labels = data()
    keep = labels != 2
    names = ["ant", "bee", "cat", "dog"]
    path = tmp_path / "in.npz"
    write_predictions(path, Predictions.of(logits[keep], labels[keep], from_logits=True, class_names=names))
    for method in ("class-temperature", "vector", "auto"):
        said = run("fit", method, path, "-o", tmp_path / "cal.safetensors")
        assert "  classes without samples: cat\n" in said.out and "stopped before" not in said.out
    said = run("fit", "temperature", path, "-o", tmp_path / "cal.safetensors", "--set", "solver=released")
    assert said.out.endswith("  It stopped before it settled: more steps could still change it.\n")


def test_methods_that_auto_cannot_fit_for_the_same_reason_are_named_together(tmp_path: Path) -> None:
    logits, _ = random_predictions(5, K)
    write_predictions(tmp_path / "in.npz", Predictions.of(logits, [1, 2, 1, 1, 1], from_logits=True))
    said = run("fit", "auto", tmp_path / "in.npz", "-o", tmp_path / "cal.safetensors")
    left_out = load_calibrator(tmp_path / "cal.safetensors").info["left_out"]
    (line,) = (line for line in said.out.splitlines() if "not fitted" in line)
    first = next(iter(left_out))
    assert (
        len(left_out) > 2 and line == f"  not fitted: {first} and {len(left_out) - 1} others, because {left_out[first]}"
    )


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
    for name, truth in (("unrelated", unrelated), ("right", labels)):
        write_predictions(tmp_path / f"{name}.npz", Predictions.of(logits, truth, from_logits=True))
    said = run("fit", method, tmp_path / "unrelated.npz", "-o", tmp_path / "cal.safetensors")
    assert said.code == 0 and said.err == f"temperance: warning: {note}\n"
    assert load_calibrator(tmp_path / "cal.safetensors").info["caution"] == note
    assert note not in run("fit", method, tmp_path / "right.npz", "-o", tmp_path / "cal.safetensors").err


def test_the_first_rows_show_that_labels_are_related(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = random_predictions(300_000, K)
    read = 0

    def counted(given: Predictions) -> Iterator[Batch]:
        nonlocal read
        for batch in checked_batches(given):
            read += len(batch.labels)
            yield batch

    monkeypatch.setattr(application, "checked_batches", counted)
    monkeypatch.setattr(application, "FIRST_BATCHES", 1)
    assert application._wrong_labels(Predictions.of(logits, labels, from_logits=True)) == ""
    assert read < 300_000
    alone = torch.cat([(labels == 0).nonzero().squeeze(1).repeat(2), torch.arange(300_000)])  # the first show nothing
    assert application._wrong_labels(Predictions.of(logits[alone], labels[alone], from_logits=True)) == ""
    shuffled = labels[torch.randperm(300_000, generator=torch.Generator().manual_seed(1))]
    data = Predictions.of(logits, shuffled, from_logits=True)
    assert "no better than chance" in application._wrong_labels(data)
