"""Calibration by a smooth nonlinear function of all logits."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from temperance.calibrators.base import Calibrator, calibrator
from temperance.calibrators.linear import positive
from temperance.calibrators.regression import Full, Regression
from temperance.calibrators.solvers import descend
from temperance.calibrators.temperature import fit_inverse_temperature
from temperance.errors import at_least
from temperance.objectives import Nll

MAX_STEPS = 200
STANDING_STILL = 1e-6  # relative to the value


@calibrator(family="linear", preserves_argmax=False)
class KernelLogistic(Calibrator):
    """Kernel logistic regression on the logits: learns corrections that no linear map of them can make.

    p = softmax(u + W φ(u) + b), u the temperature-scaled logits, φ(u) = [u, cos(Ω u + β)]: `features` random waves of
    the standardised logits, whose sums approximate functions smooth on the scale 1 / `scale` (Rahimi and Recht, 2007).
    The penalty (`ridge` · k / n) ‖W‖² + ‖b‖² / n pulls to temperature scaling. It helps where classes are confused in
    ways that depend on the others (language models over answer options) and, alone, overfits where there is nothing
    to learn; `auto` weighs it against the others. The waves are drawn from `seed` and kept with the fit.
    """

    inverse_temperature: Tensor
    spread: Tensor
    centre: Tensor
    waves: Tensor
    phases: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, *, features: int = 200, scale: float = 1.0, ridge: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.features = features
        self.scale = scale
        self.ridge = ridge
        self.seed = seed

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        at_least("features", self.features, 1)
        positive("scale", self.scale)
        positive("ridge", self.ridge)
        n, k = logits.shape
        inverse, _ = fit_inverse_temperature(Nll(), logits, labels)
        self._keep("inverse_temperature", logits.new_tensor(inverse))
        scaled = self._scaled(logits)
        self._keep("centre", scaled.mean(0))
        self._keep("spread", (scaled - self.centre).square().mean().sqrt().clamp_min(1e-9))
        generator = torch.Generator().manual_seed(self.seed)
        waves = torch.randn(self.features, k, generator=generator, dtype=torch.float64) * self.scale / math.sqrt(k)
        phases = 2 * math.pi * torch.rand(self.features, generator=generator, dtype=torch.float64)
        self._keep("waves", waves.to(logits.device))
        self._keep("phases", phases.to(logits.device))

        x = self._described(scaled)
        identity = torch.zeros(k, x.shape[1] + 1, dtype=torch.float64, device=logits.device)
        identity[:, :k] = torch.eye(k, dtype=torch.float64, device=logits.device) * self.spread
        identity[:, -1] = self.centre
        found, self.info = _fitted(x, labels, identity, self.ridge * k / n)
        self.info["temperature"] = 1 / inverse
        self._keep("weight", found[:, :-1])
        self._keep("bias", found[:, -1])

    def _scaled(self, logits: Tensor) -> Tensor:
        """Temperature-scaled logits whose rows have mean 0: what is common to all classes says nothing."""
        return (logits - logits.mean(1, keepdim=True)) * self.inverse_temperature

    def _described(self, scaled: Tensor) -> Tensor:
        standard = (scaled - self.centre) / self.spread
        return torch.cat([standard, torch.cos(linear(standard, self.waves, self.phases))], 1)

    def _calibrate(self, logits: Tensor) -> Tensor:
        return linear(self._described(self._scaled(logits)), self.weight, self.bias).log_softmax(1)


def _fitted(x: Tensor, labels: Tensor, identity: Tensor, ridge: float) -> tuple[Tensor, dict[str, Any]]:
    """[W | b] (k, d + 1) of the least NLL + ridge · ‖W − W⁰‖² + ‖b − b⁰‖² / n, and how it was found.

    The waves overlap, so the problem is solved along the principal axes of the features, scaled to about equal
    curvature: there the penalty is still diagonal, and a quasi-Newton method needs few steps. It stops when the value
    stands still; along directions that hardly matter the gradient may be larger than elsewhere in this package.
    """
    size, axes = torch.linalg.eigh(x.T @ x / len(x))
    probs = linear(x, identity[:, :-1], identity[:, -1]).softmax(1)
    curvature = (probs * (1 - probs)).mean() * size.clamp_min(0) + ridge
    inward, outward = axes / curvature.sqrt(), axes * curvature.sqrt()
    start = torch.cat([identity[:, :-1] @ outward, identity[:, -1:]], 1)
    penalty = torch.cat([ridge / curvature, size.new_tensor([1 / len(x)])]).expand_as(start)
    problem = Regression(Full(), x @ inward, labels, Nll(), penalty=penalty, centre=start)

    def value(parameters: Tensor) -> tuple[float, Tensor]:
        found, gradient = problem(parameters.view_as(start))
        return found, gradient.reshape(-1)

    found = descend(value, start.reshape(-1), max_steps=MAX_STEPS, still=STANDING_STILL)
    there = found.parameters.view_as(start)
    info = found.info | {"converged": found.info["steps"] < MAX_STEPS}
    return torch.cat([there[:, :-1] @ inward.T, there[:, -1:]], 1), info
