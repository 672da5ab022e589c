"""A warning about what is hardly better than guessing, and none about the rest."""

import pytest
import torch
from torch import Tensor

from temperance.predictions import Predictions
from temperance.training.run import hardly_learnt


def predictions(labels: Tensor, k: int, accuracy: float, margin: float) -> Predictions:
    """Sure by a margin of logits of the right class for a share of every class, else of the next one."""
    right = torch.arange(len(labels)) / len(labels) < accuracy
    named = torch.where(right, labels, (labels + 1) % k)
    return Predictions.of(margin * torch.nn.functional.one_hot(named, k).double(), labels, from_logits=True)


def balanced(k: int, n: int = 1000) -> Tensor:
    return torch.arange(n) % k


@pytest.mark.parametrize(
    ("k", "accuracy", "margin", "warned"),
    [
        (10, 0.12, 0.1, True),
        (10, 0.12, 9.0, True),  # sure of itself, too
        (10, 0.08, 0.1, True),
        (10, 0.35, 0.5, False),
        (10, 0.97, 3.0, False),
        (100, 0.015, 0.01, True),
        (100, 0.05, 0.1, False),  # poor, but five times as good as guessing
        (2, 0.52, 0.1, True),
        (2, 0.7, 0.5, False),
        (2, 0.3, 1.5, True),
    ],
)
def test_balanced_classes(k: int, accuracy: float, margin: float, warned: bool) -> None:
    said = hardly_learnt(predictions(balanced(k), k, accuracy, margin))
    assert said.startswith(("It is hardly better than guessing. ", "It is no better than guessing. ")) == warned
    assert warned or said == ""


def test_knowing_a_rare_class_is_not_guessing() -> None:
    """Where one class is nearly everything, probabilities can know much that accuracy does not show."""
    labels = (torch.arange(1000) < 20).long()
    suspicious = (torch.arange(1000) < 50).double()
    informed = torch.stack([torch.zeros(1000), 5.5 * suspicious - 6], 1)
    ignorant = torch.stack([torch.zeros(1000), torch.full((1000,), -3.9)], 1)
    assert hardly_learnt(Predictions.of(informed, labels, from_logits=True)) == ""
    assert "98.0 % of the time" in hardly_learnt(Predictions.of(ignorant, labels, from_logits=True))
