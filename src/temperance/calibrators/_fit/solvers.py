"""The optimisers that parametric calibrators share.

`minimise` finds the optimum and checks its gradient; `train` runs the optimiser of a published program for as many
steps as the program does, converged or not, so that its tables can be reproduced. Both take a `Problem`: an objective
as a function of the calibrator's parameters.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, Self, TypeVar, Unpack

import torch
from torch import Tensor

from temperance.arrays import blocks
from temperance.calibrators._fit.descent import TOLERANCE, Solution, descend
from temperance.calibrators._fit.streaming import Streamed
from temperance.calibrators.base import CALIBRATORS, Calibrator, Shared
from temperance.errors import InputError
from temperance.objectives import OBJECTIVES, Objective, ObjectiveName, counting
from temperance.registry import as_entry, parse_entry
from temperance.settings import defaults_of
from temperance.threads import in_parts

# An objective's weights have settled when they change by less than this from one solution to the next.
SETTLED = 1e-7
MAX_ROUNDS = 200

# Learning rates and numbers of steps of the SCTL authors' program.
SCHEDULE = ((0.02, 1000),)
SLOW_SCHEDULE = ((0.005, 200), (0.003, 400), (0.001, 400))

# The prefix of the objective's settings among those of a calibrator.
NESTED = "objective__"

P = TypeVar("P", float, Tensor)
R = TypeVar("R")
Block = tuple[Tensor, Tensor, Tensor]  # rows, their labels and their weights
Solver = Literal["exact", "released"]


class WithObjective(Calibrator):
    """A calibrator that minimises an objective.

    objective  what to minimise, by name, optionally with settings: "class-scaled:normalise=mm"
    """

    def __init__(self, *, objective: ObjectiveName = "nll", **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.objective = objective

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings it was made with; with `deep` also those of the objective, as `objective__gamma`."""
        found = super().get_params(deep)
        if deep:
            name, given = parse_entry(self.objective)
            found |= {f"{NESTED}{key}": value for key, value in (defaults_of(OBJECTIVES[name]) | given).items()}
        return found

    def set_params(self, **settings: Any) -> Self:
        """Change settings, and those of the objective as `objective__gamma`; the next `fit` uses them."""
        nested = {key.removeprefix(NESTED): value for key, value in settings.items() if key.startswith(NESTED)}
        own = {key: value for key, value in settings.items() if not key.startswith(NESTED)}
        if nested:
            name, given = parse_entry(own.get("objective", self.objective))
            own["objective"] = as_entry(name, given | nested)
        return super().set_params(**own)

    def _check_settings(self) -> None:
        objective = self._make_objective()
        if objective.whole and not self.preserves_argmax:
            able = ", ".join(one.name for one in CALIBRATORS if one.takes_objective and one.preserves_argmax)
            raise InputError(
                f"{objective.name} is a calibration error, which a constant prediction makes zero. "
                f"Use it with a method that never changes the predicted class: {able}"
            )

    def _make_objective(self, weights: Tensor | None = None) -> Objective:
        return counting(self.objective, weights)

    def _streamed_objective(self) -> Objective:
        """A fresh objective for a stream; those that need all rows at once are refused."""
        made = self._make_objective()
        if made.whole or not made.weighs_classes:
            raise InputError(f"{self.objective} needs all rows at once, so a stream cannot be fitted with it")
        return made

    @property
    def _one_by_one(self) -> str:
        objective = self._make_objective()
        return objective.name if objective.whole else super()._one_by_one


class WithSolver(WithObjective):
    """A calibrator that also has the optimiser of a published program.

    solver  "exact" finds the optimum; "released" stops where the SCTL authors' program stops
    """

    def __init__(self, *, objective: ObjectiveName = "nll", solver: Solver = "exact", **shared: Unpack[Shared]) -> None:
        super().__init__(objective=objective, **shared)
        self.solver = solver

    def _streamed_objective(self) -> Objective:
        if self.solver != "exact":
            raise InputError(f"a stream can only be fitted with solver=exact; got solver={self.solver}")
        return super()._streamed_objective()


def sample_weight(objective: Objective, labels: Tensor, k: int) -> float:
    """How much one sample counts in an objective, on average."""
    return float(objective.weights(labels, k).sum()) / objective.n_samples(labels)


def prior_samples(n_parameters: int, n: float) -> float:
    """How many samples a weak prior counts as: one if there are as many samples as parameters, less if there are more.

    The prior matters where the likelihood has no optimum because the samples are separated without a mistake; with many
    samples it is too weak to matter.
    """
    return n_parameters / n


class Problem:
    """An objective as a function of parameters (p,), summed over blocks of rows.

    forward  log-probabilities (m, k) of rows of the inputs (m, d) with these parameters
    inputs   the logits, or the logits with more columns that `forward` needs; then `k` is the number of classes
    penalty  a function of the parameters alone, added to the objective
    """

    def __init__(
        self,
        objective: Objective,
        forward: Callable[[Tensor, Tensor], Tensor],
        inputs: Tensor,
        labels: Tensor,
        *,
        k: int | None = None,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.objective = objective
        self.forward = forward
        self.inputs = inputs
        self.labels = labels
        self.k = inputs.shape[1] if k is None else k
        self.penalty = penalty

    def of_blocks(self, work: Callable[[Block], R]) -> Iterable[R]:
        """The result of `work` for the rows of each block, with their labels and current weights, in order."""
        weights = self.objective.weights(self.labels, self.k)
        return in_parts(work, [(rows, y, weights[first : first + len(y)]) for rows, y, first in self._blocks()])

    def __call__(self, parameters: Tensor) -> tuple[float, Tensor]:
        """The value and its gradient, with the current weights."""

        def of_block(block: Block) -> tuple[float, Tensor]:
            rows, y, weights = block

            def weighed(free: Tensor) -> Tensor:
                losses = self.objective.losses(self.forward(rows, free), y)
                return (weights.to(losses.dtype) * losses).sum()

            return _with_gradient(weighed, parameters)

        penalty = [] if self.penalty is None else [_with_gradient(self.penalty, parameters)]
        value, gradient = 0.0, torch.zeros_like(parameters)
        for part, slope in chain(self.of_blocks(of_block), penalty):
            value += part
            gradient += slope
        return value, gradient

    @torch.no_grad()
    def losses(self, parameters: Tensor) -> Tensor:
        """The loss of each row. (n,)"""
        return torch.cat([self.objective.losses(self.forward(rows, parameters), y) for rows, y, _ in self._blocks()])

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        return blocks(self.inputs, self.labels, step=len(self.labels) if self.objective.whole else None)

    def reweigh(self, parameters: Tensor) -> float:
        """Let the objective choose new weights; returns how much they changed."""
        if not self.objective.adapts:
            return 0.0
        return self.objective.reweigh(self.losses(parameters), self.labels, self.k)


def _with_gradient(function: Callable[[Tensor], Tensor], parameters: Tensor) -> tuple[float, Tensor]:
    """The value of a function and its gradient."""
    with torch.enable_grad():
        free = parameters.detach().requires_grad_()
        value = function(free)
        return float(value.detach()), torch.autograd.grad(value, free)[0]


class StreamedProblem(Problem):
    """The same over a stream, which is read once per evaluation."""

    def __init__(
        self,
        objective: Objective,
        forward: Callable[[Tensor, Tensor], Tensor],
        stream: Streamed,
        *,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(objective, forward, stream.logits, stream.labels, penalty=penalty)
        self.stream = stream

    def of_blocks(self, work: Callable[[Block], R]) -> Iterable[R]:
        weights = self.objective.class_weights_of(self.stream.counts)
        return (work((rows, y, weights[y])) for rows, y in self.stream)

    @torch.no_grad()
    def reweigh(self, parameters: Tensor) -> float:
        if not self.objective.adapts:
            return 0.0
        sums = torch.zeros(self.k, dtype=torch.float64)
        for rows, y in self.stream:
            sums += torch.bincount(y, self.objective.losses(self.forward(rows, parameters), y), minlength=self.k)
        return self.objective.reweigh_classes(sums, self.stream.counts)


# --------------------------------------------------------------------------------------------------------- the optimum


def minimise(
    problem: Problem,
    start: Tensor,
    *,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
    max_steps: int = 2000,
) -> Solution:
    """The parameters in [low, high] of least value, in float64.

    Equal bounds fix a parameter. An objective that adapts its weights is minimised with fixed weights, repeatedly until
    they settle. If the gradient never gets below 1e-6, the record says how small it got.
    """

    def solve(parameters: Tensor) -> tuple[Tensor, dict[str, Any]]:
        # A calibration error has kinks, where the gradient is not small.
        found = descend(problem, parameters, low, high, max_steps, still=1e-5 if problem.objective.whole else 0.0)
        return found.parameters, found.info

    parameters = start.detach().double().clone()
    if not problem.objective.adapts:
        return Solution(*solve(parameters))
    parameters, record = settle(problem.reweigh, solve, parameters)
    return Solution(parameters, record | problem.objective.info)


def settle(
    reweigh: Callable[[P], float], solve: Callable[[P], tuple[P, dict[str, Any]]], start: P
) -> tuple[P, dict[str, Any]]:
    """Alternately solve with fixed weights and choose new weights, until the weights no longer change.

    The record is that of the last solution, and says whether the weights settled. Weights can oscillate, each solution
    undoing the previous one; steps are then halved.
    """
    reweigh(start)
    here, change, pace, rounds = start, math.inf, 1.0, 0
    record: dict[str, Any] = {}
    while change > SETTLED and rounds < MAX_ROUNDS:
        there, record = solve(here)
        here = there if pace == 1 else here + pace * (there - here)
        before, change = change, reweigh(here)
        pace = pace / 2 if change > 0.9 * before else pace
        rounds += 1
    settled = change <= SETTLED
    about = {"rounds": rounds, "weights_settled": settled, "weights_change": change}
    return here, record | about | {"converged": record["converged"] and settled}


# ----------------------------------------------------------------------------------------------- the released programs


def train(
    problem: Problem,
    start: Tensor,
    *,
    optimiser: str = "lbfgs",
    schedule: Sequence[tuple[float, int]] | None = None,
    batch: int | None = None,
    weight_decay: float = 0.0,
    generator: torch.Generator | None = None,
) -> Solution:
    """A published program's optimiser, step by step: L-BFGS without a line search, or Adam.

    The default is that of the SCTL authors: all rows in every step, learning rate 0.02 for 1000 steps; with label
    smoothing or focal loss 0.005 for 200 steps, then 0.003 and 0.001 for 400 each, with a new optimiser each time.
    Other programs have another `schedule` of rates and steps, use `weight_decay` with Adam, or draw a `batch` of rows
    for each step. The objective's weights are chosen anew at every evaluation. It computes in float32, as these
    programs do: their L-BFGS stops when rounding makes two values equal, well before the optimum. So the last digits
    differ between processors. If it diverges, the last finite parameters are kept.
    """
    inputs, labels = problem.inputs.float(), problem.labels
    parameters = start.detach().float().clone().requires_grad_()
    finite, value, gradient, steps = parameters.detach().clone(), math.nan, math.nan, 0

    def closure() -> float:
        nonlocal finite, value, gradient, steps
        rows, y = inputs, labels
        if batch is not None and batch < len(labels):
            drawn = torch.randint(len(labels), (batch,), generator=generator).to(labels.device)
            rows, y = inputs[drawn], labels[drawn]
        with torch.enable_grad():
            loss = problem.objective(problem.forward(rows, parameters), y)
            if problem.penalty is not None:
                loss = loss + problem.penalty(parameters)
            slope = torch.autograd.grad(loss, parameters)[0]
        reached, steepest = float(loss.detach()), float(slope.abs().amax())
        if math.isfinite(reached) and math.isfinite(steepest):
            finite, value, gradient = parameters.detach().clone(), reached, steepest
        parameters.grad = slope
        steps += 1
        return reached

    if schedule is None:
        schedule = SLOW_SCHEDULE if problem.objective.name in ("label-smoothing", "focal") else SCHEDULE
    for rate, n_steps in schedule:
        if optimiser == "lbfgs":
            lbfgs = torch.optim.LBFGS([parameters], lr=rate, max_iter=n_steps)
            lbfgs.step(closure)  # type: ignore[no-untyped-call]
        else:
            adam = torch.optim.Adam([parameters], lr=rate, weight_decay=weight_decay)
            for _ in range(n_steps):
                adam.step(closure)
    reached = parameters.detach()
    if not bool(torch.isfinite(reached).all()):
        reached = finite
    info = {"converged": gradient <= TOLERANCE, "gradient": gradient, "value": value, "steps": steps}
    return Solution(reached.double(), info | problem.objective.info)
