"""Two-stage training: a deeper head on frozen features (TST), and one with a random latent layer (VTST)."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.heads.base import Head, TrainingSettings, head
from temperance.heads.features import Features
from temperance.heads.loop import FeatureBatch, empty_layer, measured, on_val
from temperance.losses import Loss
from temperance.settings import Count

JORDAHN = "Jordahn and Olmos, Decoupling feature extraction and classification layers, ICML 2024"

Keep = Literal["best", "last"]

# The settings of their program; the presets also have those used in the MaC-Cal paper's comparison.
RELEASED: TrainingSettings = {
    "optimiser": "adam",
    "lr": 1e-4,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch_size": 256,
}
PRESETS = {
    "released": dict(RELEASED),
    "mac-cal-paper": {"optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 128},
}


class _TwoStage(Head):
    """Shared by TST and VTST: the layers d → 3 Z → Z → k, from the epoch with the lowest validation NLL."""

    other_defaults = RELEASED

    def __init__(self, *, latent: Count = 256, keep: Keep = "best", **training: Unpack[TrainingSettings]) -> None:
        super().__init__(**(RELEASED | training))
        self.latent = latent
        self.keep = keep

    def _needs_val(self) -> str:
        return "keep='best'" if self.keep == "best" else ""

    def _build(self, d: int, k: int) -> None:
        self.mean = _bottleneck(d, self.latent)
        self.last = empty_layer(self.latent, k)

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        super()._begin(features, generator)
        self._best: dict[str, Tensor] = {}
        self._best_nll = math.inf

    def _end_epoch(self, epoch: int, features: Features, generator: torch.Generator) -> dict[str, Any]:
        if features.val is None:
            return {}
        found = measured(self._deployed, features.val)
        if self.keep == "best" and found.nll < self._best_nll:
            self._best_nll = found.nll
            self._best = {name: tensor.clone() for name, tensor in self.state_dict().items()}
            self.info = {"best_epoch": epoch, "val_nll": found.nll}
        return on_val(found)

    def _finish(self, features: Features, generator: torch.Generator) -> None:
        if self._best:
            self.load_state_dict(self._best)
            self._best = {}


@head(name="tst", paper=JORDAHN, needs_val=True, presets=PRESETS)
class TST(_TwoStage):
    """Two-stage training: three fresh layers on frozen features, from the epoch with the lowest validation loss.

    Linear(d, 3 Z), ReLU, Linear(3 Z, Z), Linear(Z, k); Z is `latent`.

    latent  Z, units of the latent layer
    keep    "best": the epoch with the lowest validation NLL, as in the program; or "last"

    By default it trains as the released program does (Adam 1e-4, batches of 256); the MaC-Cal paper's comparison uses
    SGD 0.1 (preset "mac-cal-paper"). The program leaves the frozen body's BatchNorm in training mode; here features are
    extracted in evaluation mode.
    """

    def _deployed(self, features: Tensor) -> Tensor:
        logits: Tensor = self.last(self.mean(features))
        return logits


@head(name="vtst", paper=JORDAHN, needs_val=True, gives_log_probs=True, presets=PRESETS)
class VTST(_TwoStage):
    """Variational two-stage training: TST with a random latent layer, whose predictions are averaged.

    z = μ + exp(½ log σ²) ε with ε standard normal, μ as in TST and log σ² = logsigmoid(Linear(3 Z, Z) ReLU
    Linear(d, 3 Z)), so that σ² < 1; the loss is loss(logits) + KL / Z, KL = −½ Σ (1 + log σ² − μ² − σ²), averaged over
    the batch. Predictions are the mean probabilities over `n_draws` draws of ε, made once and saved with the head, so
    that they never change.

    latent   Z, units of the latent layer
    n_draws  random draws of the latent layer that predictions average over
    keep     "best": the epoch with the lowest validation NLL, as in the program; or "last"

    It trains as TST does.
    """

    noise: Tensor

    def __init__(
        self, *, latent: Count = 256, n_draws: Count = 10, keep: Keep = "best", **training: Unpack[TrainingSettings]
    ) -> None:
        super().__init__(latent=latent, keep=keep, **training)
        self.n_draws = n_draws

    def _build(self, d: int, k: int) -> None:
        super()._build(d, k)
        self.spread = _bottleneck(d, self.latent)
        self.register_buffer("noise", torch.empty(self.n_draws, self.latent))

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        super()._begin(features, generator)
        self.noise.copy_(torch.randn(self.noise.shape, generator=generator))

    def _objective(self, batch: FeatureBatch, loss: Loss, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        mean, log_variance = self._middle(batch.features)
        noise = torch.empty_like(mean).normal_(generator=generator)
        logits = self.last(mean + (log_variance / 2).exp() * noise)
        # The mean over the batch and over the Z latent units: KL / Z.
        penalty = kl_to_standard(mean, log_variance).mean()
        return loss(logits, batch.labels, batch.indices) + penalty, logits

    def _deployed(self, features: Tensor) -> Tensor:
        mean, log_variance = self._middle(features)
        spread = (log_variance / 2).exp()
        draws = [self.last(torch.addcmul(mean, spread, noise)).log_softmax(1) for noise in self.noise]
        return torch.stack(draws).logsumexp(0) - math.log(len(draws))

    def _middle(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(features), F.logsigmoid(self.spread(features))


def kl_to_standard(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The KL divergence of each normal distribution from the standard one: −½ (1 + log σ² − μ² − σ²)."""
    return -(1 + log_variance - mean.square() - log_variance.exp()) / 2


def _bottleneck(d: int, latent: int) -> nn.Sequential:
    return nn.Sequential(empty_layer(d, 3 * latent), nn.ReLU(), empty_layer(3 * latent, latent))
