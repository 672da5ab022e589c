"""What every registered calibrator does with weights: a whole number counts as that many equal samples."""

import warnings
from typing import Any

import pytest
import torch

from conftest import random_predictions
from temperance.calibrators import CALIBRATORS, Auto, Calibrator, Temperature
from temperance.calibrators.base import make_calibrator
from temperance.errors import InputError
from temperance.objectives import OBJECTIVES

# Without these settings, folds are drawn among the rows, and equal rows are not one row.
NOTHING_DRAWN: dict[str, dict[str, Any]] = {
    name: {"off_diagonal": 1.0, "intercept": 1.0} for name in ("matrix-odir", "dirichlet")
} | {"grouped": {"base": "temperature"}}

names = [name for name in CALIBRATORS.names if name != "auto"]
any_weights = [name for name in names if CALIBRATORS[name].takes_weights]
whole_weights = [name for name in names if not CALIBRATORS[name].takes_weights]


def samples(k: int = 3, n: int = 150, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels, and whole weights of which some are 0."""
    logits, labels = random_predictions(n, k, seed)
    weights = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(seed))
    weights[: 2 * k] = 1
    return logits, labels, weights


def fitted(
    name: str, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None, **settings: Any
) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = make_calibrator(name, **NOTHING_DRAWN.get(name, {}), **settings)
        return made.fit(logits, labels, weights=weights)


def check_same(one: Calibrator, other: Calibrator) -> None:
    """The same map on samples it was not fitted on: at those it was, a curve of steps depends on the last bit."""
    logits, _ = random_predictions(150, one.k, seed=1)
    assert torch.allclose(one.predict_proba(logits), other.predict_proba(logits), atol=2e-5)
    assert torch.allclose(one.implied_prior, other.implied_prior, atol=1e-4)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", names)
def test_whole_weights_are_repeated_samples(name: str, k: int) -> None:
    logits, labels, weights = samples(k)
    rows = torch.repeat_interleave(weights)
    repeated = fitted(name, logits[rows], labels[rows])
    check_same(fitted(name, logits, labels, weights=weights), repeated)


@pytest.mark.parametrize("reduction", ["one-versus-rest", "top-label"])
@pytest.mark.parametrize("name", [n for n in any_weights if hasattr(make_calibrator(n), "reduction")])
def test_whole_weights_in_every_reduction(name: str, reduction: str) -> None:
    logits, labels, weights = samples(3, seed=1)
    rows = torch.repeat_interleave(weights)
    repeated = fitted(name, logits[rows], labels[rows], reduction=reduction)
    check_same(fitted(name, logits, labels, weights=weights, reduction=reduction), repeated)


# The released optimiser takes a thousand steps: with an objective of rows, of all rows together, and one that adapts.
SOLVED = [(name, "exact") for name in OBJECTIVES.names] + [(n, "released") for n in ("nll", "soft-ece", "class-scaled")]


@pytest.mark.parametrize(("objective", "solver"), SOLVED)
def test_whole_weights_in_every_objective(objective: str, solver: str) -> None:
    logits, labels, weights = samples(3, seed=2)
    rows = torch.repeat_interleave(weights)
    chosen: dict[str, Any] = {"objective": objective, "solver": solver}
    repeated = fitted("temperature", logits[rows], labels[rows], **chosen)
    found = fitted("temperature", logits, labels, weights=weights, **chosen)
    assert float(found.temperature) == pytest.approx(
        float(repeated.temperature), rel=1e-3 if solver != "exact" else 1e-5
    )


@pytest.mark.parametrize("name", [*any_weights, "auto"])
def test_only_the_proportions_of_other_weights_matter(name: str) -> None:
    logits, labels, _ = samples(3, seed=3)
    logits = 3 * logits  # so sure that auto does not leave them as they are
    weights = 0.05 + torch.rand(150, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = fitted(name, logits, labels, weights=weights)
    check_same(found, fitted(name, logits, labels, weights=7.3 * weights))
    if found.learnt:
        plain = fitted(name, logits, labels)
        assert not torch.allclose(found.predict_proba(logits), plain.predict_proba(logits), atol=1e-4)


@pytest.mark.parametrize("name", [*any_weights, "auto"])
@pytest.mark.parametrize("each", [1.0, 0.3])
def test_equal_weights_change_nothing(name: str, each: float) -> None:
    logits, labels, _ = samples(3, seed=4)
    check_same(fitted(name, logits, labels, weights=torch.full((150,), each)), fitted(name, logits, labels))


@pytest.mark.parametrize("name", [*names, "auto"])
def test_weight_zero_leaves_the_sample_out(name: str) -> None:
    logits, labels, _ = samples(3, seed=5)
    kept = torch.arange(150) % 3 > 0
    found, alone = fitted(name, logits, labels, weights=kept), fitted(name, logits[kept], labels[kept])
    assert torch.allclose(found.predict_proba(logits), alone.predict_proba(logits), atol=2e-5)


@pytest.mark.parametrize("name", whole_weights)
def test_methods_of_single_samples_refuse_other_weights(name: str) -> None:
    logits, labels, _ = samples()
    with pytest.raises(InputError, match=f"{name} counts samples one by one, so weights must be whole numbers"):
        make_calibrator(name).fit(logits, labels, weights=torch.linspace(0.5, 1, 150))
    with pytest.raises(
        InputError, match=f"{name} counts samples one by one, and these weights stand for 1.5e.08 of them"
    ):
        make_calibrator(name).fit(logits, labels, weights=torch.full((150,), 1e6))


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES.names if OBJECTIVES[name].whole])
def test_calibration_errors_as_objectives_refuse_other_weights(objective: str) -> None:
    logits, labels, _ = samples()
    with pytest.raises(InputError, match=f"{objective} counts samples one by one, so weights must be whole numbers"):
        make_calibrator("temperature", objective=objective).fit(logits, labels, weights=torch.linspace(0.5, 1, 150))


@pytest.mark.parametrize("objective", ["brier", "class-balanced-nll", "soft-ece"])
def test_whole_weights_in_other_objectives_of_gap_scaling(objective: str) -> None:
    logits, labels, weights = samples(3, seed=2)
    rows = torch.repeat_interleave(weights)
    repeated = fitted("gap-scaling", logits[rows], labels[rows], objective=objective)
    check_same(fitted("gap-scaling", logits, labels, weights=weights, objective=objective), repeated)


def test_whole_weights_count_in_smoothing() -> None:
    logits, labels, weights = samples(3, seed=2)
    assert float(fitted("temperature", logits, labels, weights, smoothing="laplace").n_samples) == int(weights.sum())


def test_a_warning_about_few_samples_counts_them_by_their_weights() -> None:
    logits, labels, _ = samples(3, n=40)
    assert "got 40." in fitted("venn-abers", logits, labels).info["caution"]
    assert "caution" not in fitted("venn-abers", logits, labels, weights=torch.full((40,), 2)).info


def test_a_stream_has_no_weights() -> None:
    logits, labels, weights = samples()
    blocks: Any = [(logits, labels, weights)]
    with pytest.raises(InputError, match="a pair of logits and labels, without weights; got 3 parts"):
        Temperature().fit_stream(blocks)


def test_auto_learns_from_weights() -> None:
    """Rows of which some are mislabelled and have hardly any weight."""
    logits, labels = random_predictions(1200, 3, 6)
    wrong = torch.arange(1200) % 3 == 0
    labels[wrong] = logits[wrong].argmin(1)
    weights = torch.where(wrong, 1e-4, 1.0)
    found, clean = Auto().fit(logits, labels, weights=weights), Temperature().fit(logits[~wrong], labels[~wrong])
    off = (found.predict_proba(logits) - clean.predict_proba(logits)).abs().mean()
    assert (
        float(off)
        < 0.02
        < float((Auto().fit(logits, labels).predict_proba(logits) - clean.predict_proba(logits)).abs().mean())
    )


def test_wrong_weights_are_refused() -> None:
    logits, labels, _ = samples()
    with pytest.raises(InputError, match="weights must be finite numbers of at least 0; row 3 has -1"):
        Temperature().fit(logits, labels, weights=[1, 1, 1, -1] + [1] * 146)
    with pytest.raises(InputError, match="every weight is 0"):
        Temperature().fit(logits, labels, weights=[0] * 150)
    with pytest.raises(InputError, match=r"weights must have shape \(150,\)"):
        Temperature().fit(logits, labels, weights=[1.0])
