"""Probabilities that were rounded when they were written: read with `normalise`, and what follows from it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import run
from conftest import random_predictions
from temperance import compare, evaluate
from temperance.errors import InputError
from temperance.metrics import nll
from temperance.predictions import Predictions, read_predictions, write_predictions
from test_predictions_reading import SUFFIXES, save


def rounded(decimals: int, k: int = 4) -> tuple[Any, Any]:
    logits, labels = random_predictions(400, k, sharpness=3.0)
    return logits.softmax(1).numpy().round(decimals), labels.numpy()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_rounded_probabilities_are_accepted_with_normalise(tmp_path: Path, suffix: str, decimals: int) -> None:
    probs, labels = rounded(decimals)
    path = tmp_path / f"in{suffix}"
    write_predictions(path, Predictions.of(probs, labels))
    if decimals < 4:
        refused = run("evaluate", path)
        assert refused.code == 2 and "If they are rounded, add --normalise" in refused.err
    found = read_predictions(path, normalise=True)
    assert found.decimals == decimals
    assert torch.allclose(found.scores.sum(1), torch.ones(400, dtype=torch.float64))
    assert (found.scores - torch.tensor(probs)).abs().max() < 2 * 10.0**-decimals
    true, _ = random_predictions(400, 4, sharpness=3.0)
    exact = nll(true, labels, from_logits=True)
    # The note says how many labels were zero; NLL is nearly that of the numbers before they were rounded.
    zeros = int((probs[np.arange(400), labels] == 0).sum())
    measured = evaluate(path, normalise=True, bootstrap=0, metrics=["nll"])
    assert measured.row("nll").value == pytest.approx(exact, abs=0.03)
    (note,) = measured.notes or ("",)
    if zeros:
        without = [i for i in range(400) if probs[i, labels[i]] > 0]
        others = nll(found.scores[without], labels[without])
        count = "1 label has" if zeros == 1 else f"{zeros} labels have"
        assert note.startswith(f"{count} a probability that was rounded to 0")
        assert f"on the other {400 - zeros} samples it is {others:.4g}" in note
        assert f"with 1e-12 it would be {(others * (400 - zeros) + zeros * 27.631) / 400:.4g}" in note
    assert run("evaluate", path, "--normalise", "--bootstrap", "0", "--metrics", "nll").code == 0


@pytest.mark.parametrize("decimals", [2, 3])
def test_a_calibrator_is_not_misled_by_rounding(decimals: int) -> None:
    probs, labels = rounded(decimals)
    true, _ = random_predictions(400, 4, sharpness=3.0)
    options: dict[str, Any] = {"methods": ["temperature"], "bootstrap": 20}
    exact = compare(true, labels, from_logits=True, **options)
    found = compare(probs, labels, normalise=True, **options)
    assert found.notes == evaluate(found.test, bootstrap=0, metrics=["nll"]).notes != ()
    assert found.notes[0] in found.to_json()
    best, expected = (each.row("nll", method="temperature").value for each in (found, exact))
    assert best == pytest.approx(expected, abs=0.03)


def test_zeros_and_ones_do_not_show_how_they_were_rounded() -> None:
    """A certain model is not made unsure, as if 1.000 stood for anything from 0.95 on."""
    probs = np.eye(4)[np.arange(400) % 4]
    labels = np.where(np.arange(400) < 2, 3, np.arange(400) % 4)
    found = evaluate(probs, labels, normalise=True, bootstrap=0, metrics=["confidence-gap"])
    assert found.row("confidence-gap").value == pytest.approx(2 / 400, abs=1e-6)
    assert found.verdict.startswith("Over-confident")
    fine = np.concatenate([probs, [[0.001, 0.999, 0, 0]]])
    data = Predictions.of(fine, np.append(labels, 1)).normalised()
    assert data.decimals == 3 and Predictions.of(probs, labels).normalised().decimals == 6


def sure_of_ten(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a calibrated model that is nearly always sure, and labels."""
    rng = np.random.default_rng(seed)
    wrong = 10 ** rng.uniform(-5, -1, n)
    others = rng.dirichlet(np.ones(9), n) * wrong[:, None]
    probs = rng.permuted(np.column_stack([1 - wrong, others]), axis=1)
    return probs, (probs.cumsum(1) < rng.random((n, 1))).sum(1)


def test_what_rounding_explains_is_no_miscalibration() -> None:
    """Of two decimals 1.00 stands for anything from 0.995 on, so an error of half a point is none."""
    probs, labels = sure_of_ten(40_000, 0)
    names = np.where(np.arange(40_000) % 2, "odd", "even")
    rounded = Predictions.of(probs.round(2), labels, groups=names).normalised()
    found = evaluate(rounded, by_group=True, bootstrap=0)
    assert found.verdict.startswith("No miscalibration found in 40,000 samples.")
    assert "Chance and rounding give up to 0.6 %" in found.verdict
    assert any(note.startswith("None of 2 groups is over- or under-confident") for note in found.notes)
    # Without rounding such an error is one, and one that rounding does not explain is found.
    shown = torch.cat([chunk.scores for chunk in rounded.chunks()])
    assert evaluate(shown, labels, bootstrap=0).verdict.startswith("Under-confident")
    labels[::100] = (labels[::100] + 1) % 10
    wrong = evaluate(probs.round(2), labels, normalise=True, bootstrap=0)
    assert wrong.verdict.startswith("Over-confident")


def test_what_rounding_explains_is_no_miscalibration_of_labels() -> None:
    rng = np.random.default_rng(0)
    scores = rng.uniform(0, 0.002, (40_000, 2))
    scores[::100] = 0.37
    labels = (rng.random((40_000, 2)) < scores).astype(int)
    found = evaluate(scores.round(2), labels, multilabel=True, normalise=True, bootstrap=0)
    assert found.verdict.startswith("No miscalibration found")


def test_exact_zeros_are_noted_too() -> None:
    probs = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]
    (note,) = evaluate(probs, [0, 0, 1, 0], bootstrap=0).notes
    assert note.startswith("1 label has a probability of 0") and "on the other 3 samples it is 0.4621" in note
    assert evaluate(probs, [0, 1, 1, 0], bootstrap=0).notes == ()
    assert evaluate(probs, [0, 0, 1, 0], bootstrap=0, metrics=["ece"]).notes == ()
    assert evaluate([[1.0, 0.0]], [1], bootstrap=0).notes[0].endswith("counts as 1e-12. So NLL is 27.6310.")
    assert evaluate(np.log(np.array(probs) + 1e-30), [0, 0, 1, 0], from_logits=True, bootstrap=0).notes == ()


@pytest.mark.parametrize(
    ("probs", "sentence"),
    [
        (
            [[0.333, 0.333, 0.333], [0.9, 0.9, 0.9]],
            r"row 1 sums to 2.7, and rounding 3 numbers to 3 decimals explains a difference of at most 0.003\. If",
        ),
        ([[0.333, 0.333, 0.333], [0.5, 0.3, 0.2], [0.7, 0.4, -0.1]], r"row 2 contains -0.1"),
        ([[0.5, 0.3, 0.2], [0.0, 0.0, 0.0]], r"row 1 sums to 0"),
        ([[0.5, 0.3, 0.2], [0.5, math.nan, 0.2]], r"row 1 contains nan"),
        (
            [[0.5, 0.3, 0.2], [0.123456789, 0.3, 0.2]],
            r"row 1 sums to 0.623457.*to 6 decimals explains .* at most 3e-06\.",
        ),
    ],
)
def test_sums_that_rounding_cannot_explain_are_refused(probs: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(probs, [0] * len(probs), normalise=True, bootstrap=0)


def test_sums_that_rounding_cannot_explain_name_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", probs_0=[0.333, 0.9], probs_1=[0.666, 0.9], label=[0, 1])
    said = run("evaluate", path, "--normalise")
    assert said.code == 2 and f"{path}: rounded probs" in said.err and "line 3 sums to 1.8" in said.err
    path = save(tmp_path / "in.csv", logits_0=[0.333, 0.9], logits_1=[0.666, 0.9], label=[0, 1])
    said = run("evaluate", path, "--normalise")
    assert said.code == 2 and "--normalise is for probabilities, and these are logits; leave it out" in said.err


def test_decimals_are_those_of_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    # One row in a chunk: a row of whole numbers must not be taken for one that was rounded to one decimal.
    monkeypatch.setattr("temperance.predictions.core.CHUNK_BYTES", 8 * 3)
    found = Predictions.of([[1.0, 0.0, 0.0], [0.334, 0.333, 0.332]], [0, 1], normalise=True)
    assert found.decimals == 3 and found.scores[0, 1].item() == pytest.approx(0.0005 / 3, rel=1e-3)
