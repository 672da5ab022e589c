"""What a corruption is, and how one is applied.

A corruption turns images, float32 (n, channels, height, width) in [0, 1], into worse ones; `corrupt` converts them from
and to uint8, limits memory and makes the generator. Lengths are for images of 32 × 32 pixels and grow with larger ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, to_tensor
from temperance.errors import InputError
from temperance.registry import Registry, first_line, plain_name

P = ParamSpec("P")

# Images are corrupted in blocks of about this many values, so that intermediate results stay in cache.
BLOCK_VALUES = 1 << 20
SEVERITIES = 5
SMALLEST_SIDE = 8


class Draw:
    """Random numbers for images: drawn where the generator is, used where the images are.

    With a CPU generator, which is what a seed makes, an image is corrupted in the same way on every device.
    """

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self.generator = generator
        self.device = device

    def normal(self, *shape: int) -> Tensor:
        """Numbers of mean 0 and deviation 1."""
        return torch.randn(shape, generator=self.generator, device=self.generator.device).to(self.device)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator, device=self.generator.device).to(self.device)
        return low + (high - low) * drawn

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from low to high − 1."""
        drawn = torch.randint(low, high, shape, generator=self.generator, device=self.generator.device)
        return drawn.to(self.device)

    def poisson(self, rate: Tensor) -> Tensor:
        return torch.poisson(rate.to(self.generator.device), generator=self.generator).to(self.device)


# A function of images, a `Draw` and the settings of a severity.
Apply = Callable[Concatenate[Tensor, Draw, P], Tensor]


@dataclass(frozen=True)
class Corruption:
    """A registered corruption with its settings at severities 1 to 5, and its claims."""

    name: str
    summary: str
    family: str  # noise, blur, weather or digital
    settings: tuple[tuple[Any, ...], ...]
    is_random: bool  # another seed gives other images
    grows: bool  # no severity changes images less than the one before, measured by the mean change of a pixel
    needs_colour: bool  # grey images stay as they are
    in_benchmark: bool  # one of the 15 of the benchmark; the others are its four extra ones
    apply: Callable[..., Tensor]


CORRUPTIONS: Registry[Corruption] = Registry("corruption")


def corruption(
    family: str,
    *settings: Any,
    is_random: bool = True,
    grows: bool = True,
    needs_colour: bool = False,
    in_benchmark: bool = True,
) -> Callable[[Apply[P]], Apply[P]]:
    """Register a function of images, a `Draw` and the settings of a severity; they are given for severities 1 to 5."""
    by_severity = tuple(each if isinstance(each, tuple) else (each,) for each in settings)

    def register(apply: Apply[P]) -> Apply[P]:
        name = plain_name(apply.__name__)
        summary = first_line(apply.__doc__)
        claims = (is_random, grows, needs_colour, in_benchmark)
        CORRUPTIONS.add(name, Corruption(name, summary, family, by_severity, *claims, apply))
        return apply

    return register


def corrupt(
    pixels: ArrayLike, name: str, severity: int, *, seed: int = 0, generator: torch.Generator | None = None
) -> Tensor:
    """Images made worse: the common corruptions of Hendrycks and Dietterich (ICLR 2019), with CIFAR-C's settings.

    pixels     uint8 (n, height, width, channels), coloured or grey, of at least 8 × 8 pixels, on any device
    name       of a corruption in CORRUPTIONS
    severity   1 to 5; 0 leaves images as they are
    generator  of random numbers, instead of one made from the seed: for images that come in batches

    Settings are those of CIFAR-C; lengths among them grow with images larger than 32 × 32. What differs from the
    published images: frost is drawn, not photographed; values are rounded, not truncated. On the same images the mean
    change of a pixel is within a few percent of the published program's, except for frost, which has no counterpart.

    >>> pixels = torch.full((2, 8, 8, 3), 100, dtype=torch.uint8)
    >>> corrupt(pixels, "brightness", 3).unique()
    tensor([138], dtype=torch.uint8)
    """
    given = to_tensor(pixels, "pixels")
    found = CORRUPTIONS[plain_name(name)]
    if isinstance(severity, bool) or not isinstance(severity, int) or not 0 <= severity <= SEVERITIES:
        raise InputError(f"severity must be a whole number from 0 (none) to {SEVERITIES}; got {severity!r}")
    if given.dtype != torch.uint8 or given.ndim != 4 or given.shape[3] not in (1, 3):
        raise InputError(
            "images must be uint8 (n, height, width, channels) with 1 or 3 channels; "
            f"got {given.dtype} {tuple(given.shape)}"
        )
    n, h, w, c = given.shape
    if min(h, w) < SMALLEST_SIDE:
        raise InputError(f"images must be at least {SMALLEST_SIDE} × {SMALLEST_SIDE} pixels to corrupt; got {h} × {w}")
    if severity == 0 or (found.needs_colour and c == 1):
        return given.clone()
    draw = Draw(torch.Generator().manual_seed(seed) if generator is None else generator, given.device)
    worse = torch.empty_like(given, memory_format=torch.contiguous_format)
    step = max(1, BLOCK_VALUES // (h * w * c))
    for start in range(0, n, step):
        some = slice(start, start + step)
        x = given[some].permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format) / 255
        x = found.apply(x, draw, *found.settings[severity - 1])
        worse[some] = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return worse


def length_scale(x: Tensor) -> float:
    """The factor by which images are larger than CIFAR's; at least 1, so that lengths do not vanish on small images."""
    return max(1.0, min(x.shape[2:]) / 32)


def luminance(x: Tensor) -> Tensor:
    """How bright each pixel looks. (n, c, h, w) → (n, 1, h, w)"""
    if x.shape[1] == 1:
        return x
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device)
    return (x * weights[:, None, None]).sum(1, keepdim=True)


def tinted(x: Tensor, colour: tuple[float, float, float]) -> Tensor:
    """A colour as a tensor that multiplies images like x: by channel, or its brightness for grey ones."""
    found = torch.tensor(colour, device=x.device)[None, :, None, None]
    return found if x.shape[1] == 3 else luminance(found)
