"""Structured vector and matrix scaling: the optimum against SciPy, and the limits of few and many samples."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

from calibrators.fits import is_probability
from conftest import random_predictions
from temperance.calibrators import Calibrator
from temperance.calibrators._fit import regression
from temperance.calibrators.structured import Structured, StructuredMatrix, StructuredVector
from temperance.calibrators.temperature import Temperature

Floats = npt.NDArray[np.float64]
METHODS: list[type[Structured]] = [StructuredVector, StructuredMatrix]


def mixed(logits: Tensor, temperature: float, n: int) -> Floats:
    """Temperature scaling with 1 / (n + 1) of the uniform distribution."""
    z = logits.numpy() / temperature
    share = 1 / (n + 1)
    return np.asarray((1 - share) * np.exp(log_softmax(z, axis=1)) + share / z.shape[1])


def test_structured_vector_is_the_optimum() -> None:
    n, k, diagonal, intercept = 150, 3, 0.7, 2.0
    logits, labels = random_predictions(n, k, seed=1)
    found = StructuredVector(diagonal=diagonal, intercept=intercept).fit(logits, labels)
    x = np.log(mixed(logits, float(Temperature().fit(logits, labels).temperature), n))
    y = labels.numpy()

    def penalised(t: Floats) -> float:
        v, b = t[:k], t[k:]
        nll = -log_softmax(x * (1 + v) + b, axis=1)[np.arange(n), y].mean()
        return float(nll + k / n * (diagonal * (v**2).sum() + intercept * (b**2).sum()))

    best = minimize(penalised, np.zeros(2 * k), method="BFGS", options={"gtol": 1e-8})
    ours = np.concatenate([found.scale.numpy() - 1, found.bias.numpy()])
    assert found.info["converged"]
    np.testing.assert_allclose(ours, best.x, atol=1e-5)
    assert penalised(ours) == pytest.approx(best.fun, abs=1e-9)


def test_structured_matrix_is_the_optimum() -> None:
    n, k = 150, 3
    logits, labels = random_predictions(n, k, seed=2)
    diagonal, off_diagonal, intercept = 0.7, 0.3, 2.0
    found = StructuredMatrix(diagonal=diagonal, off_diagonal=off_diagonal, intercept=intercept).fit(logits, labels)
    x = np.log(mixed(logits, float(Temperature().fit(logits, labels).temperature), n))
    y = labels.numpy()

    def penalised(t: Floats) -> float:
        v, b = t[: k * k].reshape(k, k), t[k * k :]
        nll = -log_softmax(x @ (np.eye(k) + v).T + b, axis=1)[np.arange(n), y].mean()
        on = (v.diagonal() ** 2).sum()
        off = (v**2).sum() - on
        few = diagonal * on + intercept * (b**2).sum()
        return float(nll + k / n * few + k * (k - 1) / n * off_diagonal * off)

    best = minimize(penalised, np.zeros(k * k + k), method="BFGS", options={"gtol": 1e-8})
    ours = np.concatenate([(found.weight.numpy() - np.eye(k)).ravel(), found.bias.numpy()])
    assert found.info["converged"]
    np.testing.assert_allclose(ours, best.x, atol=1e-5)
    assert penalised(ours) == pytest.approx(best.fun, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_strong_penalties_leave_temperature_scaling(method: type[Structured]) -> None:
    logits, labels = random_predictions(80, 4, seed=3)
    strong: dict[str, Any] = {name: 1e9 for name in method().get_params() if "objective" not in name}
    strong["prior"] = None
    found = method(**strong).fit(logits, labels)
    expected = mixed(logits, found.info["temperature"], 80)
    np.testing.assert_allclose(found.predict_proba(logits).numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_penalties_fade_with_samples(method: type[Structured]) -> None:
    """The same data many times over: the map moves further from the identity."""
    logits, labels = random_predictions(60, 3, seed=4)
    once = method().fit(logits, labels)
    often = method().fit(logits.repeat(200, 1), labels.repeat(200))
    assert distance(often) > 2 * distance(once)


def distance(found: Any) -> float:
    moved = found.scale - 1 if isinstance(found, StructuredVector) else found.weight - torch.eye(3, dtype=torch.float64)
    return float(moved.norm() + found.bias.norm())


def test_a_matrix_with_a_strong_penalty_off_the_diagonal_is_the_vector() -> None:
    logits, labels = random_predictions(200, 4, seed=5)
    vector = StructuredVector().fit(logits, labels)
    matrix = StructuredMatrix(off_diagonal=1e9).fit(logits, labels)
    torch.testing.assert_close(matrix.predict_proba(logits), vector.predict_proba(logits), atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "k"), [(12, 20), (50, 2), (30, 300)])
def test_few_samples(method: type[Structured], n: int, k: int) -> None:
    logits, labels = random_predictions(n, k, seed=6)
    labels[:2] = torch.tensor([0, 1])
    found = method().fit(logits, labels)
    assert found.info["converged"]
    assert is_probability(found.predict_proba(logits))


def test_a_thousand_classes_and_few_samples() -> None:
    logits, labels = random_predictions(40, 1000, seed=7)
    assert is_probability(StructuredVector().fit(logits, labels).predict_proba(logits))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_saturated_logits_and_a_missing_class(method: type[Structured]) -> None:
    logits, labels = random_predictions(200, 4, seed=8)
    labels[labels == 2] = 1
    extreme = torch.where(logits == logits.amax(1, keepdim=True), 1e4, -1e4) + logits
    for rows in (logits, extreme):
        found = method().fit(rows, labels)
        assert found.info["converged"]
        assert is_probability(found.predict_proba(logits)) and is_probability(found.predict_proba(extreme))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_flow_through_as_a_layer(method: type[Structured]) -> None:
    logits, labels = random_predictions(60, 3, seed=9)
    found = method().fit(logits, labels)
    free = logits.clone().requires_grad_()
    found(free)[:, 0].sum().backward()
    assert free.grad is not None and bool(torch.isfinite(free.grad).all())


@pytest.mark.shared
@pytest.mark.parametrize("name", ["llm/Qwen-7B_base_icl0", "logits/c10_vgg19_bn", "logits/c100_wideresnet164_nc"])
def test_better_than_temperature_on_new_real_predictions(shared_data: Path, name: str) -> None:
    with np.load(shared_data / f"{name}.npz") as file:
        order = np.random.default_rng(0).permutation(len(file["labels"]))
        logits, labels = file["logits"][order].astype(np.float64), file["labels"][order].astype(np.int64)
    half = len(labels) // 2

    def nll(method: Calibrator) -> float:
        probs = method.fit(logits[:half], labels[:half]).predict_proba(logits[half:])
        return float(-np.log(probs[np.arange(len(probs)), labels[half:]]).mean())

    temperature = nll(Temperature())
    assert nll(StructuredVector()) < temperature
    assert nll(StructuredMatrix()) < temperature


@pytest.mark.parametrize("method", METHODS)
def test_many_rows_and_classes_have_the_same_optimum(method: type[Structured], monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32 and a Hessian of a fifth of the rows change the way to the optimum, not the optimum."""
    logits, labels = random_predictions(1000, 6, seed=3, sharpness=3.0)
    logits[:, 0] *= 1.5
    exact = method().fit(logits, labels)
    monkeypatch.setattr(regression, "SINGLE_ABOVE", 0)
    monkeypatch.setattr(regression, "HESSIAN_ROWS", 200)
    found = method().fit(logits, labels)
    assert exact.info["converged"] and found.info["gradient"] < 1e-5
    assert found.info["value"] == pytest.approx(exact.info["value"], rel=1e-6)
    assert torch.allclose(found.predict_proba(logits), exact.predict_proba(logits), atol=1e-4)
    assert not torch.equal(found.predict_proba(logits), exact.predict_proba(logits))
