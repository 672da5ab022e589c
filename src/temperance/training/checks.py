"""Checks before training: that network, data, loss and recipe fit together, and that a checkpoint is of this run."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from temperance.data import ImageData
from temperance.errors import InputError, plural
from temperance.losses import Loss
from temperance.losses.distributed import processes
from temperance.training.balanced import Balanced
from temperance.training.networks import Network
from temperance.training.prediction import device_of
from temperance.training.recipe import Recipe

FLAGS = {"batch_size": "--batch-size", "leave out mix": "leave out --mix", "balance compares": "--balance compares"}


def check_kinds(network: object, data: object, recipe: object) -> None:
    """Refuse what is not a network, images or a recipe, and say how to make one."""
    for name, value, kind, what in (
        ("network", network, nn.Module, "a module, such as make_network('resnet18', classes=10)"),
        ("data", data, ImageData, "images, as read_images(...) returns them"),
        ("recipe", recipe, Recipe, "a recipe, such as Recipe.of('cifar')"),
    ):
        if not isinstance(value, kind):
            raise InputError(f"{name} must be {what}; got {value!r}")


def check_together(network: nn.Module, data: ImageData, loss: Loss, recipe: Recipe) -> None:
    """Refuse incompatible combinations before training starts."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise InputError("the network has no parameters to train")
    n, size = len(data.train), recipe.batch_size
    if n < size:
        raise InputError(f"batch_size {size} exceeds the {plural(n, 'training image')}: lower it", flags=FLAGS)
    if size % processes():
        raise InputError(f"batch_size {size} cannot be divided evenly among {processes()} processes", flags=FLAGS)
    if recipe.mix is not None and loss.learns_from == "training":
        raise InputError(
            f"{loss.name} learns from predictions on training images, not on mixtures: leave out mix", flags=FLAGS
        )
    if recipe.mix is not None and recipe.balance is not None:
        raise InputError(
            "balance compares confidence with accuracy on training images, not on mixtures: leave out mix", flags=FLAGS
        )
    height, width, channels = data.train.shape
    with torch.no_grad():
        was_training = network.training
        network.eval()
        example = torch.zeros(2, channels, height, width, device=device_of(network))
        try:
            logits = network(example)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"the network cannot take images of {height}×{width} pixels and {channels} channels: {reason}"
            ) from error
        finally:
            network.train(was_training)
    if not isinstance(logits, Tensor) or logits.shape != (2, data.k):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"the network must return logits (n, {data.k}) for the {data.k} classes of {data.name}; for two images it "
            f"returns {found}"
        )


def configuration_of(network: nn.Module, data: ImageData, loss: Loss, recipe: Recipe) -> dict[str, Any]:
    """What identifies a run; a checkpoint of another run is refused."""
    shapes = [(name, tuple(tensor.shape)) for name, tensor in network.state_dict().items()]
    parameters = sum(parameter.numel() for parameter in network.parameters())
    kind = network.name if isinstance(network, Network | Balanced) else type(network).__name__
    inner = network.network if isinstance(network, Balanced) else network
    labels = [np.asarray(part.labels.cpu()).tobytes() for part in (data.train, data.val, data.test)]
    height, width, channels = data.train.shape
    pixels = ", ".join(f"{mean:.6f} ± {std:.6f}" for mean, std in zip(data.mean, data.std, strict=True))
    weight = None if loss.weight is None else loss.weight.tolist()
    return {
        "network": f"{kind} of {parameters:,} parameters ({_digest(repr(shapes).encode())})",
        "data": f"{data.name}, {len(data.train)} + {len(data.val)} + {len(data.test)} images ({_digest(*labels)})",
        "images": f"{height}×{width} pixels and {plural(channels, 'channel')} of {pixels}",
        "loss": " ".join(repr(loss).split()),
        "class_weights": None if weight is None else f"{len(weight)} numbers ({_digest(repr(weight).encode())})",
        "network_settings": inner.settings if isinstance(inner, Network) else {},
        **asdict(recipe),
    }


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:12]
