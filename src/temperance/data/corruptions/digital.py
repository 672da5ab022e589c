"""Digital: what happens to an image after it was taken."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.data.corruptions.base import Draw, corruption
from temperance.data.corruptions.filters import filtered, gaussian_blurred
from temperance.data.files import pillow


@corruption("digital", 0.75, 0.5, 0.4, 0.3, 0.15, is_random=False)
def contrast(x: Tensor, draw: Draw, kept: float) -> Tensor:
    """Contrast: everything is nearer to the mean colour."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + kept * (x - mean)


@corruption(
    "digital",
    (0.0, 0.0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
    grows=False,
)
def elastic_transform(x: Tensor, draw: Draw, height: float, sigma: float, jitter: float) -> Tensor:
    """Elastic transform: sheared as a whole, then stretched and squeezed in places.

    All lengths are parts of the image's side. From severity to severity there is less shear and more stretching, so
    that pixels change less, while shapes suffer more.
    """
    n, _, h, w = x.shape
    side = min(h, w)
    rows, columns = (torch.arange(length, dtype=torch.float32, device=x.device) for length in (h, w))
    down, right = torch.meshgrid(rows, columns, indexing="ij")

    # Three corners of a square in the middle move at random; the rest of the image goes along.
    middle, part = torch.tensor([w // 2, h // 2], device=x.device), side // 3
    corners = middle + part * torch.tensor([[1, 1], [1, -1], [-1, -1]], device=x.device)
    moved = corners + draw.uniform(n, 3, 2, low=-jitter * side, high=jitter * side)
    ones = torch.ones(n, 3, 1, device=x.device)
    back = torch.linalg.solve(torch.cat([moved, ones], 2), corners.float().expand(n, 3, 2))
    source = torch.stack([right, down, torch.ones_like(right)], 2).reshape(1, h * w, 3) @ back
    last = torch.tensor([w - 1, h - 1], device=x.device)
    grid = (2 * source / last - 1).reshape(n, h, w, 2)
    x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=True)
    if not height:
        return x

    waves = gaussian_blurred(draw.uniform(n, 2, h, w, low=-1.0, high=1.0), sigma * side, truncate=3, border="mirror")
    source = torch.stack([right, down], 2) + height * side * waves.permute(0, 2, 3, 1)
    grid = (2 * source + 1) / torch.tensor([w, h], device=x.device) - 1
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


@corruption("digital", 0.95, 0.9, 0.85, 0.75, 0.65, is_random=False)
def pixelate(x: Tensor, draw: Draw, factor: float) -> Tensor:
    """Pixelate: shrunk and enlarged again, in blocks."""
    h, w = x.shape[2:]
    there_and_back = (box_matrix(side, int(factor * side)) @ box_matrix(int(factor * side), side) for side in (h, w))
    return filtered(x, *(matrix.to(x.device) for matrix in there_and_back))


def box_matrix(new: int, old: int) -> Tensor:
    """The matrix that turns `old` values into `new` ones: each is the mean of those whose middle it covers."""
    width = max(old / new, 1.0)
    middle = (torch.arange(new, dtype=torch.float64)[:, None] + 0.5) * (old / new)
    places = torch.arange(old, dtype=torch.float64) + 0.5
    covered = ((places - middle > -width / 2) & (places - middle <= width / 2)).float()
    return covered / covered.sum(1, keepdim=True)


@corruption("digital", 80, 65, 58, 50, 40, is_random=False)
def jpeg_compression(x: Tensor, draw: Draw, quality: int) -> Tensor:
    """JPEG compression: stored at a low quality."""
    levels = (255 * x).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    stored = np.stack([_through_jpeg(image, quality) for image in levels])
    return torch.from_numpy(stored).to(x.device).permute(0, 3, 1, 2) / 255


def _through_jpeg(image: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    """An image as it comes back from a JPEG file. (h, w, c)"""
    module, file = pillow("jpeg-compression"), io.BytesIO()
    module.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "JPEG", quality=quality)
    with module.open(file) as decoded:
        return np.asarray(decoded).reshape(image.shape)


@corruption(
    "digital",
    (0.3, 0.0),
    (0.1, 0.0),
    (1.5, 0.0),
    (2.0, 0.1),
    (2.5, 0.2),
    is_random=False,
    grows=False,
    needs_colour=True,
    in_benchmark=False,
)
def saturate(x: Tensor, draw: Draw, factor: float, offset: float) -> Tensor:
    """Saturate: colours fade at severities 1 and 2, and glow at 3 to 5.

    Grey has no hue and is taken for red where saturation is added to it, as in the published program.
    """
    value = x.amax(1, keepdim=True)
    below = value - x
    spread = below.amax(1, keepdim=True)
    saturation = spread / value.clamp_min(1e-6)
    new = (factor * saturation + offset).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device)[:, None, None]
    # The distance of each channel from the largest, relative to the greatest one: this is the hue, which stays.
    hue = torch.where(spread > 0, below / spread.clamp_min(1e-6), red)
    return value * (1 - new * hue)
