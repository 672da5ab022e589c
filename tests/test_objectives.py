"""What calibrators minimise: golden vectors, an obvious NumPy version, claims and degenerate input."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from temperance.calibrators import make_calibrator
from temperance.errors import InputError, TemperanceWarning
from temperance.objectives import OBJECTIVES, ClassScaled, Objective, make_objective, scale

Array = npt.NDArray[Any]


@pytest.fixture
def a(fixture_a: tuple[Array, Array]) -> tuple[Tensor, Tensor]:
    logits, labels = fixture_a
    return torch.from_numpy(logits).log_softmax(1), torch.from_numpy(labels)


def value(objective: Objective, log_probs: Tensor, labels: Tensor) -> float:
    return float(objective(log_probs, labels))


def slope(of: Tensor, by: Tensor) -> Tensor:
    return torch.autograd.grad(of, by)[0]


# --------------------------------------------------------------------------------------------------------- the vectors


def test_golden_values(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    golden = {
        ("nll",): vectors["brier_nll_A"]["nll"],
        ("brier",): vectors["brier_nll_A"]["brier_sum"],
        ("label-smoothing",): vectors["label_smoothing_A"]["szegedy"],
        ("focal",): vectors["focal_A"]["gamma3"],
        ("class-scaled",): vectors["sctl_loss_A"]["total"],
    }
    for (name,), expected in golden.items():
        assert value(make_objective(name), *a) == pytest.approx(expected, abs=1e-6), name
    assert value(make_objective("focal", gamma=1), *a) == pytest.approx(vectors["focal_A"]["gamma1"], abs=1e-6)
    # Spread over the wrong classes only, the same smoothing is called ε (k − 1) / k.
    other = make_objective("label-smoothing", smoothing=0.05 * 3 / 2)
    assert value(other, *a) == pytest.approx(vectors["label_smoothing_A"]["k_minus_1"], abs=1e-6)


def test_class_balanced_is_the_mean_of_class_means(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    expected = np.mean(vectors["classwise_loss_A"]["mean_reading"])
    assert value(make_objective("class-balanced-nll"), *a) == pytest.approx(expected, abs=1e-6)


def one_sample_per_class(losses: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(losses, dtype=torch.float64), torch.arange(len(losses))


@pytest.mark.parametrize(("normalise", "ddof", "key"), [("nd", 0, "w_ND_pop"), ("mm", 0, "w_MM"), ("cm", 0, "w_CM")])
def test_class_weights(vectors: Any, normalise: Any, ddof: int, key: str) -> None:
    found = ClassScaled(normalise=normalise, ddof=ddof)
    losses, labels = one_sample_per_class(vectors["sctl_norm"]["L"])
    found.reweigh(losses, labels, 3)
    assert found.class_weights.tolist() == pytest.approx(vectors["sctl_weights"][key], abs=1e-6)
    if key == "w_ND_pop":
        total = float((found.weights(labels, 3) * losses).sum())
        assert total == pytest.approx(vectors["sctl_weights"]["total_ND_pop"], abs=1e-6)


def test_class_weights_of_fixture(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    found = ClassScaled()
    found(*a)
    assert found.info["class_weights"] == pytest.approx(vectors["sctl_loss_A"]["w"], abs=1e-6)
    assert (found.alpha, found.beta) == (1.0, 1.5)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("step", ["paper", "first-order"])
def test_alpha_and_beta(vectors: Any, step: Any, ddof: int) -> None:
    golden = vectors["sctl_alpha_beta"]
    found = ClassScaled(step=step, ddof=ddof)
    for key in ("L0", "L1"):
        losses, labels = one_sample_per_class(golden[key])
        found.reweigh(losses, labels, 10)
    expected = golden[f"{step.replace('-', '_')}_ddof{ddof}"]
    assert found.alpha == pytest.approx(expected["alpha"], abs=1e-4)
    assert found.beta == pytest.approx(expected["beta"], abs=1e-4)


def test_alpha_inside_the_box(vectors: Any) -> None:
    golden = vectors["sctl_alpha_beta_interior"]
    found = ClassScaled(ddof=golden["ddof"])
    for key in ("L0", "L1"):
        losses, labels = one_sample_per_class(golden[key])
        found.reweigh(losses, labels, 10)
    assert found.alpha == pytest.approx(golden["alpha"], abs=1e-3)
    assert found.beta == pytest.approx(golden["beta"], abs=1e-3)


@pytest.mark.parametrize("given", [{"alpha": 0.5, "beta": 1.0}, {"alpha": 0.5}, {"beta": 3.0}])
def test_class_scaling_keeps_the_shape_that_is_given(given: dict[str, Any]) -> None:
    found, usual = ClassScaled(**given), ClassScaled()
    for losses in ([0.2, 0.5, 1.1], [0.25, 0.45, 0.9]):
        for one in (found, usual):
            one.reweigh(torch.tensor(losses, dtype=torch.float64), torch.arange(3), 3)
        for name, value in given.items():
            assert getattr(found, name) == pytest.approx(value)
    if len(given) == 2:
        normalised = found._normalised(torch.tensor([0.25, 0.45, 0.9], dtype=torch.float64))
        assert torch.equal(found.class_weights, scale(normalised, 0.5, 1.0))
    assert not torch.equal(found.class_weights, usual.class_weights)


@pytest.mark.parametrize("method", ["temperature", "vector", "class-temperature", "ensemble-temperature"])
def test_a_failed_search_of_alpha_and_beta_is_said(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = random_predictions(400, 5)
    fitted = make_calibrator(method, objective="class-scaled").fit(logits, labels)
    assert "caution" not in fitted.info and (fitted.info["alpha"], fitted.info["beta"]) != (1.0, 1.5)
    lost = SimpleNamespace(x=np.array([np.nan, 1.7]))
    monkeypatch.setattr("scipy.optimize.minimize", lambda *_, **__: lost)
    says = "the search for alpha and beta of class-scaled failed, so they are 1 and 1.5. Set both, or use another objec"
    with pytest.warns(TemperanceWarning, match=says):
        fitted.fit(logits, labels)
    assert fitted.info["caution"].startswith(says) and (fitted.info["alpha"], fitted.info["beta"]) == (1.0, 1.5)


# ------------------------------------------------------------------------------------------------ an obvious reference


def reference(name: str, probs: Array, labels: Array) -> float:
    """Sample by sample, as written in the papers."""
    n, k = probs.shape
    total = 0.0
    for p, y in zip(probs, labels, strict=True):
        if name == "nll":
            total += -math.log(p[y]) / n
        elif name == "brier":
            total += sum((p[j] - (j == y)) ** 2 for j in range(k)) / n
        elif name == "label-smoothing":
            total += -sum((0.95 * (j == y) + 0.05 / k) * math.log(p[j]) for j in range(k)) / n
        elif name == "focal":
            total += -((1 - p[y]) ** 3) * math.log(p[y]) / n
        elif name == "class-balanced-nll":
            total += -math.log(p[y]) / ((labels == y).sum() * len(set(labels.tolist())))
    if name == "soft-ece":
        return soft_ece(probs, labels)
    if name == "h-calibration":
        return h_calibration(probs, labels)
    if name == "class-scaled":
        losses = np.array([np.mean([-math.log(probs[i, j]) for i in np.flatnonzero(labels == j)]) for j in range(k)])
        normalised = (losses - losses.mean()) / losses.std(ddof=1)
        return float(((1 + 1.5 / (1 + np.exp(-normalised)) - 0.75) * losses).sum())
    return total


def soft_ece(probs: Array, labels: Array) -> float:
    weight, gap = np.zeros(15), np.zeros(15)
    for p, y in zip(probs, labels, strict=True):
        belongs = np.array([math.exp(-((p.max() - (b + 0.5) / 15) ** 2) / 0.01) for b in range(15)])
        weight += belongs / belongs.sum()
        gap += belongs / belongs.sum() * (p.max() - (p.argmax() == y))
    return sum(w / len(labels) * math.sqrt((g / w) ** 2 + 1e-6) for w, g in zip(weight, gap, strict=True))


def h_calibration(probs: Array, labels: Array) -> float:
    """Pair by pair, with Lloyd's k-means."""
    pairs = sorted((p, float(y == j)) for row, y in zip(probs, labels, strict=True) for j, p in enumerate(row))
    values = [p for p, _ in pairs]
    gaps = [abs(sum(p - q for p, q in pairs[max(i - 100, 0) : i + 101])) / 201 for i in range(len(pairs))]
    centres = np.linspace(values[0], values[-1], 15)
    for _ in range(20):
        nearest = np.array([np.abs(centres - value).argmin() for value in values])
        centres = np.array([np.mean(np.array(values)[nearest == c]) for c in range(15)])
    return float(np.mean([np.mean(np.array(gaps)[nearest == c]) for c in range(15)]))


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_agrees_with_the_obvious_version(name: str) -> None:
    logits, labels = random_predictions(200, 4, seed=3)
    expected = reference(name, logits.softmax(1).numpy(), labels.numpy())
    assert value(make_objective(name), logits.log_softmax(1), labels) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_blocks_sum_to_the_whole(name: str) -> None:
    logits, labels = random_predictions(100, 5, seed=1)
    log_probs, whole = logits.log_softmax(1), make_objective(name)
    expected = value(whole, log_probs, labels)
    weights = whole.weights(labels, 5)
    parts = sum(
        float((weights[rows] * whole.losses(log_probs[rows], labels[rows])).sum())
        for rows in (slice(0, 30), slice(30, 100))
    )
    assert (parts == pytest.approx(expected, rel=1e-12)) != OBJECTIVES[name].whole


# ---------------------------------------------------------------------------------------------------------- the claims


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_gradient(name: str) -> None:
    logits, labels = random_predictions(20, 4, seed=5)
    found = make_objective(name)
    found(logits.log_softmax(1), labels)
    weights = found.weights(labels, 4)

    def frozen(z: Tensor) -> Tensor:
        return (weights * found.losses(z.log_softmax(1), labels)).sum()

    assert torch.autograd.gradcheck(frozen, logits.requires_grad_())


@pytest.mark.parametrize("name", [*OBJECTIVES.names, "detached focal"])
def test_convex_means_linear_in_log_probs(name: str) -> None:
    found = make_objective("focal", detach_weight=True) if name == "detached focal" else make_objective(name)
    logits, labels = random_predictions(50, 3, seed=2)
    one, two = logits.log_softmax(1), (0.3 * logits).log_softmax(1)
    found(one, labels)
    middle = found.losses(0.5 * (one + two), labels)
    mean = 0.5 * (found.losses(one, labels) + found.losses(two, labels))
    assert torch.allclose(middle, mean, rtol=1e-12) == found.convex


@given(st.integers(0, 1000), st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_normalised_losses_sum_to_zero_and_weights_stay_in_range(seed: int, spread: float) -> None:
    losses = torch.rand(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
    for normalise in ("nd", "cm"):
        found = ClassScaled(normalise=normalise)
        assert float(found._normalised(losses).sum()) == pytest.approx(0, abs=1e-9)
    for _ in range(3):
        found.reweigh(losses, torch.arange(7), 7)
        assert float(found.class_weights.abs().amax()) <= found.beta / 2
        losses = losses**1.1


def test_detached_focal_has_the_weighted_gradient() -> None:
    logits, labels = random_predictions(30, 3)
    logits.requires_grad_()
    found = slope(make_objective("focal", detach_weight=True)(logits.log_softmax(1), labels), logits)
    losses = -logits.log_softmax(1)[torch.arange(30), labels]
    assert torch.allclose(found, slope(((1 - (-losses.detach()).exp()) ** 3 * losses).mean(), logits))


@pytest.mark.parametrize(("name", "setting"), [("focal", {"gamma": 0}), ("label-smoothing", {"smoothing": 0})])
def test_special_cases_are_nll(name: str, setting: dict[str, float]) -> None:
    logits, labels = random_predictions(40, 4)
    log_probs = logits.log_softmax(1)
    expected = pytest.approx(value(make_objective("nll"), log_probs, labels), rel=1e-12)
    assert value(make_objective(name, **setting), log_probs, labels) == expected


def test_calibration_errors_do_not_see_what_a_proper_score_sees() -> None:
    """The frequencies of the classes, for every sample alike: nothing is known, but all of it is right."""
    labels = torch.arange(3000) % 3
    guess = torch.full((3000, 3), 1 / 3, dtype=torch.float64).log()
    sure = (8 * torch.nn.functional.one_hot(labels, 3).double()).log_softmax(1)
    unsure = (2 * torch.nn.functional.one_hot(labels, 3).double()).log_softmax(1)
    for name in (name for name in OBJECTIVES.names if OBJECTIVES[name].whole):
        errors = [value(make_objective(name), log_probs, labels) for log_probs in (guess, sure, unsure)]
        assert errors[0] < 0.01 and errors[1] < 0.01 < errors[2], name


def test_few_pairs_and_equal_ones() -> None:
    for k in (2, 3):
        log_probs = torch.full((2, k), 1 / k, dtype=torch.float64).log().requires_grad_()
        found = make_objective("h-calibration")(log_probs, torch.tensor([0, 1]))
        assert bool(torch.isfinite(found)) and bool(torch.isfinite(slope(found, log_probs)).all())


# ---------------------------------------------------------------------------------------------------- degenerate input


def test_absent_classes_are_left_out() -> None:
    logits, labels = random_predictions(60, 5)
    labels = labels % 3
    found = ClassScaled()
    assert math.isfinite(value(found, logits.log_softmax(1), labels))
    assert found.info["class_weights"][3:] == [0, 0]
    narrow = ClassScaled()
    losses = found.losses(logits.log_softmax(1), labels)
    narrow.reweigh(losses, labels, 3)
    assert narrow.info["class_weights"] == pytest.approx(found.info["class_weights"][:3], abs=1e-12)


@pytest.mark.parametrize("normalise", ["nd", "mm", "cm"])
def test_equal_or_lonely_class_losses_are_not_scaled(normalise: Any) -> None:
    for losses, labels in ([0.7, 0.7, 0.7], [0, 1, 2]), ([0.3, 0.9], [1, 1]):
        found = ClassScaled(normalise=normalise)
        for _ in range(3):
            found.reweigh(torch.tensor(losses, dtype=torch.float64), torch.tensor(labels), 3)
        assert found.info["class_weights"] == [0, 0, 0]


@pytest.mark.parametrize("k", [1, 2, 7])
def test_few_classes_keep_the_search_inside_its_box(k: int) -> None:
    found = ClassScaled()
    for seed in range(3):
        losses = torch.rand(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found.reweigh(losses, torch.arange(k), k)
    assert 0.1 <= found.alpha <= max(math.log(k) / 2, 0.1) + 1e-9
    assert 1.5 <= found.beta <= 2


def test_far_apart_losses_do_not_overflow() -> None:
    assert scale(torch.tensor([-1e6, 1e6], dtype=torch.float64), 0.1, 2.0).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_saturated_log_probs_are_finite(name: str) -> None:
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 1e4, -1e4]], dtype=torch.float64).requires_grad_()
    found = make_objective(name)(z.log_softmax(1), torch.tensor([0, 1, 2]))
    assert bool(torch.isfinite(found)) and bool(torch.isfinite(slope(found, z)).all())


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 3])
def test_focal_slope_is_finite_where_the_label_is_certain(gamma: float) -> None:
    z = torch.tensor([[1e3, 0.0]], dtype=torch.float64).requires_grad_()
    found = make_objective("focal", gamma=gamma)(z.log_softmax(1), torch.tensor([0]))
    assert bool(torch.isfinite(slope(found, z)).all())


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "given_settings", "says"),
    [
        ("focl", {}, "did you mean focal"),
        ("focal", {"gama": 2}, "did you mean gamma"),
        ("nll", {"gamma": 2}, "no setting of nll named 'gamma'"),
        ("focal", {"gamma": -1}, "gamma must be a number from 0 to 100; got -1"),
        ("focal", {"gamma": math.nan}, "gamma must be"),
        ("focal", {"detach_weight": "no"}, "detach_weight must be true or false"),
        ("label-smoothing", {"smoothing": "much"}, "smoothing must be a number from 0 to 1"),
        ("class-scaled", {"normalise": "zscore"}, "normalise must be one of nd, mm, cm"),
        ("class-scaled", {"class_reduce": "max"}, "class_reduce must be one of mean, sum"),
        ("class-scaled", {"step": "taylor"}, "step must be one of paper, first-order"),
        ("class-scaled", {"ddof": -1}, "ddof must be a whole number of at least 0"),
    ],
)
def test_errors_name_the_way_out(name: str, given_settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_objective(name, **given_settings)
