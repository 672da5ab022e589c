"""Focal loss and its kin: golden values, analytic gradients, the reversal of the inverse focal loss."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import FLSD, CrossEntropy, DualFocal, Focal, InverseFocal, make_loss
from temperance.losses.focal import REVERSAL_GAMMA


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    found: Tensor = CrossEntropy(reduction="none")(logits, labels)
    return found


def focal(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    found: Tensor = Focal(**settings, reduction="none")(logits, labels)
    return found


def inverse_focal(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    found: Tensor = InverseFocal(**settings, allow_reversal=True, reduction="none")(logits, labels)
    return found


def dual_focal(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    found: Tensor = DualFocal(**settings, reduction="none")(logits, labels)
    return found


@pytest.fixture
def a(fixture_a: Any) -> tuple[Tensor, Tensor]:
    logits, labels = fixture_a
    return torch.from_numpy(logits), torch.from_numpy(labels)


def of_label_prob(p: float | list[float]) -> tuple[Tensor, Tensor]:
    """Two-class logits that give the label this probability."""
    probs = torch.tensor(p, dtype=torch.float64).reshape(-1)
    return torch.stack([probs, 1 - probs], 1).log(), torch.zeros(len(probs), dtype=torch.int64)


def slope_in_p(loss: Any, p: float) -> float:
    """The derivative by the label's probability."""
    log_p = torch.tensor([math.log(p)], dtype=torch.float64, requires_grad=True)
    z = torch.stack([log_p, torch.log1p(-log_p.exp())], 1)
    (found,) = torch.autograd.grad(loss(z, torch.tensor([0])).sum(), log_p)
    return float(found) / p


# --------------------------------------------------------------------------------------------------------- the vectors


def test_golden_values(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    golden = vectors["focal_A"]
    for loss, key in (
        (Focal(gamma=3.0), "gamma3"),
        (Focal(gamma=1.0), "gamma1"),
        (FLSD(), "flsd53"),
        (InverseFocal(gamma=2.0), "inverse_gamma2"),
    ):
        assert float(loss(*a)) == pytest.approx(golden[key], abs=1e-6)


def test_hand_values(vectors: Any) -> None:
    golden = vectors["focal_hand"]
    at = of_label_prob(golden["p"])
    assert float(focal(*at, gamma=golden["gamma"])) == pytest.approx(golden["focal"], abs=1e-6)
    assert float(inverse_focal(*at, gamma=golden["gamma"])) == pytest.approx(golden["inverse"], abs=1e-6)
    golden = vectors["flsd_hand"]
    assert FLSD(reduction="none")(*of_label_prob(golden["p"])).tolist() == pytest.approx(golden["values"], abs=1e-6)


@pytest.mark.parametrize("key", ["dual_focal_hand_correct", "dual_focal_hand_wrong"])
def test_dual_focal_by_hand(vectors: Any, key: str) -> None:
    golden = vectors[key]
    logits, labels = torch.tensor([golden["p"]], dtype=torch.float64).log(), torch.tensor([golden["y"]])
    for behaviour, name in (("released", "released"), ("eq24", "eq24"), ("eq25-26", "eq25_26")):
        found = dual_focal(logits, labels, gamma=golden["gamma"], behaviour=behaviour)
        assert float(found) == pytest.approx(golden[name], abs=1e-6)


def test_dual_focal_golden_values(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    for behaviour, name in (("released", "released"), ("eq24", "eq24"), ("eq25-26", "eq25_26")):
        found = make_loss("dual-focal", gamma=2.0, behaviour=behaviour)(*a)
        assert float(found) == pytest.approx(vectors["dual_focal_A_gamma2"][name], abs=1e-6)


def test_gradient_factor(vectors: Any) -> None:
    golden = vectors["focal_gradient_factor"]
    logits = torch.tensor([vectors["gradient_analysis"]["z"]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0])
    (of_focal,) = torch.autograd.grad(focal(logits, labels, gamma=golden["gamma"]).sum(), logits)
    (of_cross_entropy,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)
    assert torch.allclose(of_focal, golden["g"] * of_cross_entropy, atol=1e-6)


def test_inverse_focal_slope(vectors: Any) -> None:
    found = slope_in_p(lambda z, y: inverse_focal(z, y, gamma=4.0), 0.2785)
    assert found == pytest.approx(vectors["inverse_focal_grad"]["gamma4_at_p0p2785"], abs=1e-4)


# ---------------------------------------------------------------------------------------------------------- properties


@given(st.floats(0.001, 0.999), st.floats(0, 10))
@settings(max_examples=50, deadline=None)
def test_analytic_slopes(p: float, gamma: float) -> None:
    expected = gamma * (1 - p) ** (gamma - 1) * math.log(p) - (1 - p) ** gamma / p
    assert slope_in_p(lambda z, y: focal(z, y, gamma=gamma), p) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    expected = -gamma * (1 + p) ** (gamma - 1) * math.log(p) - (1 + p) ** gamma / p
    assert slope_in_p(lambda z, y: inverse_focal(z, y, gamma=gamma), p) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_reversal_begins_at_the_critical_gamma(vectors: Any) -> None:
    golden = vectors["inverse_focal_critical_gamma"]
    assert pytest.approx(golden["gamma_star"], abs=1e-6) == REVERSAL_GAMMA
    for gamma, reversed_somewhere in ((REVERSAL_GAMMA - 1e-4, False), (REVERSAL_GAMMA + 1e-4, True)):
        slope = slope_in_p(lambda z, y, gamma=gamma: inverse_focal(z, y, gamma=gamma), golden["at_p"])
        assert (slope > 0) == reversed_somewhere
    InverseFocal(gamma=3.59)
    with pytest.raises(InputError, match=r"at most 3\.591121; got 4\.0.*allow_reversal=True"):
        InverseFocal(gamma=4.0)
    assert InverseFocal(gamma=4.0, allow_reversal=True).gamma == 4.0


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_are_finite_where_the_label_is_certain(gamma: float, dtype: torch.dtype) -> None:
    for gap in (1e-12, 1e-3, 10.0, 17.0, 40.0, 1e4):
        z = torch.tensor([[gap, 0.0], [0.0, gap]], dtype=dtype, requires_grad=True)
        for loss in (focal, inverse_focal, dual_focal):
            value = loss(z, torch.tensor([0, 0]), gamma=gamma).sum()
            (slope,) = torch.autograd.grad(value, z)
            assert bool(torch.isfinite(value)) and bool(torch.isfinite(slope).all())


def test_detached_weight_has_the_weighted_gradient() -> None:
    logits, labels = random_predictions(30, 4)
    logits.requires_grad_()
    (found,) = torch.autograd.grad(Focal(detach_weight=True)(logits, labels), logits)
    nll = cross_entropy(logits, labels)
    (expected,) = torch.autograd.grad(((1 - (-nll.detach()).exp()) ** 3 * nll).mean(), logits)
    assert torch.allclose(found, expected)
    assert torch.equal(Focal(detach_weight=True)(logits, labels), Focal()(logits, labels))


def test_sample_dependent_gamma_looks_at_the_label() -> None:
    """A sample that is confidently wrong takes the large gamma, although its largest probability is large."""
    logits, labels = random_predictions(200, 4)
    p = (-cross_entropy(logits, labels)).exp()
    assert bool((p < 0.2).any()) and bool((p > 0.2).any())
    expected = torch.where(p < 0.2, focal(logits, labels, gamma=5.0), focal(logits, labels, gamma=3.0))
    assert torch.allclose(FLSD(reduction="none")(logits, labels), expected)


# ---------------------------------------------------------------------------------------------------------- dual focal


def dual_focal_slowly(p: Tensor, y: int, gamma: float, behaviour: str) -> float:
    others = [float(p[j]) for j in range(len(p)) if j != y]
    label = float(p[y])
    if behaviour == "released":
        others = [q for q in others if q < label]
    rival = max(others, default=0.0)
    if behaviour == "eq25-26" and rival > label:
        rival = 0.0
    return -math.log(label) * math.pow(1 - label + rival, gamma)


@pytest.mark.parametrize("behaviour", ["released", "eq24", "eq25-26"])
def test_dual_focal_agrees_with_the_obvious_version(behaviour: str) -> None:
    logits, labels = random_predictions(100, 5)
    found = dual_focal(logits, labels, gamma=2.5, behaviour=behaviour)
    expected = [dual_focal_slowly(p, int(y), 2.5, behaviour) for p, y in zip(logits.softmax(1), labels, strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_dual_focal_leaves_out_ties_with_the_label() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    p = logits.softmax(1)[0]
    found = dual_focal(logits, torch.tensor([0]), gamma=2.0)
    assert float(found) == pytest.approx((1 - float(p[0]) + float(p[2])) ** 2 * -math.log(float(p[0])))
    lowest = dual_focal(logits, torch.tensor([2]), gamma=2.0)
    assert float(lowest) == pytest.approx((1 - float(p[2])) ** 2 * -math.log(float(p[2])))
