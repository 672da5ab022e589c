"""Histograms, scaled bins and Bayesian binning, against the same things written slowly."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln

from calibrators.fits import curve
from conftest import random_predictions
from temperance.calibrators import Bbq, HistogramBinning, Platt, ScalingBinning
from temperance.calibrators._fit.curve import look_up

samples = st.lists(st.tuples(st.integers(0, 40).map(lambda i: i / 40), st.booleans()), min_size=2, max_size=60)


def equal_mass(probs: Any, n_bins: int) -> list[int]:
    """Where sorted samples are cut: after every n / n_bins of them, but never between equal ones."""
    cuts = [0]
    for i in range(1, n_bins + 1):
        cut = i * len(probs) // n_bins
        while 0 < cut < len(probs) and probs[cut] == probs[cut - 1]:
            cut += 1
        cuts.append(cut)
    return cuts


@given(samples, st.integers(1, 8))
def test_bins_of_equal_mass(pairs: list[tuple[float, bool]], n_bins: int) -> None:
    probs, happened = np.array(sorted(pairs)).T
    expected = np.empty(len(probs))
    cuts = equal_mass(probs, n_bins)
    for start, end in itertools.pairwise(cuts):
        if end > start:
            expected[start:end] = happened[start:end].mean()
    assert np.allclose(curve(HistogramBinning(n_bins=n_bins), pairs, probs), expected)


@given(samples, st.integers(1, 8))
def test_bins_of_equal_width(pairs: list[tuple[float, bool]], n_bins: int) -> None:
    probs, happened = np.array(sorted(pairs)).T
    edges = np.arange(n_bins + 1) / n_bins
    bins = np.clip(np.searchsorted(edges, probs) - 1, 0, n_bins - 1)
    expected = [happened[bins == b].mean() for b in bins]
    assert np.allclose(curve(HistogramBinning(n_bins=n_bins, bins="width"), pairs, probs), expected)


def test_an_empty_bin_leaves_probabilities_as_they_are() -> None:
    pairs = [(0.05, False), (0.1, True), (0.95, True)]
    found = curve(HistogramBinning(n_bins=4, bins="width"), pairs, [0.1, 0.3, 0.4, 0.6, 0.9])
    assert found.tolist() == pytest.approx([0.5, 0.3, 0.4, 0.6, 1.0])


def test_more_bins_than_samples() -> None:
    pairs = [(0.2, False), (0.5, True), (0.7, False)]
    assert curve(HistogramBinning(n_bins=10), pairs, [0.2, 0.5, 0.7]).tolist() == [0, 1, 0]


def test_scaled_bins_say_the_mean_of_the_scaled_probabilities() -> None:
    logits, labels = random_predictions(400, 2)
    scaled = Platt().fit(logits, labels).predict_proba(logits)[:, 1].sort().values
    found = ScalingBinning(n_bins=8).fit(logits, labels)
    levels = torch.unique(found.values)
    assert torch.allclose(levels, scaled.reshape(8, 50).mean(1), atol=1e-9)


def test_scaled_bins_merge_where_confidences_tie() -> None:
    pairs = [(0.5, bool(i % 2)) for i in range(20)] + [(0.9, True)] * 4
    assert len(set(curve(ScalingBinning(n_bins=10), pairs, np.linspace(0, 1, 50)))) == 2


def bayesian(pairs: Any, x: Any) -> Any:
    """Naeini et al. one histogram and one bin at a time."""
    probs, happened = np.array(sorted(pairs)).T
    n = len(probs)
    edges = np.concatenate([[0], (probs[1:] + probs[:-1]) / 2, [1]])
    scores, answers = [], []
    for n_bins in range(max(1, int(n ** (1 / 3) / 10)), min(n, int(10 * n ** (1 / 3))) + 1):
        cuts = equal_mass(probs, n_bins)
        score, answer = 0.0, np.empty(len(x))
        for start, end in itertools.pairwise(cuts):
            middle = min(max((edges[start] + edges[end]) / 2, 1e-300), 1 - 1e-15)
            weight, hits, count = 2 / n_bins, happened[start:end].sum(), end - start
            a, b = weight * middle, weight * (1 - middle)
            score += gammaln(weight) - gammaln(weight + count) + gammaln(hits + a) - gammaln(a)
            score += gammaln(count - hits + b) - gammaln(b)
            inside = (x > edges[start]) & (x <= edges[end]) | (start == 0) & (x <= edges[end]) & (end > 0)
            answer[inside] = (hits + a) / (count + weight)
        scores.append(score)
        answers.append(answer)
    weights = np.exp(np.array(scores) - max(scores))
    return weights @ np.array(answers) / weights.sum()


@given(samples)
def test_bayesian_binning_is_the_mean_over_histograms(pairs: list[tuple[float, bool]]) -> None:
    grid = np.linspace(0.013, 0.987, 23)
    found, expected = curve(Bbq(), pairs, grid), bayesian(pairs, grid)
    # To the resolution of the curve, in log-odds.
    assert np.allclose(np.log(found / (1 - found)), np.log(expected / (1 - expected)), atol=1.1e-3)


def test_bayesian_binning_finds_the_truth() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(5000, generator=generator, dtype=torch.float64)
    happened = torch.rand(5000, generator=generator, dtype=torch.float64) < probs.square()
    found = curve(Bbq(), list(zip(probs.tolist(), happened.tolist(), strict=True)), probs)
    assert np.abs(found - probs.square().numpy()).mean() < 0.03


def test_netcal_has_the_same_histogram() -> None:
    """It closes bins on the left, ours are closed on the right; random probabilities are never on an edge."""
    netcal = pytest.importorskip("netcal.binning")
    logits, labels = random_predictions(600, 2)
    p = logits.softmax(1)[:, 1].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = netcal.HistogramBinning(bins=15).fit(p, labels.numpy()).transform(p)
    found = HistogramBinning(bins="width").fit(logits, labels)
    ours = look_up(torch.tensor(p)[None], found.knots, found.values)[0].numpy()
    assert np.allclose(ours, theirs, atol=1e-12)


def test_netcals_bayesian_binning_is_another_method() -> None:
    """Bins of equal width ranked by BIC: it agrees with ours about the shape, and no more."""
    netcal = pytest.importorskip("netcal.binning")
    logits, labels = random_predictions(1000, 2)
    p = logits.softmax(1)[:, 1].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = netcal.BBQ().fit(p, labels.numpy()).transform(p)
    ours = Bbq().fit(logits, labels).predict_proba(logits)[:, 1].numpy()
    assert np.abs(ours - theirs).mean() < 0.1 and np.corrcoef(ours, theirs)[0, 1] > 0.95
