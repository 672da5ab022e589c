"""BalCAL as a head: a trained classifier and a fixed one, mixed so that confidence matches accuracy."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.heads.base import Head, TrainingSettings, head
from temperance.heads.features import Features
from temperance.heads.loop import FeatureBatch, empty_layer
from temperance.losses import Loss
from temperance.settings import Count, Fraction, PositiveFraction
from temperance.training.simplex import balanced_share, class_scale, mean_confidence, simplex_frame


@head(
    name="balcal",
    paper="Ni et al., Balancing two classifiers via a simplex ETF structure for model calibration, CVPR 2025",
    needs_wide_features=True,
)
class BalCAL(Head):
    """BalCAL: a linear classifier and a fixed simplex, whose mixture is as confident as it is accurate.

    logits = λ z_lin + (1 − λ) z_etf: z_lin is a linear classifier of the features f; z_etf are the cosines of adapted
    features g with the corners of a simplex, (g / ‖g‖) √(k/(k−1)) U (I − 11ᵀ/k), where U has k orthonormal columns,
    drawn once and never trained. The loss is λ loss(z_lin) + (1 − λ) loss(z_etf), where the columns of z_etf are scaled
    by √((batch size / classes in the batch) / count of the class). After each epoch a bisection finds the λ at which
    the mean confidence of the epoch's training logits equals acc_discount · accuracy; if the linear classifier alone is
    less confident, λ = 1.

    acc_discount  δ of the paper: the accuracy to expect on new data, as a share of that in training
    share         λ, the linear classifier's share of the mixture, in the first epoch
    width         hidden units of the adaptor; "auto": features // 4

    In the paper the whole network is trained with both classifiers, and the adaptor is a block of two convolutions
    before the pooling: `temperance train --balance 0.95` does that. On pooled features the adaptor is a residual
    bottleneck, g = f + B relu(A relu(f)).
    """

    simplex: Tensor
    mix: Tensor

    def __init__(
        self,
        *,
        acc_discount: PositiveFraction = 0.95,
        share: Fraction = 0.8,
        width: Count | Literal["auto"] = "auto",
        **training: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(**training)
        self.acc_discount = acc_discount
        self.share = share
        self.width = width

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
        super()._begin(features, generator)
        self.simplex.copy_(simplex_frame(features.d, features.k, generator))
        self.mix.fill_(self.share)
        n, k = len(features.train), features.k
        # The epoch's training logits, of the linear classifier and of the simplex.
        self._seen = torch.empty(2, n, k, device=features.device)

    def _objective(self, batch: FeatureBatch, loss: Loss, generator: torch.Generator) -> tuple[Tensor, Tensor]:
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
