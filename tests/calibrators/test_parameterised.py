"""Parameterised temperature scaling: golden numbers, the order of classes, first weights, presets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_predictions
from temperance.calibrators import ParameterisedTemperature, Temperature, load_calibrator
from temperance.calibrators import parameterised as module
from temperance.errors import InputError
from temperance.metrics import nll
from temperance.objectives import OBJECTIVES


def test_golden_forward(vectors: Any) -> None:
    golden = vectors["pts_forward"]
    logits = torch.tensor([golden["sorted_logits"]], dtype=torch.float64)[:, [2, 0, 3, 1]]
    first = torch.tensor([[0.5, 0, 0, 0], [0, 0.5, 0, 0]], dtype=torch.float64)
    layers = [first, torch.tensor([0.1, 0.2]), torch.tensor([[1.0, -4.0]]), torch.tensor([0.3])]
    raw = module._network(module._features(logits, module.PRESETS["robust"]), [layer.double() for layer in layers])
    assert float(raw) == pytest.approx(golden["t_raw"], abs=1e-6)
    temperature = module._positive(raw)
    assert float(temperature) == pytest.approx(golden["T_abs"], abs=1e-6)
    probs = (logits / temperature).softmax(1)[0].sort(descending=True).values
    assert probs.tolist() == pytest.approx(golden["probs_abs"], abs=1e-6)


def test_first_weights_are_those_of_torch_layers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    found = module.random_layers((4, 2, 1), torch.Generator().manual_seed(7))
    for ours, theirs in zip(found, network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    flat = torch.cat([layer.flatten() for layer in found])
    assert all(torch.equal(a, b) for a, b in zip(module.split_like(found, flat), found, strict=True))


def varied(n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions of which the surest are far too sure and the others are not."""
    logits, labels = random_predictions(n, k, seed=seed, sharpness=1.0)
    return torch.where(logits.amax(1, keepdim=True) > 2, 6 * logits, logits), labels


def test_better_than_one_temperature_where_samples_differ() -> None:
    logits, labels = varied(3000, 5)
    fresh, truth = varied(3000, 5, seed=1)
    found, plain = ParameterisedTemperature().fit(logits, labels), Temperature().fit(logits, labels)
    assert nll(found.predict_proba(fresh), truth) < nll(plain.predict_proba(fresh), truth) - 0.01
    low, high = found.info["temperature_range"]
    assert high > 1.5 * low and not found.info["constant"]


def test_few_samples_are_not_learnt_by_heart() -> None:
    for seed in range(3):
        logits, labels = random_predictions(100, 10, seed=seed, sharpness=3.0)
        fresh, truth = random_predictions(4000, 10, seed=seed + 10, sharpness=3.0)
        found, plain = ParameterisedTemperature().fit(logits, labels), Temperature().fit(logits, labels)
        assert nll(found.predict_proba(fresh), truth) < nll(plain.predict_proba(fresh), truth) + 0.02


@pytest.mark.parametrize("preset", ["robust", "sctl", "paper"])
@given(seed=st.integers(0, 50), scale=st.sampled_from([0.1, 1.0, 1e4]))
@settings(max_examples=5, deadline=None)
def test_the_order_of_classes_is_kept(preset: Any, seed: int, scale: float) -> None:
    logits, labels = random_predictions(60, 4, seed=seed)
    found = ParameterisedTemperature(preset=preset, seed=seed).fit(logits, labels)
    other = scale * torch.randn(50, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.equal(found.predict_proba(other).argmax(1), other.argmax(1))
    assert 0.01 <= float(found.temperatures(other).amin()) <= float(found.temperatures(other).amax()) <= 100


def test_a_dead_network_is_told() -> None:
    logits, labels = random_predictions(40, 3)
    found = ParameterisedTemperature().fit(logits, labels)  # so few samples: the prior keeps it at one temperature
    assert found.info["constant"]
    plain = Temperature().fit(logits, labels)
    assert found.info["temperature_range"][0] == pytest.approx(float(plain.temperature), rel=1e-3)


def test_seed_decides_and_nothing_else() -> None:
    logits, labels = varied(500, 4)
    one = ParameterisedTemperature(seed=3).fit(logits, labels)
    torch.rand(5)
    two = ParameterisedTemperature(seed=3).fit(logits, labels)
    other = ParameterisedTemperature(seed=4).fit(logits, labels)
    assert torch.equal(one.predict_proba(logits), two.predict_proba(logits))
    assert not torch.equal(one.predict_proba(logits), other.predict_proba(logits))


@pytest.mark.parametrize("k", [2, 9, 10, 30])
def test_any_number_of_classes(k: int, tmp_path: Path) -> None:
    logits, labels = varied(200, k)
    found = ParameterisedTemperature().fit(logits, labels)
    assert found.state_dict()["weight_0"].shape == (5, min(k, 10))
    found.save(tmp_path / "cal.safetensors")
    assert torch.equal(load_calibrator(tmp_path / "cal.safetensors").predict_proba(logits), found.predict_proba(logits))


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_objectives(name: str) -> None:
    logits, labels = varied(200, 4)
    found = ParameterisedTemperature(objective=name).fit(logits, labels)
    assert bool(torch.isfinite(found(logits)).all()) and found.info["gradient"] < 0.1


def test_scaled_logits_have_scaled_temperatures() -> None:
    logits, labels = varied(400, 4)
    found = ParameterisedTemperature().fit(logits, labels)
    scaled = ParameterisedTemperature().fit(2 * logits, labels)
    assert torch.allclose(scaled.predict_proba(2 * logits), found.predict_proba(logits), atol=0.01)


@pytest.mark.parametrize("preset", list(module.PRESETS))
def test_released_solver(preset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module.PRESETS[preset]
    short = replace(made, schedule=((0.02, 30),), batch=50 if made.batch else None)
    monkeypatch.setitem(module.PRESETS, preset, short)
    logits, labels = random_predictions(120, 4)
    found = ParameterisedTemperature(preset=preset, solver="released", seed=1).fit(logits, labels)
    assert found.info["steps"] == 30 and bool(torch.isfinite(found(logits)).all())


def test_weight_decay_is_that_of_the_released_adam() -> None:
    logits, labels = random_predictions(500, 4, seed=0, sharpness=3.0)
    sizes = []
    for decay in (0.0, 0.02):
        found = ParameterisedTemperature(preset="sctl", solver="released", seed=1, weight_decay=decay)
        found.fit(logits, labels)
        sizes.append(sum(float(weight.square().sum()) for weight in found.buffers()))
    assert sizes[1] < sizes[0]
    with pytest.raises(InputError, match='weight_decay needs solver="released"'):
        ParameterisedTemperature(weight_decay=0.02).fit(logits, labels)


def test_smart_sees_the_margin_alone() -> None:
    logits, labels = varied(4000, 5)
    found = ParameterisedTemperature(preset="smart", objective="soft-ece").fit(logits, labels)
    top = logits.topk(2, dim=1).values
    pairs = torch.stack([top[:, 0] - top[:, 1], torch.zeros(4000, dtype=torch.float64)], 1)
    same_margin = torch.cat([pairs, torch.full((4000, 3), -50.0, dtype=torch.float64)], 1)
    assert torch.allclose(found.temperatures(logits), found.temperatures(same_margin), rtol=1e-9)
    assert not found.info["constant"]
