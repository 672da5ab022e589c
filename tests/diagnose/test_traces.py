"""A post-hoc training, step by step: what is recorded is what the metrics say of the layer at that step."""

import math

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.calibrators import make_calibrator
from temperance.diagnose.traces import LAYERS, Trace, pearson, posthoc_trace
from temperance.errors import InputError
from temperance.metrics import class_loss_spread, ece, nll


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    return random_predictions(600, 4, sharpness=4.0)


@pytest.mark.parametrize("layer", list(LAYERS))
def test_the_first_step_changes_nothing(layer: str, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    found = posthoc_trace(*data, layer=layer, steps=2)
    assert len(found) == 3 and found.steps.tolist() == [0, 1, 2]
    for column, metric in (("total", nll), ("spread", class_loss_spread), ("ece", ece)):
        assert float(getattr(found, column)[0]) == pytest.approx(metric(*data, from_logits=True), abs=1e-6)
    for j in range(4):
        mine = data[1] == j
        assert float(found.class_losses[0, j]) == pytest.approx(
            nll(data[0][mine], data[1][mine], from_logits=True), abs=1e-6
        )


@pytest.mark.parametrize("objective", ["nll", "label-smoothing", "focal", "class-scaled"])
def test_it_ends_where_the_calibrator_does(objective: str, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    other = random_predictions(300, 4, seed=1, sharpness=4.0)
    found = posthoc_trace(*data, objective=objective, held_out=other, lr=0.1, steps=700, every=50)
    fitted = make_calibrator("temperature", objective=objective).fit(*data)
    probs = fitted.predict_proba(other[0])
    assert float(found.total[-1]) == pytest.approx(nll(probs, other[1]), abs=2e-3)
    assert float(found.ece[-1]) == pytest.approx(ece(probs, other[1]), abs=5e-3)


def test_fewer_measurements(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    every = posthoc_trace(*data, layer="vector", steps=21)
    some = posthoc_trace(*data, layer="vector", steps=21, every=5)
    assert some.steps.tolist() == [0, 5, 10, 15, 20, 21]
    assert torch.equal(some.ece, every.ece[some.steps])


def test_training_on_the_worst_classes_lowers_their_loss(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data[0].clone(), data[1]
    logits[labels == 2, 0] += 6.0  # a class that is mistaken for another
    found = posthoc_trace(logits, labels, layer="vector", worst_classes=1, steps=100)
    assert found.trained == (2,) and found.classes == (0, 1, 2, 3)
    assert float(found.class_losses[-1, 2]) < 0.5 * float(found.class_losses[0, 2])
    assert float(found.class_losses[-1, 0]) > float(found.class_losses[0, 0])


def test_classes_that_do_not_occur_have_no_loss(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = data[0], data[1].clamp_max(2)
    found = posthoc_trace(logits, labels, objective="class-scaled", worst_classes=10, steps=3)
    assert found.classes == found.trained == (0, 1, 2) and found.class_losses.shape == (4, 3)


def test_two_steps_of_equal_loss() -> None:
    column = torch.tensor([1.0, 0.8, 0.6, 0.8, 1.0])
    found = Trace(
        "nll", "vector", torch.arange(5), column, column[:, None], column, torch.tensor([5.0, 4, 3, 1, 2]), (0,), (0,)
    )
    assert found.equal_totals() == (0, 4)
    falling = Trace(
        "nll", "vector", torch.arange(5), torch.arange(5, 0, -1.0), column[:, None], column, column, (0,), (0,)
    )
    assert len(set(falling.equal_totals())) == 1


def test_correlation_is_that_of_numpy(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    found = posthoc_trace(*data, layer="class-temperature", steps=40)
    for column in ("total", "spread"):
        expected = np.corrcoef(getattr(found, column).numpy(), found.ece.numpy())[0, 1]
        assert found.correlation(column) == pytest.approx(expected, abs=1e-12)
    assert math.isnan(pearson(torch.ones(4), torch.rand(4)))


def test_bad_input(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="layer must be one of temperature, class-temperature, vector, matrix"):
        posthoc_trace(*data, layer="mlp")
    with pytest.raises(InputError, match="no objective named 'nil'"):
        posthoc_trace(*data, objective="nil")
    with pytest.raises(InputError, match="held_out must have the same 4 classes; it has 3"):
        posthoc_trace(*data, held_out=random_predictions(30, 3))
    for name in ("steps", "every", "worst_classes"):
        with pytest.raises(InputError, match=f"{name} must be a whole number"):
            posthoc_trace(*data, **{name: 0})  # type: ignore[arg-type]


@pytest.mark.shared
@pytest.mark.slow
def test_soft_objectives_overshoot_on_real_predictions(shared_data: object) -> None:
    """SCTL Figure 4: label smoothing and focal loss diverge from some step on, class-wise scaling stays with NLL."""
    file = np.load(f"{shared_data}/logits/c10_densenet40.npz")
    fit, test = ((file[f"{part}_logits"], file[f"{part}_labels"]) for part in ("val", "test"))
    found = {
        name: posthoc_trace(*fit, layer="vector", objective=name, held_out=test, lr=0.02, steps=150, every=5)
        for name in ("nll", "label-smoothing", "focal", "class-scaled")
    }
    for name in ("label-smoothing", "focal"):
        assert float(found[name].ece[-1]) > 4 * float(found[name].ece.min())
    for name in ("nll", "class-scaled"):
        assert float(found[name].ece[-1]) < 0.3 * float(found[name].ece[0])
        assert found[name].correlation("spread") > 0.9
    assert float(found["class-scaled"].spread[-1]) < float(found["nll"].spread[-1])
