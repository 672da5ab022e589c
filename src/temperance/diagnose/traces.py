"""A post-hoc training step by step: the loss of each class beside the calibration error (SCTL, Figures 1, 3 and 4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_labels, as_logits, flatten
from temperance.calibrators._fit.inverse_temperature import divided
from temperance.calibrators._fit.solvers import Problem, train
from temperance.errors import InputError
from temperance.metrics import class_loss_spread, ece
from temperance.metrics.stats import Sums
from temperance.objectives import make_objective
from temperance.settings import Count, of_kind, one_of


@dataclass(frozen=True)
class Layer:
    """A trainable layer on the logits: its initial parameters, which change nothing, and its function."""

    start: Callable[[int], Tensor]
    forward: Callable[[Tensor, Tensor], Tensor]


def _affine(rows: Tensor, parameters: Tensor) -> Tensor:
    k = rows.shape[1]
    return (rows * parameters[:k] + parameters[k:]).log_softmax(1)


def _matrix(rows: Tensor, parameters: Tensor) -> Tensor:
    k = rows.shape[1]
    return (rows @ parameters[: k * k].view(k, k).T + parameters[k * k :]).log_softmax(1)


LAYERS = {
    "temperature": Layer(lambda k: torch.ones(1), divided),
    "class-temperature": Layer(torch.ones, divided),
    "vector": Layer(lambda k: torch.cat([torch.ones(k), torch.zeros(k)]), _affine),
    "matrix": Layer(lambda k: torch.cat([torch.eye(k).flatten(), torch.zeros(k)]), _matrix),
}


@dataclass(frozen=True, eq=False)
class Trace:
    """A post-hoc training, step by step; the first row is before any step.

    steps         the steps that were measured. (t,)
    total         NLL. (t,)
    class_losses  the mean NLL of each class that occurs, whatever the objective. (t, c)
    spread        their standard deviation (SCTL eq. 4). (t,)
    ece           expected calibration error. (t,)
    classes       the classes that occur
    trained       the classes whose samples were trained on
    """

    objective: str
    layer: str
    steps: Tensor
    total: Tensor
    class_losses: Tensor
    spread: Tensor
    ece: Tensor
    classes: tuple[int, ...]
    trained: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.total)

    def correlation(self, column: str = "spread") -> float:
        """Pearson's r over the steps between ECE and "total" or "spread" (SCTL Figure 1)."""
        one_of("column", column, ("total", "spread"))
        return pearson(getattr(self, column), self.ece)

    def equal_totals(self) -> tuple[int, int]:
        """The two rows whose errors differ most although their total losses agree to half a percent (SCTL Figure 3).

        If the total loss falls in every step, they are neighbours.
        """
        near = 0.005 * float(self.total.min())
        close = (self.total[:, None] - self.total[None, :]).abs() <= near
        gap = torch.where(close, (self.ece[:, None] - self.ece[None, :]).abs(), -1.0)
        first, second = sorted(divmod(int(gap.argmax()), len(self)))
        return first, second


def posthoc_trace(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    layer: str = "temperature",
    objective: str = "nll",
    worst_classes: int | None = None,
    held_out: tuple[ArrayLike, ArrayLike] | None = None,
    lr: float = 0.02,
    steps: int = 200,
    every: int = 1,
    n_bins: int = 15,
) -> Trace:
    """Train a layer on logits with Adam, and record losses and calibration error at every step.

    layer          "temperature", "class-temperature", "vector" (a scale and a bias for each class) or "matrix"
    objective      a name such as "nll", "label-smoothing", "focal" or "class-scaled", with its settings
    worst_classes  train only on samples of this many classes, those with the highest losses at the start; three in the
                   toy of SCTL section 4.1
    held_out       logits and labels to measure on; by default the training data
    every          the number of steps between measurements; the last step is always measured

    >>> logits = [[4.0, 0.0], [3.0, 0.0], [0.0, 4.0], [0.0, 1.0], [2.0, 0.0]] * 10
    >>> found = posthoc_trace(logits, [0, 0, 1, 1, 1] * 10, steps=50)
    >>> bool(found.total[-1] < found.total[0]), len(found)
    (True, 51)

    Jung et al., Scaling of class-wise training losses for post-hoc calibration, ICML 2023.
    """
    one_of("layer", layer, LAYERS)
    of_kind("steps", steps, Count)
    of_kind("every", every, Count)
    rows, truth = _pair(logits, labels)
    k = rows.shape[1]
    measured_rows, measured_truth = (rows, truth) if held_out is None else _pair(*held_out)
    if measured_rows.shape[1] != k:
        raise InputError(f"held_out must have the same {k} classes; it has {measured_rows.shape[1]}")
    chosen = _worst(rows, truth, worst_classes)
    wanted = torch.isin(truth, chosen)
    visited: list[Tensor] = []

    def forward(given: Tensor, parameters: Tensor) -> Tensor:
        # The solver evaluates the layer once in each step, at its current parameters.
        visited.append(parameters.detach().double())
        return LAYERS[layer].forward(given, parameters)

    problem = Problem(make_objective(objective), forward, rows[wanted], truth[wanted], k=k)
    last = train(problem, LAYERS[layer].start(k).to(rows), optimiser="adam", schedule=((lr, steps),))
    path = [*visited[:steps], last.parameters]
    looked = [*range(0, len(path) - 1, every), len(path) - 1]

    found = [_measured(LAYERS[layer].forward(measured_rows, path[i]), measured_truth, n_bins) for i in looked]
    losses, spreads, errors, totals = zip(*found, strict=True)
    present = torch.bincount(measured_truth, minlength=k) > 0
    return Trace(
        objective,
        layer,
        torch.tensor(looked),
        torch.tensor(totals, dtype=torch.float64),
        torch.stack(losses)[:, present].cpu(),
        torch.tensor(spreads, dtype=torch.float64),
        torch.tensor(errors, dtype=torch.float64),
        tuple(present.nonzero().flatten().tolist()),
        tuple(sorted(chosen.tolist())),
    )


def _pair(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    given = as_logits(logits)
    return flatten(given).double(), as_labels(labels, given).reshape(-1)


def _worst(rows: Tensor, truth: Tensor, how_many: int | None) -> Tensor:
    """The classes with the highest mean NLL, or all that occur."""
    k = rows.shape[1]
    present = torch.bincount(truth, minlength=k) > 0
    if how_many is None:
        return present.nonzero().flatten()
    of_kind("worst_classes", how_many, Count)
    losses, *_ = _measured(rows.log_softmax(1), truth, 15)
    return torch.where(present, losses, -math.inf).topk(min(how_many, int(present.sum()))).indices


def _measured(log_probs: Tensor, truth: Tensor, n_bins: int) -> tuple[Tensor, float, float, float]:
    """The NLL of each class, their spread, ECE and the total NLL, as the metrics compute them."""
    sums = class_loss_spread.stats(log_probs, truth, from_logits=True)
    assert isinstance(sums, Sums)
    error = ece(log_probs, truth, from_logits=True, n_bins=n_bins)
    return sums.mean, class_loss_spread.value(sums), error, float(sums.total.sum() / sums.count.sum())


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation coefficient of two columns; NaN if one of them does not vary.

    >>> round(pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 5.0])), 6)
    0.981981
    """
    return float(torch.corrcoef(torch.stack([a, b]).double())[0, 1])
