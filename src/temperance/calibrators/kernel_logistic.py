"""Calibration by a smooth nonlinear function of all logits."""

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear

from temperance.calibrators._fit.inverse_temperature import caution_of, fit_inverse_temperature
from temperance.calibrators._fit.maps import Full
from temperance.calibrators._fit.regression import fit_map
from temperance.calibrators.base import Calibrator, Shared, calibrator
from temperance.calibrators.linear import ROUGHLY
from temperance.calibrators.ordered import centred
from temperance.calibrators.weights import weighed
from temperance.objectives import counting
from temperance.settings import Count, Positive, Seed


@calibrator(family="linear", preserves_argmax=False, takes_weights=True, scale_free=True, most_classes=1000)
class KernelLogistic(Calibrator):
    """Kernel logistic regression on the logits: learns corrections that no linear map of them can make.

    p = softmax(u + W φ(u) + b), u the temperature-scaled logits, φ(u) = [u, cos(Ω u + β)]: `features` random waves of
    the standardised logits, whose sums approximate functions smooth on the scale 1 / `scale` (Rahimi and Recht, 2007).
    The penalty (`ridge` · k / n) ‖W‖² + ‖b‖² / n shrinks it towards temperature scaling. It helps where two classes are
    confused in ways that depend on the other classes (language models over answer options). On its own it overfits
    where there is nothing to learn; `auto` weighs it against other methods. The waves are drawn with `seed` and stored.

    features  number of random waves
    scale     how fast the waves vary; larger follows finer detail
    ridge     strength of the penalty
    seed      for drawing the waves
    """

    inverse_temperature: Tensor
    spread: Tensor
    centre: Tensor
    waves: Tensor
    phases: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        *,
        features: Count = 200,
        scale: Positive = 1.0,
        ridge: Positive = 0.5,
        seed: Seed = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        self.features = features
        self.scale = scale
        self.ridge = ridge
        self.seed = seed

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        objective, k = counting("nll", weights), logits.shape[1]
        n = objective.n_samples(labels)
        inverse, record = fit_inverse_temperature(objective, logits, labels)
        self._keep("inverse_temperature", logits.new_tensor(inverse))
        scaled = self._scaled(logits)
        self._keep("centre", weighed(scaled, weights).mean(0))
        self._keep("spread", weighed((scaled - self.centre).square(), weights).mean().sqrt().clamp_min(1e-9))
        generator = torch.Generator().manual_seed(self.seed)
        waves = torch.randn(self.features, k, generator=generator, dtype=torch.float64) * self.scale / math.sqrt(k)
        phases = 2 * math.pi * torch.rand(self.features, generator=generator, dtype=torch.float64)
        self._keep("waves", waves.to(logits.device))
        self._keep("phases", phases.to(logits.device))

        x = self._described(scaled)
        identity = torch.zeros(k, x.shape[1] + 1, dtype=torch.float64, device=logits.device)
        identity[:, :k] = torch.eye(k, dtype=torch.float64, device=logits.device) * self.spread
        identity[:, -1] = self.centre
        penalty = torch.full_like(identity, self.ridge * k / n)
        penalty[:, -1] = 1 / n
        found = fit_map(Full(), x, labels, objective, penalty=penalty, centre=identity, tolerance=ROUGHLY)
        self.info = found.info | {"temperature": 1 / inverse} | caution_of(record)
        self._keep("weight", found.parameters[:, :-1])
        self._keep("bias", found.parameters[:, -1])

    def _scaled(self, logits: Tensor) -> Tensor:
        """Temperature-scaled logits whose rows have mean 0: a constant added to a row changes nothing."""
        return centred(logits) * self.inverse_temperature

    def _described(self, scaled: Tensor) -> Tensor:
        standard = (scaled - self.centre) / self.spread
        return torch.cat([standard, torch.cos(linear(standard, self.waves, self.phases))], 1)

    def _calibrate(self, logits: Tensor) -> Tensor:
        return linear(self._described(self._scaled(logits)), self.weight, self.bias).log_softmax(1)
