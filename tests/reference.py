"""Metrics written as slowly and plainly as possible, to compare with."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def bin_of(value: float, n_bins: int, closed: str) -> int:
    for i in range(n_bins):
        low, high = i / n_bins, (i + 1) / n_bins
        inside = low < value <= high if closed == "right" else low <= value < high
        if inside:
            return i
    return 0 if value <= 0 else n_bins - 1


def gaps(confidence: Array, event: Array, n_bins: int, closed: str = "right") -> list[tuple[int, float]]:
    """(count, frequency − confidence) of every bin that is not empty."""
    index = np.array([bin_of(c, n_bins, closed) for c in confidence])
    found = []
    for i in range(n_bins):
        inside = index == i
        if inside.any():
            found.append((int(inside.sum()), float(event[inside].mean() - confidence[inside].mean())))
    return found


def top(probs: Array, labels: Labels) -> tuple[Array, Array]:
    """Confidence, and whether the prediction (the lowest of tied classes) is right."""
    return probs.max(1), (probs.argmax(1) == labels).astype(float)


def two_columns(confidence: Any, correct: Any) -> tuple[Array, Labels]:
    """Probabilities of two classes with this confidence (of at least one half) and labels that make it so correct."""
    c = np.asarray(confidence, dtype=float)
    return np.stack([c, 1 - c], axis=1), 1 - np.asarray(correct, dtype=int)


def ece(probs: Array, labels: Labels, n_bins: int = 15, closed: str = "right") -> float:
    return sum(count * abs(gap) for count, gap in gaps(*top(probs, labels), n_bins, closed)) / len(labels)


def mce(probs: Array, labels: Labels, n_bins: int = 15) -> float:
    return max(abs(gap) for _, gap in gaps(*top(probs, labels), n_bins))


def class_errors(probs: Array, labels: Labels, n_bins: int = 15) -> Array:
    per_class = []
    for j in range(probs.shape[1]):
        found = gaps(probs[:, j], (labels == j).astype(float), n_bins)
        per_class.append(sum(count * abs(gap) for count, gap in found) / len(labels))
    return np.array(per_class)


def conditional_ece(probs: Array, labels: Labels, n_bins: int = 15) -> float:
    total = 0.0
    for j in range(probs.shape[1]):
        mine = probs.argmax(1) == j
        if mine.any():
            confidence, correct = top(probs[mine], labels[mine])
            total += sum(count * abs(gap) for count, gap in gaps(confidence, correct, n_bins))
    return total / len(labels)


def harmonic_weights(n: int) -> Tensor:
    """What each sample's loss counts in AURC, from the least confident to the surest; their mean is 1. (n,)

    α_r = H_n − H_{n−r} = ψ(n + 1) − ψ(n − r + 1) for the ascending rank r = 1 … n, so that AURC = mean of α_r · loss,
    exactly. The population form −ln(1 − G) is infinite for the surest sample; this is not.
    """
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    return torch.digamma(rank.new_tensor(n + 1)) - torch.digamma(n - rank + 1)
