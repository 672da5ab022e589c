"""Weather: snow, frost, fog, glare, and what splashes on the lens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.data.corruptions.base import Draw, corruption, length_scale, luminance, tinted
from temperance.data.corruptions.filters import gaussian_blurred, motion_blurred, zoomed

PALE_TURQUOISE = (175 / 255, 238 / 255, 238 / 255)
MUD_BROWN = (63 / 255, 42 / 255, 20 / 255)
ICE_BLUE = (0.82, 0.92, 1.0)

# Distances to the edge of a drop are limited to this many pixels.
FAR = 20


@corruption(
    "weather",
    (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
def snow(
    x: Tensor,
    draw: Draw,
    mean: float,
    deviation: float,
    flake: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Tensor:
    """Snow: falling flakes, in front of a paler image."""
    n, _, h, w = x.shape
    scale = length_scale(x)
    flakes = mean + deviation * draw.normal(n, 1, h, w)
    flakes = zoomed(flakes, [flake * scale])
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    angle = draw.uniform(n, low=-135.0, high=-45.0)
    flakes = motion_blurred(flakes, radius * scale, sigma * scale, angle)
    pale = torch.maximum(x, 1.5 * luminance(x) + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.rot90(2, (2, 3))


@corruption("weather", (1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45), grows=False)
def frost(x: Tensor, draw: Draw, kept: float, ice: float) -> Tensor:
    """Frost: ice crystals on the lens.

    The published program lays photographs of frost over the image. Here the ice is drawn: the ridges of a rough
    surface, drawn out into feathers in two directions, on patches of thinner ice. It is weighted as in that program, so
    that the brightness added grows up to severity 3 and the image behind it fades from there on.
    """
    n, _, h, w = x.shape
    scale = length_scale(x)
    ridges = 1 - (2 * plasma(n, h, w, 1.25, draw) - 1).abs()
    patches = plasma(n, h, w, 2.2, draw)
    angle = draw.uniform(n, low=0.0, high=360.0)
    feathers = motion_blurred(ridges**2, 3 * scale, 1.2 * scale, angle)
    feathers = _stretched(feathers + motion_blurred(ridges**2, 3 * scale, 1.2 * scale, angle + 60))
    return kept * x + ice * tinted(x, ICE_BLUE) * (0.15 + 0.35 * patches + 0.6 * feathers**1.5).clamp(0, 1)


@corruption("weather", (0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
def fog(x: Tensor, draw: Draw, amount: float, decay: float) -> Tensor:
    """Fog: a bright, uneven veil."""
    n, _, h, w = x.shape
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * plasma(n, h, w, decay, draw)) * brightest / (brightest + amount)


@corruption("weather", 0.05, 0.1, 0.15, 0.2, 0.3, is_random=False)
def brightness(x: Tensor, draw: Draw, amount: float) -> Tensor:
    """Brightness: overexposed, with hue and saturation unchanged."""
    # Hue and saturation stay if all channels grow by the same factor as the largest.
    value = x.amax(1, keepdim=True)
    brighter = (value + amount).clamp(max=1)
    return torch.where(value > 0, x * brighter / value.clamp_min(1e-6), brighter)


@corruption(
    "weather",
    (0.62, 0.1, 0.7, 0.7, 0.5, False),
    (0.65, 0.1, 0.8, 0.7, 0.5, False),
    (0.65, 0.3, 1.0, 0.69, 0.5, False),
    (0.65, 0.1, 0.7, 0.69, 0.6, True),
    (0.65, 0.1, 0.5, 0.68, 0.6, True),
    grows=False,
    in_benchmark=False,
)
def spatter(
    x: Tensor, draw: Draw, mean: float, deviation: float, sigma: float, threshold: float, amount: float, is_mud: bool
) -> Tensor:
    """Spatter: drops of water on the lens, or of mud at severities 4 and 5."""
    n, _, h, w = x.shape
    scale = length_scale(x)
    # A wider blur evens out more; the deviation makes up for it.
    liquid = mean + gaussian_blurred(deviation * scale * draw.normal(n, 1, h, w), sigma * scale)
    if is_mud:
        mud = gaussian_blurred((liquid > threshold).float(), amount * scale)
        mud = torch.where(mud < 0.8, 0.0, mud)
        return x * (1 - mud) + mud * tinted(x, MUD_BROWN)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    drops = liquid * _relief((255 * liquid).floor(), FAR * scale)
    drops = drops / drops.amax((2, 3), keepdim=True).clamp_min(1e-6)
    return x + amount * drops * tinted(x, PALE_TURQUOISE)


def _relief(levels: Tensor, far: float) -> Tensor:
    """How light falls on drops: the slope, seen from a corner, of the distance to their edge. (n, 1, h, w)"""
    depth = _equalised(_box_blurred(_distance(_edges(levels), far)).floor())
    kernel = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]], device=levels.device)
    lit = F.conv2d(F.pad(depth, (1, 1, 1, 1), mode="reflect"), kernel[None, None])
    return _box_blurred(lit.clamp(0, 255))


def _edges(levels: Tensor) -> Tensor:
    """Where the edges of drops are, by Canny's method: steepest points of strong slopes. (n, 1, h, w) bool"""
    padded = F.pad(levels, (1, 1, 1, 1), mode="replicate")
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=levels.device)
    right, down = torch.split(F.conv2d(padded, torch.stack([sobel, sobel.T])[:, None]), 1, dim=1)
    slope = right.abs() + down.abs()
    around = F.pad(slope, (1, 1, 1, 1))
    h, w = slope.shape[2:]

    def at(dy: int, dx: int) -> Tensor:
        return around[:, :, 1 + dy : 1 + dy + h, 1 + dx : 1 + dx + w]

    flat, steep = math.tan(math.radians(22.5)), math.tan(math.radians(67.5))
    across = (slope > at(0, -1)) & (slope >= at(0, 1))
    along = (slope > at(-1, 0)) & (slope >= at(1, 0))
    falling = (slope > at(-1, -1)) & (slope > at(1, 1))
    rising = (slope > at(-1, 1)) & (slope > at(1, -1))
    diagonal = torch.where(right * down < 0, rising, falling)
    is_peak = torch.where(
        down.abs() < flat * right.abs(), across, torch.where(down.abs() > steep * right.abs(), along, diagonal)
    )
    # A weak edge counts where it continues a strong one.
    weak, edge = is_peak & (slope > 50), is_peak & (slope > 150)
    for _ in range(2):
        edge = weak & (F.max_pool2d(edge.float(), 3, stride=1, padding=1) > 0)
    return edge


def _distance(edge: Tensor, far: float) -> Tensor:
    """How far each pixel is from the nearest edge, at most `far`. (n, 1, h, w)"""
    squared = torch.where(edge, 0.0, far**2)
    # Along the rows, then along the columns, because squared distances add.
    for axis in (3, 2):
        side = squared.shape[axis]
        reach = min(math.floor(far), side - 1)
        pad = (reach, reach, 0, 0) if axis == 3 else (0, 0, reach, reach)
        padded = F.pad(squared, pad, value=far**2)
        for step in range(2 * reach + 1):
            squared = torch.minimum(squared, padded.narrow(axis, step, side) + (step - reach) ** 2)
    return squared.sqrt()


def _box_blurred(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, stride=1)


def _equalised(x: Tensor) -> Tensor:
    """Whole numbers of each image spread over 0 … 255 so that all are about as frequent. (n, 1, h, w)"""
    n, _, h, w = x.shape
    values = x.flatten(1).long()
    counts = torch.zeros(n, int(values.max()) + 1, device=x.device)
    counts.scatter_add_(1, values, torch.ones_like(values, dtype=torch.float32))
    # The lowest value that occurs becomes 0, so those that have it are not counted.
    lowest = counts.gather(1, values.amin(1, keepdim=True))
    share = (counts.cumsum(1) - lowest) / (h * w - lowest).clamp_min(1)
    return (255 * share).round().gather(1, values).reshape(n, 1, h, w)


def plasma(n: int, h: int, w: int, decay: float, draw: Draw) -> Tensor:
    """Rough surfaces from 0 to 1, by the diamond-square algorithm. (n, 1, h, w)

    Points between known ones are their mean, and a random step whose variance falls by decay⁴ each time that the grid
    becomes finer. What leaves the surface on one side comes back on the other.
    """
    side = 1 << math.ceil(math.log2(max(h, w)))
    surface = torch.zeros(n, side, side, device=draw.device)
    step, amplitude = side, 1.0

    def moved(mean: Tensor) -> Tensor:
        return mean + draw.uniform(*mean.shape, low=-amplitude, high=amplitude)

    while step >= 2:
        half = step // 2
        corners = surface[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centres = moved((pairs + pairs.roll(-1, 2)) / 4)
        surface[:, half::step, half::step] = centres
        surface[:, ::step, half::step] = moved((centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)) / 4)
        surface[:, half::step, ::step] = moved((centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)) / 4)
        step, amplitude = half, amplitude / decay**2
    return _stretched(surface[:, None])[..., :h, :w]


def _stretched(x: Tensor) -> Tensor:
    """Each image, stretched to the range from 0 to 1."""
    x = x - x.amin((2, 3), keepdim=True)
    return x / x.amax((2, 3), keepdim=True).clamp_min(1e-6)
