"""Maps with a parameter for each class: golden numbers, a plain SciPy reference, absent classes, invariances."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from conftest import random_predictions
from temperance.calibrators import BiasCorrectedTemperature, ClassTemperature, Temperature
from temperance.calibrators._fit.inverse_temperature import (
    unit_of,
)
from temperance.metrics import nll
from temperance.objectives import OBJECTIVES, make_objective


def with_temperatures(temperatures: list[float], **options: Any) -> ClassTemperature:
    made = ClassTemperature(**options)
    values = torch.tensor(temperatures, dtype=torch.float64)
    made._restore({"temperatures": values, "n_classes": torch.tensor(len(values))})
    return made


@pytest.mark.parametrize("key", ["cts_forward", "cts_negative_logits"])
def test_golden_forward(vectors: Any, key: str) -> None:
    golden = vectors[key]
    found = with_temperatures(golden["T"]).predict_proba([golden["z"]])[0]
    assert found.tolist() == pytest.approx(golden["probs"], abs=1e-6)
    if key == "cts_negative_logits":
        assert found.argmax() == 1  # a large temperature raised a negative logit


@pytest.mark.parametrize("name", ["nll", "class-balanced-nll", "label-smoothing"])
def test_agrees_with_a_plain_search(name: str) -> None:
    logits, labels = random_predictions(200, 3, sharpness=3.0)

    shared = float(Temperature(objective=name).fit(logits, labels).temperature)

    def value(x: Any) -> float:
        penalty = 6 / 200**2 * float(np.square(shared * np.exp(x) - 1).sum())
        return float(make_objective(name)((logits * torch.tensor(np.exp(x))).log_softmax(1), labels)) + penalty

    plain = minimize(value, [0.0] * 3, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-15, "maxiter": 5000})
    found = ClassTemperature(objective=name).fit(logits, labels)
    assert found.temperatures.log().tolist() == pytest.approx((-plain.x).tolist(), abs=1e-4)
    assert found.info["converged"] and found.info["gradient"] < 1e-6


def test_bias_corrected_agrees_with_a_plain_search() -> None:
    logits, labels = random_predictions(300, 3, sharpness=3.0)
    logits += torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)

    shared = float(Temperature().fit(logits, labels).temperature)

    def value(x: Any) -> float:
        bias = torch.tensor([x[1], x[2], -x[1] - x[2]])
        penalty = 6 / 300**2 * (float(shared * np.exp(x[0]) - 1) ** 2 + float(bias.square().sum()))
        return float(make_objective("nll")((logits * np.exp(x[0]) + bias).log_softmax(1), labels)) + penalty

    plain = minimize(value, [0.0] * 3, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-15, "maxiter": 5000})
    found = BiasCorrectedTemperature().fit(logits, labels)
    assert float(found.temperature) == pytest.approx(np.exp(-plain.x[0]), rel=1e-4)
    assert found.bias[:2].tolist() == pytest.approx(plain.x[1:].tolist(), abs=1e-4)
    assert found.info["converged"]


@pytest.mark.parametrize("method", [ClassTemperature, BiasCorrectedTemperature])
@pytest.mark.parametrize("name", [name for name in OBJECTIVES.names if not OBJECTIVES[name].whole])
def test_every_objective_converges(method: type[ClassTemperature], name: str) -> None:
    logits, labels = random_predictions(400, 4, sharpness=3.0)
    found = method(objective=name).fit(logits, labels)
    assert found.info["converged"], found.info
    plain = Temperature(objective=name).fit(logits, labels)
    if not make_objective(name).adapts:
        losses = [float(make_objective(name)(f(logits), labels)) for f in (found, plain)]
        assert losses[0] <= losses[1] + 1e-9


@pytest.mark.parametrize("solver", ["exact", "released"])
def test_an_absent_class_keeps_the_shared_temperature(solver: Any) -> None:
    logits, labels = random_predictions(300, 5, sharpness=3.0)
    labels = labels % 4
    found = ClassTemperature(solver=solver).fit(logits, labels)
    shared = Temperature().fit(logits, labels)
    assert float(found.temperatures[4]) == pytest.approx(float(shared.temperature), rel=1e-12)
    assert found.info["absent_classes"] == [4]


@pytest.mark.parametrize("solver", ["exact", "released"])
def test_biases_have_mean_zero_and_absent_ones_are_zero(solver: Any) -> None:
    logits, labels = random_predictions(300, 5, sharpness=3.0)
    labels = labels % 4
    found = BiasCorrectedTemperature(solver=solver).fit(logits, labels)
    assert found.bias[4] == 0 and float(found.bias.sum()) == pytest.approx(0, abs=1e-6)
    assert found.info["absent_classes"] == [4]


def test_a_shift_of_class_frequencies_is_repaired() -> None:
    """Logits that believe all classes equally common, where one is ten times rarer."""
    logits, labels = random_predictions(6000, 3, sharpness=1.0)
    keep = (labels != 2) | (torch.arange(6000) % 10 == 0)
    logits, labels = logits[keep], labels[keep]
    found = BiasCorrectedTemperature(prior="same").fit(logits, labels)
    plain = Temperature(prior="same").fit(logits, labels)
    shift = float(found.bias[2] - found.bias[:2].mean())
    assert shift == pytest.approx(np.log(0.1), abs=0.35)
    assert nll(found.predict_proba(logits), labels) < nll(plain.predict_proba(logits), labels) - 0.01


@given(st.integers(0, 1000), st.sampled_from(["mean", "max"]))
@settings(max_examples=10, deadline=None)
def test_centred_logits_may_be_shifted(seed: int, centre: Any) -> None:
    logits, labels = random_predictions(60, 3, seed=seed)
    shift = torch.randn(60, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5
    found = ClassTemperature(centre=centre).fit(logits, labels)
    moved = ClassTemperature(centre=centre).fit(logits + shift, labels)
    assert torch.allclose(found.predict_proba(logits), moved.predict_proba(logits + shift), atol=1e-4)
    assert torch.allclose(found.predict_proba(logits), found.predict_proba(logits + 3), atol=1e-12)


def degenerate() -> list[tuple[Tensor, Tensor]]:
    labels = torch.arange(12) % 3
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [
        (torch.zeros(12, 3, dtype=torch.float64), labels),
        (5 * one_hot, labels),
        (-5 * one_hot, labels),
        (2e4 * one_hot - 1e4, labels),
        (1e4 * noise, labels),
        (noise[:3], labels[:3]),
        (noise, labels % 2),
    ]


@pytest.mark.parametrize("name", ["nll", "class-scaled", "brier"])
@pytest.mark.parametrize("method", [ClassTemperature, BiasCorrectedTemperature])
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_degenerate_data(method: type[ClassTemperature], name: str) -> None:
    for logits, labels in degenerate():
        found = method(objective=name).fit(logits, labels)
        assert bool(torch.isfinite(found(logits)).all())
        learnt = found.state_dict()["temperatures" if method is ClassTemperature else "temperature"]
        least, most = (float(limit) / unit_of(logits) for limit in learnt.aminmax())
        assert 1e-4 <= least <= most <= 1e4
