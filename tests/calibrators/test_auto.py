"""Choosing and combining: what Auto promises, its monotone map, and kernel logistic regression."""

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import random_predictions
from temperance.calibrators import Auto, KernelLogistic, Temperature, load_calibrator, make_calibrator
from temperance.calibrators.monotone import FLATTEST, MonotoneMap, fit_monotone, top_log_odds
from temperance.errors import InputError
from temperance.metrics import ece, nll


def calibrated(n: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    """Logits whose softmax is the true distribution of the label."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


def bent(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Three classes; the truth depends on the logits in a way that no linear map of them gives."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    truth = torch.stack([2 * torch.sin(2 * logits[:, 1]), logits[:, 0].square(), logits[:, 2]], 1)
    return logits, torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)


# ----------------------------------------------------------------------------------------------------------------- auto


def test_it_is_no_worse_than_its_best_member_and_says_what_it_chose() -> None:
    fit, test = random_predictions(1500, 5, 0, sharpness=4.0), random_predictions(4000, 5, 1, sharpness=4.0)
    found = Auto().fit(*fit)
    single = min(
        nll(make_calibrator(name).fit(*fit).predict_proba(test[0]), test[1]) for name in found.info["held_out_nll"]
    )
    assert nll(found.predict_proba(test[0]), test[1]) < single * 1.005
    assert found.info["weights"] and set(found.info["gain"]) == {"pool", "map"}
    assert found.info["held_out_nll"]["temperature"] < found.info["held_out_nll"]["identity"]


def test_it_finds_what_only_a_nonlinear_member_can() -> None:
    fit, test = bent(3000), bent(4000, 1)
    found = Auto().fit(*fit)
    assert max(found.info["weights"], key=found.info["weights"].get) == "kernel-logistic"
    linear = make_calibrator("structured-matrix").fit(*fit)
    assert nll(found.predict_proba(test[0]), test[1]) < nll(linear.predict_proba(test[0]), test[1]) - 0.05


@pytest.mark.parametrize("n", [60, 300, 2000])
def test_what_is_calibrated_is_left_alone_up_to_noise(n: int) -> None:
    losses = []
    for seed in range(3):
        fit, test = calibrated(n, 4, seed), calibrated(4000, 4, 100 + seed)
        found = Auto().fit(*fit)
        losses.append(nll(found.predict_proba(test[0]), test[1]) - nll(test[0], test[1], from_logits=True))
    assert sum(losses) / 3 < 10 / n


def test_the_map_keeps_predictions() -> None:
    logits, labels = random_predictions(800, 6, sharpness=5.0)
    found = Auto(members=["temperature"]).fit(logits, labels)
    assert found.info["map"]
    assert torch.equal(found.predict_proba(logits).argmax(1), logits.argmax(1))


def test_it_lowers_the_calibration_error() -> None:
    fit, test = random_predictions(3000, 5, 0, sharpness=3.0), random_predictions(6000, 5, 1, sharpness=3.0)
    found = Auto().fit(*fit)
    assert ece(found.predict_proba(test[0]), test[1]) < 0.25 * ece(test[0], test[1], from_logits=True)


def test_members_that_cannot_be_fitted_are_left_out_with_the_reason() -> None:
    logits, labels = random_predictions(12, 3)
    found = Auto(members=["temperature", "meta-mis"]).fit(logits, labels)
    assert "meta-mis" not in found.info["weights"]
    assert "meta-mis" in found.info["left_out"]


def test_settings() -> None:
    logits, labels = random_predictions(100, 3)
    with pytest.raises(InputError, match="folds must be a whole number of at least 2"):
        Auto(folds=1).fit(logits, labels)
    with pytest.raises(InputError, match="no calibrator named"):
        Auto(members=["temprature"]).fit(logits, labels)
    same = [Auto(seed=3).fit(logits, labels).predict_proba(logits) for _ in range(2)]
    assert torch.equal(*same)


def test_files_hold_only_the_members_in_use(tmp_path: Path) -> None:
    logits, labels = random_predictions(400, 4)
    found = Auto(members=["temperature", "vector"]).fit(logits, labels)
    found.save(tmp_path / "auto.safetensors")
    back = load_calibrator(tmp_path / "auto.safetensors")
    assert back.info == found.info
    assert {name.split(".")[0] for name in back.state_dict() if "." in name} == set(found.info["weights"])
    assert torch.equal(back.predict_proba(logits), found.predict_proba(logits))


# --------------------------------------------------------------------------------------------------------- monotone map


def test_the_identity_map_changes_nothing() -> None:
    log_probs = random_predictions(50, 4)[0].log_softmax(1)
    unchanged = MonotoneMap(torch.tensor([-1.0, 0.5, 2.0]).double(), torch.ones(4).double(), torch.tensor(0.0).double())
    assert torch.allclose(unchanged.apply(log_probs), log_probs, atol=1e-12)


def test_the_fitted_map_rises_everywhere_and_rows_stay_probabilities() -> None:
    logits, labels = random_predictions(2000, 5, sharpness=4.0)
    log_probs = logits.log_softmax(1)
    found = fit_monotone(top_log_odds(log_probs), log_probs.argmax(1) == labels)
    assert bool((found.slopes >= FLATTEST).all())
    mapped = found.apply(log_probs)
    assert torch.allclose(mapped.exp().sum(1), torch.ones(2000).double(), atol=1e-12)
    assert torch.equal(mapped.argmax(1), log_probs.argmax(1))
    rest = log_probs.scatter(1, log_probs.argmax(1, keepdim=True), -torch.inf).softmax(1)
    assert torch.allclose(mapped.scatter(1, mapped.argmax(1, keepdim=True), -torch.inf).softmax(1), rest, atol=1e-12)


def test_log_odds_are_exact_near_certainty() -> None:
    assert float(top_log_odds(torch.tensor([[0.0, -12.0]]).double().log_softmax(1))) == pytest.approx(12.0, abs=1e-9)


def test_a_map_needs_evidence() -> None:
    odds = torch.linspace(-1, 4, 8).double()
    found = fit_monotone(odds, torch.ones(8, dtype=torch.bool))
    assert float((found.log_odds(odds) - odds).abs().max()) < 4


# ------------------------------------------------------------------------------------------------------ kernel logistic


def test_kernel_logistic_learns_a_bent_truth() -> None:
    fit, test = bent(4000), bent(4000, 1)
    plain = nll(Temperature().fit(*fit).predict_proba(test[0]), test[1])
    assert nll(KernelLogistic().fit(*fit).predict_proba(test[0]), test[1]) < plain - 0.1


def test_a_strong_ridge_leaves_temperature_scaling_and_an_intercept() -> None:
    logits, labels = random_predictions(300, 4, sharpness=3.0)
    held = KernelLogistic(ridge=1e9).fit(logits, labels)
    identity = torch.cat([torch.eye(4, dtype=torch.float64) * held.spread, torch.zeros(4, 200)], 1)
    assert torch.allclose(held.weight, identity, atol=1e-6)
    assert held.info["temperature"] == pytest.approx(float(Temperature().fit(logits, labels).temperature))


def test_kernel_logistic_reports_its_end() -> None:
    found = KernelLogistic().fit(*random_predictions(400, 3))
    assert found.info["converged"] and found.info["gradient"] < 1e-2
    with pytest.raises(InputError, match="features must be a whole number"):
        KernelLogistic(features=0).fit(*random_predictions(40, 3))
