"""Residual networks that normalise before they convolve, narrow and wide."""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from temperance.settings import Bounds
from temperance.training.networks.base import Network, Shape, architecture, conv
from temperance.training.networks.resnet import stages

WIDE = "Zagoruyko and Komodakis, Wide residual networks, BMVC 2016"

Dropout = Annotated[float, Bounds(0, 1, below=True)]


class Block(nn.Module):
    """Twice BatchNorm, ReLU and a 3×3 convolution, added to the block's input.

    Where the shape changes, the shortcut is a 1×1 convolution of the first ReLU's output.
    """

    def __init__(self, c_in: int, c_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(c_in), conv(c_in, c_out, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(c_out), conv(c_out, c_out)
        self.shortcut = None if stride == 1 and c_in == c_out else conv(c_in, c_out, 1, stride)
        self.dropout = dropout

    def forward(self, maps: Tensor) -> Tensor:
        active = F.relu(self.bn1(maps))
        residual: Tensor = F.relu(self.bn2(self.conv1(active)))
        if self.dropout > 0:
            residual = F.dropout(residual, self.dropout, self.training)
        residual = self.conv2(residual)
        return residual + (maps if self.shortcut is None else self.shortcut(active))


def _network(shape: Shape, depth: int, factor: int, dropout: float = 0.0) -> Network:
    """`depth` blocks in each of three stages, of 16, 32 and 64 channels times `factor`."""
    widths = [16 * factor, 32 * factor, 64 * factor]
    return Network(
        shape,
        stem=conv(shape.channels, 16),
        blocks=[Block(*place, dropout) for place in stages(16, (depth, depth, depth), widths)],
        tail=nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU()),
        width=widths[-1],
    )


@architecture(paper="He et al., Identity mappings in deep residual networks, ECCV 2016", millions=0.86)
def preresnet56(shape: Shape) -> Network:
    """Pre-activation ResNet-56: 27 basic blocks of 16, 32 and 64 channels"""
    return _network(shape, 9, 1)


@architecture(paper=WIDE, millions=36.48)
def wrn_28_10(shape: Shape, *, dropout: Dropout = 0.0) -> Network:
    """Wide ResNet-28-10: 12 pre-activation blocks of 160, 320 and 640 channels

    dropout  between the convolutions of a block; the paper also trains with 0.3
    """
    return _network(shape, 4, 10, dropout)


@architecture(paper=WIDE, millions=46.16)
def wrn_32_10(shape: Shape, *, dropout: Dropout = 0.0) -> Network:
    """Wide ResNet-32-10: 15 pre-activation blocks of 160, 320 and 640 channels

    The WRN-32 of published logit collections; counted with its shortcuts, as `wrn-28-10` is, it has 34 layers.

    dropout  between the convolutions of a block
    """
    return _network(shape, 5, 10, dropout)
