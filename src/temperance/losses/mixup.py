"""Training on mixtures of images: each transform returns a mixed batch, which works with any loss.

    mix = Mixup(alpha=1.0)
    mixed = mix(images, labels, generator=generator)
    mixed.loss(loss, network).backward()

A mixed batch has its images and labels and combines their losses, so the training loop is the same for all. Losses that
keep a record of each training sample also take the indices of the samples: `mixed.loss(loss, network, indices)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.settings import Bounds, HasSettings, Positive

# A loss of logits and labels, with the indices of the samples as an optional third argument.
LossFunction = Callable[..., Tensor]
Network = Callable[[Tensor], Tensor]

# Two mixtures whose shares differ by less cannot be separated again.
SMALLEST_GAP = 1e-3
MOST_DRAWS = 10_000


@dataclass(frozen=True)
class Pairs:
    """Labels of images that were mixed in pairs: image i with image partner[i]."""

    labels: Tensor
    partner: Tensor

    def _loss(self, loss: LossFunction, logits: Tensor, indices: Tensor | None, *, of_partner: bool) -> Tensor:
        chosen = [self.labels] if indices is None else [self.labels, indices]
        return loss(logits, *(values[self.partner] if of_partner else values for values in chosen))


@dataclass(frozen=True)
class Mixed(Pairs):
    """A batch of mixed images; `share` is the part of each that is its own image."""

    images: Tensor
    share: float

    def loss(self, loss: LossFunction, network: Network, indices: Tensor | None = None) -> Tensor:
        """share · loss with the images' own labels + (1 − share) · loss with their partners', in one forward pass."""
        logits = network(self.images)
        own = self._loss(loss, logits, indices, of_partner=False)
        return self.share * own + (1 - self.share) * self._loss(loss, logits, indices, of_partner=True)


@dataclass(frozen=True)
class TwiceMixed(Pairs):
    """Two mixtures of the same pairs of images; `shares` are the parts that are their own image."""

    images: tuple[Tensor, Tensor]
    shares: tuple[float, float]

    def logits(self, network: Network) -> tuple[Tensor, Tensor]:
        """The logits of the images and of their partners, in two forward passes."""
        return decouple(network(self.images[0]), network(self.images[1]), *self.shares)

    def loss(self, loss: LossFunction, network: Network, indices: Tensor | None = None) -> Tensor:
        """The mean of the losses of the images and of their partners, from their separated logits."""
        own, others = self.logits(network)
        return (
            self._loss(loss, own, indices, of_partner=False) + self._loss(loss, others, indices, of_partner=True)
        ) / 2


class Mixup(HasSettings):
    """Mixup: trains on weighted means of two images, with the same weights on their labels.

    x = λ x_i + (1 − λ) x_j and λ · loss(y_i) + (1 − λ) · loss(y_j), with one λ ~ Beta(alpha, alpha) per batch and j a
    permutation of it (Zhang et al., 2018). For a loss that is linear in the label, such as cross-entropy, that is the
    loss of the mean label.

    alpha  parameter of the Beta distribution of the weights; small values hardly mix

    >>> images, labels = torch.eye(3).reshape(3, 1, 1, 3), torch.tensor([0, 1, 2])
    >>> mixed = Mixup()(images, labels, generator=torch.Generator().manual_seed(0))
    >>> bool((mixed.images.sum((1, 2, 3)) == 1).all()), 0 < mixed.share < 1
    (True, True)
    """

    name = "mixup"

    def __init__(self, *, alpha: Positive = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, images: Tensor, labels: Tensor, *, generator: torch.Generator) -> Mixed:
        """A mixed batch of images (n, …) and labels (n, …)."""
        check_batch(images, labels)
        share = symmetric_beta(self.alpha, generator)
        partner = permutation(images, generator)
        return Mixed(labels, partner, torch.lerp(images[partner], images, share), share)


class CutMix(HasSettings):
    """CutMix: trains on images with a rectangle of another image pasted in, labels weighted by area.

    A rectangle with the image's proportions and 1 − λ of its area, λ ~ Beta(alpha, alpha), has a uniformly drawn centre
    and is clipped at the border; λ is then the part of the image that remains (Yun et al., 2019).

    alpha  parameter of the Beta distribution of the weights; small values hardly mix
    """

    name = "cutmix"

    def __init__(self, *, alpha: Positive = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, images: Tensor, labels: Tensor, *, generator: torch.Generator) -> Mixed:
        """A mixed batch of images (n, channels, height, width) and labels (n,)."""
        check_batch(images, labels)
        if images.ndim != 4 or labels.ndim != 1:
            raise InputError(
                f"CutMix needs images (n, channels, height, width) with one label each; got images "
                f"{tuple(images.shape)} and labels {tuple(labels.shape)}"
            )
        height, width = images.shape[2:]
        side = (1 - symmetric_beta(self.alpha, generator)) ** 0.5
        top, bottom = _span(height, side, generator)
        left, right = _span(width, side, generator)
        partner = permutation(images, generator)
        pasted = images.clone()
        pasted[:, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
        return Mixed(labels, partner, pasted, 1 - (bottom - top) * (right - left) / (height * width))


class MIT(HasSettings):
    """MIT, mixup inference in training: mixes each pair twice and separates the logits again.

    With F1, F2 the logits of the mixtures with λ1 ≥ 1/2 ≥ λ2, the images' own are ((1 − λ2) F1 − (1 − λ1) F2) / (λ1 −
    λ2) and their partners' (λ1 F2 − λ2 F1) / (λ1 − λ2), which is exact for linear networks; the loss is the mean of
    both. λ1, λ2 are drawn from Beta(alpha, alpha), folded to their side of 1/2, and drawn again until they are `margin`
    apart. This is MIT-L, which separates the logits; MIT-A does so after every block. It takes two forward passes.

    alpha   parameter of the Beta distribution of the weights; small values hardly mix
    margin  smallest distance between the two weights of a pair

    >>> images, labels = torch.eye(3).reshape(3, 1, 1, 3), torch.tensor([0, 1, 2])
    >>> mixed = MIT()(images, labels, generator=torch.Generator().manual_seed(0))
    >>> own, others = mixed.logits(lambda images: 5 * images.flatten(1))
    >>> own.argmax(1)
    tensor([0, 1, 2])
    """

    name = "mit"

    def __init__(self, *, alpha: Positive = 0.5, margin: Annotated[float, Bounds(0, 1, below=True)] = 0.5) -> None:
        self.alpha = alpha
        self.margin = margin

    def __call__(self, images: Tensor, labels: Tensor, *, generator: torch.Generator) -> TwiceMixed:
        """Two mixed batches of images (n, …) and labels (n, …)."""
        check_batch(images, labels)
        shares = self._shares(generator)
        partner = permutation(images, generator)
        others = images[partner]
        first, second = (torch.lerp(others, images, share) for share in shares)
        return TwiceMixed(labels, partner, (first, second), shares)

    def _shares(self, generator: torch.Generator) -> tuple[float, float]:
        for _ in range(MOST_DRAWS):
            one, other = symmetric_beta(self.alpha, generator), symmetric_beta(self.alpha, generator)
            high, low = max(one, 1 - one), min(other, 1 - other)
            if high - low >= max(self.margin, SMALLEST_GAP):
                return high, low
        raise InputError(
            f"no two of {MOST_DRAWS} draws with alpha={self.alpha:g} were {self.margin:g} apart: lower margin or alpha"
        )


def decouple(first: Tensor, second: Tensor, high: float, low: float) -> tuple[Tensor, Tensor]:
    """The logits a and b, given first = high · a + (1 − high) · b and second = low · a + (1 − low) · b."""
    gap = high - low
    return ((1 - low) * first - (1 - high) * second) / gap, (high * second - low * first) / gap


def symmetric_beta(alpha: float, generator: torch.Generator) -> float:
    """A draw from Beta(alpha, alpha)."""
    from scipy.special import betaincinv  # here, because importing it is slow

    uniform = torch.rand((), dtype=torch.float64, generator=generator, device=generator.device)
    return float(betaincinv(alpha, alpha, float(uniform)))


def permutation(images: Tensor, generator: torch.Generator) -> Tensor:
    """The partner of each image. (n,)"""
    return torch.randperm(len(images), generator=generator, device=generator.device).to(images.device)


def check_batch(images: Tensor, labels: Tensor) -> None:
    """Refuse images and labels that do not match."""
    if not images.is_floating_point():
        raise InputError(f"images must be floating-point numbers to be mixed; got {images.dtype}")
    if len(images) != len(labels):
        raise InputError(f"every image must have a label; got {len(images)} images and {len(labels)} labels")


def _span(size: int, side: float, generator: torch.Generator) -> tuple[int, int]:
    """Start and end of a span of length size · side around a random centre, clipped at the border."""
    middle = int(torch.randint(size, (), generator=generator, device=generator.device))
    half = int(size * side) // 2
    return max(middle - half, 0), min(middle + half, size)
