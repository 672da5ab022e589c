"""The confidence penalty: golden values and its limits."""

import math
from typing import Any

import pytest
import torch

from temperance.losses import CrossEntropy, EntropyPenalty


def test_golden_values(vectors: Any, fixture_a: Any) -> None:
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
