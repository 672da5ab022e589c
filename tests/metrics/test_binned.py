"""ECE and its relatives: golden numbers, a slow reference, and properties."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import reference
from temperance.metrics import (
    accuracy,
    brier,
    class_loss_spread,
    classwise_ece,
    classwise_over,
    classwise_under,
    conditional_ece,
    confidence_gap,
    debiased_ece,
    debiased_l2,
    ece,
    mce,
    nll,
    rms_ce,
)
from temperance.metrics.bins import Bins, bin_index
from temperance.metrics.classwise import class_errors, class_over, class_under
from temperance.numerics import bin_edges

TINY = 2e-6  # the golden numbers are rounded to six decimals


def binary(confidence: list[float], correct: list[float]) -> tuple[Any, Any]:
    """Two-class predictions with these confidences in class 0, right or wrong as told."""
    c = np.array(confidence)
    if (c >= 0.5).all():
        return np.stack([c, 1 - c], 1), 1 - np.array(correct, dtype=int)
    rest = (1 - c) / 9
    probs = np.concatenate([c[:, None], np.repeat(rest[:, None], 9, 1)], 1)
    return probs, 1 - np.array(correct, dtype=int)


@st.composite
def some_predictions(draw: Any) -> tuple[Any, Any]:
    n, k = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    raw = draw(hnp.arrays(np.float64, (n, k), elements=st.floats(0.0, 1.0))) + 1e-3
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, k - 1)))
    return raw / raw.sum(1, keepdims=True), labels


def test_golden_fixture_a(vectors: Any, fixture_a: Any) -> None:
    logits, labels = fixture_a
    v = vectors["ece"]
    for n_bins in (5, 15, 25):
        assert ece(logits, labels, from_logits=True, n_bins=n_bins) == pytest.approx(v[f"ece{n_bins}"], abs=TINY)
    assert mce(logits, labels, from_logits=True, n_bins=5) == pytest.approx(v["mce5"], abs=TINY)
    assert mce(logits, labels, from_logits=True, n_bins=15) == pytest.approx(v["mce15"], abs=TINY)


def test_golden_b(vectors: Any) -> None:
    v = vectors["ece_B"]
    probs, labels = binary(v["conf"], v["correct"])
    for n_bins in (10, 15, 25):
        assert ece(probs, labels, n_bins=n_bins) == pytest.approx(v[f"ece{n_bins}"], abs=TINY)
    for n_bins in (10, 15):
        assert mce(probs, labels, n_bins=n_bins) == pytest.approx(v[f"mce{n_bins}"], abs=TINY)


def test_golden_edges(vectors: Any) -> None:
    v = vectors["ece_edges"]
    confidence = torch.tensor(v["conf"], dtype=torch.float64)
    assert bin_index(confidence, v["M"], "right").tolist() == v["idx_lohi"]
    assert bin_index(confidence, v["M"], "left").tolist() == v["idx_hilo"]
    probs, labels = binary(v["conf"], v["correct"])
    assert ece(probs, labels, n_bins=v["M"]) == pytest.approx(v["lohi"], abs=TINY)
    assert ece(probs, labels, n_bins=v["M"], closed="left") == pytest.approx(v["hilo"], abs=TINY)
    assert mce(probs, labels, n_bins=v["M"]) == pytest.approx(v["mce_lohi"], abs=TINY)


def test_edges_are_exact_ratios() -> None:
    assert bin_edges(5)[3] == 3 / 5
    assert np.linspace(0, 1, 6)[3] != 3 / 5
    for n_bins in range(1, 60):
        edges = bin_edges(n_bins)
        assert bin_index(edges[1:], n_bins, "right").tolist() == list(range(n_bins))
        assert bin_index(edges[:-1], n_bins, "left").tolist() == list(range(n_bins))
        just_above = torch.nextafter(edges[:-1], torch.tensor(1.0, dtype=torch.float64))
        assert bin_index(just_above, n_bins, "right").tolist() == list(range(n_bins))


@pytest.mark.parametrize("closed", ["right", "left"])
def test_float32_values_beside_an_edge_fall_into_the_same_bins(closed: str) -> None:
    for n_bins in (*range(1, 40), 1000, 1 << 14, 100_003):
        edges = bin_edges(n_bins)
        at = edges.float()
        beside = torch.cat([at, *(torch.nextafter(at, torch.tensor(side)) for side in (0.0, 1.0))])
        looked_up = torch.searchsorted(edges, beside.double(), right=closed == "left") - 1
        assert torch.equal(bin_index(beside, n_bins, closed).long(), looked_up.clamp(0, n_bins - 1))


def test_golden_classwise(vectors: Any, fixture_a: Any) -> None:
    logits, labels = fixture_a
    v = vectors["classwise_A_M5"]
    bins = classwise_ece.stats(logits, labels, from_logits=True, n_bins=5)
    assert isinstance(bins, Bins)
    np.testing.assert_allclose(class_errors(bins), v["per_class_over_n"], atol=TINY)
    np.testing.assert_allclose(class_under(bins), v["under"], atol=TINY)
    np.testing.assert_allclose(class_over(bins), v["over"], atol=TINY)
    np.testing.assert_allclose(class_errors(bins, norm="labels"), v["per_class_nj_reading"], atol=TINY)
    assert classwise_ece.value(bins) == pytest.approx(v["mean_over_classes"], abs=TINY)
    assert classwise_ece.value(bins, norm="labels") == pytest.approx(v["mean_nj_reading"], abs=TINY)
    fifteen = classwise_ece(logits, labels, from_logits=True)
    assert fifteen == pytest.approx(vectors["classwise_A_M15"]["mean"], abs=TINY)


def test_golden_scores(vectors: Any, fixture_a: Any) -> None:
    logits, labels = fixture_a
    v = vectors["brier_nll_A"]
    assert brier(logits, labels, from_logits=True) == pytest.approx(v["brier_sum"], abs=TINY)
    halved = brier(logits, labels, from_logits=True, mean_over_classes=True)
    assert halved == pytest.approx(v["brier_div_K"], abs=TINY)
    assert nll(logits, labels, from_logits=True) == pytest.approx(v["nll"], abs=TINY)
    assert accuracy(logits, labels, from_logits=True) == pytest.approx(v["acc"], abs=TINY)
    spread = vectors["classwise_loss_A"]
    assert class_loss_spread(logits, labels, from_logits=True) == pytest.approx(spread["std_pop"], abs=TINY)
    unbiased = class_loss_spread(logits, labels, from_logits=True, ddof=1)
    assert unbiased == pytest.approx(spread["std_unbiased"], abs=TINY)


@given(some_predictions(), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_equals_the_slow_reference(predictions: tuple[Any, Any], n_bins: int) -> None:
    probs, labels = predictions
    for closed in ("right", "left"):
        expected = reference.ece(probs, labels, n_bins, closed)
        assert ece(probs, labels, n_bins=n_bins, closed=closed) == pytest.approx(expected, abs=1e-12)
    assert mce(probs, labels, n_bins=n_bins) == pytest.approx(reference.mce(probs, labels, n_bins), abs=1e-12)
    expected = reference.conditional_ece(probs, labels, n_bins)
    assert conditional_ece(probs, labels, n_bins=n_bins) == pytest.approx(expected, abs=1e-12)
    bins = classwise_ece.stats(probs, labels, n_bins=n_bins)
    assert isinstance(bins, Bins)
    np.testing.assert_allclose(class_errors(bins), reference.class_errors(probs, labels, n_bins), atol=1e-12)


@given(some_predictions(), st.integers(1, 12), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_properties(predictions: tuple[Any, Any], n_bins: int, factor: int) -> None:
    probs, labels = predictions
    value = ece(probs, labels, n_bins=n_bins)
    assert value <= mce(probs, labels, n_bins=n_bins) + 1e-12
    assert value <= rms_ce(probs, labels, n_bins=n_bins) + 1e-12
    assert value <= conditional_ece(probs, labels, n_bins=n_bins) + 1e-12
    assert debiased_ece(probs, labels, n_bins=n_bins) <= value + 1e-12
    assert debiased_l2(probs, labels, n_bins=n_bins) <= rms_ce(probs, labels, n_bins=n_bins) + 1e-12
    assert ece(probs, labels, n_bins=n_bins * factor) >= value - 1e-12
    one_bin = abs(confidence_gap(probs, labels))
    assert ece(probs, labels, n_bins=1) == pytest.approx(one_bin, abs=1e-12)
    whole = classwise_ece(probs, labels, n_bins=n_bins)
    parts = classwise_under(probs, labels, n_bins=n_bins) + classwise_over(probs, labels, n_bins=n_bins)
    assert parts == pytest.approx(whole, abs=1e-12)


def test_tied_classes_predict_the_lowest() -> None:
    probs = [[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]
    assert accuracy(probs, [0, 1, 1]) == pytest.approx(2 / 3)
    third = 1 / 3
    assert accuracy([[third, third, third]] * 3, [0, 1, 2]) == pytest.approx(1 / 3)
    logits = torch.zeros(3, 3)
    assert accuracy(logits, [0, 1, 2], from_logits=True) == pytest.approx(1 / 3)


def test_min_count_leaves_small_bins_out() -> None:
    probs, labels = binary([0.95, 0.95, 0.95, 0.55], [1, 1, 1, 0])
    assert mce(probs, labels, n_bins=10) == pytest.approx(0.55)
    assert mce(probs, labels, n_bins=10, min_count=2) == pytest.approx(0.05)


def test_debiasing_removes_noise_of_a_calibrated_model() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(2000, generator=generator, dtype=torch.float64) / 2 + 0.5
    correct = torch.rand(2000, generator=generator) < confidence
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = (~correct).long()
    assert debiased_ece(probs, labels) < 0.6 * ece(probs, labels)
    assert debiased_l2(probs, labels) < 0.6 * rms_ce(probs, labels)


def test_classes_that_never_occur() -> None:
    probs = torch.full((20, 4), 0.25)
    labels = torch.tensor([0, 1] * 10)
    assert classwise_ece(probs, labels) == pytest.approx(0.25)
    assert classwise_ece(probs, labels, norm="labels") == pytest.approx(0.5)
    assert classwise_ece(probs, labels, classes="present") == pytest.approx(0.25)


@pytest.mark.shared
def test_the_literature_s_densenet(shared_data: Any) -> None:
    found = np.load(shared_data / "logits" / "c10_densenet40.npz")
    logits, labels = found["test_logits"], found["test_labels"]
    assert accuracy(logits, labels, from_logits=True) == pytest.approx(0.9242)
    assert ece(logits, labels, from_logits=True) == pytest.approx(0.05500270, abs=5e-9)
    assert ece(logits, labels, from_logits=True, n_bins=25) == pytest.approx(0.05507145, abs=5e-9)
    assert nll(logits, labels, from_logits=True) == pytest.approx(0.430059, abs=5e-7)
