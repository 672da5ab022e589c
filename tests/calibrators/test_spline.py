"""The spline: natural, as smooth as leaving out each sample says, and Platt scaling when it is straight."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from calibrators.fits import two_classes
from conftest import random_predictions
from temperance.calibrators import Platt, Spline
from temperance.calibrators._fit.logistic import fit_logistic
from temperance.calibrators.logistic import smoothed_targets
from temperance.calibrators.spline import SMOOTHINGS, basis, bending, left_out_nll, overlap

heights = st.lists(st.floats(-10, 10), min_size=3, max_size=9).map(lambda h: torch.tensor(h, dtype=torch.float64))


def bent(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-odds that are right below zero and three times too large above."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64) * 3
    truth = torch.where(x > 0, x / 3, x)
    return x, torch.rand(n, generator=generator) < truth.sigmoid()


@given(heights)
def test_it_is_the_natural_cubic_spline(h: torch.Tensor) -> None:
    bend, energy = bending(len(h), h)
    reference = CubicSpline(np.arange(len(h)), h, bc_type="natural")
    inside = torch.linspace(0, len(h) - 1, 50, dtype=torch.float64)
    assert np.allclose(basis(inside[None], bend)[0] @ h, reference(inside), atol=1e-9)
    # Straight on beyond the last knots.
    beyond = torch.tensor([[-2.5, len(h) + 1.5]], dtype=torch.float64)
    ends = [h[0] - 2.5 * reference(0, 1), h[-1] + 2.5 * reference(len(h) - 1, 1)]
    assert np.allclose(basis(beyond, bend)[0] @ h, ends, atol=1e-9)
    # g'' is linear between knots, so Simpson's rule gives ∫ g''² exactly.
    second = reference(np.arange(len(h)), 2)
    between = (second[:-1] ** 2 + second[:-1] * second[1:] + second[1:] ** 2) / 3
    assert float((energy @ h).square().sum()) == pytest.approx(between.sum(), abs=1e-8)


def test_held_straight_it_is_platt_scaling() -> None:
    logits, labels = random_predictions(2000, 2)
    straight = Spline(smoothing=1e9).fit(logits, labels).predict_proba(logits)
    assert torch.allclose(straight, Platt().fit(logits, labels).predict_proba(logits), atol=1e-3)


def test_it_bends_where_the_truth_does() -> None:
    (x, happened), (unseen, truth) = bent(4000), bent(20_000, seed=1)

    def nll(method: Spline | Platt) -> float:
        found = method.fit(two_classes(x), happened.long())
        return float(torch.nn.functional.nll_loss(found(two_classes(unseen)), truth.long()))

    assert nll(Spline()) < nll(Platt()) - 0.01
    probs = Spline().fit(two_classes(x), happened.long()).predict_proba(two_classes(unseen))[:, 1]
    expected = torch.where(unseen > 0, unseen / 3, unseen).sigmoid()
    assert float((probs - expected).abs().mean()) < 0.02


def test_cells_make_no_difference() -> None:
    """The same curve from every sample by itself."""
    x, happened = bent(3000)
    found = Spline(smoothing=1.0).fit(two_classes(x), happened.long())
    place = (x[None] - found.origin) / found.spacing
    bend, energy = bending(10, x)
    start = torch.zeros(1, 10, dtype=torch.float64)
    exact = fit_logistic(
        place, smoothed_targets(happened[None], torch.ones_like(x)), lambda u: basis(u, bend), start, penalty=energy
    ).theta
    grid = torch.linspace(-1, 10, 100, dtype=torch.float64)[None]
    difference = (basis(grid, bend) @ (exact - found.heights).T).squeeze()
    assert float(difference.abs().max()) < 0.01


@pytest.mark.parametrize("smoothing", [0.1, 10.0])
def test_leaving_out_by_one_step_is_leaving_out(smoothing: float) -> None:
    x, happened = bent(120)
    origin, spacing = overlap(x[None], happened[None], torch.ones_like(x), 7)
    place, target = (x[None] - origin) / spacing, happened[None].double()
    bend, energy = bending(8, x)
    penalty, start = smoothing**0.5 * energy, torch.zeros(1, 8, dtype=torch.float64)

    def fit(keep: torch.Tensor) -> torch.Tensor:
        return fit_logistic(place[:, keep], target[:, keep], lambda u: basis(u, bend), start, penalty=penalty).theta

    everything = torch.ones(120, dtype=torch.bool)
    expected = 0.0
    for i in range(120):
        keep = everything.clone()
        keep[i] = False
        t = float(basis(place[:, i : i + 1], bend)[0, 0] @ fit(keep)[0])
        expected += float(np.logaddexp(0, t)) - float(target[0, i]) * t
    found = left_out_nll(basis(place, bend), fit(everything), torch.ones_like(place), target, penalty)
    assert float(found) == pytest.approx(expected, rel=0.02)


def test_knots_leave_out_outliers() -> None:
    x, happened = bent(2000)
    origin, spacing = overlap(x[None], happened[None], torch.ones_like(x), 9)
    x[0], x[1], happened[0], happened[1] = 1e4, -1e4, False, True
    again, wider = overlap(x[None], happened[None], torch.ones_like(x), 9)
    assert torch.allclose(origin, again, atol=0.5) and torch.allclose(spacing, wider, atol=0.2)


def test_a_smoothing_of_ones_own() -> None:
    logits, labels = random_predictions(300, 4)
    chosen = Spline().fit(logits, labels).predict_proba(logits)
    fixed = [Spline(smoothing=s).fit(logits, labels).predict_proba(logits) for s in SMOOTHINGS]
    assert min(float((one - chosen).abs().max()) for one in fixed) < 1e-6
    assert Spline().fit(logits, labels).info["converged"] is True
