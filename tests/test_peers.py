"""The same numbers as the libraries people use today; where they differ, the test says why."""

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.metrics import (
    adaptive_ece,
    auroc,
    brier,
    classwise_ece,
    debiased_l2,
    ece,
    mce,
    nll,
    rms_ce,
    smooth_ece,
)


def peer(name: str) -> Any:
    """Another library's module; its own warnings are not ours to answer for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(name)
        except ImportError as error:
            pytest.skip(f"needs the peer library {name}: {error}")


@pytest.fixture(params=[(3000, 10, 0), (2000, 3, 1), (4000, 40, 2)], ids=["10 classes", "3 classes", "40 classes"])
def predictions(request: Any) -> tuple[Any, Any]:
    logits, labels = random_predictions(*request.param)
    return logits.softmax(1).numpy(), labels.numpy()


def test_netcal(predictions: tuple[Any, Any]) -> None:
    probs, labels = predictions
    module = peer("netcal.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ece(probs, labels, closed="left") == pytest.approx(module.ECE(15).measure(probs, labels), abs=1e-12)
        assert mce(probs, labels, closed="left") == pytest.approx(module.MCE(15).measure(probs, labels), abs=1e-12)


def test_torchmetrics(predictions: tuple[Any, Any]) -> None:
    """It counts in float32, so it agrees to about seven digits only."""
    probs, labels = torch.tensor(predictions[0]), torch.tensor(predictions[1])
    measure = peer("torchmetrics.functional.classification").multiclass_calibration_error
    for norm, ours in (("l1", ece), ("max", mce), ("l2", rms_ce)):
        theirs = float(measure(probs, labels, num_classes=probs.shape[1], n_bins=15, norm=norm))
        assert ours(probs, labels, closed="left") == pytest.approx(theirs, abs=1e-5)


def test_torchmetrics_puts_certain_predictions_into_a_bin_of_their_own() -> None:
    """Confidences of exactly 1 go to its bin 16 of 15, apart from 0.99; ours belong to the last bin."""
    measure = peer("torchmetrics.functional.classification").multiclass_calibration_error
    probs = torch.tensor([[1.0, 0.0]] * 50 + [[0.97, 0.03]] * 50)
    labels = torch.tensor([0] * 40 + [1] * 10 + [0] * 50)
    theirs = float(measure(probs, labels, num_classes=2, n_bins=15, norm="l1"))
    assert ece(probs, labels, closed="left") == pytest.approx(abs(0.9 - 0.985), abs=1e-6)
    assert theirs == pytest.approx(0.5 * 0.2 + 0.5 * 0.03, abs=1e-6)


def test_torchmetrics_takes_logits_between_0_and_1_for_probabilities() -> None:
    """It guesses from the values; we are told, and refuse what does not fit."""
    measure = peer("torchmetrics.functional.classification").multiclass_calibration_error
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(500, 5, generator=generator)
    labels = torch.zeros(500, dtype=torch.int64)
    guessed = float(measure(logits, labels, num_classes=5))
    assert abs(ece(logits, labels, from_logits=True) - guessed) > 0.1


def test_scikit_learn(predictions: tuple[Any, Any]) -> None:
    """Its calibration curve is ours without the counts; bins are (lo, hi] there."""
    probs, labels = predictions
    curve = peer("sklearn.calibration").calibration_curve
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    frequency, mean = curve(correct, confidence, n_bins=15)
    bins: Any = ece.stats(probs, labels)
    filled = bins.count > 0
    np.testing.assert_allclose(bins.frequency[filled], frequency, atol=1e-12)
    np.testing.assert_allclose(bins.mean_confidence[filled], mean, atol=1e-12)
    metrics = peer("sklearn.metrics")
    assert nll(probs, labels) == pytest.approx(metrics.log_loss(labels, probs, labels=range(probs.shape[1])), abs=1e-9)
    assert auroc(confidence[correct], confidence[~correct]) == pytest.approx(
        metrics.roc_auc_score(correct, confidence), abs=1e-12
    )


def test_scikit_learn_brier(predictions: tuple[Any, Any]) -> None:
    probs, labels = predictions
    metrics = peer("sklearn.metrics")
    theirs = metrics.brier_score_loss(labels, probs, labels=list(range(probs.shape[1])), scale_by_half=False)
    assert brier(probs, labels) == pytest.approx(theirs, abs=1e-9)


def test_uncertainty_calibration(predictions: tuple[Any, Any]) -> None:
    """Its ECE is ours; its debiased L2 wants two samples in every bin, ours leaves out bins with fewer."""
    probs, labels = predictions
    utils = peer("calibration.utils")
    assert ece(probs, labels) == pytest.approx(utils.get_ece(probs, labels, num_bins=15), abs=1e-9)
    bins: Any = ece.stats(probs, labels, n_bins=5)
    if bool(((bins.count == 0) | (bins.count > 1)).all()):
        equal_width = utils.get_equal_prob_bins
        theirs = utils.lower_bound_scaling_ce(
            probs, labels, p=2, debias=True, num_bins=5, binning_scheme=equal_width, mode="top-label"
        )
        assert debiased_l2(probs, labels, n_bins=5) == pytest.approx(theirs, abs=1e-9)


def test_relplot(predictions: tuple[Any, Any]) -> None:
    """Smooth ECE rounds confidences to a grid in both; the grids differ."""
    probs, labels = predictions
    theirs = peer("relplot").smECE(probs.max(1), probs.argmax(1) == labels)
    assert smooth_ece(probs, labels) == pytest.approx(theirs, abs=2e-3)


def test_netcal_equal_mass_bins(predictions: tuple[Any, Any]) -> None:
    """Both split the sorted confidences evenly; netcal cuts at interpolated quantiles, a sample or two away."""
    probs, labels = predictions
    module = peer("netcal.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = module.ECE(15, equal_intervals=False).measure(probs, labels)
    assert adaptive_ece(probs, labels) == pytest.approx(theirs, abs=1e-4)


def test_classwise_is_the_mean_of_binary_errors(predictions: tuple[Any, Any]) -> None:
    """netcal's ECE of each column's probability against its label, averaged, is classwise ECE."""
    probs, labels = predictions
    module = peer("netcal.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = [module.ECE(15).measure(probs[:, j], (labels == j).astype(int)) for j in range(probs.shape[1])]
    assert classwise_ece(probs, labels, closed="left") == pytest.approx(np.mean(each), abs=1e-9)
