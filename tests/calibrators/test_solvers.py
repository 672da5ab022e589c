"""The shared optimisers: known optima, bounds, weights that settle, and the released schedules."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor
from torch.nn.functional import softplus

from conftest import random_predictions
from temperance import arrays
from temperance.calibrators._fit.descent import descend
from temperance.calibrators._fit.solvers import Problem, minimise, settle, train
from temperance.objectives import OBJECTIVES, Objective, make_objective


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    return (rows * factors).log_softmax(1)


def problem(name: str = "nll", n: int = 200, k: int = 3, **options: Any) -> Problem:
    logits, labels = random_predictions(n, k, sharpness=2.0)
    return Problem(make_objective(name, **options), scaled, logits, labels)


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_value_and_gradient_are_those_of_the_objective(name: str) -> None:
    found = problem(name)
    at = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64).requires_grad_()
    found.reweigh(at.detach())
    value, gradient = found(at)
    expected = make_objective(name)(scaled(found.inputs, at), found.labels)
    assert value == pytest.approx(float(expected.detach()), rel=1e-12)
    assert torch.allclose(gradient, torch.autograd.grad(expected, at)[0], rtol=1e-10)
    assert not gradient.requires_grad


@pytest.mark.parametrize("name", OBJECTIVES.names)
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = torch.ones(3, dtype=torch.float64)
    whole = minimise(problem(name), start)
    monkeypatch.setitem(arrays.BLOCK_VALUES, "cpu", 60)
    assert torch.allclose(minimise(problem(name), start).parameters, whole.parameters, atol=1e-5)


def test_reaches_the_optimum_of_a_plain_search() -> None:
    found = problem(k=4)
    reached = minimise(found, torch.ones(4, dtype=torch.float64))
    plain = scipy_minimize(
        lambda x: found(torch.tensor(x))[0], [1.0] * 4, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-14}
    )
    assert reached.parameters.tolist() == pytest.approx(plain.x.tolist(), abs=1e-4)
    assert reached.info["converged"] and reached.info["gradient"] < 1e-6
    assert reached.info["value"] <= plain.fun + 1e-12


def test_bounds_hold_and_equal_ones_fix() -> None:
    start = torch.tensor([1.0, 0.3, 1.0], dtype=torch.float64)
    low = torch.tensor([0.9, 0.3, 0.0], dtype=torch.float64)
    high = torch.tensor([1.1, 0.3, math.inf], dtype=torch.float64)
    found = minimise(problem(), start, low=low, high=high)
    assert found.parameters[0] == 0.9 and found.parameters[1] == 0.3
    assert found.info["converged"]
    free = minimise(problem(), start)
    assert float(free.parameters[0]) < 0.9


@pytest.mark.parametrize("with_hessian", [False, True])
@pytest.mark.parametrize("low", [None, 0.0])
def test_descent_ends_where_scipys_does(with_hessian: bool, low: float | None) -> None:
    """A convex function of ten parameters, several of which the bound holds back."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(40, 10, generator=generator, dtype=torch.float64) * torch.logspace(-1, 1, 10)
    pull = torch.randn(10, generator=generator, dtype=torch.float64)
    at = pull

    def value(x: Tensor) -> tuple[float, Tensor]:
        nonlocal at
        at = x
        return float(softplus(rows @ x).mean() - pull @ x / 20 + x @ x / 50), (
            rows.T @ (rows @ x).sigmoid() / 40 - pull / 20 + x / 25
        )

    def hessian() -> Tensor:
        p = (rows @ at).sigmoid()
        return rows.T @ ((p * (1 - p))[:, None] * rows) / 40 + torch.eye(10, dtype=torch.float64) / 25

    found = descend(value, torch.ones(10, dtype=torch.float64), low, hessian=hessian if with_hessian else None)
    plain = scipy_minimize(
        lambda x: tuple(map(np.asarray, value(torch.from_numpy(x)))),
        np.ones(10),
        jac=True,
        method="L-BFGS-B",
        bounds=[(low, None)] * 10,
        options={"ftol": 0, "gtol": 1e-10, "maxiter": 10_000},
    )
    assert found.info["converged"] and (not with_hessian or found.info["steps"] < 20)
    assert found.parameters.tolist() == pytest.approx(plain.x.tolist(), abs=1e-5)
    assert low is None or 0 < int((found.parameters == low).sum()) < 10


@pytest.mark.parametrize("seed", range(12))
def test_with_its_hessian_a_quadratic_within_bounds_takes_two_evaluations(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root, least = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 6), (6,)))
    square = root @ root.T + torch.eye(6, dtype=torch.float64)
    evaluated = []

    def value(x: Tensor) -> tuple[float, Tensor]:
        evaluated.append(x)
        slope = square @ (x - least)
        return float((x - least) @ slope) / 2, slope

    found = descend(value, torch.full_like(least, 2.0), 0.0, hessian=lambda: square)
    assert found.info["converged"] and len(evaluated) == 2


def test_a_penalty_is_added() -> None:
    base = problem()
    pulled = Problem(base.objective, scaled, base.inputs, base.labels, penalty=lambda p: 100 * (p - 2).square().sum())
    assert minimise(pulled, torch.ones(3, dtype=torch.float64)).parameters.tolist() == pytest.approx([2] * 3, abs=0.05)
    assert train(pulled, torch.ones(3)).parameters.tolist() == pytest.approx([2] * 3, abs=0.05)


def test_too_few_steps_are_told() -> None:
    found = minimise(problem(), torch.full((3,), 9.0, dtype=torch.float64), max_steps=1)
    assert not found.info["converged"] and found.info["gradient"] > 1e-6 and found.info["steps"] == 1


@pytest.mark.parametrize("slope", [0.5, -0.5, -0.95, -3.0, -20.0])
def test_weights_settle_even_when_they_overshoot(slope: float) -> None:
    """Solutions x = 1 + slope · w with weights w = x: repeated as it is, a slope below −1 would run away."""
    weight = 0.0

    def reweigh(x: float) -> float:
        nonlocal weight
        before, weight = weight, x
        return abs(x - before)

    found, info = settle(reweigh, lambda _: (1 + slope * weight, {"converged": True}), 5.0)
    assert info["weights_settled"] and info["converged"] and found == pytest.approx(1 / (1 - slope), abs=1e-5)


def test_weights_that_never_settle_are_told() -> None:
    found, info = settle(lambda _: 1.0, lambda x: (x, {"converged": True}), 0.0)
    assert found == 0.0 and info["rounds"] == 200
    assert not info["weights_settled"] and not info["converged"]


class Counting(Objective):
    name = "counting"
    adapts = True

    def __init__(self) -> None:
        self.looks = 0

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        self.looks += 1
        return 0.0


def test_a_step_is_an_evaluation() -> None:
    base, objective = problem(), Counting()
    found = train(Problem(objective, scaled, base.inputs, base.labels), torch.ones(3))
    assert objective.looks == found.info["steps"] > 3


@pytest.mark.parametrize(("name", "steps"), [("brier", 1000), ("label-smoothing", 1000)])
def test_adam_takes_the_scheduled_steps(name: str, steps: int) -> None:
    found = train(problem(name, n=30), torch.ones(3), optimiser="adam")
    assert found.info["steps"] == steps
    short = train(problem(name, n=30), torch.ones(3), optimiser="adam", schedule=[(0.1, 7), (0.01, 5)])
    assert short.info["steps"] == 12


def test_batches_are_drawn_from_the_generator() -> None:
    def run(seed: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        found = train(problem(), torch.ones(3), optimiser="adam", schedule=[(0.1, 5)], batch=8, generator=generator)
        return found.parameters.tolist()

    assert run(0) == run(0) != run(1)


def test_released_is_where_the_plain_torch_loop_ends() -> None:
    base = problem()
    logits, temperature = base.inputs.float(), torch.ones(1, requires_grad=True)
    optimiser = torch.optim.LBFGS([temperature], lr=0.02, max_iter=1000)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits / temperature, base.labels)
        torch.autograd.backward(loss)
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    found = train(Problem(base.objective, lambda z, t: (z / t).log_softmax(1), base.inputs, base.labels), torch.ones(1))
    assert float(found.parameters) == float(temperature.detach())


def test_a_run_that_diverges_ends_with_finite_parameters() -> None:
    base = problem()
    wild = Problem(base.objective, lambda z, t: (z * t.exp().exp()).log_softmax(1), base.inputs, base.labels)
    found = train(wild, torch.full((1,), 4.0), optimiser="adam", schedule=[(10.0, 50)])
    assert bool(torch.isfinite(found.parameters).all()) and not found.info["converged"]
