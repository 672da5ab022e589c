"""BalCAL: a trained classifier and a fixed, even one, mixed so that confidence is what accuracy deserves."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.errors import InputError, at_least, number, positive_fraction
from temperance.heads.base import Head, TrainingSettings, head
from temperance.heads.features import Features
from temperance.heads.loop import Batch, empty_layer, start_layer
from temperance.losses import Loss

# Bisection ends when the share is known this closely.
TOLERANCE = 1e-4


@head(
    name="balcal",
    paper="Ni et al., Balancing two classifiers via a simplex ETF structure for model calibration, CVPR 2025",
    needs_wide_features=True,
)
class BalCAL(Head):
    """BalCAL: a linear classifier and a fixed simplex, whose mixture is as confident as it is accurate.

    logits = λ z_lin + (1 − λ) z_etf: z_lin is a linear classifier of the features f; z_etf are the cosines of adapted
    features with the corners of a simplex, (g / ‖g‖) √(k/(k−1)) U (I − 11ᵀ/k), where U has k orthonormal columns and
    stays as it was drawn. The loss is λ loss(z_lin) + (1 − λ) loss(z_etf), in which the columns of z_etf are scaled by
    √((batch / classes in it) / count of the class). After each epoch λ is found by bisection so that the mean
    confidence of its training logits equals acc_discount · accuracy; where the linear classifier is less sure, λ = 1.

    acc_discount  δ of the paper: how much less accurate than in training the head will be
    share         λ at first
    width         hidden units of the adaptor; "auto": features // 4

    In the paper the adaptor is a residual block of two convolutions before the pooling. On pooled features it is here a
    residual bottleneck, g = f + B relu(A relu(f)).
    """

    simplex: Tensor
    mix: Tensor

    def __init__(
        self,
        *,
        acc_discount: float = 0.95,
        share: float = 0.8,
        width: int | str = "auto",
        **training: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(**training)
        self.acc_discount = acc_discount
        self.share = share
        self.width = width

    def _check_settings(self) -> None:
        positive_fraction("acc_discount", self.acc_discount)
        number("share", self.share, 0, 1)
        if self.width != "auto":
            at_least("width", self.width, 1)

    def _check_features(self, features: Features) -> None:
        if features.k < 2:
            raise InputError("balcal needs at least two classes; the labels are all 0")

    def _build(self, d: int, k: int) -> None:
        width = max(1, d // 4) if self.width == "auto" else int(self.width)
        self.linear = empty_layer(d, k)
        self.adaptor = nn.Sequential(nn.ReLU(), empty_layer(d, width), nn.ReLU(), empty_layer(width, d))
        self.register_buffer("simplex", torch.empty(d, k))
        self.register_buffer("mix", torch.empty(()))

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                start_layer(module, generator)
        self.simplex.copy_(simplex_frame(features.d, features.k, generator))
        self.mix.fill_(self.share)
        n, k = len(features.train), features.k
        # The logits of an epoch as they were when they were trained on: of the linear classifier, of the simplex.
        self._seen = torch.empty(2, n, k, device=features.device)

    def _objective(self, batch: Batch, loss: Loss, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        linear, even = self._both(batch.features)
        even = even * class_scale(batch.labels, even.shape[1])
        mix = self.mix
        with torch.no_grad():
            self._seen[:, batch.indices] = torch.stack([linear, even])
        value = mix * loss(linear, batch.labels, batch.indices)
        value = value + (1 - mix) * loss(even, batch.labels, batch.indices)
        return value, mix * linear + (1 - mix) * even

    def _end_epoch(self, epoch: int, features: Features, generator: torch.Generator) -> dict[str, Any]:
        used = float(self.mix)
        linear, even = self._seen
        logits = used * linear + (1 - used) * even
        accuracy = float((logits.argmax(1) == features.train.labels).double().mean())
        found = balanced_share(linear, even, self.acc_discount * accuracy)
        self.mix.fill_(found)
        self.info = {"share": found}
        return {"accuracy": accuracy, "confidence": mean_confidence(logits), "share": used}

    def _finish(self, features: Features, generator: torch.Generator) -> None:
        self._seen = self.mix.new_empty(0)

    def _deployed(self, features: Tensor) -> Tensor:
        linear, even = self._both(features)
        return self.mix * linear + (1 - self.mix) * even

    def _both(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the linear classifier and of the simplex."""
        adapted = features + self.adaptor(features)
        even: Tensor = F.normalize(adapted, dim=1) @ self.simplex
        return self.linear(features), even


def simplex_frame(d: int, k: int, generator: torch.Generator) -> Tensor:
    """k unit vectors of d numbers with the same angle between any two, as columns, turned at random. (d, k)

    >>> frame = simplex_frame(5, 3, torch.Generator().manual_seed(0))
    >>> (frame.T @ frame).round(decimals=4).abs()
    tensor([[1.0000, 0.5000, 0.5000],
            [0.5000, 1.0000, 0.5000],
            [0.5000, 0.5000, 1.0000]])
    """
    turned: Tensor = torch.linalg.qr(torch.randn(d, k, generator=generator, dtype=torch.float64))[0]
    return (math.sqrt(k / (k - 1)) * (turned - turned.mean(1, keepdim=True))).float()


def class_scale(labels: Tensor, k: int) -> Tensor:
    """What the logit of a class is scaled by in a batch: √((batch / classes in it) / count), 1 if absent. (k,)"""
    # Not `bincount`, for whose result a GPU makes the program wait.
    counts = torch.zeros(k, device=labels.device).index_add_(0, labels, torch.ones(len(labels), device=labels.device))
    present = (counts > 0).sum()
    return torch.where(counts > 0, (len(labels) / present / counts.clamp_min(1)).sqrt(), 1.0)


def balanced_share(linear: Tensor, even: Tensor, confidence: float) -> float:
    """The share λ at which λ · linear + (1 − λ) · even has this mean confidence; 1 where linear has less.

    >>> linear, even = torch.tensor([[4.0, 0.0], [0.0, 4.0]]), torch.eye(2)
    >>> round(balanced_share(linear, even, 0.9), 3)
    0.399
    """
    if mean_confidence(linear) <= confidence:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        if mean_confidence(torch.lerp(even, linear, middle)) > confidence:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def mean_confidence(logits: Tensor) -> float:
    """The mean of the largest probability."""
    total = sum(float(rows.log_softmax(1).amax(1).double().exp().sum()) for rows in torch.split(logits, 1 << 14))
    return total / len(logits)
