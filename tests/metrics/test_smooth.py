"""Smooth ECE and MMCE: golden numbers, the definitions written out, properties, limits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_predictions
from reference import two_columns
from temperance.metrics import ece, mmce, smooth_ece
from temperance.metrics.smooth import NARROWEST
from temperance.metrics.stats import TopLabels

TINY = 2e-6  # the golden numbers are rounded to six decimals
Array = npt.NDArray[np.float64]


def slow_smooth(confidence: Array, correct: Array, bandwidth: float) -> float:
    """The integral at a fixed bandwidth, by its definition: mirror images of each sample, a fine grid."""
    points = (np.arange(4000) + 0.5) / 4000
    smoothed = np.zeros(4000)
    for c, y in zip(confidence, correct, strict=True):
        for shift in (-6, -4, -2, 0, 2, 4, 6):
            for image in (c + shift, -c + shift):
                smoothed += (c - y) * np.exp(-(((points - image) / bandwidth) ** 2) / 2)
    return float(np.abs(smoothed).mean() / len(confidence) / (bandwidth * np.sqrt(2 * np.pi)))


def slow_mmce(confidence: Array, correct: Array) -> float:
    residual = correct - confidence
    kernel = np.exp(-np.abs(confidence[:, None] - confidence[None, :]) / 0.4)
    return float(residual @ kernel @ residual) / len(confidence) ** 2


samples = st.lists(st.tuples(st.floats(0.5, 1), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=40)
@given(samples)
def test_smooth_ece_is_the_fixed_point_of_its_definition(pairs: list[tuple[float, bool]]) -> None:
    confidence, correct = np.array([c for c, _ in pairs]), np.array([float(y) for _, y in pairs])
    value = smooth_ece(*two_columns(confidence, correct))
    if value > NARROWEST:
        assert value == pytest.approx(slow_smooth(confidence, correct, value), abs=2e-5)
    else:
        assert value == pytest.approx(slow_smooth(confidence, correct, NARROWEST), abs=2e-5)


def test_smooth_ece_of_certain_predictions_is_not_halved() -> None:
    """Samples beside the mirror count in full: all sure, one in ten wrong, is an error of 0.1 at any bandwidth."""
    for confidence in (1.0, 0.9999, 0.999):
        found = smooth_ece(*two_columns([confidence] * 100, [0] * 10 + [1] * 90))
        assert found == pytest.approx(confidence - 0.9, abs=1e-9)
    half = smooth_ece(*two_columns([1.0] * 50 + [0.6] * 50, [1] * 25 + [0] * 25 + [1] * 30 + [0] * 20))
    assert half == pytest.approx(0.25, abs=0.01)


def test_smooth_ece_agrees_with_the_definition_on_real_predictions(shared_data: Any) -> None:
    data = np.load(shared_data / "logits" / "c10_densenet40.npz")
    logits, labels = torch.from_numpy(data["test_logits"]), torch.from_numpy(data["test_labels"]).long()
    confidence, prediction = logits.double().softmax(1).max(1)
    value = smooth_ece(logits, labels, from_logits=True)
    slow = slow_smooth(confidence.numpy()[::4], (prediction == labels).double().numpy()[::4], value)
    fast = smooth_ece(logits[::4], labels[::4], from_logits=True)
    assert value == pytest.approx(0.0549, abs=1e-4)
    assert slow == pytest.approx(fast, abs=1e-4)


def test_smooth_ece_moves_little_where_ece_jumps() -> None:
    step = 1e-6
    here, there = two_columns([0.6 - step] * 10, [1] * 5 + [0] * 5), two_columns([0.6 + step] * 10, [1] * 5 + [0] * 5)
    mixed = two_columns([0.6 - step, 0.6 + step] * 5, [1, 0] * 5)
    assert abs(smooth_ece(*here) - smooth_ece(*there)) < 1e-5
    assert abs(smooth_ece(*here) - smooth_ece(*mixed)) < 1e-3
    assert abs(ece(*here, n_bins=5) - ece(*mixed, n_bins=5)) > 0.3


def test_smooth_ece_is_the_gap_where_all_err_on_one_side() -> None:
    assert smooth_ece(*two_columns([0.7], [1])) == pytest.approx(0.3, abs=1e-9)
    assert smooth_ece(*two_columns([0.6, 0.8, 0.9], [0, 0, 0])) == pytest.approx(2.3 / 3, abs=1e-9)
    assert smooth_ece(*two_columns([1.0] * 7, [0] * 7)) == pytest.approx(1, abs=1e-9)
    assert smooth_ece(*two_columns([1.0] * 7, [0] * 7)) <= 1


def test_smooth_ece_of_an_exactly_calibrated_confidence_is_zero() -> None:
    assert smooth_ece(*two_columns([0.6] * 10, [1] * 6 + [0] * 4)) == pytest.approx(0, abs=1e-9)


def test_smooth_ece_of_many_samples_is_that_of_its_parts() -> None:
    logits, labels = random_predictions(3000, 4)
    whole = smooth_ece(logits, labels, from_logits=True)
    parts = [smooth_ece.stats(logits[i::3], labels[i::3], from_logits=True) for i in range(3)]
    assert smooth_ece.value(parts[0] + parts[1] + parts[2]) == pytest.approx(whole, abs=1e-12)


def test_mmce_golden(vectors: Any, fixture_a: Any) -> None:
    v = vectors["mmce_A"]
    logits, labels = fixture_a
    assert mmce(logits, labels, from_logits=True) == pytest.approx(v["mmce"], abs=TINY)
    assert mmce(logits, labels, from_logits=True, squared=True) == pytest.approx(v["mmce_squared"], abs=TINY)
    hand = vectors["mmce_hand"]
    found = mmce(*two_columns(hand["conf"], hand["correct"]), squared=True)
    assert found == pytest.approx(hand["mmce_squared"], abs=TINY)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_mmce_agrees_with_the_double_sum(pairs: list[tuple[float, bool]]) -> None:
    confidence, correct = np.array([c for c, _ in pairs]), np.array([float(y) for _, y in pairs])
    found = TopLabels(torch.from_numpy(confidence), torch.from_numpy(correct).bool())
    assert mmce.value(found, squared=True) == pytest.approx(slow_mmce(confidence, correct), abs=1e-14)
    assert mmce.value(found) ** 2 == pytest.approx(mmce.value(found, squared=True), abs=1e-14)


def test_mmce_agrees_with_the_double_sum_on_many_samples() -> None:
    logits, labels = random_predictions(2000, 10)
    confidence, prediction = logits.softmax(1).max(1)
    expected = slow_mmce(confidence.numpy(), (prediction == labels).double().numpy())
    assert mmce(logits, labels, from_logits=True, squared=True) == pytest.approx(expected, rel=1e-10)


def test_mmce_limits() -> None:
    assert mmce(*two_columns([0.7], [1])) == pytest.approx(0.3)
    assert mmce(*two_columns([1.0] * 5, [1] * 5)) == 0
    assert mmce(*two_columns([1.0] * 5, [0] * 5)) == pytest.approx(1)
    assert mmce(*two_columns([0.5] * 8, [1, 0] * 4)) == pytest.approx(0, abs=1e-8)
