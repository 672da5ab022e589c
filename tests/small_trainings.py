"""Small networks and short trainings, for tests of the training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from temperance.training import Recipe
from temperance.training.networks import make_network

QUICK = Recipe(epochs=2, batch_size=40, lr=0.05, crop=1, flip=False)


def small_network(seed: int = 0, name: str = "small-cnn", **settings: Any) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return make_network(name, classes=10, image_size=8, channels=1, **settings)


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
