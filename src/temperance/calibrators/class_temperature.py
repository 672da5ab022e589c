"""Maps with one parameter per class: a temperature for each, or one temperature and a bias for each."""

from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.descent import Solution
from temperance.calibrators._fit.inverse_temperature import (
    S_HIGH,
    S_LOW,
    caution_of,
    divided,
    fit_inverse_temperature,
    stream_inverse_temperature,
)
from temperance.calibrators._fit.solvers import (
    Problem,
    Solver,
    StreamedProblem,
    WithSolver,
    minimise,
    prior_samples,
    sample_weight,
    train,
)
from temperance.calibrators._fit.streaming import StreamCalibrator, Streamed
from temperance.calibrators.base import Shared, calibrator
from temperance.objectives import Objective, ObjectiveName


@calibrator(family="temperature", preserves_argmax=False, takes_objective=True, takes_weights=True, scale_free=True)
class ClassTemperature(StreamCalibrator, WithSolver):
    """A temperature for each class, fitted jointly by gradient.

    p = softmax(z_1 / T_1, …, z_k / T_k), minimising the objective + (2 k / n²) Σ_j (T / T_j − 1)², with T the best
    single temperature and T_j from T / 100 to 100 T. The penalty keeps a class that is always predicted right from
    becoming certain, and is too weak to matter with many samples; `solver="released"` has none. With a convex objective
    the optimum in 1 / T_j is unique. A class without samples keeps T. Predictions can change.

    The trap: a negative logit divided by a large T_j *rises*, so unlike temperature scaling this depends on where the
    zero of the logits is. `centre="mean"` or `"max"` first subtracts the mean or maximum of each row; by default logits
    are used as they are, as in both papers.

    centre  what is subtracted from each row first: its "mean", its "max", or None

    Jung et al., Scaling of class-wise training losses for post-hoc calibration, ICML 2023, eq. 15. Frenkel and
    Goldberger (2021) gave the same map a greedy search instead, here `class-temperature-greedy`.
    """

    temperatures: Tensor

    def __init__(
        self,
        *,
        centre: Literal["mean", "max"] | None = None,
        objective: ObjectiveName = "nll",
        solver: Solver = "exact",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, solver=solver, **shared)
        self.centre = centre

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        objective, rows = self._make_objective(weights), self._centred(logits)
        shared, record = fit_inverse_temperature(self._make_objective(weights), rows, labels)
        counts = torch.bincount(labels, minlength=rows.shape[1])
        strength = _prior_strength(objective, labels, rows.shape[1])
        start = rows.new_ones(rows.shape[1])
        if self.solver == "released":
            found = train(Problem(objective, divided, rows, labels), start)
            found = Solution(1 / (found.parameters * shared), found.info)
        else:
            model = RelativeTemperatures(shared, strength)
            problem = Problem(objective, model.log_probs, rows, labels, penalty=model.penalty)
            found = model.minimise(problem, start, counts)
        self._keep_relative(found, shared, counts)
        self.info |= caution_of(record)

    def _fit_stream(self, stream: Streamed) -> None:
        objective, rows = self._streamed_objective(), stream.mapped(self._centred)
        shared, _ = stream_inverse_temperature(self._streamed_objective, rows)
        weight = float(objective.class_weights_of(stream.counts) @ stream.counts.double()) / stream.n
        model = RelativeTemperatures(shared, prior_samples(2 * stream.k, stream.n) * weight)
        start = torch.ones(stream.k, dtype=torch.float64)
        if not objective.adapts:
            some = Problem(self._make_objective(), model.log_probs, rows.logits, rows.labels, penalty=model.penalty)
            start = model.minimise(some, start, stream.counts).parameters
        problem = StreamedProblem(objective, model.log_probs, rows, penalty=model.penalty)
        self._keep_relative(model.minimise(problem, start, stream.counts), shared, stream.counts)

    def _keep_relative(self, found: Solution, shared: float, counts: Tensor) -> None:
        """Store inverse temperatures found in units of the shared one."""
        absent = counts == 0
        inverse = torch.where(absent, 1.0, found.parameters.clamp(S_LOW, S_HIGH)) * shared
        self.info = found.info
        self._keep("temperatures", 1 / inverse)

    def _calibrate(self, logits: Tensor) -> Tensor:
        return divided(self._centred(logits), self.temperatures)

    def _centred(self, logits: Tensor) -> Tensor:
        if self.centre is None:
            return logits
        return logits - (logits.mean(1, keepdim=True) if self.centre == "mean" else logits.amax(1, keepdim=True))


@dataclass(frozen=True)
class RelativeTemperatures:
    """Inverse temperatures in units of the shared one, so that all are of order one, whatever the logits' scale."""

    shared: float
    strength: float

    def log_probs(self, rows: Tensor, relative: Tensor) -> Tensor:
        return (rows * (relative * self.shared)).log_softmax(1)

    def penalty(self, relative: Tensor) -> Tensor:
        return self.strength * (relative - 1).square().sum()

    def minimise(self, problem: Problem, start: Tensor, counts: Tensor) -> Solution:
        """The optimum within the bounds; a class without samples keeps the shared temperature."""
        one = torch.ones_like(start)
        low, high = (torch.where(counts == 0, one, one * bound) for bound in (S_LOW, S_HIGH))
        return minimise(problem, start, low=low, high=high)


@calibrator(family="temperature", preserves_argmax=False, takes_objective=True, takes_weights=True, scale_free=True)
class BiasCorrectedTemperature(WithSolver):
    """Temperature scaling with a bias for each class, which also corrects shifted class frequencies.

    p = softmax(z / T + b), minimising the objective + (2 k / n²) (‖b‖² + (T* / T − 1)²), with T* the best temperature
    without biases and T from T* / 100 to 100 T*; convex in (1 / T, b). The penalty keeps classes that are separated
    without a mistake from becoming certain, and is too weak to matter with many samples; `solver="released"` has none.
    The biases of the classes that occur have mean 0. A class without samples has bias 0: nothing is known about it.
    Predictions can change.

    Alexandari, Kundaje and Shrikumar, Maximum likelihood with bias-corrected calibration is hard-to-beat at label
    shift adaptation, ICML 2020.
    """

    temperature: Tensor
    bias: Tensor

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        k = logits.shape[1]
        shared, record = fit_inverse_temperature(self._make_objective(weights), logits, labels)
        present = (torch.bincount(labels, minlength=k) > 0).double()

        def bias(free: Tensor) -> Tensor:
            here = present.to(free)
            return here * (free - (free @ here) / here.sum())

        def scaled(rows: Tensor, parameters: Tensor) -> Tensor:
            return (rows * (parameters[0] * shared) + bias(parameters[1:])).log_softmax(1)

        def penalty(parameters: Tensor) -> Tensor:
            return strength * ((parameters[0] - 1).square() + bias(parameters[1:]).square().sum())

        start = torch.zeros(k + 1, dtype=torch.float64, device=logits.device)
        start[0] = 1.0
        objective, released = self._make_objective(weights), self.solver == "released"
        strength = _prior_strength(objective, labels, k)
        problem = Problem(objective, scaled, logits, labels, penalty=None if released else penalty)
        if released:
            found = train(problem, start)
        else:
            low, high = torch.full_like(start, -torch.inf), torch.full_like(start, torch.inf)
            low[0], high[0] = S_LOW, S_HIGH
            found = minimise(problem, start, low=low, high=high)
        self.info = found.info | caution_of(record)
        self._keep("temperature", 1 / (found.parameters[0].clamp(S_LOW, S_HIGH) * shared))
        self._keep("bias", bias(found.parameters[1:]))

    def _calibrate(self, logits: Tensor) -> Tensor:
        return (logits / self.temperature + self.bias).log_softmax(1)


def _prior_strength(objective: Objective, labels: Tensor, k: int) -> float:
    """The strength of the penalty: as in vector scaling, which has 2 k parameters."""
    return prior_samples(2 * k, objective.n_samples(labels)) * sample_weight(objective, labels, k)
