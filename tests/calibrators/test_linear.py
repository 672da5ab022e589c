"""Vector, matrix and Dirichlet scaling: the optimum against SciPy, and what the penalties promise."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from calibrators.fits import is_probability
from conftest import random_predictions
from temperance import arrays
from temperance.calibrators import make_calibrator
from temperance.calibrators._fit import regression
from temperance.calibrators._fit.maps import Diagonal, Full, Map
from temperance.calibrators._fit.regression import Regression, newton
from temperance.calibrators.linear import (
    RIDGE,
    ROUGHLY,
    STRENGTHS,
    CrossValidation,
    Dirichlet,
    Matrix,
    MatrixOdir,
    Scaled,
    Vector,
)
from temperance.errors import InputError, TemperanceWarning
from temperance.objectives import make_objective

Floats = npt.NDArray[np.float64]
CONVEX = ["nll", "class-balanced-nll", "label-smoothing"]


def set_map(found: Any, **buffers: Any) -> Any:
    """A calibrator as if it had learnt these."""
    for name, value in buffers.items():
        found._keep(name, torch.as_tensor(value, dtype=torch.float64))
    found._keep("n_classes", torch.tensor(len(buffers["bias"])))
    return found


def test_forward_vectors(vectors: Any) -> None:
    v = vectors["matrix_scaling_forward"]
    weight, bias, z = np.array(v["W"]), v["b"], np.array([v["z"]])
    matrix = set_map(Matrix(), weight=weight, bias=bias).predict_proba(z)
    vector = set_map(Vector(), scale=weight.diagonal().copy(), bias=bias).predict_proba(z)
    np.testing.assert_allclose(matrix[0], v["probs"], atol=1e-6)
    np.testing.assert_allclose(vector[0], v["vector_probs"], atol=1e-6)
    d = vectors["dirichlet_forward"]
    found = set_map(Dirichlet(), weight=weight, bias=bias).predict_proba(np.log([d["probs_in"]]))
    np.testing.assert_allclose(found[0], d["probs_out"], atol=1e-6)


def test_odir_penalty_vector(vectors: Any) -> None:
    v, p = vectors["matrix_scaling_forward"], vectors["odir_penalty"]
    parameters = torch.tensor(np.column_stack([v["W"], v["b"]]))
    features = Scaled(Full(), torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), unit=1.0)
    strength = features.odir_penalty(p["lam"], p["mu"]) - features.weak_ridge(6)
    assert float((strength * parameters.square()).sum()) == pytest.approx(p["penalty_normalised"], abs=1e-6)


def test_identity_maps_are_the_identity() -> None:
    logits, _ = random_predictions(50, 4)
    zero = torch.zeros(4)
    expected = logits.softmax(1)
    for found in (
        set_map(Vector(), scale=torch.ones(4), bias=zero),
        set_map(Matrix(), weight=torch.eye(4), bias=zero),
        set_map(Dirichlet(), weight=torch.eye(4), bias=zero),
    ):
        torch.testing.assert_close(found.predict_proba(logits), expected, atol=1e-12, rtol=0)


# ------------------------------------------------------------------------------------------- the optimum, against SciPy


def reference_nll(scores: Floats, labels: Floats) -> float:
    return float(-log_softmax(scores, axis=1)[np.arange(len(labels)), labels].mean())


def scipy_optimum(function: Any, start: Floats) -> tuple[Floats, float]:
    found = minimize(function, start, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    return np.asarray(found.x), float(found.fun)


def test_vector_scaling_is_the_optimum() -> None:
    logits, labels = random_predictions(200, 3, seed=1)
    z, y = logits.numpy(), labels.numpy()
    found = Vector(ridge=1e-6).fit(logits, labels)
    _, least = scipy_optimum(lambda t: reference_nll(z * t[:3] + t[3:], y), np.repeat([1.0, 0.0], 3))
    value = reference_nll(z * found.scale.numpy() + found.bias.numpy(), y)
    assert found.info["converged"]
    assert value == pytest.approx(least, abs=1e-6)


def test_matrix_scaling_is_the_optimum() -> None:
    logits, labels = random_predictions(300, 3, seed=2, sharpness=1.0)
    z, y = logits.numpy(), labels.numpy()
    found = Matrix(ridge=1e-6).fit(logits, labels)
    start = np.concatenate([np.eye(3).ravel(), np.zeros(3)])
    _, least = scipy_optimum(lambda t: reference_nll(z @ t[:9].reshape(3, 3).T + t[9:], y), start)
    value = reference_nll(z @ found.weight.numpy().T + found.bias.numpy(), y)
    assert found.info["converged"]
    assert value == pytest.approx(least, abs=1e-6)


@pytest.mark.parametrize("method", [MatrixOdir, Dirichlet])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_odir_is_the_optimum(method: type[MatrixOdir], scale: float) -> None:
    """Whatever the units of the logits: the penalty is on W as it is applied to them."""
    logits, labels = random_predictions(200, 3, seed=3, sharpness=scale)
    x = logits.numpy() if method is MatrixOdir else log_softmax(logits.numpy(), axis=1)
    y = labels.numpy()
    off_diagonal, intercept = 0.5, 0.2

    def penalised(t: Floats) -> float:
        weight, bias = t[:9].reshape(3, 3), t[9:]
        off = weight - np.diag(weight.diagonal())
        penalty = off_diagonal / 6 * (off**2).sum() + intercept / 3 * (bias**2).sum()
        return reference_nll(x @ weight.T + bias, y) + float(penalty)

    found = method(off_diagonal=off_diagonal, intercept=intercept).fit(logits, labels)
    best, least = scipy_optimum(penalised, np.concatenate([np.eye(3).ravel() / scale, np.zeros(3)]))
    ours = np.concatenate([found.weight.numpy().ravel(), found.bias.numpy()])
    assert found.info["converged"]
    assert found.info["tried"] == []
    assert penalised(ours) == pytest.approx(least, abs=1e-5)
    np.testing.assert_allclose(ours, best, atol=2e-3)


@pytest.mark.parametrize("objective", CONVEX)
@pytest.mark.parametrize("method", [Vector, MatrixOdir])
def test_no_slope_is_left_at_the_optimum(method: Any, objective: str) -> None:
    """The gradient of the objective itself, by autograd, in the parameters as they are kept."""
    logits, labels = random_predictions(400, 4, seed=4)
    settings = {"ridge": 1e-3} if method is Vector else {"off_diagonal": 2.0, "intercept": 0.5}
    found = method(objective=objective, **settings).fit(logits, labels)
    assert found.info["converged"]
    measured = make_objective(objective)
    weights = measured.weights(labels, 4)
    bias = found.bias.clone().requires_grad_()
    inner = (found.scale if method is Vector else found.weight).clone().requires_grad_()
    scores = logits * inner + bias if method is Vector else logits @ inner.T + bias
    value = (weights * measured.losses(scores.log_softmax(1), labels)).sum()
    unit = Scaled(Diagonal(), logits, labels).unit
    if method is Vector:
        value = value + 1e-3 * ((inner / unit - 1).square().sum() + bias.square().sum())
    else:
        off = inner - inner.diagonal().diag()
        value = value + 2.0 / 12 * off.square().sum() + 0.5 / 4 * bias.square().sum()
        value = value + 8 / 400**2 * ((inner / unit - torch.eye(4)).square().sum() + bias.square().sum())
    slopes = torch.autograd.grad(value, [inner, bias])
    assert max(float(slope.abs().max()) for slope in slopes) < 2e-5


def test_another_objective_gets_what_it_asks_for() -> None:
    logits, labels = random_predictions(300, 3, seed=5)
    log_probs = {o: Vector(objective=o).fit(logits, labels).predict_proba(logits).log() for o in ("nll", "brier")}
    brier, nll = make_objective("brier"), make_objective("nll")
    assert brier(log_probs["brier"], labels) < brier(log_probs["nll"], labels)
    assert nll(log_probs["nll"], labels) < nll(log_probs["brier"], labels)


def test_scaling_classes_evens_out_their_losses() -> None:
    logits, labels = random_predictions(500, 4, seed=18)
    logits[:, 1] += 1.5
    spread = {}
    for name in ("nll", "class-balanced-nll", "class-scaled"):
        found = Vector(objective=name).fit(logits, labels)
        losses = -found.predict_proba(logits).log().gather(1, labels[:, None]).squeeze(1)
        spread[name] = float(torch.stack([losses[labels == j].mean() for j in range(4)]).std())
    assert spread["class-scaled"] < 0.5 * min(spread["nll"], spread["class-balanced-nll"])


# ----------------------------------------------------------------------------------------------------------- the solver


def problem_of(kind: Map, n: int = 60, k: int = 4) -> Regression:
    logits, labels = random_predictions(n, k, seed=6)
    identity = kind.identity(k)
    penalty = torch.full_like(identity, 0.3)
    if isinstance(kind, Full):
        penalty.diagonal().fill_(0.01)
        penalty[:, -1] = 0.02
    return Regression(kind, logits, labels, make_objective("nll"), penalty=penalty, centre=identity)


@pytest.mark.parametrize("kind", [Diagonal(), Full()])
@pytest.mark.parametrize("block", [1 << 20, 30])
def test_gradient_and_hessian_against_differences(kind: Map, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arrays.CORE_BLOCK_VALUES, "cpu", block)
    problem = problem_of(kind)
    generator = torch.Generator().manual_seed(0)
    at = problem.centre + 0.3 * torch.randn(problem.centre.shape, generator=generator, dtype=torch.float64)
    direction = torch.randn(at.shape, generator=generator, dtype=torch.float64)
    step = 1e-5
    high, low = problem(at + step * direction), problem(at - step * direction)
    _, gradient = problem(at)
    assert float((gradient * direction).sum()) == pytest.approx((high[0] - low[0]) / (2 * step), rel=1e-7)
    torch.testing.assert_close(problem.hessian_times(direction), (high[1] - low[1]) / (2 * step), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [Diagonal(), Full()])
@pytest.mark.parametrize("even", [True, False])
def test_preconditioner_is_symmetric_positive_and_near_the_inverse(kind: Map, even: bool) -> None:
    problem = problem_of(kind)
    if even:
        problem.penalty = torch.full_like(problem.penalty, 1e-4)
    problem(problem.centre)
    size = problem.centre.numel()
    unit = torch.eye(size, dtype=torch.float64).view(size, *problem.centre.shape)
    inverse = kind.preconditioner(problem)
    dense = torch.stack([inverse(e).reshape(-1) for e in unit])
    hessian = torch.stack([problem.hessian_times(e).reshape(-1) for e in unit])
    torch.testing.assert_close(dense, dense.T, atol=1e-10, rtol=1e-10)
    assert float(torch.linalg.eigvalsh(dense).min()) > 0
    spread = torch.linalg.eigvals(dense @ hessian).real
    plain = torch.linalg.eigvalsh(hessian)
    assert float(spread.max() / spread.min()) < float(plain.max() / plain.min())


@pytest.mark.parametrize("kind", [Diagonal(), Full()])
@pytest.mark.parametrize("block", [1 << 20, 30])
def test_the_whole_hessian_gives_newtons_step(kind: Map, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arrays.CORE_BLOCK_VALUES, "cpu", block)
    problem = problem_of(kind)
    _, gradient = problem(problem.centre)
    torch.testing.assert_close(problem.hessian_times(problem.newton_step(gradient)), -gradient, rtol=1e-8, atol=1e-12)


def test_few_and_many_parameters_have_one_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(Full())
    direct = newton(problem, problem.centre, 1e-9)
    monkeypatch.setattr(regression, "FEW_PARAMETERS", 0)
    torch.testing.assert_close(newton(problem, problem.centre, 1e-9).parameters, direct.parameters, rtol=0, atol=1e-7)


def test_a_solver_that_cannot_move_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "FEW_PARAMETERS", 0)
    problem = problem_of(Full())
    good = newton(problem, problem.centre)
    assert good.info["converged"] and good.info["gradient"] <= 1e-6 and good.info["steps"] < 20
    problem.hessian_times = lambda direction: -1e-3 * direction  # type: ignore[method-assign]
    stuck = newton(problem, problem.centre)
    assert not stuck.info["converged"] and stuck.info["gradient"] > 1e-6


# ------------------------------------------------------------------------------------------------------------ penalties


def test_strong_penalties_lead_to_vector_scaling_and_then_to_no_shift() -> None:
    logits, labels = random_predictions(500, 4, seed=7)
    vector = Vector(ridge=1e-6).fit(logits, labels)
    strong = MatrixOdir(off_diagonal=1e12, intercept=1e-9).fit(logits, labels)
    torch.testing.assert_close(strong.weight.diag(), vector.scale, atol=1e-3, rtol=0)
    torch.testing.assert_close(strong.predict_proba(logits), vector.predict_proba(logits), atol=1e-4, rtol=0)
    both = MatrixOdir(off_diagonal=1e12, intercept=1e12).fit(logits, labels)
    assert float(both.bias.abs().max()) < 1e-9
    assert float((both.weight - both.weight.diag().diag()).abs().max()) < 1e-9
    ridge = Vector(ridge=1e9).fit(logits, labels)
    assert float(ridge.scale.std()) < 1e-8


@pytest.mark.parametrize(("method", "n_parameters"), [(Vector, 8), (Matrix, 20)])
def test_the_default_ridge_counts_parameters_and_fades(method: Any, n_parameters: int) -> None:
    for n in (50, 400):
        logits, labels = random_predictions(n, 4, seed=19)
        expected = method(ridge=n_parameters / n**2).fit(logits, labels).predict_proba(logits)
        assert torch.equal(method().fit(logits, labels).predict_proba(logits), expected)
    assert Scaled(Full(), logits.repeat(50, 1), labels.repeat(50), unit=1.0).weak_ridge(20) == RIDGE


@pytest.mark.parametrize("method", [Vector, Matrix])
def test_a_map_without_a_mistake_is_doubted(method: Any) -> None:
    """The samples have mistakes, so the temperature is known; the map tells them apart all the same."""
    logits, labels = random_predictions(400, 3, seed=20)
    logits[:, 2] += 30 * (labels == 2).double()
    logits[:, 1] += torch.where(labels == 1, 20.0, -20.0) - 30 * (labels == 2).double()
    logits[:, 0] += 25  # a shift of one class, which only a map with a bias can undo
    with pytest.warns(TemperanceWarning, match="^the map predicts all 400 samples right, so only its"):
        found = method().fit(logits, labels)
    assert is_probability(found.predict_proba(logits)) and float(found.predict_proba(logits).amax()) < 1


def test_cross_validation_takes_the_best_it_tried() -> None:
    logits, labels = random_predictions(300, 5, seed=8)
    found = MatrixOdir().fit(logits, labels)
    tried = found.info["tried"]
    assert tried[0][:2] == [STRENGTHS[0], STRENGTHS[0]]
    best = min(tried, key=lambda row: row[2])
    assert best[:2] == [found.info["off_diagonal"], found.info["intercept"]]
    again = MatrixOdir(off_diagonal=best[0], intercept=best[1]).fit(logits, labels)
    assert torch.equal(found.weight, again.weight)


def test_one_strength_given_leaves_the_other_to_be_chosen() -> None:
    logits, labels = random_predictions(200, 3, seed=9)
    found = MatrixOdir(off_diagonal=7.0, strengths=[0.1, 10.0]).fit(logits, labels)
    assert found.info["off_diagonal"] == 7.0
    assert found.info["intercept"] in (0.1, 10.0)
    assert [row[:2] for row in found.info["tried"]] == [[7.0, 10.0], [7.0, 0.1]]


def test_cross_validation_scores_rows_left_out() -> None:
    logits, labels = random_predictions(90, 3, seed=10)
    features = Scaled(Full(), logits, labels)
    search = CrossValidation(features, 3)
    search.descend([(5.0, 5.0)])
    expected = 0.0
    for fit, held_out in features.folds(3):
        found = newton(fit.regression(fit.odir_penalty(5.0, 5.0)), fit.identity, ROUGHLY)
        parameters = found.parameters.numpy()
        scores = held_out.x.numpy() @ parameters[:, :-1].T + parameters[:, -1]
        expected += reference_nll(scores, held_out.labels.numpy()) * len(scores)
    assert search.tried[0][2] == pytest.approx(expected / 90, abs=1e-9)


def test_folds_divide_the_rows_and_spread_the_classes() -> None:
    labels = torch.tensor([0] * 7 + [1] * 5 + [2])
    rows = torch.arange(13, dtype=torch.float64)[:, None].expand(13, 3)
    folds = Scaled(Full(), rows, labels, unit=1.0).folds(3)
    held_out = torch.cat([out.x[:, 0] for _, out in folds])
    assert sorted(held_out.tolist()) == list(range(13))
    for fit, out in folds:
        assert not set(fit.x[:, 0].tolist()) & set(out.x[:, 0].tolist())
        assert 2 <= int((out.labels == 0).sum()) <= 3
        assert 1 <= int((out.labels == 1).sum()) <= 2


# ----------------------------------------------------------------------------------------------------------- hard cases


METHODS: list[Any] = [Vector, Matrix, MatrixOdir, Dirichlet]


@pytest.mark.parametrize("method", METHODS)
def test_a_class_without_samples_becomes_unlikely(method: Any) -> None:
    logits, labels = random_predictions(300, 4, seed=11)
    labels[labels == 3] = 0
    settings = {"off_diagonal": 1.0, "intercept": 1e-4} if issubclass(method, MatrixOdir) else {}
    found = method(**settings).fit(logits, labels)
    assert found.info["converged"]
    assert is_probability(found.predict_proba(logits))
    assert float(found.predict_proba(logits)[:, 3].mean()) < 0.2 * float(logits.softmax(1)[:, 3].mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "k"), [(12, 20), (30, 2), (3, 3)])
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_few_samples(method: Any, n: int, k: int) -> None:
    logits, _ = random_predictions(n, k, seed=12)
    assert is_probability(method().fit(logits, torch.arange(n) % k).predict_proba(logits))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_saturated_logits(method: Any) -> None:
    logits, labels = random_predictions(200, 3, seed=13)
    extreme = torch.where(logits == logits.amax(1, keepdim=True), 1e4, -1e4) + logits
    assert is_probability(method().fit(extreme, labels).predict_proba(extreme))
    assert is_probability(method().fit(logits, labels).predict_proba(extreme))


@pytest.mark.parametrize(("method", "k"), [(Vector, 1000), (MatrixOdir, 200)])
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_many_classes_and_few_samples(method: Any, k: int) -> None:
    logits, labels = random_predictions(40, k, seed=14)
    settings = {"off_diagonal": 1e6, "intercept": 1e6} if method is MatrixOdir else {}
    found = method(**settings).fit(logits, labels)
    assert found.info["converged"]
    assert is_probability(found.predict_proba(logits))


def test_dirichlet_takes_probabilities_of_zero() -> None:
    logits, labels = random_predictions(100, 3, seed=15)
    found = Dirichlet(off_diagonal=1.0, intercept=1.0).fit(logits, labels)
    assert is_probability(found.predict_proba(torch.tensor([[0.0, -5000.0, -9000.0]], dtype=torch.float64)))


def test_gradients_flow_through_as_a_layer() -> None:
    logits, labels = random_predictions(60, 3, seed=16)
    for method in METHODS:
        found = method().fit(logits, labels)
        free = logits.clone().requires_grad_()
        found(free)[:, 0].sum().backward()
        assert free.grad is not None and bool(torch.isfinite(free.grad).all())


def test_strengths_to_choose_from_are_needed() -> None:
    with pytest.raises(InputError, match="matrix-odir: strengths must be one or more positive numbers"):
        make_calibrator("matrix-odir", strengths=[])
