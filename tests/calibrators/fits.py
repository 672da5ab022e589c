"""Every calibrator, fitted once for all tests that only use it."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.calibrators import CALIBRATORS, Calibrator
from temperance.calibrators._fit.curve import look_up

Method = type[Calibrator]

each = pytest.mark.parametrize("method", list(CALIBRATORS), ids=CALIBRATORS.names)
# For samples that are too few, or too easy, to determine what a method learns: it warns, and must work all the same.
few = pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")


def data(n: int = 240, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return random_predictions(n, k, seed, sharpness=3.0)


def fitted(method: Method) -> Calibrator:
    """A method with its default settings, fitted to `data()`. Tests share it: copy it before you change it."""
    return _fitted(method.name, 240, 4, 0)


def another(method: Method) -> Calibrator:
    """The same method, fitted to other data with more classes, and shared too."""
    return _fitted(method.name, 200, 5, 3)


@cache
def _fitted(name: str, n: int, k: int, seed: int) -> Calibrator:
    return CALIBRATORS[name]().fit(*data(n, k, seed))


def is_probability(probs: torch.Tensor) -> bool:
    return bool(torch.isfinite(probs).all() and (probs >= 0).all() and (probs.sum(-1) - 1).abs().max() < 1e-9)


def two_classes(log_odds: torch.Tensor) -> torch.Tensor:
    """Logits of two classes with these log-odds. (n, 2)"""
    return torch.stack([torch.zeros_like(log_odds), log_odds], dim=1)


def curve(method: Any, pairs: Any, x: Any) -> Any:
    """The curve that a method draws through (probability, happened) pairs, at x."""
    probs, happened = torch.tensor(sorted(pairs), dtype=torch.float64).T
    knots, values = method._fit_curve(probs.contiguous(), happened > 0, torch.ones_like(probs))
    return look_up(torch.tensor(np.asarray(x, dtype=float))[None], knots[None], values[None])[0].numpy()
