"""Confidence scores: golden numbers, limits, gradients, and the two ways to call them."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import SCORES, score
from temperance.metrics.scores import Score, energy, margin, max_logit, msp, negative_entropy

each_score = pytest.mark.parametrize("entry", list(SCORES), ids=SCORES.names)


def test_golden(vectors: Any) -> None:
    v = vectors["csf"]
    probs = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    assert np.allclose(probs, v["probs"], atol=1e-6)
    assert score(probs).tolist() == pytest.approx(v["msp"], abs=1e-6)
    assert score(probs, "margin").tolist() == pytest.approx(v["margin"], abs=1e-6)
    assert score(probs, "negative-entropy").tolist() == pytest.approx(v["neg_entropy"], abs=1e-6)
    normalised = negative_entropy(torch.from_numpy(probs), normalised=True)
    assert normalised.tolist() == pytest.approx(v["neg_entropy_norm_correct"], abs=1e-6)


def test_energy_reads_the_scale_that_softmax_removes() -> None:
    logits = np.array([[2.0, 1.0, 0.0], [12.0, 11.0, 10.0]])
    expected = [math.log(math.exp(2) + math.exp(1) + 1), 10 + math.log(math.exp(2) + math.exp(1) + 1)]
    assert score(logits, "energy", from_logits=True).tolist() == pytest.approx(expected)
    msp_of_both = score(logits, from_logits=True)
    assert float(msp_of_both[0]) == pytest.approx(float(msp_of_both[1]))


def test_energy_of_probabilities_is_refused() -> None:
    with pytest.raises(InputError, match="energy score needs logits"):
        score([[0.5, 0.5]], "energy")


def test_a_single_class() -> None:
    one = torch.ones(3, 1, dtype=torch.float64)
    for name, expected in {"msp": 1.0, "margin": 1.0, "negative-entropy": 0.0}.items():
        assert score(one, name).tolist() == [expected] * 3
    assert negative_entropy(one, normalised=True).tolist() == [1.0] * 3


def test_unknown_score_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean margin"):
        score([[0.5, 0.5]], "margins")


@each_score
def test_kinds_of_input_agree(entry: Score) -> None:
    logits, _ = random_predictions(200, 5)
    found = score(logits, entry.name, from_logits=True)
    assert found.shape == (200,) and found.dtype == torch.float64
    assert torch.equal(score(logits.numpy(), entry.name, from_logits=True), found)
    given = logits if entry.needs_logits else logits.softmax(1)
    assert torch.allclose(entry.function(given), found, atol=1e-12)
    if not entry.needs_logits:
        assert torch.allclose(score(given, entry.name), found, atol=1e-12)
    dense = logits.reshape(4, 50, 5).movedim(-1, 1)
    assert torch.allclose(score(dense, entry.name, from_logits=True), found.reshape(4, 50), atol=1e-12)


@each_score
def test_sharper_is_surer(entry: Score) -> None:
    direction = torch.tensor([[3.0, 1.0, 0.5, -1.0]], dtype=torch.float64)
    logits = torch.linspace(0.1, 5, 20, dtype=torch.float64)[:, None] * direction
    found = score(logits, entry.name, from_logits=True)
    assert bool((found.diff() > 0).all())


@each_score
def test_gradients(entry: Score) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.3, 0.2, 1.1]], dtype=torch.float64, requires_grad=True)

    def of_logits(z: torch.Tensor) -> torch.Tensor:
        return entry.function(z if entry.needs_logits else z.softmax(1))

    assert torch.autograd.gradcheck(of_logits, (logits,))
    # Logits so far apart that the smaller probabilities are exactly zero.
    for dtype in (torch.float32, torch.float64):
        far = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 1e4]], dtype=dtype, requires_grad=True)
        (gradient,) = torch.autograd.grad(of_logits(far).sum(), far)
        assert bool(torch.isfinite(gradient).all())


def test_probabilities_a_little_below_zero_do_no_harm() -> None:
    probs = torch.tensor([[1.0 + 1e-7, -1e-7]], dtype=torch.float64)
    assert float(negative_entropy(probs)) == pytest.approx(0.0, abs=1e-6)


def test_margin_counts_a_tie_as_zero() -> None:
    assert margin(torch.tensor([[0.4, 0.4, 0.2]])).tolist() == [0.0]


def test_max_logit_reads_the_scale() -> None:
    logits = torch.tensor([[3.0, 1.0], [30.0, 28.0]], dtype=torch.float64)
    assert score(logits, "max-logit", from_logits=True).tolist() == [3.0, 30.0]
    with pytest.raises(InputError, match="the max-logit score needs logits"):
        score([[0.5, 0.5]], "max-logit")


def test_registered_functions_are_the_module_functions() -> None:
    assert [entry.function for entry in SCORES] == [msp, margin, negative_entropy, energy, max_logit]
    assert SCORES.names == ["msp", "margin", "negative-entropy", "energy", "max-logit"]
    assert all(entry.summary for entry in SCORES)
