"""Ensemble temperature scaling: golden numbers, a brute-force search, and what mixing promises."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from temperance.calibrators import EnsembleTemperature, Temperature
from temperance.calibrators.ensemble import fit_mixture
from temperance.metrics import nll
from temperance.objectives import OBJECTIVES, make_objective


def with_parameters(space: Any, temperature: float, weights: list[float], k: int) -> EnsembleTemperature:
    made = EnsembleTemperature(space=space)
    learnt = {"temperature": torch.tensor(temperature), "weights": torch.tensor(weights), "n_classes": torch.tensor(k)}
    made._restore({name: value if name == "n_classes" else value.double() for name, value in learnt.items()})
    return made


def test_golden_forward(vectors: Any) -> None:
    golden = vectors["ets_forward"]
    for space in ("probs", "logits"):
        made = with_parameters(space, golden["T"], golden["w"], 3)
        expected = golden["prob_space" if space == "probs" else "logit_space"]
        assert made.predict_proba([golden["z"]])[0].tolist() == pytest.approx(expected, abs=1e-6)
    plain = torch.tensor([golden["z"]]) / golden["logit_space_equals_ts_with_T"]
    assert plain.softmax(1)[0].tolist() == pytest.approx(golden["logit_space"], abs=1e-6)


def test_golden_fit(vectors: Any) -> None:
    closed, golden = vectors["ts_nll_closed"], vectors["ets_fit_b_T1"]
    logits = torch.tensor(closed["logits"], dtype=torch.float64)
    found = fit_mixture(make_objective("nll"), logits, torch.tensor(closed["labels"]), 1.0)
    w1, w2, w3 = found.parameters.tolist()
    assert w1 + w2 + w3 == pytest.approx(golden["w_sum"], abs=1e-9)
    assert found.info["value"] == pytest.approx(golden["nll"], abs=1e-6)
    p = (w1 + w2) * float(logits.softmax(1)[0, 0]) + w3 / 3
    assert p == pytest.approx(golden["p_true_correct"], abs=1e-6)


@pytest.mark.parametrize("name", ["nll", "brier", "label-smoothing", "class-balanced-nll"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_weights_of_a_grid_are_better(name: str, seed: int) -> None:
    logits, labels = random_predictions(150, 4, seed=seed, sharpness=4.0)
    logits[:5] = 8 * torch.nn.functional.one_hot((labels[:5] + 1) % 4, 4).double()
    found = EnsembleTemperature(objective=name).fit(logits, labels)
    best = objective_at(name, found.predict_proba(logits), labels)
    parts = (logits / found.temperature).softmax(1), logits.softmax(1)
    steps = [i / 20 for i in range(21)]
    others = [
        objective_at(name, a * parts[0] + b * parts[1] + (1 - a - b) / 4, labels)
        for a in steps
        for b in steps
        if a + b <= 1
    ]
    assert best <= min(others) + 1e-9
    assert found.info["converged"]


def objective_at(name: str, probs: Tensor, labels: Tensor) -> float:
    return float(make_objective(name)(probs.clamp_min(1e-20).log(), labels))


@pytest.mark.parametrize("name", [name for name in OBJECTIVES.names if not OBJECTIVES[name].whole])
@pytest.mark.parametrize("space", ["probs", "logits"])
def test_weights_and_convergence(name: str, space: Any) -> None:
    logits, labels = random_predictions(300, 5, sharpness=3.0)
    found = EnsembleTemperature(objective=name, space=space).fit(logits, labels)
    assert found.info["converged"]
    if space == "probs":
        assert float(found.weights.sum()) == pytest.approx(1, abs=1e-12) and bool((found.weights >= 0).all())


def test_never_worse_than_temperature_scaling() -> None:
    logits, labels = random_predictions(200, 3, sharpness=5.0)
    plain = nll(Temperature().fit(logits, labels).predict_proba(logits), labels)
    assert nll(EnsembleTemperature().fit(logits, labels).predict_proba(logits), labels) <= plain + 1e-9


@pytest.mark.parametrize("solver", ["exact", "released"])
def test_in_logits_it_is_temperature_scaling(solver: Any) -> None:
    logits, labels = random_predictions(200, 4, sharpness=3.0)
    found = EnsembleTemperature(space="logits", solver=solver).fit(logits, labels)
    slope = float(found.weights[0] / found.temperature + found.weights[1])
    assert torch.allclose(found.predict_proba(logits), (logits * slope).softmax(1), atol=1e-12)
    exact = Temperature().fit(logits, labels)
    assert 1 / slope == pytest.approx(float(exact.temperature), rel=1e-6 if solver == "exact" else 0.05)


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_labels_that_have_nothing_to_do_with_the_logits_keep_the_order() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    labels = (logits.argmax(1) + torch.randint(1, 3, (400,), generator=generator)) % 3
    for space in ("probs", "logits"):
        found = EnsembleTemperature(space=space).fit(logits, labels)
        assert torch.equal(found.predict_proba(logits).argmax(1), logits.argmax(1))


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_a_confident_mistake_is_bounded_by_the_uniform_part() -> None:
    logits, labels = random_predictions(300, 4, sharpness=2.0)
    logits[0] = -1e4
    logits[0, (labels[0] + 1) % 4] = 1e4
    found = EnsembleTemperature().fit(logits, labels)
    assert float(found.weights[2]) > 0
    assert float(found.predict_proba(logits).amin()) >= float(found.weights[2]) / 4 * (1 - 1e-9)


def test_log_probabilities_without_a_uniform_part_are_exact() -> None:
    made = with_parameters("probs", 2.0, [1.0, 0.0, 0.0], 2)
    logits = torch.tensor([[3000.0, -3000.0]], dtype=torch.float64)
    assert made(logits)[0].tolist() == [0.0, -3000.0]
    assert math.isfinite(float(torch.autograd.grad(made(logits.requires_grad_())[0, 1], logits)[0][0, 1]))
