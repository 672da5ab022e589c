"""What several corruptions are made of: blurs, zooms and motion.

A filter along one axis, its border included, is a matrix, so an image takes two matrix products.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# A step of motion is left out if its weight is less than this part of the first one's: a quarter of a grey level.
FAINT = 1e-3


def filtered(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (…, h, w) with one matrix (h', h) applied to their columns and one (w', w) to their rows."""
    return rows @ (x @ columns.T)


def gaussian_blurred(x: Tensor, sigma: float, *, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Images blurred by a Gaussian that ends after `truncate` deviations."""
    h, w = x.shape[2:]
    return filtered(x, *(gaussian_matrix(side, sigma, truncate, border).to(x.device) for side in (h, w)))


def gaussian_matrix(size: int, sigma: float, truncate: float, border: str) -> Tensor:
    """The matrix that blurs `size` values; beyond the border they are repeated ("nearest") or mirrored ("mirror")."""
    reach = int(truncate * sigma + 0.5)
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets / max(sigma, 1e-6)) ** 2)
    places = torch.arange(size)[:, None] + offsets
    if border == "nearest":
        places = places.clamp(0, size - 1)
    else:
        places = places.remainder(2 * size)
        places = torch.minimum(places, 2 * size - 1 - places)
    matrix = torch.zeros(size, size)
    return matrix.scatter_add_(1, places, (weights / weights.sum()).expand(size, -1))


def zoomed(x: Tensor, factors: Sequence[float]) -> Tensor:
    """The mean of images whose middle is enlarged by each of these factors."""
    h, w = x.shape[2:]
    # Factors that crop and enlarge to the same whole numbers are the same enlargement.
    times = Counter(tuple(_crop_and_size(side, factor) for side in (h, w)) for factor in factors)
    total = torch.zeros_like(x)
    for (rows, columns), number in times.items():
        matrices = (_zoom_matrix(side, *each).to(x.device) for side, each in ((h, rows), (w, columns)))
        total.add_(filtered(x, *matrices), alpha=number / len(factors))
    return total


def _crop_and_size(size: int, factor: float) -> tuple[int, int]:
    """The number of values in the middle that are enlarged, and their number afterwards."""
    crop = math.ceil(size / factor)
    return crop, max(size, round(crop * factor))


def _zoom_matrix(size: int, crop: int, enlarged: int) -> Tensor:
    """The matrix that enlarges the middle of `size` values: those at the ends of the crop stay, linear in between."""
    first, trim = (size - crop) // 2, (enlarged - size) // 2
    at = torch.arange(trim, trim + size, dtype=torch.float64) * ((crop - 1) / max(enlarged - 1, 1))
    below = at.floor().clamp(max=max(crop - 2, 0))
    part = (at - below)[:, None]
    low = first + below.long()[:, None]
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_add_(1, low, 1 - part)
    matrix.scatter_add_(1, (low + 1).clamp(max=size - 1), part)
    return matrix.float()


def motion_blurred(x: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """Images smeared in one direction each, by half a Gaussian; angles are (n,), in degrees.

    The i-th step lies i pixels away, rounded to whole pixels, and beyond the border the last pixel is repeated, as
    ImageMagick does it.
    """
    h, w = x.shape[2:]
    steps = torch.arange(2 * math.ceil(radius) + 1)
    counts = torch.exp(-0.5 * (steps / sigma) ** 2)
    steps, counts = steps[counts >= FAINT], counts[counts >= FAINT]
    weights = (counts / counts.sum()).tolist()
    radians = torch.deg2rad(angle.cpu().double())[:, None]
    right, down = ((steps * turn - 0.5).ceil().long() for turn in (radians.cos(), radians.sin()))
    reach = int(max(right.abs().max(), down.abs().max()))
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    # Images with the same steps are done together: there are few different ones, since steps are whole pixels.
    paths, which = torch.unique(torch.stack([down, right], 2).flatten(1), dim=0, return_inverse=True)
    blurred = torch.empty_like(x)
    for number, path in enumerate(paths.tolist()):
        alike = (which == number).nonzero()[:, 0].to(x.device)
        some = padded[alike]
        total = torch.zeros_like(x[: len(alike)])
        for weight, dy, dx in zip(weights, path[0::2], path[1::2], strict=True):
            top, left = reach + dy, reach + dx
            total.add_(some[:, :, top : top + h, left : left + w], alpha=weight)
        blurred[alike] = total
    return blurred
