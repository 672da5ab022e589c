"""Top-k accuracy: a slow reference with ties, scikit-learn, limits. Proper scores of nearly certain predictions."""

import math

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import accuracy, brier, nll, top_k_accuracy


def slow_top(probs: np.ndarray[tuple[int, int], np.dtype[np.float64]], labels: list[int], top: int) -> float:
    """The classes of each row in order, the lower index first where they tie."""
    hits = 0
    for row, label in zip(probs, labels, strict=True):
        hits += label in sorted(range(len(row)), key=lambda j: (-row[j], j))[:top]
    return hits / len(labels)


@pytest.mark.parametrize("top", [1, 2, 3, 5])
def test_agrees_with_sorting_the_classes(top: int) -> None:
    generator = np.random.default_rng(top)
    probs = generator.integers(1, 4, size=(300, 5)).astype(float)  # many ties
    probs /= probs.sum(1, keepdims=True)
    labels = generator.integers(0, 5, size=300).tolist()
    assert top_k_accuracy(probs, labels, top=top) == pytest.approx(slow_top(probs, labels, top), abs=1e-12)


def test_limits() -> None:
    logits, labels = random_predictions(300, 7)
    assert top_k_accuracy(logits, labels, from_logits=True, top=1) == accuracy(logits, labels, from_logits=True)
    assert top_k_accuracy(logits, labels, from_logits=True, top=7) == 1.0
    assert top_k_accuracy(logits, labels, from_logits=True, top=100) == 1.0
    same = torch.zeros(4, 3)
    assert top_k_accuracy(same, [0, 1, 2, 2], from_logits=True, top=2) == 0.5
    with pytest.raises(InputError, match="top"):
        top_k_accuracy(logits, labels, from_logits=True, top=0)


def test_scikit_learn_agrees() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    logits, labels = random_predictions(500, 10)
    for top in (2, 5):
        theirs = metrics.top_k_accuracy_score(labels.numpy(), logits.numpy(), k=top, labels=range(10))
        assert top_k_accuracy(logits, labels, from_logits=True, top=top) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("top", [5.0, 20.0, 30.0, 36.0])
def test_nearly_certain_logits_lose_no_digits(top: float) -> None:
    logits, labels = [[top, 0.0, 0.0], [0.0, top, 0.0]], [0, 1]
    assert nll(logits, labels, from_logits=True) == pytest.approx(math.log1p(2 * math.exp(-top)), abs=3e-16)
    rest = 1 / (2 + math.exp(top))
    assert brier(logits, labels, from_logits=True) == pytest.approx(6 * rest**2, abs=5e-16)
    assert brier(logits, labels, from_logits=True) >= 0
