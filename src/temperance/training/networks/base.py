"""Networks: a stem, blocks and pooling turn images into features, a linear classifier turns these into logits.

An architecture is a function, registered with `@architecture` under its name; the command line shows the first line of
its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from temperance.arrays import shape_of
from temperance.errors import InputError
from temperance.registry import Registry, first_line, parse_entry, plain_name
from temperance.settings import AtLeastTwo, Bounds, Count, Setting, check_settings, defaults_of, settings_of


class Shape(NamedTuple):
    """The images and classes a network is made for."""

    classes: int
    image_size: int
    channels: int


class Network(nn.Module):
    """A classifier of images: `forward` is `classifier(features(images))`.

    stem     turns images into the first feature maps
    blocks   follow in sequence
    tail     follows the last block and returns `width` channels
    pool     the feature maps are averaged to pool × pool pixels; their flattened values are the features

    It also takes images of other sizes than it was made for. Convolutions are initialised with normal values of
    variance 2 / (kernel² · channels out) (He et al., ICCV 2015), BatchNorm with 1 and 0, the classifier as in torch.
    """

    # `make_network(network.name, **network.settings)` makes another one.
    name: str
    settings: dict[str, Any]

    def __init__(
        self,
        shape: Shape,
        *,
        stem: nn.Module,
        blocks: Iterable[nn.Module],
        tail: nn.Module | None = None,
        width: int,
        pool: int = 1,
    ) -> None:
        super().__init__()
        self.channels = shape.channels
        self.pool = pool
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.tail = nn.Identity() if tail is None else tail
        self.classifier = nn.Linear(width * pool**2, shape.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @property
    def n_features(self) -> int:
        return self.classifier.in_features

    def features(self, images: Tensor) -> Tensor:
        """The input of the classifier. (n, channels, height, width) → (n, n_features)"""
        return self.pooled(self.tail(self.maps(images)))

    def maps(self, images: Tensor) -> Tensor:
        """The feature maps of the last block, with fewer pixels. (n, channels, height, width) → (n, c, h, w)"""
        if images.ndim != 4 or images.shape[1] != self.channels or not images.is_floating_point():
            raise InputError(
                f"images must be normalised numbers (n, {self.channels}, height, width); got {images.dtype} "
                f"{shape_of(images)}"
            )
        found: Tensor = self.blocks(self.stem(images))
        return found

    def pooled(self, maps: Tensor) -> Tensor:
        """Feature maps averaged to features. (n, c, h, w) → (n, n_features)"""
        if self.pool == 1:
            return maps.mean((2, 3))
        height, width = maps.shape[2:]
        if height % self.pool or width % self.pool:
            return F.adaptive_avg_pool2d(maps, self.pool).flatten(1)
        # The same values, but with a deterministic gradient on a GPU.
        return F.avg_pool2d(maps, (height // self.pool, width // self.pool)).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits. (n, channels, height, width) → (n, classes)"""
        logits: Tensor = self.classifier(self.features(images))
        return logits

    def groups(self) -> list[nn.Module]:
        """The parts with weights, from the images to the logits: the stem, each block, the tail, the classifier."""
        parts = [self.stem, *self.blocks, self.tail, self.classifier]
        return [part for part in parts if any(True for _ in part.parameters())]


# ----------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Architecture:
    """A registered kind of network."""

    name: str
    summary: str
    paper: str
    millions: float
    build: Callable[..., Network]

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Its settings: their allowed values, defaults and purposes."""
        return settings_of(self.build)

    @property
    def claims(self) -> dict[str, Any]:
        """What the registry says about it; the contract tests check it."""
        return {"paper": self.paper, "millions": self.millions}


NETWORKS: Registry[Architecture] = Registry("network")

Build = Callable[..., Network]


def architecture(*, paper: str, millions: float) -> Callable[[Build], Build]:
    """Register a function of a `Shape`, and of settings by name, that builds a network.

    paper     where it comes from
    millions  of parameters, to two decimals, for ten classes of 32×32 colour images
    """

    def register(build: Build) -> Build:
        name = plain_name(build.__name__)
        NETWORKS.add(name, Architecture(name, first_line(build.__doc__), paper, millions, build))
        return build

    return register


def make_network(
    name: str,
    *,
    classes: AtLeastTwo,
    image_size: Annotated[int, Bounds(8)] = 32,
    channels: Count = 3,
    **settings: Any,
) -> Network:
    """The network of this name, which may carry settings; torch's global generator draws its weights.

    classes     number of classes
    image_size  height and width that it is made for
    channels    3 for colour images, 1 for greyscale ones

    >>> make_network("resnet18", classes=100).n_features
    512
    """
    name, written = parse_entry(name)
    kind, settings = NETWORKS[name], {**written, **settings}
    made_for = {"classes": classes, "image_size": image_size, "channels": channels}
    check_settings(name, {**settings_of(make_network), **kind.settings}, {**made_for, **settings})
    network = kind.build(Shape(**made_for), **settings)
    network.name = name
    network.settings = {**made_for, **defaults_of(kind.build), **settings}
    return network


def conv(c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps or halves the size of the maps, without a bias: the adjacent BatchNorm has one."""
    return nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False)
