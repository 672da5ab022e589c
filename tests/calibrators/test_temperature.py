"""Temperature scaling: golden numbers, a plain SciPy reference, invariances and degenerate input."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

from conftest import random_predictions
from temperance.calibrators import (
    CALIBRATORS,
    Temperature,
    TemperatureEce,
    load_calibrator,
    make_calibrator,
    temperature_ece,
)
from temperance.calibrators._fit.inverse_temperature import (
    SPREAD_ABOVE,
    SPREAD_BELOW,
    TYPICAL,
    UNSURE,
    unit_of,
)
from temperance.calibrators.temperature_ece import GRID, ece_of_temperatures
from temperance.errors import TemperanceWarning
from temperance.metrics import ece, nll
from temperance.objectives import OBJECTIVES, ClassScaled, make_objective, scale

Array = npt.NDArray[np.float64]


def temperature_of(found: Temperature | TemperatureEce) -> float:
    return float(found.temperature)


def value_at(name: str, logits: Tensor, labels: Tensor, s: float, **options: Any) -> float:
    return float(make_objective(name, **options)((logits * s).log_softmax(1), labels))


# ------------------------------------------------------------------------------------------------------------- vectors


def test_golden_nll(vectors: Any, fixture_a: tuple[Array, npt.NDArray[np.int64]]) -> None:
    logits, labels = fixture_a
    found = Temperature().fit(logits, labels)
    assert temperature_of(found) == pytest.approx(vectors["ts_nll_A"]["T"], abs=2e-6)
    assert nll(found.predict_proba(logits), labels) == pytest.approx(vectors["ts_nll_A"]["nll"], abs=1e-6)


def test_closed_form(vectors: Any) -> None:
    golden = vectors["ts_nll_closed"]
    found = Temperature().fit(golden["logits"], golden["labels"])
    assert temperature_of(found) == pytest.approx(4 / math.log(6), abs=1e-9)
    assert nll(found.predict_proba(golden["logits"]), golden["labels"]) == pytest.approx(golden["nll"], abs=1e-6)
    assert found.info["converged"] and not found.info["at_bound"] and "caution" not in found.info


def test_golden_ece_grid(vectors: Any, fixture_a: tuple[Array, npt.NDArray[np.int64]]) -> None:
    golden, closed = vectors["ts_ece_grid"], vectors["ts_nll_closed"]
    for (logits, labels), key in ((fixture_a, "A"), ((closed["logits"], closed["labels"]), "b")):
        found = TemperatureEce().fit(logits, labels)
        assert temperature_of(found) == golden[f"{key}_T"]
        assert found.info["ece"] == pytest.approx(golden[f"{key}_ece"], abs=1e-6)


# ----------------------------------------------------------------------------------------------------------- reference


@pytest.mark.parametrize("name", ["nll", "brier", "class-balanced-nll", "label-smoothing", "focal"])
@pytest.mark.parametrize(("n", "k", "sharpness"), [(300, 3, 4.0), (200, 20, 0.3), (400, 2, 1.0)])
def test_agrees_with_a_bounded_search(name: str, n: int, k: int, sharpness: float) -> None:
    logits, labels = random_predictions(n, k, seed=k, sharpness=sharpness)
    found = Temperature(objective=name).fit(logits, labels)
    limits = (math.log(0.01), math.log(100))
    best = minimize_scalar(
        lambda u: value_at(name, logits, labels, math.exp(u)), bounds=limits, method="bounded", options={"xatol": 1e-9}
    )
    assert math.log(temperature_of(found)) == pytest.approx(-best.x, abs=1e-4)
    assert value_at(name, logits, labels, 1 / temperature_of(found)) <= best.fun + 1e-12
    assert found.info["converged"]


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(-2, 2), st.integers(5, 400))
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_the_slope_is_zero_at_the_optimum(seed: int, k: int, log_scale: float, n: int) -> None:
    """That of the objective, or of it and the prior where the prior decides."""
    rng = np.random.default_rng(seed)
    labels = np.r_[0, 1, rng.integers(k, size=n - 2)]
    logits = rng.standard_normal((n, k)) * 10**log_scale
    logits[np.arange(n), labels] += rng.random() * 10**log_scale
    found = Temperature().fit(logits, labels)
    s = 1 / temperature_of(found)
    probs = np.exp(log_softmax(logits * s, axis=1))
    unit = unit_of(torch.from_numpy(logits))
    slope = float(((probs * logits).sum(1) - logits[np.arange(n), labels]).mean()) / unit
    s *= unit
    if found.info["at_bound"]:
        assert slope < 1e-6 if s == 100 else slope > -1e-6
    elif "caution" in found.info:
        away = -math.log(s) - TYPICAL
        assert abs(-s * slope + away / (SPREAD_ABOVE if away > 0 else SPREAD_BELOW) ** 2 / n) < 1e-5
    else:
        assert abs(slope) < 1e-6


@pytest.mark.parametrize("n", [4000, 20_000])
def test_many_rows_begin_with_some_of_them(n: int) -> None:
    """The first steps see a part of the rows; that must not show in the result, even if the part is unlike the rest."""
    logits, labels = random_predictions(n, 5, sharpness=3.0)
    logits[::8] *= 5
    found = Temperature().fit(logits, labels)
    s = 1 / temperature_of(found)
    slope = (value_at("nll", logits, labels, s + 1e-4) - value_at("nll", logits, labels, s - 1e-4)) / 2e-4
    assert abs(slope) < 1e-6
    assert temperature_of(Temperature().fit(logits.flip(0), labels.flip(0))) == pytest.approx(1 / s, rel=1e-8)


@pytest.mark.parametrize("options", ["", ":normalise=mm", ":class_reduce=sum", ":step=first-order"])
def test_class_scaled_is_at_its_fixed_point(options: str) -> None:
    logits, labels = random_predictions(500, 5, sharpness=3.0)
    logits[labels == 0] *= 2
    found = Temperature(objective=f"class-scaled{options}").fit(logits, labels)
    s = 1 / temperature_of(found)
    assert found.info["converged"] and found.info["weights_settled"]
    objective = make_objective(f"class-scaled{options}")
    assert isinstance(objective, ClassScaled)

    def class_losses(t: float) -> Tensor:
        return objective._class_losses(objective.losses((logits * t).log_softmax(1), labels), labels, 5)

    weights = scale(objective._normalised(class_losses(s)), found.info["alpha"], found.info["beta"])
    assert found.info["class_weights"] == pytest.approx(weights.tolist(), abs=1e-6)
    below, here, above = (float((1 + weights) @ class_losses(t)) for t in (s - 1e-4, s, s + 1e-4))
    assert abs(above - below) / 2e-4 < 1e-5 * here and here < min(below, above)


def test_detached_focal_settles() -> None:
    logits, labels = random_predictions(500, 4, sharpness=4.0)
    found = Temperature(objective="focal:detach_weight=true").fit(logits, labels)
    assert found.info["converged"]
    s = torch.tensor(1 / temperature_of(found), dtype=torch.float64).requires_grad_()
    loss = make_objective("focal", detach_weight=True)((logits * s).log_softmax(1), labels)
    assert abs(float(torch.autograd.grad(loss, s)[0])) < 1e-5


# --------------------------------------------------------------------------------------------------------------- grids


@pytest.mark.parametrize("n_bins", [1, 5, 15])
def test_every_error_of_the_grid_is_the_metric(n_bins: int) -> None:
    logits, labels = random_predictions(150, 4)
    errors = ece_of_temperatures(logits, labels, GRID, n_bins)
    for t in (0, 4, 9, 30, 99):
        expected = ece((logits / GRID[t]).softmax(1), labels, n_bins=n_bins)
        assert float(errors[t]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("k", [2, 5, 15])
def test_ties_fall_into_the_bins_where_they_are_measured(k: int) -> None:
    logits = torch.zeros(6, k, dtype=torch.float64)
    logits[0, 0] = 1.0
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    errors = ece_of_temperatures(logits, labels, GRID[:3], 15)
    expected = [ece((logits / t).softmax(1), labels) for t in GRID[:3]]
    assert errors.tolist() == pytest.approx(expected, abs=1e-12)


def test_ece_takes_the_first_of_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = torch.ones(100, dtype=torch.float64)
    errors[40] = errors[60] = 0.25
    monkeypatch.setattr(temperature_ece, "ece_of_temperatures", lambda *_: errors)
    found = TemperatureEce().fit(*random_predictions(20, 3))
    assert temperature_of(found) == 4.1 and found.info["ece"] == 0.25 and not found.info["at_bound"]


def test_an_end_of_the_grid_is_not_the_least_ece() -> None:
    """One mistake in thirty, of which every temperature of the grid is almost certain: the last is the least so."""
    labels = torch.arange(30) % 3
    saturated = torch.nn.functional.one_hot(labels, 3).double() * 250
    labels[0] = 1
    with pytest.warns(TemperanceWarning, match="the least ECE is at 10, an end of the grid. The least NLL is at 6"):
        found = TemperatureEce().fit(saturated, labels)
    assert temperature_of(found) == temperature_of(Temperature().fit(saturated, labels)) > 10
    assert found.info["at_bound"] and found.info["ece"] == pytest.approx(ece(found.predict_proba(saturated), labels))


# --------------------------------------------------------------------------------------------------------- invariances


@given(st.integers(0, 1000), st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_scaled_logits_have_a_scaled_temperature(seed: int, factor: float) -> None:
    logits, labels = random_predictions(80, 3, seed=seed)
    found, scaled = Temperature().fit(logits, labels), Temperature().fit(factor * logits, labels)
    if not (found.info["at_bound"] or scaled.info["at_bound"]):
        assert temperature_of(scaled) == pytest.approx(factor * temperature_of(found), rel=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_log_probabilities_and_order_do_not_matter(name: str) -> None:
    logits, labels = random_predictions(200, 4)
    expected = temperature_of(Temperature(objective=name).fit(logits, labels))
    log_probs = Temperature(objective=name).fit(logits.log_softmax(1), labels)
    shuffled = Temperature(objective=name).fit(logits.flip(0), labels.flip(0))
    assert temperature_of(log_probs) == pytest.approx(expected, rel=1e-6)
    assert temperature_of(shuffled) == pytest.approx(expected, rel=1e-6)


def test_single_and_half_precision_agree() -> None:
    logits, labels = random_predictions(300, 4)
    rough = logits.half()
    expected = Temperature().fit(rough.double(), labels)
    assert temperature_of(Temperature().fit(rough, labels)) == temperature_of(expected)


# ---------------------------------------------------------------------------------------------------------- degenerate


@pytest.mark.parametrize(
    ("name", "solver"), [*((name, "exact") for name in OBJECTIVES.names), ("class-scaled", "released")]
)
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_degenerate_data_gives_a_temperature_within_bounds(name: str, solver: Any) -> None:
    labels = torch.arange(12) % 3
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    missing = torch.nn.functional.one_hot(labels % 2, 3).double()
    noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cases = [
        (torch.zeros(12, 3, dtype=torch.float64), labels),
        (5 * one_hot, labels),
        (-5 * one_hot, labels),
        (2e4 * one_hot - 1e4, labels),
        (1e4 * noise, labels),
        (1e-9 * noise, labels),
        (missing + noise, labels % 2),
        (one_hot[:3] + noise[:3], labels[:3]),
        ((one_hot + noise).log_softmax(1), labels),
    ]
    if solver == "released":  # a thousand steps each
        cases = [cases[i] for i in (0, 3, 6)]
    for logits, y in cases:
        found = Temperature(objective=name, solver=solver).fit(logits, y)
        assert 0.01 <= temperature_of(found) / unit_of(logits) <= 100
        assert bool(torch.isfinite(found(logits)).all())


@pytest.mark.parametrize(
    ("objective", "solver"),
    [
        *((name, "exact") for name in ("nll", "class-scaled", "class-balanced-nll", "brier")),
        ("nll", "released"),
        ("class-scaled", "released"),
    ],
)
@pytest.mark.parametrize("right", [True, False])
def test_samples_without_an_optimum_leave_it_to_the_prior(objective: str, solver: Any, right: bool) -> None:
    labels = torch.arange(9) % 3
    logits = torch.nn.functional.one_hot(labels, 3).double() * (2 if right else -2)
    reason = "in 9 samples there is no mistake" if right else "in 9 samples no prediction is right"
    with pytest.warns(TemperanceWarning, match=rf"^{reason}.*\. So the fit leans on what other models needed"):
        found = Temperature(objective=objective, solver=solver).fit(logits, labels)
    assert 0.5 < temperature_of(found) < 1.5 if right else 1.5 < temperature_of(found) < 20
    assert reason in found.info["caution"] and found.info["converged"] and not found.info["at_bound"]


def test_the_prior_fades_with_the_number_of_samples() -> None:
    """Without a mistake the temperature falls as samples come in, slowly."""
    logits = 4 * torch.eye(3, dtype=torch.float64)
    found = []
    for n in (3, 30, 300, 3000):
        with pytest.warns(TemperanceWarning, match="no mistake"):
            found.append(temperature_of(Temperature().fit(logits.repeat(n // 3, 1), torch.arange(3).repeat(n // 3))))
    assert found == sorted(found, reverse=True) and found[0] > 1 > found[-1] > 0.2


def test_where_samples_determine_the_temperature_there_is_no_prior() -> None:
    """The same few samples more often: the optimum is that of the likelihood as soon as its error is small enough."""
    logits = torch.tensor([[3.0, 0.0]] * 9 + [[0.1, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0] * 9 + [1])
    s = minimize_scalar(lambda s: value_at("nll", logits, labels, s), bounds=(0.01, 100), options={"xatol": 1e-10}).x
    p = (logits * s).softmax(1)[:, 0]
    information = float((p * (1 - p) * (s * (logits[:, 0] - logits[:, 1])).square()).sum())
    enough = math.ceil(UNSURE**-2 / information)
    assert enough > 1
    with pytest.warns(TemperanceWarning, match="samples say too little about how confident predictions should be"):
        few = Temperature().fit(logits.repeat(enough - 1, 1), labels.repeat(enough - 1))
    many = Temperature().fit(logits.repeat(enough, 1), labels.repeat(enough))
    assert temperature_of(many) == pytest.approx(1 / s, rel=1e-5) and "caution" not in many.info
    assert temperature_of(few) > 1.2 / s


@pytest.mark.parametrize(
    ("scale", "shift", "expected", "says"),
    [(1e-4, 0, 0.01, "below 0.01"), (1.0, 1, 100, "above 100"), (1e6, 1, 100 * 2**18, "above 2.62144e+07")],
)
def test_bounds_are_reached_and_told(scale: float, shift: int, expected: float, says: str) -> None:
    """Where many samples ask for a temperature beyond them: tiny logits, or labels that number classes otherwise."""
    logits, labels = random_predictions(20_000, 3)
    with pytest.warns(
        TemperanceWarning, match=f"the best temperature is {re.escape(says)}, the (small|larg)est allowed"
    ):
        found = Temperature().fit(scale * logits, (labels + shift) % 3)
    assert temperature_of(found) == expected and found.info["at_bound"] and found.info["converged"]


def test_logits_on_a_large_scale_against_every_temperature() -> None:
    logits, labels = random_predictions(2000, 3, sharpness=3.0)
    large = 1e4 * logits
    assert unit_of(logits) == 1 and unit_of(large) > 1000
    found = Temperature().fit(large, labels)
    s = minimize_scalar(lambda s: value_at("nll", logits, labels, s), bounds=(0.01, 100), options={"xatol": 1e-10}).x
    assert temperature_of(found) == pytest.approx(1e4 / s, rel=1e-6) and "caution" not in found.info


def test_samples_without_a_mistake_are_not_called_tiny_logits() -> None:
    """Near ties determine a temperature at its bound, but only because none of them is a mistake."""
    logits, _ = random_predictions(200, 3)
    with pytest.warns(TemperanceWarning, match="^in 200 samples there is no mistake"):
        found = Temperature().fit(logits, logits.argmax(1))
    assert temperature_of(found) > 0.1 and not found.info["at_bound"]


@pytest.mark.parametrize("method", ["temperature-ece", "class-temperature-greedy"])
def test_ece_cannot_choose_without_a_mistake(method: str) -> None:
    labels = torch.arange(30) % 3
    logits, _ = random_predictions(30, 3)
    logits[torch.arange(30), labels] = logits.amax(1) + 0.5
    with pytest.warns(TemperanceWarning, match="^in 30 samples there is no mistake"):
        found = make_calibrator(method).fit(logits, labels)
    with pytest.warns(TemperanceWarning, match="no mistake"):
        plain = Temperature().fit(logits, labels)
    assert torch.allclose(found.predict_proba(logits), plain.predict_proba(logits), atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_one_where_it_makes_no_difference(name: str) -> None:
    found = Temperature(objective=name).fit(np.full((8, 3), 0.25), np.arange(8) % 3)
    assert temperature_of(found) == 1 and not found.info["at_bound"]


def test_a_single_huge_logit_of_a_wrong_class() -> None:
    logits, labels = random_predictions(100, 3)
    logits[0, (labels[0] + 1) % 3] = 1e30
    with pytest.warns(TemperanceWarning, match="above 100, the largest allowed. .* or the logits may be saturated"):
        found = Temperature().fit(logits, labels)
    assert temperature_of(found) == 100 and bool(torch.isfinite(found(logits)).all())


def test_claims() -> None:
    assert CALIBRATORS["temperature"].takes_objective and not CALIBRATORS["temperature-ece"].takes_objective
    assert Temperature().fit(*random_predictions(50, 3)).n_parameters == 1


# ----------------------------------------------------------------------------------------------------------- real data


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [("c10_vgg19_bn", 1.880), ("c10_unknown", 3.300), ("c100_resnet56", 1.734), ("c100_wideresnet164_nc", 1.123)],
)
def test_real_predictions(shared_data: Path, name: str, expected: float) -> None:
    with np.load(shared_data / "logits" / f"{name}.npz") as file:
        logits, labels = file["logits"], file["labels"]
    half = np.random.default_rng(0).permutation(len(labels))[: len(labels) // 2]
    found = Temperature().fit(logits[half], labels[half])
    assert temperature_of(found) == pytest.approx(expected, abs=1e-3)
    assert found.info["gradient"] < 1e-6


# ----------------------------------------------------------------------------------------------------------- smoothing


def test_laplace_smoothing_is_one_more_sample_of_each_class() -> None:
    logits, labels = random_predictions(50, 4, sharpness=3.0)
    plain, smooth = Temperature().fit(logits, labels), Temperature(smoothing="laplace").fit(logits, labels)
    assert temperature_of(plain) == temperature_of(smooth)
    probs = plain.predict_proba(logits)
    assert np.allclose(smooth.predict_proba(logits), (50 * probs + 1) / (50 + 4), rtol=1e-12, atol=0)


def test_smoothed_no_mistake_costs_more_than_the_samples_warrant(tmp_path: Path) -> None:
    logits, labels = random_predictions(200, 3, sharpness=3.0)
    found = make_calibrator("temperature:smoothing=laplace").fit(logits, labels)
    certain = torch.tensor([[1e4, 0.0, -1e4]], dtype=torch.float64)
    assert float(found(certain).amin()) == pytest.approx(-math.log(203), rel=1e-12)
    found.save(tmp_path / "smooth.safetensors")
    assert torch.equal(load_calibrator(tmp_path / "smooth.safetensors")(certain), found(certain))
