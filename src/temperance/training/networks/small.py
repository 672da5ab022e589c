"""A network for tests and first experiments."""

from __future__ import annotations

from torch import nn

from temperance.training.networks.base import Network, Shape, architecture


@architecture(
    paper="LeCun et al., Gradient-based learning applied to document recognition, Proceedings of the IEEE 1998",
    millions=0.02,
)
def small_cnn(shape: Shape) -> Network:
    """A plain network small enough for a test: 3 convolutions of 16, 32 and 64 channels, no BatchNorm

    Images are processed independently, so several processes with a part of the batch each do exactly what one does.
    """

    def layer(c_in: int, c_out: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride, padding=1), nn.ReLU())

    blocks = [layer(16, 32, 2), layer(32, 64, 2)]
    return Network(shape, stem=layer(shape.channels, 16, 1), blocks=blocks, width=64)
