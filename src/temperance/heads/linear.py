"""Plain retraining of a linear classifier: the baseline for every other head."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.heads.base import Head, TrainingSettings, head
from temperance.heads.features import Features
from temperance.heads.loop import empty_layer

# Where a linear classifier may start.
Start = Literal["random", "classifier"]


@head(name="linear", paper="the second stage of Kang et al., Decoupling representation and classifier, ICLR 2020")
class LinearHead(Head):
    """A linear classifier, retrained.

    start  "random", or "classifier": the network's own

    A classifier trained on the features of the network's own training set soon becomes over-confident. With a random
    start, 40 epochs and cross-entropy it ends up about as over-confident as the network was.
    """

    def __init__(self, *, start: Start = "random", **training: Unpack[TrainingSettings]) -> None:
        super().__init__(**training)
        self.start = start

    def _check_features(self, features: Features) -> None:
        check_start(self.start, features)

    def _build(self, d: int, k: int) -> None:
        self.layer = empty_layer(d, k)

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        super()._begin(features, generator)
        if self.start == "classifier" and features.classifier is not None:
            weight, bias = features.classifier
            self.layer.weight.copy_(weight)
            self.layer.bias.copy_(bias)

    def _deployed(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layer(features)
        return logits


def check_start(start: str, features: Features) -> None:
    """Refuse to start from a classifier that the features do not have."""
    if start == "classifier" and features.classifier is None:
        raise InputError(
            "start='classifier' needs the network's classifier: pass classifier_weight and classifier_bias"
        )
