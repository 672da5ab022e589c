"""AdaFocal: golden values, the update of gammas against an obvious version, bins."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import AdaFocal, Focal
from temperance.losses.adafocal import equal_mass_edges


def stepped(gamma: float, gap: float) -> float:
    at = torch.tensor([gamma], dtype=torch.float64), torch.tensor([gap], dtype=torch.float64)
    return float(AdaFocal()._step(*at))


def test_golden_steps(vectors: Any) -> None:
    golden = vectors["adafocal_update"]
    for gamma, gap, key in (
        (1.0, 0.3, "g1_gap_0p3"),
        (0.21, -0.1, "g0p21_gap_minus0p1"),
        (-1.0, -0.2, "gminus1_gap_minus0p2"),
        (-0.21, 0.1, "gminus0p21_gap_0p1"),
        (19.0, 0.5, "clip_hi"),
    ):
        assert stepped(gamma, gap) == pytest.approx(golden[key], abs=1e-6)


def test_golden_loss(vectors: Any) -> None:
    golden = vectors["adafocal_loss_hand"]
    logits = torch.tensor([[golden["p"], 1 - golden["p"]]], dtype=torch.float64).log()
    for gamma, key in ((2.0, "gamma_pos2"), (-2.0, "gamma_neg2")):
        found = AdaFocal(initial_gamma=gamma, n_bins=1)(logits, torch.tensor([0]))
        assert float(found) == pytest.approx(golden[key], abs=1e-6)


@given(st.floats(-2, 20), st.floats(-1, 1))
@settings(max_examples=100, deadline=None)
def test_steps_keep_their_distance_from_zero(gamma: float, gap: float) -> None:
    found = stepped(gamma, gap)
    assert abs(found) >= 0.2 and -2 <= found <= 20
    if abs(gamma) > 1e-6 and found not in (-2, 20) and abs(found) != pytest.approx(0.2):
        assert found == pytest.approx(gamma * math.exp(gap if gamma > 0 else -gap))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.5])
def test_equal_gammas_are_focal_loss(gamma: float) -> None:
    logits, labels = random_predictions(100, 4)
    found = AdaFocal(initial_gamma=gamma, reduction="none")(logits, labels)
    assert torch.allclose(found, Focal(gamma=gamma, reduction="none")(logits, labels))


# ---------------------------------------------------------------------------------------------------------- the update

Array = npt.NDArray[np.float64]


def updated_slowly(gammas: Array, confidence: Array, correct: Array) -> tuple[Array, Array]:
    """Bin by bin, with NumPy's interpolation."""
    n, n_bins = len(confidence), len(gammas)
    edges = np.interp(np.linspace(0, n, n_bins + 1), np.arange(n), np.sort(confidence))
    edges[0], edges[-1] = -np.inf, np.inf
    after = gammas.copy()
    for b in range(n_bins):
        inside = (confidence > edges[b]) & (confidence <= edges[b + 1])
        if inside.any():
            gap = confidence[inside].mean() - correct[inside].mean()
            moved = gammas[b] * math.exp(gap if gammas[b] > 0 else -gap)
            if abs(moved) < 0.2:
                moved = -0.2 if moved > 0 else 0.2
            after[b] = min(max(moved, -2), 20)
    return edges[1:-1], after


@pytest.mark.parametrize("n", [1, 5, 400])
def test_updates_agree_with_the_obvious_version(n: int) -> None:
    loss, gammas = AdaFocal(n_bins=7), np.ones(7)
    for seed in range(4):
        logits, labels = random_predictions(n, 4, seed)
        confidence, prediction = logits.float().softmax(1).max(1)
        edges, gammas = updated_slowly(gammas, confidence.double().numpy(), (prediction == labels).double().numpy())
        loss.update(logits.float(), labels)
        assert loss.edges.tolist() == pytest.approx(edges.tolist(), abs=1e-6)
        assert loss.gammas.tolist() == pytest.approx(gammas.tolist(), rel=1e-5)
        gammas = loss.gammas.double().numpy()


def test_samples_take_the_gamma_of_their_labels_probability() -> None:
    loss = AdaFocal(n_bins=3, reduction="none")
    loss.edges.copy_(torch.tensor([0.4, 0.8]))
    loss.gammas.copy_(torch.tensor([-1.0, 2.0, 5.0]))
    p = torch.tensor([0.1, 0.4, 0.41, 0.8, 0.99])
    logits = torch.stack([p, 1 - p], 1).log()
    found = loss(logits, torch.zeros(5, dtype=torch.int64))
    gamma = torch.tensor([1.0, 1.0, 2.0, 2.0, 5.0])
    factor = torch.where(torch.tensor([True, True, False, False, False]), 1 + p, 1 - p)
    # 0.4 and 0.8 are edges, where rounding decides; the others are safe inside.
    assert torch.allclose(found[[0, 2, 4]], (-(factor**gamma) * p.log())[[0, 2, 4]], rtol=1e-5)


def test_over_confidence_raises_gamma_and_under_confidence_lowers_it() -> None:
    logits, labels = random_predictions(500, 4)
    surer, humbler = AdaFocal(), AdaFocal()
    surer.update(logits, (labels + 1) % 4)
    humbler.update(0.05 * logits, logits.argmax(1))
    assert bool((surer.gammas > 1).all()) and bool((humbler.gammas < 1).all())


def test_edges_split_values_evenly() -> None:
    values = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edges = equal_mass_edges(values, 8)
    counts = torch.bincount(torch.bucketize(values, edges), minlength=8)
    assert counts.tolist() == pytest.approx([125] * 8, abs=1)


def test_an_unlabelled_validation_set_is_refused() -> None:
    logits, labels = random_predictions(5, 3)
    with pytest.raises(InputError, match="needs predictions on the validation set"):
        AdaFocal().update(logits, torch.full_like(labels, -100))


def test_gammas_start_within_their_bounds() -> None:
    with pytest.raises(InputError, match="initial_gamma must be a number from -2 to 20; got 30"):
        AdaFocal(initial_gamma=30)
