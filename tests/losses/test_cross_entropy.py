"""Cross-entropy, Brier score and label smoothing: golden values and their relations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import Brier, CrossEntropy, LabelSmoothing, brier, cross_entropy, label_smoothing


@pytest.fixture
def a(fixture_a: Any) -> tuple[Tensor, Tensor]:
    logits, labels = fixture_a
    return torch.from_numpy(logits), torch.from_numpy(labels)


def test_golden_values(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    assert float(CrossEntropy()(*a)) == pytest.approx(vectors["ce_brier_A"]["ce_mean"], abs=1e-6)
    assert float(Brier()(*a)) == pytest.approx(vectors["ce_brier_A"]["brier"], abs=1e-6)
    golden = vectors["label_smoothing_A"]
    assert float(LabelSmoothing(smoothing=golden["eps"])(*a)) == pytest.approx(golden["szegedy"], abs=1e-6)
    others = LabelSmoothing(smoothing=golden["eps"], convention="others")
    assert float(others(*a)) == pytest.approx(golden["k_minus_1"], abs=1e-6)


def test_functions_give_the_loss_of_each_row(a: tuple[Tensor, Tensor]) -> None:
    for function, loss in (
        (cross_entropy, CrossEntropy(reduction="none")),
        (brier, Brier(reduction="none")),
        (label_smoothing, LabelSmoothing(reduction="none")),
    ):
        assert torch.equal(function(*a), loss(*a))


def test_label_smoothing_is_torchs() -> None:
    logits, labels = random_predictions(50, 7)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    assert torch.allclose(LabelSmoothing(smoothing=0.1)(logits, labels), expected)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_conventions_are_one_another_with_another_smoothing(k: int) -> None:
    logits, labels = random_predictions(50, k)
    others = label_smoothing(logits, labels, smoothing=0.05 * (k - 1) / k, convention="others")
    assert torch.allclose(others, label_smoothing(logits, labels, smoothing=0.05))


def test_smoothing_over_the_others_needs_others() -> None:
    with pytest.raises(InputError, match="needs at least two classes"):
        LabelSmoothing(convention="others")(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))


def test_brier_is_the_squared_distance_and_precise_near_zero() -> None:
    logits, labels = random_predictions(50, 7)
    distance = (logits.softmax(1) - F.one_hot(labels, 7)).square().sum(1)
    assert torch.allclose(brier(logits, labels), distance)
    sure = brier(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert float(sure) == pytest.approx(2 * 2.0611537e-9**2, rel=1e-2)
