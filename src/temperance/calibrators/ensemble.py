"""Ensemble temperature scaling: temperature scaling mixed with the uncalibrated and the uniform prediction."""

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.descent import Solution
from temperance.calibrators._fit.inverse_temperature import S_HIGH, S_LOW, caution_of, fit_inverse_temperature
from temperance.calibrators._fit.solvers import Problem, Solver, WithSolver, minimise, train
from temperance.calibrators.base import Shared, calibrator
from temperance.objectives import Objective, ObjectiveName

# The largest weight of the uniform prediction: with weight 1 every class would tie.
MOST_UNIFORM = 0.999


@calibrator(family="temperature", preserves_argmax=True, takes_objective=True, takes_weights=True)
class EnsembleTemperature(WithSolver):
    """Temperature scaling mixed with the uncalibrated prediction and the uniform one.

    p = w1 softmax(z / T) + w2 softmax(z) + w3 / k with w ≥ 0 and Σ w = 1: T is fitted first, then the weights. Mixing
    probabilities keeps their order, and w3 bounds the cost of a confident mistake.

    `space="logits"` mixes before the softmax, w1 z / T + w2 z + w3 / k, as the SCTL paper does (eq. 13). That is
    temperature scaling again, with 1 / T′ = w1 / T + w2, since a constant changes nothing; it is here to reproduce that
    paper's tables.

    space  mix "probs", or "logits" as the SCTL paper does

    Zhang, Kailkhura and Han, Mix-n-Match: ensemble and compositional methods for uncertainty calibration, ICML 2020.
    """

    temperature: Tensor
    weights: Tensor

    def __init__(
        self,
        *,
        space: Literal["probs", "logits"] = "probs",
        objective: ObjectiveName = "nll",
        solver: Solver = "exact",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, solver=solver, **shared)
        self.space = space

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        # One objective for both stages: the second starts with the objective's weights from the first.
        objective = self._make_objective(weights)
        inverse, first = fit_inverse_temperature(objective, logits, labels, self.solver)
        if self.space == "probs":
            found = fit_mixture(objective, logits, labels, inverse)
        else:
            problem = Problem(objective, lambda z, w: _mix_logits(z, w, inverse), logits, labels)
            start = logits.new_tensor([1.0, 0.0, 0.0])
            found = train(problem, start) if self.solver == "released" else minimise(problem, start)
        mixture = dict(zip(("temperature", "identity", "uniform"), found.parameters.tolist(), strict=True))
        bound = {"temperature_at_bound": first["at_bound"]}
        self.info = {"weights": mixture} | found.info | bound | caution_of(first)
        self._keep("temperature", logits.new_tensor(1 / inverse))
        self._keep("weights", found.parameters)

    def _calibrate(self, logits: Tensor) -> Tensor:
        if self.space == "logits":
            # Unconstrained weights could reverse the order; T / T′ stays between 0.01 and 100.
            relative = self.weights[0] + self.weights[1] * self.temperature
            return (logits * (relative.clamp(S_LOW, S_HIGH) / self.temperature)).log_softmax(1)
        scaled, plain, uniform = self.weights.log()
        scaled = (logits / self.temperature).log_softmax(1) + scaled
        mixed = torch.logaddexp(scaled, logits.log_softmax(1) + plain)
        return torch.logaddexp(mixed, uniform - math.log(logits.shape[1]))


def _mix_logits(logits: Tensor, weights: Tensor, inverse: float) -> Tensor:
    mixed = weights[0] * (logits * inverse) + weights[1] * logits + weights[2] / logits.shape[1]
    return mixed.log_softmax(1)


def fit_mixture(objective: Objective, logits: Tensor, labels: Tensor, inverse: float) -> Solution:
    """The weights of the mixture of probabilities, for a given 1 / T."""

    def mixed(rows: Tensor, shares: Tensor) -> Tensor:
        scaled, plain, uniform = _weights(shares)
        probs = scaled * (rows * inverse).softmax(1) + plain * rows.softmax(1) + uniform / rows.shape[1]
        log_probs: Tensor = probs.clamp_min(1e-20).log()
        return log_probs

    # Not from a corner: where a component has no weight yet, its slope can be infinite.
    start, high = logits.new_tensor([0.1, 0.1]), logits.new_tensor([1.0, MOST_UNIFORM])
    found = minimise(Problem(objective, mixed, logits, labels), start, low=0.0, high=high)
    return Solution(_weights(found.parameters), found.info)


def _weights(shares: Tensor) -> Tensor:
    """The three weights, from the share of the uniform prediction, and that of the uncalibrated one in the rest."""
    plain, uniform = shares
    return torch.stack([(1 - uniform) * (1 - plain), (1 - uniform) * plain, uniform])
