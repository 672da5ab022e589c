"""Blur: out of focus, behind glass, moving."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.data.corruptions.base import Draw, corruption, length_scale
from temperance.data.corruptions.filters import gaussian_blurred, motion_blurred, zoomed


@corruption("blur", (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1), is_random=False)
def defocus_blur(x: Tensor, draw: Draw, radius: float, edge: float) -> Tensor:
    """Defocus blur: every point becomes a disk, as in a picture that is out of focus."""
    scale = length_scale(x)
    kernel = _disk(radius * scale, edge * scale, soft_pixels=math.ceil(scale))
    reach = len(kernel) // 2
    padded = F.pad(x, (reach, reach, reach, reach), mode="reflect")
    h, w = x.shape[2:]
    blurred = torch.zeros_like(x)
    for dy, row in enumerate(kernel.tolist()):
        for dx, weight in enumerate(row):
            if weight > 0:
                blurred.add_(padded[:, :, dy : dy + h, dx : dx + w], alpha=weight)
    return blurred


def _disk(radius: float, edge: float, soft_pixels: int) -> Tensor:
    """A disk of pixels with a soft edge, as a kernel of odd size."""
    reach = int(radius) + soft_pixels
    steps = torch.arange(-reach, reach + 1)
    disk = ((steps**2)[:, None] + steps**2 <= radius**2).float()
    offsets = torch.arange(-soft_pixels, soft_pixels + 1)
    soft = torch.exp(-0.5 * (offsets / edge) ** 2)
    soft = soft / soft.sum()
    kernel = F.conv2d(disk[None, None], soft[:, None] * soft[None, None, None], padding=soft_pixels)[0, 0]
    return kernel / kernel.sum()


@corruption("blur", (0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2), grows=False)
def glass_blur(x: Tensor, draw: Draw, sigma: float, times: int) -> Tensor:
    """Glass blur: pixels change places with neighbours, as behind frosted glass.

    The published program means to swap pixels, but assigns views of one array to each other, so that a pixel takes the
    value of a neighbour above or to the left and the neighbour keeps it. CIFAR-C was made this way, and so are the
    images here. Severity 3 shuffles once and blurs more, 4 shuffles twice and blurs less.
    """
    n, c, h, w = x.shape
    scale = length_scale(x)
    reach = max(1, round(scale))
    x = gaussian_blurred(x, sigma * scale)
    rows, columns = (torch.arange(side, device=x.device) for side in (h, w))
    for _ in range(times):
        down, right = (draw.integers(-reach, reach, n, h, w) for _ in range(2))
        inside = ((rows > reach) & (rows <= h - reach))[:, None] & ((columns > reach) & (columns <= w - reach))
        source = (rows[:, None] + down * inside) * w + columns + right * inside
        x = x.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, c, -1)).reshape(n, c, h, w)
    return gaussian_blurred(x, sigma * scale)


@corruption("blur", (6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
def motion_blur(x: Tensor, draw: Draw, radius: float, sigma: float) -> Tensor:
    """Motion blur: smeared in one direction, as when the camera moves.

    Severities 3 and 4 differ only in where the smear is cut off, far out where nothing is left of it.
    """
    scale = length_scale(x)
    return motion_blurred(x, radius * scale, sigma * scale, draw.uniform(len(x), low=-45.0, high=45.0))


@corruption("blur", 6, 11, 15, 20, 25, is_random=False)
def zoom_blur(x: Tensor, draw: Draw, percent: int) -> Tensor:
    """Zoom blur: the mean of enlargements in steps of one percent, as when the camera zooms in.

    Up to 5 and 10 percent were meant at the first two severities; rounding in the published program adds a step.
    """
    # A hundredth as NumPy's arange computes it, slightly too large, so that 32.5 is rounded up as in the original.
    factors = [1 + step * (1.01 - 1) for step in range(percent + 1)]
    return zoomed(x, [1.0, *factors])


@corruption("blur", 0.4, 0.6, 0.7, 0.8, 1.0, is_random=False, in_benchmark=False)
def gaussian_blur(x: Tensor, draw: Draw, sigma: float) -> Tensor:
    """Gaussian blur: every point becomes a soft spot."""
    return gaussian_blurred(x, sigma * length_scale(x))
