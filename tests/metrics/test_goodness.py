"""Tests of calibration: slow references, exact moments of Brownian motion, uniform p-values, limits."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy import stats as scipy_stats

from reference import two_columns
from temperance.metrics import (
    ks,
    ks_p_value,
    kuiper,
    kuiper_p_value,
    spiegelhalter_p_value,
    spiegelhalter_z,
)
from temperance.metrics.base import Metric
from temperance.metrics.goodness import brownian_maximum_tail, brownian_range_tail
from temperance.metrics.stats import TopLabels

CATALAN = 0.9159655941772190
P_VALUES = (ks_p_value, kuiper_p_value, spiegelhalter_p_value)


def top(confidence: Any, correct: Any) -> TopLabels:
    return TopLabels(torch.as_tensor(confidence, dtype=torch.float64), torch.as_tensor(correct).bool())


samples = st.lists(st.tuples(st.sampled_from([0.5, 0.6, 0.75, 1.0]) | st.floats(0.5, 1), st.booleans()), min_size=1)


@given(samples)
def test_ks_and_kuiper_are_the_largest_sums_below_and_between_confidences(pairs: list[tuple[float, bool]]) -> None:
    n = len(pairs)
    levels = sorted({c for c, _ in pairs})

    def gap(low: float, high: float) -> float:
        """Σ (correct − c) / n of the samples above `low` and up to `high`."""
        return sum(y - c for c, y in pairs if low < c <= high) / n

    found = two_columns([c for c, _ in pairs], [y for _, y in pairs])
    assert ks(*found) == pytest.approx(max(abs(gap(0, level)) for level in levels), abs=1e-12)
    between = [abs(gap(low, high)) for low in [0, *levels] for high in levels if high > low]
    assert kuiper(*found) == pytest.approx(max(between), abs=1e-12)
    assert ks(*found) - 1e-12 <= kuiper(*found) <= 2 * ks(*found) + 1e-12


@given(samples, st.randoms(use_true_random=False))
def test_order_does_not_matter_even_where_confidences_tie(pairs: list[tuple[float, bool]], random: Any) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)
    for metric in (ks, kuiper, ks_p_value, kuiper_p_value, spiegelhalter_p_value):
        here = metric(*two_columns(*zip(*pairs, strict=True)))
        there = metric(*two_columns(*zip(*shuffled, strict=True)))
        assert here == pytest.approx(there, abs=1e-6)


@pytest.mark.parametrize(
    ("tail", "mean", "square"),
    [
        (brownian_maximum_tail, math.sqrt(math.pi / 2), 2 * CATALAN),
        (brownian_range_tail, math.sqrt(8 / math.pi), 4 * math.log(2)),
    ],
)
def test_tails_have_the_known_moments(tail: Callable[[float], float], mean: float, square: float) -> None:
    first, _ = integrate.quad(tail, 0, 12, points=[0.1, 1.5, 2], epsabs=1e-12, limit=200)
    second, _ = integrate.quad(lambda x: 2 * x * tail(x), 0, 12, points=[0.1, 1.5, 2], epsabs=1e-12, limit=200)
    assert first == pytest.approx(mean, abs=1e-9)
    assert second == pytest.approx(square, abs=1e-9)


@pytest.mark.parametrize("tail", [brownian_maximum_tail, brownian_range_tail])
def test_tails_fall_smoothly_from_one_to_zero(tail: Callable[[float], float]) -> None:
    x = np.linspace(0, 10, 5001)
    values = np.array([tail(float(v)) for v in x])
    assert values[0] == 1 and values[-1] < 1e-20
    assert (np.diff(values) <= 1e-15).all()
    assert np.abs(np.diff(values, 3)).max() < 1e-6  # no jump where the series change
    assert tail(math.inf) == 0
    assert tail(1e-300) == 1


def test_tails_far_out_keep_their_digits() -> None:
    assert brownian_maximum_tail(10) == pytest.approx(4 * scipy_stats.norm.sf(10), rel=1e-9)
    assert brownian_range_tail(10) == pytest.approx(8 * scipy_stats.norm.sf(10), rel=1e-9)


@pytest.mark.parametrize("metric", P_VALUES, ids=lambda m: m.name)
def test_p_values_are_uniform_for_calibrated_predictions(metric: Metric) -> None:
    generator = torch.Generator().manual_seed(7)
    confidence = torch.rand(1000, 800, generator=generator, dtype=torch.float64) / 2 + 0.5
    correct = torch.rand(1000, 800, generator=generator) < confidence
    found = [metric(*two_columns(c, y)) for c, y in zip(confidence, correct, strict=True)]
    # A sum looked at only 800 times goes a little less far than Brownian motion, hence not quite uniform.
    assert scipy_stats.kstest(found, "uniform").statistic < 0.06
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.07


@pytest.mark.parametrize("metric", P_VALUES, ids=lambda m: m.name)
def test_p_values_find_overconfidence(metric: Metric) -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(2000, generator=generator, dtype=torch.float64) / 2 + 0.5
    correct = torch.rand(2000, generator=generator) < confidence - 0.1
    assert metric(*two_columns(confidence, correct)) < 1e-6


def test_kuiper_finds_errors_that_cancel() -> None:
    """Over-confident below, under-confident above: the sum over all is nil, and so is nearly Spiegelhalter's z."""
    confidence = np.concatenate([np.full(500, 0.7), np.full(500, 0.7001)])
    correct = np.concatenate([np.arange(500) < 275, np.arange(500) < 425])
    assert kuiper_p_value(*two_columns(confidence, correct)) < 1e-6
    assert spiegelhalter_p_value(*two_columns(confidence, correct)) > 0.9


def test_spiegelhalter_by_hand() -> None:
    found = two_columns([0.9, 0.8, 0.7], [1, 0, 1])
    z = (0.1 * -0.8 + -0.8 * -0.6 + 0.3 * -0.4) / math.sqrt(0.64 * 0.09 + 0.36 * 0.16 + 0.16 * 0.21)
    assert spiegelhalter_z(*found) == pytest.approx(z)
    assert spiegelhalter_p_value(*found) == pytest.approx(2 * scipy_stats.norm.sf(z))


def test_sign_of_z_says_the_direction() -> None:
    assert spiegelhalter_z(*two_columns([0.9] * 100, [1] * 60 + [0] * 40)) > 3
    assert spiegelhalter_z(*two_columns([0.6] * 100, [1] * 90 + [0] * 10)) < -3


def test_certain_predictions() -> None:
    right, wrong = two_columns([1.0] * 5, [1] * 5), two_columns([1.0] * 5, [1, 1, 1, 1, 0])
    for metric in P_VALUES:
        assert metric(*right) == 1
        assert metric(*wrong) == 0
    assert (ks(*right), kuiper(*right), spiegelhalter_z(*right)) == (0, 0, 0)
    assert ks(*wrong) == kuiper(*wrong) == pytest.approx(0.2)
    assert spiegelhalter_z(*wrong) == math.inf


def test_even_chances_say_nothing_to_spiegelhalter() -> None:
    found = two_columns([0.5] * 5, [1, 1, 1, 1, 0])
    assert spiegelhalter_z(*found) == 0
    assert spiegelhalter_p_value(*found) == 1
    assert ks(*found) == pytest.approx(0.3)


def test_one_sample_and_equal_confidences() -> None:
    one = two_columns([0.7], [1])
    assert ks(*one) == kuiper(*one) == pytest.approx(0.3)
    assert 0 < ks_p_value(*one) <= 1 and 0 < kuiper_p_value(*one) <= 1
    equal = two_columns([0.6] * 10, [1] * 6 + [0] * 4)
    assert ks(*equal) == pytest.approx(0, abs=1e-12)
    assert ks_p_value(*equal) == pytest.approx(1)


def test_rows_that_sum_to_a_little_more_than_one() -> None:
    probs, labels = np.array([[1.0005, 0.0], [1.0005, 0.0]]), np.array([0, 0])
    for metric in P_VALUES:
        assert 0 <= metric(probs, labels) <= 1


def test_statistics_of_top_labels_serve_both_values() -> None:
    found = top([0.6, 0.9], [0, 1])
    assert ks.value(found) == pytest.approx(0.3)
    assert ks_p_value.value(found) == ks_p_value(*two_columns([0.6, 0.9], [0, 1]))
