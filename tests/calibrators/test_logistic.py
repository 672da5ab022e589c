"""Platt scaling, beta and quadratic calibration, and the regression under them: at the optimum, and equal to peers."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.nn.functional import logsigmoid

from calibrators.fits import two_classes
from conftest import random_predictions
from temperance.calibrators import Beta, Platt, Quadratic
from temperance.calibrators._fit.logistic import fit_logistic
from temperance.calibrators._fit.reduction import class_log_odds, top_log_odds
from temperance.calibrators.logistic import (
    PSEUDO_SAMPLES,
    beta_features,
    line_features,
    parabola_features,
    smoothed_targets,
)


def loss_of(theta: Any, columns: Any, target: Any) -> tuple[float, Any]:
    """The logistic loss and its gradient, in NumPy."""
    t = columns @ theta
    return float((np.logaddexp(0, t) - target * t).sum()), columns.T @ (1 / (1 + np.exp(-t)) - target)


@given(st.integers(0, 10_000), st.integers(2, 40), st.floats(0.01, 100))
def test_newton_finds_the_optimum(seed: int, n: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, n, generator=generator, dtype=torch.float64) * scale
    happened = torch.rand(3, n, generator=generator) < 0.5
    target = smoothed_targets(happened, torch.ones_like(x[0]))
    fit = fit_logistic(x, target, line_features, torch.zeros(3, 2, dtype=torch.float64))
    assert float(fit.remaining.max()) < 1e-12
    for i in range(3):
        columns = line_features(x[i : i + 1])[0].numpy()
        best = minimize(loss_of, np.zeros(2), (columns, target[i].numpy()), jac=True, method="BFGS")
        value, gradient = loss_of(fit.theta[i].numpy(), columns, target[i].numpy())
        assert value <= best.fun + 1e-9 * (1 + abs(best.fun))
        assert np.abs(gradient).max() < 1e-6 * scale * n


def test_weights_and_penalties() -> None:
    """A weight of three is a sample three times; a penalty L is ½ |Lθ|²."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 30, generator=generator, dtype=torch.float64)
    target = (torch.rand(1, 30, generator=generator) < 0.5).double()
    weight = torch.randint(1, 4, (1, 30), generator=generator).double()
    start = torch.zeros(1, 2, dtype=torch.float64)
    more_x, more_target = (tensor.repeat_interleave(weight[0].long(), dim=1) for tensor in (x, target))
    weighted = fit_logistic(x, target, line_features, start, weight=weight).theta
    assert torch.allclose(weighted, fit_logistic(more_x, more_target, line_features, start).theta, atol=1e-9)
    penalty = torch.tensor([[4.0, 1.0], [1.0, 2.0], [0.0, 3.0]], dtype=torch.float64)
    theta = fit_logistic(x, target, line_features, start, penalty=penalty).theta[0].numpy()
    pull = penalty.numpy().T @ penalty.numpy() @ theta
    gradient = loss_of(theta, line_features(x)[0].numpy(), target[0].numpy())[1] + pull
    assert np.abs(gradient).max() < 1e-8


def test_blocks_of_samples_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64).repeat(2, 1)
    target, start = (x > 0.3).double() * 0.8 + 0.1, torch.zeros(2, 2, dtype=torch.float64)
    whole = fit_logistic(x, target, line_features, start).theta
    monkeypatch.setattr("temperance.calibrators._fit.logistic.BLOCK_VALUES", 40)
    assert torch.allclose(fit_logistic(x, target, line_features, start).theta, whole, atol=1e-10)


@pytest.mark.parametrize("reduction", ["one-versus-rest", "pooled", "top-label"])
@pytest.mark.parametrize("method", [Platt, Beta, Quadratic])
def test_the_record_says_that_it_converged(method: Any, reduction: str) -> None:
    found = method(reduction=reduction).fit(*random_predictions(300, 6))
    assert found.info["converged"] is True and found.info["remaining"] < 1e-13


def test_platts_targets() -> None:
    happened = torch.tensor([[True, True, True, False]])
    assert torch.allclose(
        smoothed_targets(happened, torch.ones(4).double()),
        torch.tensor([[4 / 5, 4 / 5, 4 / 5, 1 / 3]], dtype=torch.float64),
    )


def test_platt_recovers_a_slope_and_an_intercept() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, generator=generator, dtype=torch.float64) * 3
    labels = (torch.rand(200_000, generator=generator) < (0.5 * x - 0.7).sigmoid()).long()
    slope, intercept = Platt().fit(two_classes(x), labels).coefficients[0].tolist()
    assert slope == pytest.approx(0.5, abs=0.01) and intercept == pytest.approx(-0.7, abs=0.03)


def test_beta_recovers_its_three_parameters() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400_000, generator=generator, dtype=torch.float64) * 2
    truth = 1.4 * logsigmoid(x) - 0.6 * logsigmoid(-x) + 0.3
    labels = (torch.rand(400_000, generator=generator) < truth.sigmoid()).long()
    assert Beta().fit(two_classes(x), labels).coefficients[0].tolist() == pytest.approx([1.4, 0.6, 0.3], abs=0.05)


@given(st.integers(0, 10_000), st.integers(4, 60))
def test_betas_slopes_are_not_negative_and_no_others_are_better(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64) * 2
    labels = (torch.rand(n, generator=generator) < 0.5).long()
    if 0 < int(labels.sum()) < n:
        theta = Beta().fit(two_classes(x), labels).coefficients[0].numpy()
        columns, target = beta_features(x).numpy(), smoothed_targets(labels[None] == 1, torch.ones_like(x))[0].numpy()
        bounds = [(0, None), (0, None), (None, None)]
        best = minimize(loss_of, np.ones(3), (columns, target), jac=True, method="L-BFGS-B", bounds=bounds)
        assert theta[0] >= 0 and theta[1] >= 0
        assert loss_of(theta, columns, target)[0] <= best.fun + 1e-7


def test_quadratic_recovers_a_parabola() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400_000, generator=generator, dtype=torch.float64) * 6 - 3
    truth = 0.2 + x - 0.1 * x.square()  # rises up to 5
    labels = (torch.rand(400_000, generator=generator) < truth.sigmoid()).long()
    found = Quadratic().fit(two_classes(x), labels)
    at = torch.linspace(-3, 3, 61, dtype=torch.float64)
    assert torch.allclose(found._map(at[None])[0], 0.2 + at - 0.1 * at.square(), atol=0.05)


def test_beyond_what_it_was_fitted_to_the_parabola_goes_on_as_a_straight_line_that_rises() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(500, generator=generator, dtype=torch.float64)
    labels = (torch.rand(500, generator=generator) < (x - x.square()).sigmoid()).long()  # falls beyond one half
    found = Quadratic().fit(two_classes(x), labels)
    at = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    mapped = found._map(at[None])[0]
    assert bool((mapped.diff() >= -1e-9).all())
    for beyond in (at < x.min(), at > x.max()):
        assert torch.allclose(mapped[beyond].diff().diff(), torch.zeros(1, dtype=torch.float64), atol=1e-9)


@given(st.integers(0, 10_000), st.integers(4, 60))
def test_no_parabola_that_rises_is_better(seed: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64) * 2
    labels = (torch.rand(n, generator=generator) < 0.5).long()
    if 0 < int(labels.sum()) < n:
        found = Quadratic().fit(two_classes(x), labels)
        low, width = found.ends[0]
        columns = parabola_features((x - low) / width).numpy()
        target = ((n * labels + PSEUDO_SAMPLES * x.sigmoid()) / (n + PSEUDO_SAMPLES)).numpy()
        bounds = [(0, None), (0, None), (None, None)]
        best = minimize(loss_of, np.ones(3), (columns, target), jac=True, method="L-BFGS-B", bounds=bounds)
        assert loss_of(found.coefficients[0].numpy(), columns, target)[0] <= best.fun + 1e-7


def test_what_the_classifier_says_is_a_prior_of_quadratic() -> None:
    """With few samples it stays near the classifier, whatever the scale of the log-odds."""
    for scale in (1.0, 10.0):
        x = scale * torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)
        found = Quadratic().fit(two_classes(x), torch.tensor([1, 0, 1, 0]))
        probs = found.predict_proba(two_classes(x))[:, 1]
        assert probs[0] < 0.4 and probs[-1] > 0.6
    separable = torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64)
    probs = Quadratic().fit(two_classes(separable), torch.tensor([0, 0, 1, 1])).predict_proba(two_classes(separable))
    assert torch.allclose(probs[:, 1], separable.sigmoid(), atol=0.1)


def test_separable_data_has_a_finite_answer() -> None:
    x = torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64)
    for method in (Platt(), Beta()):
        probs = method.fit(two_classes(x), torch.tensor([0, 0, 1, 1])).predict_proba(two_classes(x))[:, 1]
        assert probs.numpy() == pytest.approx([0.25, 0.25, 0.75, 0.75], abs=0.2)
        assert bool((probs.diff() >= 0).all())


def test_scikit_learns_sigmoid() -> None:
    sklearn = pytest.importorskip("sklearn.calibration")
    logits, labels = random_predictions(1000, 5)
    log_odds = class_log_odds(logits).numpy()
    found = Platt(reduction="one-versus-rest").fit(logits, labels).coefficients.numpy()
    for j in range(5):
        theirs = sklearn._SigmoidCalibration().fit(log_odds[:, j], (labels == j).numpy())
        assert (-theirs.a_, -theirs.b_) == pytest.approx(tuple(found[j]), abs=1e-4)


@pytest.mark.shared
def test_netcals_beta_on_real_predictions(shared_data: Path) -> None:
    """It takes 1 and 0 for targets and a weak ridge instead, which makes a difference below 0.001."""
    scaling = pytest.importorskip("netcal.scaling")
    data = np.load(shared_data / "logits" / "c10_densenet40.npz")
    logits, labels = torch.tensor(data["val_logits"]).double(), torch.tensor(data["val_labels"]).long()
    prediction, log_odds = top_log_odds(logits)
    right = (prediction[:, 0] == labels).long()
    p = log_odds[0].sigmoid().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beta = scaling.BetaCalibration()
        beta.fit(p, right.numpy())
        theirs = beta.transform(p)
    ours = Beta().fit(two_classes(log_odds[0]), right).predict_proba(two_classes(log_odds[0]))[:, 1].numpy()
    assert np.abs(ours - theirs).max() < 5e-3 and np.abs(ours - theirs).mean() < 1e-3
