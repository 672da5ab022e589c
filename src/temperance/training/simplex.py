"""BalCAL's parts: classes at equal angles, and the mixture of two classifiers that has the right confidence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from temperance.losses.distributed import all_sum
from temperance.numerics import zero_of

# Bisection ends when the share is known this closely.
TOLERANCE = 1e-4


def simplex_frame(d: int, k: int, generator: torch.Generator) -> Tensor:
    """k unit vectors in d dimensions with the same angle between any two, as columns, randomly rotated. (d, k)

    >>> frame = simplex_frame(5, 3, torch.Generator().manual_seed(0))
    >>> (frame.T @ frame).round(decimals=4).abs()
    tensor([[1.0000, 0.5000, 0.5000],
            [0.5000, 1.0000, 0.5000],
            [0.5000, 0.5000, 1.0000]])
    """
    turned: Tensor = torch.linalg.qr(torch.randn(d, k, generator=generator, dtype=torch.float64))[0]
    return (math.sqrt(k / (k - 1)) * (turned - turned.mean(1, keepdim=True))).float()


def class_scale(labels: Tensor, k: int) -> Tensor:
    """The factor of each class's logit: √((batch size / classes in the batch) / count), 1 if absent. (k,)

    Under `torchrun` the batch is that of all processes.
    """
    # Not `bincount`: on a GPU the program would wait for its result.
    counts = torch.zeros(k, device=labels.device).index_add_(0, labels, torch.ones(len(labels), device=labels.device))
    counts = all_sum(counts)
    present = (counts > 0).sum()
    return torch.where(counts > 0, (counts.sum() / present / counts.clamp_min(1)).sqrt(), 1.0)


def balanced_share(linear: Tensor, even: Tensor, confidence: float) -> float:
    """The share λ at which λ · linear + (1 − λ) · even has this mean confidence; 1 if linear alone has less.

    >>> linear, even = torch.tensor([[4.0, 0.0], [0.0, 4.0]]), torch.eye(2)
    >>> round(balanced_share(linear, even, 0.9), 3)
    0.399
    """

    def surplus(share: float) -> float:
        return mean_confidence(torch.lerp(even, linear, share)) - confidence

    return zero_of(surplus, 0.0, 1.0, tolerance=TOLERANCE)


def mean_confidence(logits: Tensor) -> float:
    """The mean of the largest probability, over all processes."""
    total = sum(float(rows.log_softmax(1).amax(1).double().exp().sum()) for rows in torch.split(logits, 1 << 14))
    return mean_over_processes(total, len(logits), logits.device)


def mean_over_processes(total: float, n: int, device: torch.device) -> float:
    """A mean, from every process's sum and count."""
    sums = all_sum(torch.tensor([total, n], dtype=torch.float64, device=device))
    return float(sums[0] / sums[1])
