"""Cross-entropy, Brier score, label smoothing and the entropy penalty: golden values and their relations."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import Brier, CrossEntropy, EntropyPenalty, LabelSmoothing


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


def test_label_smoothing_is_torchs() -> None:
    logits, labels = random_predictions(50, 7)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    assert torch.allclose(LabelSmoothing(smoothing=0.1)(logits, labels), expected)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_each_convention_is_the_other_with_a_different_smoothing(k: int) -> None:
    logits, labels = random_predictions(50, k)
    others = LabelSmoothing(smoothing=0.05 * (k - 1) / k, convention="others")(logits, labels)
    assert torch.allclose(others, LabelSmoothing(smoothing=0.05)(logits, labels))


def test_smoothing_over_the_others_needs_others() -> None:
    with pytest.raises(InputError, match="needs at least two classes"):
        LabelSmoothing(convention="others")(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))


def test_brier_is_the_squared_distance_and_precise_near_zero() -> None:
    logits, labels = random_predictions(50, 7)
    distance = (logits.softmax(1) - F.one_hot(labels, 7)).square().sum(1)
    assert torch.allclose(Brier(reduction="none")(logits, labels), distance)
    sure = Brier()(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    assert float(sure) == pytest.approx(2 * 2.0611537e-9**2, rel=1e-2)


def test_entropy_penalty_golden_values(vectors: Any, fixture_a: Any) -> None:
    golden = vectors["ecp_A"]
    logits, labels = (torch.from_numpy(x) for x in fixture_a)
    assert float(EntropyPenalty()(logits, labels)) == pytest.approx(golden["loss_alpha0p1_per_sample"], abs=1e-6)
    element = EntropyPenalty(average="element")(logits, labels)
    assert float(element) == pytest.approx(golden["loss_alpha0p1_official"], abs=1e-6)
    entropy = CrossEntropy()(logits, labels) - EntropyPenalty(strength=1.0)(logits, labels)
    assert float(entropy) == pytest.approx(golden["entropy_mean_per_sample"], abs=1e-6)


def test_entropy_is_log_k_for_even_and_zero_for_certain_predictions() -> None:
    logits, labels = torch.tensor([[0.3] * 4, [1e4, 0, 0, 0]]), torch.tensor([0, 0])
    penalty = EntropyPenalty(strength=1.0, reduction="none")(logits, labels) - torch.tensor([math.log(4), 0])
    assert penalty.tolist() == pytest.approx([-math.log(4), 0], abs=1e-6)
