"""BalCAL as its paper trains it: a network with two classifiers, trained together from the beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.settings import Fraction, PositiveFraction, of_kind
from temperance.training.networks.base import Network, conv
from temperance.training.simplex import (
    balanced_share,
    class_scale,
    mean_confidence,
    mean_over_processes,
    simplex_frame,
)


class Balanced(nn.Module):
    """A network with a second, fixed classifier, and the mixture of both that is as confident as it is accurate.

    logits = λ z_lin + (1 − λ) z_etf: z_lin are the network's own logits; z_etf are the cosines of adapted features with
    the corners of a fixed simplex. The adaptor is a residual block of two convolutions on the last feature map, before
    its own BatchNorm, ReLU and pooling. The loss is λ loss(z_lin) + (1 − λ) loss(z_etf), with the columns of z_etf
    scaled by how frequent their classes are in the batch. After each epoch a bisection finds the λ at which the mean
    confidence of the epoch's training logits is acc_discount · accuracy; if z_lin alone is less confident, λ = 1.

    acc_discount  δ of the paper: the accuracy to expect on new images, as a share of that on training images
    share         λ in the first epoch

    In training mode it returns both kinds of logits, (2, n, k); in evaluation mode the mixture, (n, k).
    `Recipe(balance=δ)` trains one; the head "balcal" is the same idea on frozen features. It keeps an epoch's logits
    until its end: 8 bytes for each training image and class.

    Ni et al., Balancing two classifiers via a simplex ETF structure for model calibration, CVPR 2025.
    """

    simplex: Tensor
    mix: Tensor

    def __init__(self, network: Network, *, acc_discount: float = 0.95, share: float = 0.8) -> None:
        super().__init__()
        of_kind("acc_discount", acc_discount, PositiveFraction)
        of_kind("share", share, Fraction)
        d, k = network.n_features, network.classifier.out_features
        if d < k:
            raise InputError(f"balcal needs at least as many features as classes; {network.name} has {d} for {k}")
        self.network = network
        self.acc_discount = acc_discount
        channels = d // network.pool**2
        self.adaptor = Adaptor(channels, channels // 2)
        self.after = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())
        seed = int(torch.randint(1 << 62, ()))
        self.register_buffer("simplex", simplex_frame(d, k, torch.Generator().manual_seed(seed)))
        self.register_buffer("mix", torch.tensor(share))
        self._seen: list[Tensor] = []
        self._right: list[Tensor] = []

    @property
    def name(self) -> str:
        return f"balanced {self.network.name}"

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, height, width) → both logits (2, n, k), or in evaluation mode their mixture (n, k)."""
        maps = self.network.maps(images)
        linear = self.network.classifier(self.network.pooled(self.network.tail(maps)))
        adapted = self.network.pooled(self.after(self.adaptor(maps)))
        even = F.normalize(adapted, dim=1) @ self.simplex
        both = torch.stack([linear, even.to(linear.dtype)])
        return both if self.training else self.mixed(both)

    def mixed(self, both: Tensor) -> Tensor:
        """(2, n, k) → (n, k)"""
        return self.mix * both[0] + (1 - self.mix) * both[1]

    def value(self, both: Tensor, labels: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The value that a step minimises, and both logits as it sees them. (2, n, k) → (), (2, n, k)"""
        linear, even = both
        even = even * class_scale(labels, even.shape[1])
        return self.mix * loss(linear) + (1 - self.mix) * loss(even), torch.stack([linear, even])

    def remember(self, both: Tensor, labels: Tensor) -> Tensor:
        """Keep a batch's logits until the end of the epoch, and return their mixture. (2, n, k) → (n, k)"""
        logits = self.mixed(both)
        self._seen.append(both.float().clone())
        self._right.append(logits.argmax(1) == labels)
        return logits

    def end_epoch(self) -> dict[str, Any]:
        """Find the λ of the next epoch, and return the entries of this one in the log."""
        (linear, even), right = torch.cat(self._seen, 1), torch.cat(self._right)
        self._seen, self._right = [], []
        accuracy = mean_over_processes(float(right.sum()), len(right), right.device)
        used = float(self.mix)
        confidence = mean_confidence(torch.lerp(even, linear, used))
        self.mix.fill_(balanced_share(linear, even, self.acc_discount * accuracy))
        return {"share": used, "confidence": confidence}


class Adaptor(nn.Module):
    """A residual block of two 3×3 convolutions through fewer channels, each after BatchNorm and ReLU."""

    def __init__(self, channels: int, fewer: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            conv(channels, fewer),
            nn.BatchNorm2d(fewer),
            nn.ReLU(),
            conv(fewer, channels),
        )
        for module in self.residual:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, maps: Tensor) -> Tensor:
        found: Tensor = maps + self.residual(maps)
        return found


def balanced(network: nn.Module, acc_discount: float) -> Balanced:
    """The network with a second classifier, unless it already has one; its weights come from torch's generator."""
    if isinstance(network, Balanced):
        return network
    if not isinstance(network, Network):
        raise InputError(
            f"balance needs a network of temperance, with feature maps for a second classifier; this is a "
            f"{type(network).__name__}: use make_network, or train the head balcal on its features"
        )
    return Balanced(network, acc_discount=acc_discount)
