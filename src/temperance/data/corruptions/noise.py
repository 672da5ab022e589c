"""Noise: what a sensor in poor light, or a faulty one, adds to each pixel."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.data.corruptions.base import Draw, corruption


@corruption("noise", 0.04, 0.06, 0.08, 0.09, 0.10)
def gaussian_noise(x: Tensor, draw: Draw, deviation: float) -> Tensor:
    """Gaussian noise: equally strong everywhere, as in poor light."""
    return x + deviation * draw.normal(*x.shape)


@corruption("noise", 500, 250, 100, 75, 50)
def shot_noise(x: Tensor, draw: Draw, photons: float) -> Tensor:
    """Shot noise: light arrives as single photons."""
    return draw.poisson(photons * x) / photons


@corruption("noise", 0.01, 0.02, 0.03, 0.05, 0.07)
def impulse_noise(x: Tensor, draw: Draw, share: float) -> Tensor:
    """Impulse noise: a share of the values is black or white, as from faulty bits."""
    chance = draw.uniform(*x.shape)
    x = torch.where(chance < share / 2, 0.0, x)
    return torch.where(chance > 1 - share / 2, 1.0, x)


@corruption("noise", 0.06, 0.1, 0.12, 0.16, 0.2, in_benchmark=False)
def speckle_noise(x: Tensor, draw: Draw, deviation: float) -> Tensor:
    """Speckle noise: the brighter a value, the stronger the noise."""
    return x + x * deviation * draw.normal(*x.shape)
