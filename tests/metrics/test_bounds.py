"""The floor under calibration errors, and the maps that reach it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import random_predictions
from temperance.metrics import (
    accuracy,
    classwise_ece,
    classwise_ece_sup,
    ece,
    ece_sup,
    error_over_k,
    half_map,
    oracle_map,
)

TINY = 2e-6  # the golden numbers are rounded to six decimals


@st.composite
def some_predictions(draw: Any) -> tuple[Any, Any]:
    n, k = draw(st.integers(1, 30)), draw(st.integers(2, 5))
    raw = draw(hnp.arrays(np.float64, (n, k), elements=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 2.0])))
    raw[raw.sum(1) == 0] = 1.0
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return raw / raw.sum(1, keepdims=True), labels


def gap(probs: Any, prediction: Any, labels: Any) -> float:
    """mean |correct − probability of the prediction|, with the prediction given rather than read from the row."""
    p, yhat, y = np.asarray(probs), np.asarray(prediction), np.asarray(labels)
    return float(np.abs((yhat == y) - p[np.arange(len(y)), yhat]).mean())


def test_golden_fixture_a(vectors: Any, fixture_a: Any) -> None:
    logits, labels = fixture_a
    v = vectors["lower_bounds_A"]
    assert error_over_k(logits, labels, from_logits=True) == pytest.approx(v["err_over_k"], abs=TINY)
    assert ece_sup(logits, labels, from_logits=True) == pytest.approx(v["sup_ece_singletons"], abs=TINY)
    assert classwise_ece_sup(logits, labels, from_logits=True) == pytest.approx(v["sup_cwece_singletons"], abs=TINY)


def test_golden_bound_does_not_hold_for_fixed_bins(vectors: Any) -> None:
    v = vectors["bound_not_for_fixed_bins"]
    probs = np.tile([v["conf"], 1 - v["conf"]], (v["n"], 1))
    labels = (np.arange(v["n"]) >= v["n_correct"]).astype(int)
    assert ece(probs, labels) == pytest.approx(v["ece15"], abs=1e-12)
    assert error_over_k(probs, labels) == pytest.approx(v["err_over_k"])
    assert ece_sup(probs, labels) == pytest.approx(v["sup_ece"])


def test_golden_maps(vectors: Any, fixture_a: Any) -> None:
    logits, labels = fixture_a
    v = vectors["optimal_maps_A"]
    probs, prediction = oracle_map(logits, labels, from_logits=True)
    assert prediction.tolist() == vectors["fixture_A"]["pred"]
    assert gap(probs, prediction, labels) == pytest.approx(v["sup_ece_after_42"], abs=TINY)
    probs, prediction = half_map(logits, labels, from_logits=True)
    assert classwise_ece_sup(probs, labels) == pytest.approx(v["sup_cwece_after_44"], abs=TINY)
    assert probs[4].tolist() == pytest.approx(v["row4_after_44"], abs=TINY)


def test_golden_half_map_by_hand(vectors: Any) -> None:
    v = vectors["map44_hand"]
    probs, prediction = half_map([v["p"]], [v["y"]])
    assert probs[0].tolist() == pytest.approx(v["mapped"], abs=1e-12)
    assert prediction.tolist() == [0]


@given(some_predictions())
@settings(max_examples=60, deadline=None)
def test_suprema_are_over_all_binnings(found: tuple[Any, Any]) -> None:
    probs, labels = found
    for n_bins in (1, 3, 15, 1000):
        assert ece(probs, labels, n_bins=n_bins) <= ece_sup(probs, labels) + 1e-12
        assert classwise_ece(probs, labels, n_bins=n_bins) <= classwise_ece_sup(probs, labels) + 1e-12
    assert ece_sup(probs, labels) >= error_over_k(probs, labels) - 1e-12
    assert classwise_ece_sup(probs, labels) >= error_over_k(probs, labels) - 1e-12


def test_distinct_confidences_attain_the_supremum() -> None:
    logits, labels = random_predictions(12, 3)
    assert ece(logits, labels, from_logits=True, n_bins=10**6) == pytest.approx(
        ece_sup(logits, labels, from_logits=True)
    )


@given(some_predictions())
@settings(max_examples=60, deadline=None)
def test_slow_reference(found: tuple[Any, Any]) -> None:
    probs, labels = found
    n, k = probs.shape
    one_hot = np.eye(k)[labels]
    assert classwise_ece_sup(probs, labels) == pytest.approx(np.abs(one_hot - probs).sum() / (n * k), abs=1e-12)
    assert ece_sup(probs, labels) == pytest.approx(gap(probs, probs.argmax(1), labels), abs=1e-12)
    assert error_over_k(probs, labels) == pytest.approx((probs.argmax(1) != labels).mean() / k, abs=1e-12)


@given(some_predictions())
@settings(max_examples=60, deadline=None)
def test_oracle_map_attains_the_floor(found: tuple[Any, Any]) -> None:
    probs, labels = found
    mapped, prediction = oracle_map(probs, labels)
    assert np.array_equal(prediction, probs.argmax(1))
    assert torch.allclose(mapped.sum(1), torch.ones(len(mapped), dtype=torch.float64))
    assert gap(mapped, prediction, labels) == pytest.approx(error_over_k(probs, labels), abs=1e-12)


def test_predicting_again_from_the_oracle_map_changes_accuracy() -> None:
    # Three wrong predictions with label 0: the largest of a uniform row is class 0.
    probs, labels = np.array([[0.2, 0.8]] * 4), np.array([0, 0, 0, 1])
    mapped, prediction = oracle_map(probs, labels)
    assert accuracy(mapped, labels) == 1.0
    assert float((prediction.numpy() == labels).mean()) == accuracy(probs, labels) == 0.25


@given(some_predictions())
@settings(max_examples=60, deadline=None)
def test_half_map_never_raises_the_error(found: tuple[Any, Any]) -> None:
    probs, labels = found
    mapped, prediction = half_map(probs, labels)
    k = probs.shape[1]
    assert np.array_equal(prediction, probs.argmax(1))
    assert bool((mapped >= 0).all())
    assert torch.allclose(mapped.sum(1), torch.ones(len(mapped), dtype=torch.float64))
    assert classwise_ece_sup(mapped, labels) <= classwise_ece_sup(probs, labels) + 1e-12
    for row, new, yhat, y in zip(probs, mapped.numpy(), prediction.tolist(), labels.tolist(), strict=True):
        if yhat == y:
            assert new.tolist() == np.eye(k)[y].tolist()
        else:
            assert new[yhat] == min(0.5, row[yhat])
            others, after = np.delete(row, yhat), np.delete(new, yhat)
            share = others / others.sum() if others.sum() > 0 else np.full(k - 1, 1 / (k - 1))
            assert after.tolist() == pytest.approx((share * (1 - new[yhat])).tolist(), abs=1e-12)


def test_half_map_spreads_evenly_what_nothing_else_claims() -> None:
    mapped, _ = half_map([[1.0, 0.0, 0.0]], [2])
    assert mapped.tolist() == [[0.5, 0.25, 0.25]]


def test_equality_where_the_paper_says_more() -> None:
    certain = np.eye(3)
    assert classwise_ece_sup(certain, [0, 1, 2]) == error_over_k(certain, [0, 1, 2]) == 0.0
    tied = np.array([[0.5, 0.5]])
    assert classwise_ece_sup(tied, [1]) == error_over_k(tied, [1]) == 0.5


def test_maps_keep_the_shape_of_dense_predictions() -> None:
    logits, labels = random_predictions(24, 3)
    dense, truth = logits.reshape(2, 3, 4, 3).movedim(-1, 1), labels.reshape(2, 3, 4)
    for mapping in (oracle_map, half_map):
        probs, prediction = mapping(dense, truth, from_logits=True)
        rows, flat = mapping(logits, labels, from_logits=True)
        assert probs.shape == dense.shape and prediction.shape == truth.shape
        assert torch.equal(probs.movedim(1, -1).reshape(24, 3), rows)
        assert torch.equal(prediction.reshape(24), flat)


def test_limits() -> None:
    for n in (1, 5):
        right, wrong = np.zeros(n, dtype=int), np.ones(n, dtype=int)
        sure = np.tile([1.0, 0.0], (n, 1))
        assert ece_sup(sure, right) == classwise_ece_sup(sure, right) == error_over_k(sure, right) == 0.0
        assert ece_sup(sure, wrong) == classwise_ece_sup(sure, wrong) == 1.0
        assert error_over_k(sure, wrong) == 0.5
    assert ece_sup([[1.0]], [0]) == classwise_ece_sup([[1.0]], [0]) == error_over_k([[1.0]], [0]) == 0.0
    for mapping in (oracle_map, half_map):
        probs, prediction = mapping([[1.0]], [0])
        assert (probs.tolist(), prediction.tolist()) == ([[1.0]], [0])
