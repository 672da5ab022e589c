"""Kernel calibration error: golden numbers, the densities written out with SciPy, gradients, limits."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import kde_ece, kde_ece_canonical, kde_ece_marginal, kernel
from temperance.metrics.kernel import (
    binary_error,
    canonical_error,
    loo_bandwidths,
    loo_log_likelihood,
    neighbour_weights,
    two_sided,
)
from temperance.metrics.stats import TopLabels

TINY = 2e-6  # the golden numbers are rounded to six decimals
Array = npt.NDArray[np.float64]


def slow_canonical(probs: Array, labels: Array, bandwidth: float, p: float) -> float:
    """A density for each pair."""
    total = 0.0
    for i, at in enumerate(probs):
        weights = np.array([stats.dirichlet.pdf(at, f / bandwidth + 1) if j != i else 0 for j, f in enumerate(probs)])
        mean = weights @ np.eye(probs.shape[1])[labels.astype(int)] / weights.sum()
        total += float((np.abs(mean - at) ** p).sum())
    return total / len(probs)


def slow_binary(value: Array, happened: Array, bandwidth: float, p: float) -> float:
    total = 0.0
    for i, at in enumerate(value):
        weights = stats.beta.pdf(at, value / bandwidth + 1, (1 - value) / bandwidth + 1)
        weights[i] = 0
        total += float(abs(weights @ happened / weights.sum() - at) ** p)
    return total / len(value)


def test_golden_fixture_a(vectors: Any, fixture_a: Any) -> None:
    v = vectors["ece_kde_A"]
    logits, labels = fixture_a
    b = v["bandwidth"]
    for metric, p, key in (
        (kde_ece_canonical, 1, "canonical_p1"),
        (kde_ece_canonical, 2, "canonical_p2"),
        (kde_ece, 1, "toplabel_p1"),
    ):
        assert metric(logits, labels, from_logits=True, bandwidth=b, p=p) == pytest.approx(v[key], abs=TINY)


def test_golden_bandwidth(vectors: Any, fixture_a: Any) -> None:
    v = vectors["ece_kde_A"]
    logits, labels = fixture_a
    likelihoods = loo_log_likelihood(torch.from_numpy(logits).softmax(1), loo_bandwidths())
    assert float(likelihoods.max()) == pytest.approx(v["loo_best_value"], abs=TINY)
    assert float(loo_bandwidths()[likelihoods.argmax()]) == pytest.approx(v["loo_best_bandwidth"])
    chosen = kde_ece_canonical(logits, labels, from_logits=True, bandwidth="loo")
    given_it = kde_ece_canonical(logits, labels, from_logits=True, bandwidth=v["loo_best_bandwidth"])
    assert chosen == pytest.approx(given_it, abs=1e-12)


@pytest.mark.parametrize("p", [1, 2, 1.5])
@pytest.mark.parametrize("bandwidth", [0.02, 0.3])
def test_agrees_with_densities_of_pairs(p: float, bandwidth: float) -> None:
    logits, labels = random_predictions(60, 3, sharpness=1.0)
    probs = logits.softmax(1)
    f, y = probs.numpy(), labels.numpy()
    canonical = kde_ece_canonical(probs, labels, p=p, bandwidth=bandwidth)
    assert canonical == pytest.approx(slow_canonical(f, y, bandwidth, p), abs=1e-9)
    each = [slow_binary(f[:, j], (y == j).astype(float), bandwidth, p) for j in range(3)]
    assert kde_ece_marginal(probs, labels, p=p, bandwidth=bandwidth) == pytest.approx(sum(each), abs=1e-9)
    top = slow_binary(f.max(1), (f.argmax(1) == y).astype(float), bandwidth, p)
    assert kde_ece(probs, labels, p=p, bandwidth=bandwidth) == pytest.approx(top, abs=1e-9)


def test_likelihood_is_that_of_the_density_of_the_others() -> None:
    value = torch.tensor([0.1, 0.35, 0.4, 0.8], dtype=torch.float64)
    b = 0.2
    expected = 0.0
    for i, at in enumerate(value.tolist()):
        others = [f for j, f in enumerate(value.tolist()) if j != i]
        expected += math.log(np.mean([stats.beta.pdf(at, f / b + 1, (1 - f) / b + 1) for f in others]))
    found = loo_log_likelihood(two_sided(value), torch.tensor([b], dtype=torch.float64))
    assert float(found[0]) == pytest.approx(expected, abs=1e-9)


def test_marginal_of_two_classes_is_twice_that_of_one() -> None:
    logits, labels = random_predictions(80, 2)
    probs = logits.softmax(1)
    one = float(binary_error(probs[:, 1], labels == 1, 0.05))
    assert kde_ece_marginal(probs, labels, bandwidth=0.05) == pytest.approx(2 * one, abs=1e-9)


def test_canonical_of_two_classes_is_the_marginal() -> None:
    logits, labels = random_predictions(80, 2)
    probs = logits.softmax(1)
    assert kde_ece_canonical(probs, labels) == pytest.approx(kde_ece_marginal(probs, labels), abs=1e-9)


def test_tiles_change_nothing_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = random_predictions(101, 3)
    whole = kde_ece_canonical(logits, labels, from_logits=True)
    choice = kde_ece(logits, labels, from_logits=True, bandwidth="loo")
    monkeypatch.setitem(kernel.TILE_VALUES, "cpu", 101 * 7)
    assert kde_ece_canonical(logits, labels, from_logits=True) == pytest.approx(whole, abs=1e-12)
    assert kde_ece(logits, labels, from_logits=True, bandwidth="loo") == pytest.approx(choice, abs=1e-12)
    tiles = [tile.clone() for tile in kernel._others(logits, logits)]
    assert len({tile.data_ptr() for tile in kernel._others(logits, logits)}) == 1  # one tile, filled again and again
    assert sum(len(tile) for tile in tiles) == 101
    assert max(tile.numel() for tile in tiles) <= 101 * 7
    together = torch.cat(tiles)
    assert together.diagonal().eq(-math.inf).all()
    assert together.isinf().sum() == 101


def test_far_apart_points_do_not_underflow() -> None:
    """At this bandwidth every density but the diagonal is below the smallest float64."""
    value = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    mean = torch.cat(list(neighbour_weights(two_sided(value), 1e-5)))
    assert mean.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert mean[0].argmax() == 1 and mean[2].argmax() == 1


@pytest.mark.parametrize("p", [1, 2])
def test_gradients(p: float) -> None:
    logits, labels = random_predictions(8, 3, sharpness=0.5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: canonical_error(z.softmax(1), labels, 0.1, p=p), (logits,))
    assert torch.autograd.gradcheck(lambda z: binary_error(z.softmax(1)[:, 0], labels == 0, 0.1, p=p), (logits,))


def test_gradients_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = random_predictions(8, 3, sharpness=0.5)
    logits.requires_grad_()
    monkeypatch.setitem(kernel.TILE_VALUES, "cpu", 24)
    assert torch.autograd.gradcheck(lambda z: canonical_error(z.softmax(1), labels, 0.1), (logits,))


@pytest.mark.parametrize("labels", [[0, 0, 0, 1], [0, 1, 2, 2], [0, 0, 0, 0]])
def test_gradients_are_finite_where_a_class_has_one_sample_or_none(labels: list[int]) -> None:
    logits = torch.tensor([[9.0, 0, 0], [50, 0, 0], [800, 0, 0], [0, 1, 0]], dtype=torch.float64, requires_grad=True)
    for bandwidth in (0.001, 0.02, 1.0):
        loss = canonical_error(logits.softmax(1), torch.tensor(labels), bandwidth)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite() and gradient.isfinite().all()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=20), st.sampled_from([1e-5, 0.02, 1.0]))
def test_top_label_error_is_a_fraction(pairs: list[tuple[float, bool]], bandwidth: float) -> None:
    found = TopLabels(torch.tensor([c for c, _ in pairs]).double(), torch.tensor([y for _, y in pairs]))
    assert 0 <= kde_ece.value(found, bandwidth=bandwidth) <= 1


def test_calibrated_predictions_measure_less_than_overconfident_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(1500, generator=generator, dtype=torch.float64) / 2 + 0.5
    correct = torch.rand(1500, generator=generator) < confidence
    assert kde_ece.value(TopLabels(confidence, correct)) < 0.05
    sharper = TopLabels((confidence + 1) / 2, correct)
    expected = float((sharper.confidence - confidence).mean())
    assert kde_ece.value(sharper, bandwidth=0.002) == pytest.approx(expected, abs=0.02)


def test_limits() -> None:
    sure = torch.ones(5, dtype=torch.float64)
    assert kde_ece.value(TopLabels(sure, sure.bool())) == 0
    assert kde_ece.value(TopLabels(sure, ~sure.bool())) == 1
    equal = TopLabels(torch.full((10,), 0.6, dtype=torch.float64), torch.arange(10) < 6)
    # Leaving itself out, a sample that was right sees 5 of 9 others right, and one that was wrong 6 of 9.
    assert kde_ece.value(equal) == pytest.approx(0.6 * (0.6 - 5 / 9) + 0.4 * (6 / 9 - 0.6))
    for metric in (kde_ece, kde_ece_marginal, kde_ece_canonical):
        with pytest.raises(InputError, match="at least 2 samples"):
            metric([[0.7, 0.3]], [0])


def test_bandwidth_is_chosen_even_where_every_likelihood_is_negative() -> None:
    probs = torch.tensor([[0.999999, 0.000001], [0.5, 0.5], [0.000001, 0.999999]], dtype=torch.float64)
    assert bool((loo_log_likelihood(probs, loo_bandwidths()) < 0).all())
    assert 0 <= kde_ece_canonical(probs, [0, 0, 1], bandwidth="loo") <= 2
