"""The split of proper scores into what recalibration corrects and what it cannot."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_predictions
from temperance.metrics import (
    METRICS,
    brier_calibration,
    brier_refinement,
    nll_calibration,
    nll_refinement,
)
from temperance.metrics.stats import TopLabels

Array = npt.NDArray[np.float64]

# Confidences on a coarse grid tie often.
top_labels = st.lists(st.tuples(st.sampled_from([i / 12 for i in range(13)]), st.booleans()), min_size=1, max_size=25)


def stats(pairs: Any) -> TopLabels:
    confidence, correct = zip(*pairs, strict=True)
    return TopLabels(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct))


def slow_isotonic(confidence: Array, correct: Array) -> Array:
    """The best non-decreasing function of the confidence, by the min–max formula over runs of distinct values."""
    values = np.unique(confidence)

    def mean(i: int, j: int) -> float:
        return float(correct[(confidence >= values[i]) & (confidence <= values[j])].mean())

    m = len(values)
    best = [max(min(mean(i, j) for j in range(at, m)) for i in range(at + 1)) for at in range(m)]
    return np.array([best[int(np.searchsorted(values, c))] for c in confidence])


def brier_score(said: Array, event: Array) -> float:
    return float(np.mean((said - event) ** 2))


def log_loss(said: Array, event: Array) -> float:
    happened = np.where(event == 1, said, 1 - said)
    return float(np.mean(-np.log(np.maximum(happened, 1e-12))))


@given(top_labels)
@settings(max_examples=60, deadline=None)
def test_slow_reference(pairs: list[tuple[float, bool]]) -> None:
    found = stats(pairs)
    confidence, correct = found.confidence.numpy(), found.correct.double().numpy()
    corrected = slow_isotonic(confidence, correct)
    for calibration, refinement, score in (
        (brier_calibration, brier_refinement, brier_score),
        (nll_calibration, nll_refinement, log_loss),
    ):
        assert refinement.value(found) == pytest.approx(score(corrected, correct), abs=1e-9)
        gain = score(confidence, correct) - score(corrected, correct)
        assert gain > -1e-9
        assert calibration.value(found) == pytest.approx(gain, abs=1e-9)


@given(top_labels)
@settings(max_examples=60, deadline=None)
def test_a_strictly_increasing_map_changes_calibration_only(pairs: list[tuple[float, bool]]) -> None:
    found = stats(pairs)
    moved = TopLabels(found.confidence.square() / 2 + found.confidence / 4, found.correct)
    for refinement in (brier_refinement, nll_refinement):
        assert refinement.value(moved) == pytest.approx(refinement.value(found), abs=1e-12)


def test_parts_sum_to_the_score_of_the_predicted_class() -> None:
    logits, labels = random_predictions(500, 4)
    probs = logits.softmax(1)
    confidence, prediction = probs.max(1)
    event = (prediction == labels).double()
    brier_both = brier_calibration(probs, labels) + brier_refinement(probs, labels)
    assert brier_both == pytest.approx(brier_score(confidence.numpy(), event.numpy()), abs=1e-12)
    nll_both = nll_calibration(probs, labels) + nll_refinement(probs, labels)
    assert nll_both == pytest.approx(log_loss(confidence.numpy(), event.numpy()), abs=1e-12)


def test_temperature_moves_calibration_and_not_refinement() -> None:
    logits, labels = random_predictions(4000, 2, sharpness=6.0)
    # With two classes a temperature is an increasing map of the confidence. The label's logit is a standard normal
    # shifted by 1.5 and multiplied by 6, so the true probabilities are those of temperature 6 / 1.5.
    sharp, soft = (
        (brier_calibration(z, labels, from_logits=True), brier_refinement(z, labels, from_logits=True))
        for z in (logits, logits / 4)
    )
    assert sharp[1] == pytest.approx(soft[1], abs=1e-9)
    assert sharp[0] > 5 * soft[0]


def test_calibrated_predictions_have_little_to_correct() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(50_000, generator=generator, dtype=torch.float64)
    found = TopLabels(confidence, torch.rand(50_000, generator=generator, dtype=torch.float64) < confidence)
    assert brier_calibration.value(found) < 1e-3
    assert brier_refinement.value(found) == pytest.approx(float((confidence * (1 - confidence)).mean()), abs=5e-3)


def test_equal_confidences_are_pooled() -> None:
    # One value of confidence cannot tell the right from the wrong, in whatever order they come.
    for correct in ([True, False, False, True], [False, False, True, True]):
        found = stats([(0.8, hit) for hit in correct])
        assert brier_refinement.value(found) == 0.25
        assert nll_refinement.value(found) == pytest.approx(math.log(2))
        assert brier_calibration.value(found) == pytest.approx(0.3**2)


def test_separable_predictions_need_no_better_model() -> None:
    found = stats([(0.9, True), (0.8, True), (0.6, False), (0.55, False)])
    assert brier_refinement.value(found) == nll_refinement.value(found) == 0.0
    assert brier_calibration.value(found) == pytest.approx((0.01 + 0.04 + 0.36 + 0.3025) / 4)


@pytest.mark.parametrize("n", [1, 6])
def test_limits(n: int) -> None:
    right, wrong = stats([(0.7, True)] * n), stats([(0.7, False)] * n)
    for found in (right, wrong):
        assert brier_refinement.value(found) == nll_refinement.value(found) == 0.0
    assert brier_calibration.value(right) == pytest.approx(0.09)
    assert brier_calibration.value(wrong) == pytest.approx(0.49)
    assert nll_calibration.value(right) == pytest.approx(-math.log(0.7))
    assert nll_calibration.value(wrong) == pytest.approx(-math.log(0.3))


def test_a_certain_mistake_costs_the_floor() -> None:
    found = stats([(1.0, False)])
    assert nll_calibration.value(found) == pytest.approx(-math.log(1e-12))
    assert nll_calibration([[1.0, 0.0]], [1]) == nll_calibration([[1e4, 0.0]], [1], from_logits=True)


@given(top_labels)
@settings(max_examples=60, deadline=None)
def test_claimed_ranges(pairs: list[tuple[float, bool]]) -> None:
    found = stats(pairs)
    for name in ("brier-calibration", "brier-refinement", "nll-calibration", "nll-refinement"):
        low, high = METRICS[name].range
        assert low <= METRICS[name].value(found) <= high
