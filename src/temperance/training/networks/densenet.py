"""Densely connected networks: every layer sees the maps of all layers before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.training.networks.base import Network, Shape, architecture, conv

HUANG = "Huang et al., Densely connected convolutional networks, CVPR 2017"


class DenseLayer(nn.Module):
    """Appends `growth` maps to its input; a bottleneck first reduces the input to 4 · growth maps."""

    def __init__(self, c_in: int, growth: int, *, bottleneck: bool) -> None:
        super().__init__()
        c_mid = 4 * growth if bottleneck else c_in
        self.squeeze = nn.Sequential(nn.BatchNorm2d(c_in), nn.ReLU(), conv(c_in, c_mid, 1)) if bottleneck else None
        self.bn, self.conv = nn.BatchNorm2d(c_mid), conv(c_mid, growth)

    def forward(self, maps: Tensor) -> Tensor:
        squeezed = maps if self.squeeze is None else self.squeeze(maps)
        return torch.cat([maps, self.conv(F.relu(self.bn(squeezed)))], 1)


def _transition(c_in: int, c_out: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(c_in), nn.ReLU(), conv(c_in, c_out, 1), nn.AvgPool2d(2))


def _network(
    shape: Shape, depths: Sequence[int], growth: int, *, stem_width: int, bottleneck: bool, kept: float
) -> Network:
    """`depths` layers in each dense block; the transition between two blocks keeps a share of the maps."""
    c = stem_width
    blocks: list[nn.Module] = []
    for number, depth in enumerate(depths):
        if number > 0:
            blocks.append(_transition(c, int(c * kept)))
            c = int(c * kept)
        for _ in range(depth):
            blocks.append(DenseLayer(c, growth, bottleneck=bottleneck))
            c += growth
    tail = nn.Sequential(nn.BatchNorm2d(c), nn.ReLU())
    return Network(shape, stem=conv(shape.channels, stem_width), blocks=blocks, tail=tail, width=c)


@architecture(paper=HUANG, millions=1.02)
def densenet40(shape: Shape) -> Network:
    """DenseNet-40: 3 dense blocks of 12 layers, growth 12, no bottlenecks"""
    return _network(shape, (12, 12, 12), 12, stem_width=16, bottleneck=False, kept=1.0)


@architecture(paper=HUANG, millions=6.96)
def densenet121(shape: Shape) -> Network:
    """DenseNet-121 for small images: 4 dense blocks, growth 32, bottlenecks

    A 3×3 stem of stride 1 and no max-pool, as in the focal_calibration program.
    """
    return _network(shape, (6, 12, 24, 16), 32, stem_width=64, bottleneck=True, kept=0.5)
