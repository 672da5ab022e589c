"""The base class of objectives, and their registry."""

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from temperance.registry import Registry, registered
from temperance.settings import HasSettings, NameOf


class Objective(HasSettings):
    """A differentiable function of log-probabilities and labels; each fit makes its own.

    `objective(log_probs, labels)` updates the weights from the losses and returns the value: one step of a plain
    training loop. A solver that holds the weights constant, or works in blocks of rows, calls the parts: `losses` of
    the rows of a block, their `weights`, and `reweigh` between solutions.
    """

    summary: ClassVar[str]

    # Linear in the log-probabilities, and so convex in any parameters that the logits are linear in.
    convex: bool
    # `reweigh` changes the weights.
    adapts: bool = False
    # How many samples each row counts as (n,); None if each is one.
    counts: Tensor | None = None
    # The weight of a row depends only on its class, so it is known without the other rows.
    weighs_classes: bool = True
    # A calibration error of all rows together: it is not a sum over rows, and `losses` returns its value for every row.
    # It is for maps that keep the order of the classes.
    whole: ClassVar[bool]

    def __call__(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        k = log_probs.shape[1]
        losses = self.losses(log_probs, labels)
        self.reweigh(losses.detach(), labels, k)
        return (self.weights(labels, k).to(losses.dtype) * losses).sum()

    def target(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The score of the label, or the mean score under a softer target. (n,)"""
        return scores.gather(1, labels[:, None]).squeeze(1)

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row. (n,)"""
        return -self.target(log_probs, labels)

    def weights(self, labels: Tensor, k: int) -> Tensor:
        """How much each row counts, in float64. (n,)"""
        of_class = self.class_weights_of(torch.bincount(labels, self.counts, minlength=k))[labels]
        return of_class if self.counts is None else of_class * self.counts

    def n_samples(self, labels: Tensor) -> float:
        """The number of samples: of the rows, or the sum of their counts."""
        return float(len(labels)) if self.counts is None else float(self.counts.sum())

    def class_weights_of(self, counts: Tensor) -> Tensor:
        """How much a row of each class counts, given the number of rows of each (k,). (k,)"""
        return torch.full(counts.shape, 1 / float(counts.sum()), dtype=torch.float64, device=counts.device)

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        """Choose new weights from the current losses (n,); returns the largest relative change of a weight."""
        return 0.0

    def reweigh_classes(self, sums: Tensor, counts: Tensor) -> float:
        """Like `reweigh`, from the summed losses of each class and its number of rows. (k,) each"""
        return 0.0

    @property
    def info(self) -> dict[str, Any]:
        """What it chose, for the record."""
        return {}


OBJECTIVES: Registry[type[Objective]] = Registry("objective")

Kind = TypeVar("Kind", bound=type[Objective])


def objective(*, convex: bool, whole: bool = False, name: str | None = None) -> Callable[[Kind], Kind]:
    """Register an objective with its claims.

    convex  it is linear in the log-probabilities while its weights are fixed
    whole   it is a calibration error of all rows together, not a sum over rows
    """
    return registered(OBJECTIVES, name, {"convex": convex, "whole": whole})


def make_objective(name: str, **settings: Any) -> Objective:
    """A fresh objective of this name, which may carry settings as on the command line.

    >>> make_objective("label-smoothing:smoothing=0.1").convex
    True
    """
    made: Objective = OBJECTIVES.make(name, **settings)
    return made


def counting(name: str, counts: Tensor | None) -> Objective:
    """A fresh objective of this name, in which rows count as `counts` (n,) samples."""
    made = make_objective(name)
    made.counts = counts
    return made


# The setting that names an objective.
ObjectiveName = Annotated[str, NameOf("an objective", make_objective)]


def largest_change(before: Tensor | None, after: Tensor) -> float:
    """The largest change of a weight, relative to the largest weight."""
    if before is None:
        return math.inf
    return float((after - before).abs().amax() / after.abs().amax().clamp_min(1e-300))
