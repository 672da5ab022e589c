"""Gap scaling: the formula, the optimum, the order, and what it learns that a temperature cannot."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from conftest import random_predictions
from temperance import arrays
from temperance.calibrators import GapScaling, Temperature
from temperance.calibrators.gaps import RANKS, _depths, _edges, _largest, _Problem
from temperance.metrics import ece, nll


def reference(found: GapScaling, row: torch.Tensor) -> Any:
    """The formula of the docstring for one row, gap by gap, in NumPy. (k,)"""
    z = row.numpy() - row.numpy().mean()
    u = np.sort(z * float(found.inverse_temperature))[::-1]
    log_probs = u - np.log(np.exp(u).sum())
    sureness = (np.append(log_probs[:4], u[0]) - found.centre.numpy()) / found.spread.numpy()
    described = np.append(1.0, sureness.clip(-3, 3))
    f = np.zeros(len(u))
    for i in range(1, len(u)):
        group = sum(i >= rank for rank in RANKS) - 1  # the gap between ranks i and i + 1
        factor = max(1 + found.slopes.numpy()[group] @ described, 1e-6)
        f[i] = f[i - 1] - factor * (u[i - 1] - u[i])
    found_log_probs = np.empty(len(u))
    found_log_probs[np.argsort(-z, kind="stable")] = f - np.log(np.exp(f).sum())
    return found_log_probs


def unsure(n: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    """The more certain the logits, the less they can be believed."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return logits * (0.5 + 2.5 * logits.softmax(1).amax(1, keepdim=True) ** 3), labels


@pytest.mark.parametrize("k", [2, 3, 4, 5, 12])
def test_the_formula(k: int) -> None:
    found = GapScaling().fit(*unsure(800, k))
    logits, _ = unsure(20, k, 1)
    assert found.slopes.shape == (len([rank for rank in RANKS if rank < k]), 2 + min(4, k))
    for row, log_probs in zip(logits, found(logits), strict=True):
        assert np.allclose(log_probs.numpy(), reference(found, row), atol=1e-9)


def test_depths_add_up_to_the_distance_from_the_top() -> None:
    logits = torch.randn(30, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    depths = torch.stack(list(_depths(logits, _edges(logits, _largest(logits)))), 1)
    assert depths.shape == (30, 4, 9) and bool((depths >= 0).all())
    assert torch.allclose(depths.sum(1), logits.amax(1, keepdim=True) - logits, atol=1e-12)


def test_first_and_second_derivatives() -> None:
    logits, labels = unsure(40, 6)
    described = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = torch.full((40,), 1 / 40, dtype=torch.float64)
    problem = _Problem(logits, _largest(logits), described, labels, share, penalty=2.0 / 40)
    groups = problem.edges.shape[1] - 1
    theta = 0.1 * torch.randn(groups * 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (value, gradient), hessian = problem(theta), problem.hessian
    step = 1e-5
    for i in range(theta.numel()):
        beside = torch.zeros_like(theta)
        beside[i] = step
        up, down = problem(theta + beside), problem(theta - beside)
        assert (up[0] - down[0]) / (2 * step) == pytest.approx(float(gradient[i]), abs=1e-7)
        assert torch.allclose((up[1] - down[1]) / (2 * step), hessian[i], atol=1e-6)
    assert value > 0


def test_it_finds_the_optimum() -> None:
    logits, labels = unsure(300, 5)
    found = GapScaling(ridge=1.0).fit(logits, labels)
    assert found.info["converged"]
    scaled = (logits - logits.mean(1, keepdim=True)) * found.inverse_temperature
    top = scaled.sort(dim=1, descending=True).values
    sureness = torch.cat([(top - scaled.logsumexp(1, keepdim=True))[:, :4], top[:, :1]], 1)
    standard = ((sureness - found.centre) / found.spread).clamp(-3, 3)
    described = torch.cat([torch.ones(300, 1), standard], 1)
    share = torch.full((300,), 1 / 300, dtype=torch.float64)
    problem = _Problem(scaled, _largest(scaled), described, labels, share, penalty=1.0 / 300)

    def value(x: Any) -> tuple[float, Any]:
        at, gradient = problem(torch.from_numpy(x))
        return at, gradient.numpy()

    expected = minimize(value, np.zeros(found.slopes.numel()), jac=True, options={"gtol": 1e-8})
    assert found.info["value"] == pytest.approx(expected.fun, abs=1e-9)
    assert np.allclose(found.slopes.flatten(), expected.x, atol=1e-4)


@given(st.lists(st.integers(-40, 40), min_size=6, max_size=6))
def test_order_stays_and_equal_stays_equal(row: list[int]) -> None:
    logits = torch.tensor([row], dtype=torch.float64) / 4
    log_probs = FITTED(logits)[0]
    differences = logits[0][:, None] - logits[0]
    mapped = log_probs[:, None] - log_probs
    assert bool((mapped[differences > 0] > 0).all()) and bool((mapped[differences == 0].abs() < 1e-12).all())


FITTED = GapScaling(ridge=0.01).fit(*unsure(400, 6))


def test_classes_are_alike_and_a_number_added_to_a_row_changes_nothing() -> None:
    logits, _ = unsure(50, 6, 1)
    order = [3, 0, 4, 1, 5, 2]
    probs = FITTED.predict_proba(logits)
    assert torch.allclose(FITTED.predict_proba(logits[:, order]), probs[:, order], atol=1e-12)
    shifted = logits + torch.linspace(-90, 90, 50, dtype=torch.float64)[:, None]
    assert torch.allclose(FITTED.predict_proba(shifted), probs, atol=1e-9)


def test_a_strong_ridge_leaves_temperature_scaling_or_nothing() -> None:
    logits, labels = random_predictions(300, 5, sharpness=3.0)
    plain = Temperature().fit(logits, labels)
    assert torch.allclose(GapScaling(ridge=1e9).fit(logits, labels)(logits), plain(logits), atol=1e-6)
    unscaled = GapScaling(ridge=1e9, rescale=False).fit(logits, labels)
    assert torch.allclose(unscaled(logits), logits.log_softmax(1), atol=1e-6)


@pytest.mark.parametrize("k", [2, 10])
def test_it_learns_what_a_temperature_cannot(k: int) -> None:
    fit, test = unsure(4000, k), unsure(6000, k, 1)
    ours, theirs = (method.fit(*fit).predict_proba(test[0]) for method in (GapScaling(), Temperature()))
    assert nll(ours, test[1]) < nll(theirs, test[1]) - 0.002
    assert ece(ours, test[1]) < 0.6 * ece(theirs, test[1])


def test_few_samples_stay_near_temperature_scaling() -> None:
    losses = []
    for seed in range(5):
        fit, test = random_predictions(60, 10, seed, sharpness=3.0), random_predictions(3000, 10, 50 + seed, 3.0)
        ours, theirs = (method.fit(*fit).predict_proba(test[0]) for method in (GapScaling(), Temperature()))
        losses.append(nll(ours, test[1]) - nll(theirs, test[1]))
    assert sum(losses) / 5 < 5 / 60


def test_trials_that_overflow_are_quiet() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    found = GapScaling().fit(5000 * logits, labels)
    assert bool(torch.isfinite(found.slopes).all())


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = unsure(200, 5)
    whole = GapScaling().fit(logits, labels)
    expected = whole.predict_proba(logits)
    monkeypatch.setitem(arrays.CORE_BLOCK_VALUES, "cpu", 140)
    pieces = GapScaling().fit(logits, labels)
    assert torch.allclose(pieces.slopes, whole.slopes, atol=1e-9)
    assert torch.allclose(whole.predict_proba(logits), expected, atol=1e-12)
