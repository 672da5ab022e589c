"""Pictures as they come back from a JPEG file, without the file: colours, blocks and rounding of the standard."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.data.corruptions.filters import filtered

BLOCK = 8

# How coarsely each frequency is stored at quality 50: tables K.1 and K.2 of the standard (ITU-T T.81).
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8 for _ in range(4)),
)

# Red, green and blue to brightness and two differences of colour, as JFIF has them.
TO_YCC = (
    (0.299, 0.587, 0.114),
    (-0.168735892, -0.331264108, 0.5),
    (0.5, -0.418687589, -0.081312411),
)


def compressed(x: Tensor, quality: int) -> Tensor:
    """Pictures in [0, 1] after JPEG of this quality: colour at half the resolution, as is usual. (n, c, h, w)"""
    levels = (255 * x).round()
    if x.shape[1] == 1:
        return _stored(levels, LUMINANCE, quality) / 255
    h, w = x.shape[2:]
    to_ycc = torch.tensor(TO_YCC, dtype=torch.float64)
    ycc = _mixed(levels, to_ycc)
    ycc[:, 1:] += 128
    ycc = ycc.round().clamp(0, 255)
    brightness = _stored(ycc[:, :1], LUMINANCE, quality)
    colour = _stored(_halved(ycc[:, 1:]), CHROMINANCE, quality)
    colour = colour[..., : -(-h // 2), : -(-w // 2)]
    colour = F.interpolate(colour, scale_factor=2, mode="bilinear", align_corners=False)[..., :h, :w].round() - 128
    return _mixed(torch.cat([brightness, colour], 1), torch.linalg.inv(to_ycc)).round() / 255


def _mixed(x: Tensor, matrix: Tensor) -> Tensor:
    """The channels of pictures, mixed by a matrix."""
    return (matrix.float().to(x.device) @ x.flatten(2)).reshape(x.shape)


def _halved(x: Tensor) -> Tensor:
    """Planes at half the resolution; a mean between two levels goes down in one column and up in the next."""
    h, w = x.shape[2:]
    # Rows are completed before they are halved, columns after it.
    four = 4 * F.avg_pool2d(F.pad(x, (0, -w % (2 * BLOCK), 0, h % 2), mode="replicate"), 2)
    bias = 1 + torch.arange(four.shape[3], device=x.device) % 2
    return ((four.round() + bias) / 4).floor()


def _stored(x: Tensor, table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """Planes of levels from 0 to 255, each block of 8 × 8 kept as rounded frequencies."""
    h, w = x.shape[2:]
    x = F.pad(x, (0, -w % BLOCK, 0, -h % BLOCK), mode="replicate") - 128
    height, width = x.shape[2:]
    rows, columns = (_cosines(side).to(x.device) for side in (height, width))
    steps = _quantisation(table, quality).to(x.device).repeat(height // BLOCK, width // BLOCK)
    # Programs keep frequencies to an eighth, and round halves away from zero.
    eighths = (8 * filtered(x, rows, columns)).round()
    kept = (eighths.abs() / (8 * steps) + 0.5).floor() * eighths.sign() * steps
    return (filtered(kept, rows.T, columns.T).round() + 128).clamp(0, 255)[..., :h, :w]


def _quantisation(table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """The steps to which frequencies are rounded at a quality from 1 to 100. (8, 8)"""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor(table) * percent + 50) // 100).clamp(1, 255).float()


def _cosines(side: int) -> Tensor:
    """The cosine transform of each block of 8 values, as one matrix for all of them. (side, side)"""
    place = torch.arange(BLOCK, dtype=torch.float64)
    waves = torch.cos(math.pi / BLOCK * (place + 0.5) * place[:, None]) * math.sqrt(2 / BLOCK)
    waves[0] /= math.sqrt(2)
    return torch.kron(torch.eye(side // BLOCK), waves.float())
