"""Residual networks: every block adds something to its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.settings import Count, PositiveFraction
from temperance.training.networks.base import Network, Shape, architecture, conv

HE = "He et al., Deep residual learning for image recognition, CVPR 2016"

Shortcut = Callable[[int, int, int], nn.Module]


# ------------------------------------------------------------------------------------------------------------ shortcuts


def projection(c_in: int, c_out: int, stride: int) -> nn.Module:
    """The block's input, through a 1×1 convolution where the shape changes (option B of He et al.)."""
    if stride == 1 and c_in == c_out:
        return nn.Identity()
    return nn.Sequential(conv(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))


def padding(c_in: int, c_out: int, stride: int) -> nn.Module:
    """The block's input, subsampled and padded with zero channels where the shape changes (their option A)."""
    return nn.Identity() if stride == 1 and c_in == c_out else Padding(c_out - c_in, stride)


class Padding(nn.Module):
    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = more, stride

    def forward(self, maps: Tensor) -> Tensor:
        return F.pad(maps[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))


# --------------------------------------------------------------------------------------------------------------- blocks


class Basic(nn.Module):
    """Two 3×3 convolutions: ReLU(shortcut + residual).

    survival  probability that the residual is used in training (stochastic depth), drawn once per batch from torch's
              generator; in evaluation the residual is multiplied by it
    """

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int, shortcut: Shortcut, survival: float = 1.0) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(c_in, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width), nn.BatchNorm2d(width)
        self.shortcut = shortcut(c_in, width, stride)
        self.survival = survival

    def forward(self, maps: Tensor) -> Tensor:
        residual = F.relu(self.bn1(self.conv1(maps)))
        residual = self.bn2(self.conv2(residual))
        if self.survival < 1:
            # Multiplied, not skipped: a branch would make the GPU wait and could not be compiled.
            survives = torch.rand((), device=maps.device) < self.survival
            residual = residual * (survives if self.training else self.survival)
        return F.relu(self.shortcut(maps) + residual)


class Bottleneck(nn.Module):
    """1×1 to fewer channels, 3×3, 1×1 back to more; the 3×3 convolution has the stride, as is usual today."""

    expansion = 4

    def __init__(self, c_in: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        c_out = width * self.expansion
        self.conv1, self.bn1 = conv(c_in, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, c_out, 1), nn.BatchNorm2d(c_out)
        self.shortcut = shortcut(c_in, c_out, stride)

    def forward(self, maps: Tensor) -> Tensor:
        residual = F.relu(self.bn1(self.conv1(maps)))
        residual = F.relu(self.bn2(self.conv2(residual)))
        return F.relu(self.shortcut(maps) + self.bn3(self.conv3(residual)))


def stages(c_in: int, depths: Sequence[int], widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Channels in, channels out and stride of each block: `depths` blocks of each width, which halves the size.

    >>> list(stages(16, (2, 1), (16, 32)))
    [(16, 16, 1), (16, 16, 1), (16, 32, 2)]
    """
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for place in range(depth):
            yield c_in, width, 2 if stage > 0 and place == 0 else 1
            c_in = width


# ------------------------------------------------------------------------------------------ wide ones, with four stages


def _imagenet_style(shape: Shape, block: type[Basic] | type[Bottleneck], depths: Sequence[int]) -> Network:
    """64-128-256-512 channels; how it begins and ends depends on the size of the images.

    below 64 pixels  CIFAR: a 3×3 stem of stride 1, no max-pool, averaged to one pixel
    64 to 127        Tiny-ImageNet, as the focal_calibration program has it: the same stem, averaged to 2×2 pixels
    128 and more     ImageNet: a 7×7 stem of stride 2 and a max-pool, averaged to one pixel
    """
    if shape.image_size < 128:
        stem = nn.Sequential(conv(shape.channels, 64), nn.BatchNorm2d(64), nn.ReLU())
    else:
        stem = nn.Sequential(
            conv(shape.channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        )
    widths = [64, 128, 256, 512]
    blocks = [
        block(c_in if place == 0 else c_in * block.expansion, width, stride, projection)
        for place, (c_in, width, stride) in enumerate(stages(64, depths, widths))
    ]
    pool = 2 if 64 <= shape.image_size < 128 else 1
    return Network(shape, stem=stem, blocks=blocks, width=512 * block.expansion, pool=pool)


@architecture(paper=HE, millions=11.17)
def resnet18(shape: Shape) -> Network:
    """ResNet-18: basic blocks, 64 to 512 channels"""
    return _imagenet_style(shape, Basic, (2, 2, 2, 2))


@architecture(paper=HE, millions=21.28)
def resnet34(shape: Shape) -> Network:
    """ResNet-34: basic blocks, 64 to 512 channels"""
    return _imagenet_style(shape, Basic, (3, 4, 6, 3))


@architecture(paper=HE, millions=23.52)
def resnet50(shape: Shape) -> Network:
    """ResNet-50: bottlenecks, 256 to 2048 channels"""
    return _imagenet_style(shape, Bottleneck, (3, 4, 6, 3))


@architecture(paper=HE, millions=42.51)
def resnet101(shape: Shape) -> Network:
    """ResNet-101: bottlenecks, 256 to 2048 channels"""
    return _imagenet_style(shape, Bottleneck, (3, 4, 23, 3))


@architecture(
    paper="Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020 (their program)",
    millions=45.86,
)
def resnet110_bottleneck(shape: Shape) -> Network:
    """ResNet-110 of the focal-loss paper's program: bottlenecks, 256 to 2048 channels

    The program calls this ResNet-110. It is ResNet-101 with three more blocks in its third stage, and 26 times as large
    as the network of that name in He et al., which is `resnet110` here.
    """
    return _imagenet_style(shape, Bottleneck, (3, 4, 26, 3))


# ---------------------------------------------------------------------------------- narrow ones for CIFAR, three stages


def _cifar_style(
    shape: Shape,
    depths: Sequence[int],
    widths: Sequence[int],
    *,
    stem_width: int,
    shortcut: Shortcut,
    last_survival: float = 1.0,
) -> Network:
    """Basic blocks; the l-th of L survives with probability 1 − (1 − last_survival) l/L."""
    stem = nn.Sequential(conv(shape.channels, stem_width), nn.BatchNorm2d(stem_width), nn.ReLU())
    places = list(stages(stem_width, depths, widths))
    blocks = [
        Basic(*place, shortcut, survival=1 - (1 - last_survival) * number / len(places))
        for number, place in enumerate(places, 1)
    ]
    return Network(shape, stem=stem, blocks=blocks, width=widths[-1])


@architecture(paper=HE, millions=1.73)
def resnet110(shape: Shape) -> Network:
    """ResNet-110 for CIFAR: 54 basic blocks of 16, 32 and 64 channels

    Shortcuts without parameters, as in the paper.
    """
    return _cifar_style(shape, (18, 18, 18), (16, 32, 64), stem_width=16, shortcut=padding)


@architecture(paper="Huang et al., Deep networks with stochastic depth, ECCV 2016", millions=1.73)
def resnet110_sd(shape: Shape, *, survival: PositiveFraction = 0.5) -> Network:
    """ResNet-110 with stochastic depth: blocks are left out at random in training, late ones more often

    survival  probability that the last block is used in a batch; it falls linearly from 1 at the first block (eq. 4)

    A block that is left out still updates its BatchNorm statistics.
    """
    return _cifar_style(shape, (18, 18, 18), (16, 32, 64), stem_width=16, shortcut=padding, last_survival=survival)


@architecture(
    paper="Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020 (their program)",
    millions=36.48,
)
def wrn_26_10(shape: Shape) -> Network:
    """Wide ResNet-26-10 of the focal-loss paper's program: 12 basic blocks of 160, 320 and 640 channels

    As deep and as wide as `wrn-28-10`, which counts the convolutions of two shortcuts as layers; but BatchNorm and ReLU
    follow the convolutions, as in the first residual networks.
    """
    return _cifar_style(shape, (4, 4, 4), (160, 320, 640), stem_width=16, shortcut=projection)


@architecture(paper=HE, millions=0.02)
def small_resnet(shape: Shape, *, width: Count = 8) -> Network:
    """A residual network small enough for a test: 3 basic blocks of 8, 16 and 32 channels

    width  channels of the first block; the others have twice and four times as many
    """
    widths = (width, 2 * width, 4 * width)
    return _cifar_style(shape, (1, 1, 1), widths, stem_width=width, shortcut=projection)
