"""Losses and batches that the contract tests share."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from temperance.losses import LOSSES, Loss, make_loss

N_SAMPLES = 60

each_loss = pytest.mark.parametrize("kind", list(LOSSES), ids=LOSSES.names)


def make(kind: type[Loss], **settings: Any) -> Loss:
    """A fresh loss; one with a record of samples has room for all that are used here."""
    return make_loss(kind.name, **({"n_samples": N_SAMPLES} if kind.needs_indices else {}), **settings)


def made(kind: type[Loss], **settings: Any) -> Loss:
    """A loss that has already seen data, if it has a memory."""
    loss = make(kind, **settings)
    if loss.learns_from is not None:
        for seed in (11, 12):
            logits, labels = random_predictions(N_SAMPLES, 5, seed=seed, sharpness=1.0)
            loss.end_epoch()
            loss.update(logits[:50], labels[:50], numbers(labels[:50]))
    return loss


def numbers(labels: Tensor) -> Tensor:
    return torch.arange(labels.numel()).reshape(labels.shape)


def batch(n: int = 24, k: int = 5, seed: int = 0, sharpness: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions in float64, with some logits farther apart than every margin."""
    logits, labels = random_predictions(n, k, seed, sharpness)
    return logits, labels, numbers(labels)


def gradient(loss: Loss, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    return torch.autograd.grad(loss(logits, labels, indices), logits)[0]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> bool:
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance)
