"""Isotonic regression and its centred sibling: equal to scikit-learn's, and to what one does by hand."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrators.fits import curve
from conftest import random_predictions
from temperance.calibrators import CentredIsotonic, Isotonic
from temperance.calibrators._fit.curve import look_up
from temperance.calibrators._fit.reduction import class_log_odds

samples = st.lists(st.tuples(st.integers(1, 19).map(lambda i: i / 20), st.booleans()), min_size=2, max_size=40)


@given(samples)
def test_scikit_learn_draws_the_same_curve(pairs: list[tuple[float, bool]]) -> None:
    sklearn = pytest.importorskip("sklearn.isotonic")
    grid = np.linspace(0, 1, 101)
    probs, happened = np.array(pairs).T
    expected = sklearn.IsotonicRegression(out_of_bounds="clip").fit(probs, happened).predict(grid)
    assert np.allclose(curve(Isotonic(), pairs, grid), expected, atol=1e-12)


@given(samples)
def test_curves_rise_and_stay_between_zero_and_one(pairs: list[tuple[float, bool]]) -> None:
    grid = np.linspace(0, 1, 101)
    for method in (Isotonic(), Isotonic(interpolate=False), CentredIsotonic()):
        found = curve(method, pairs, grid)
        assert (np.diff(found) >= -1e-12).all() and found.min() >= 0 and found.max() <= 1


@given(samples)
def test_the_fit_is_calibrated_on_its_own_data(pairs: list[tuple[float, bool]]) -> None:
    """Within each level of an isotonic fit the outcomes have just that mean."""
    probs, happened = np.array(pairs).T
    for method in (Isotonic(), Isotonic(interpolate=False)):
        found = curve(method, pairs, probs)
        for level in np.unique(found):
            assert happened[found == level].mean() == pytest.approx(level, abs=1e-9)


def test_jumps_are_in_the_middle_between_blocks() -> None:
    pairs = [(0.2, False), (0.4, True), (0.6, False), (0.8, True)]
    found = curve(Isotonic(interpolate=False), pairs, [0.1, 0.3, 0.31, 0.7, 0.71, 0.9])
    assert found.tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert curve(Isotonic(), pairs, [0.1, 0.3, 0.4, 0.6, 0.7]).tolist() == pytest.approx([0, 0.25, 0.5, 0.5, 0.75])


def test_centres_are_joined_by_lines() -> None:
    pairs = [(0.2, False), (0.4, True), (0.6, False), (0.8, True)]
    assert curve(CentredIsotonic(), pairs, [0.1, 0.35, 0.5, 0.65, 0.9]).tolist() == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1]
    )
    # The centre is a mean over samples: two at 0.4 pull it down.
    pairs = [(0.2, False), (0.4, True), (0.4, False), (0.7, False), (0.9, True)]
    centre, level = (0.4 + 0.4 + 0.7) / 3, 1 / 3
    assert curve(CentredIsotonic(), pairs, [centre, (0.2 + centre) / 2]).tolist() == pytest.approx([level, level / 2])


def test_blocks_of_zero_and_one_stay_flat() -> None:
    pairs = [(0.1, False), (0.2, False), (0.5, True), (0.6, False), (0.8, True), (0.9, True)]
    found = curve(CentredIsotonic(), pairs, [0.0, 0.1, 0.2, 0.8, 0.9, 1.0])
    assert found.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_equal_probabilities_are_one_sample() -> None:
    found = curve(Isotonic(), [(0.5, True), (0.5, False), (0.5, True), (0.5, False)], [0.1, 0.5, 0.9])
    assert found.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.shared
def test_one_versus_rest_on_real_predictions_is_scikit_learns(shared_data: Path) -> None:
    """But for the network's share, which scikit-learn does not give it."""
    sklearn = pytest.importorskip("sklearn.isotonic")
    data = np.load(shared_data / "logits" / "c10_densenet40.npz")
    logits, labels = torch.tensor(data["val_logits"]).double(), torch.tensor(data["val_labels"]).long()
    unseen = torch.tensor(data["test_logits"][:1000]).double()
    found = Isotonic(reduction="one-versus-rest").fit(logits, labels)
    p, q = class_log_odds(logits).sigmoid().numpy(), class_log_odds(unseen).sigmoid().numpy()
    share = 1 / (1 + np.bincount(labels, minlength=10))
    expected = np.stack(
        [
            sklearn.IsotonicRegression(out_of_bounds="clip").fit(p[:, j], labels == j).predict(q[:, j])
            for j in range(10)
        ],
        axis=1,
    )
    expected = (1 - share) * expected + share * q
    assert np.allclose(found.predict_proba(unseen), expected / expected.sum(1, keepdims=True), atol=1e-9)


def test_netcal_extrapolates_and_interpolates_otherwise() -> None:
    """netcal's map is a step function with jumps at samples; between two samples it may take another step than ours."""
    netcal = pytest.importorskip("netcal.binning")
    logits, labels = random_predictions(500, 2)
    p = logits.softmax(1)[:, 1].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = netcal.IsotonicRegression().fit(p, labels.numpy()).transform(p)
    found = Isotonic().fit(logits, labels)
    ours = look_up(torch.tensor(p)[None], found.knots, found.values)[0].numpy()
    assert np.abs(ours - theirs).mean() < 0.01
