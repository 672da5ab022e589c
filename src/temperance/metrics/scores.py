"""Confidence scores: one number for each sample; higher means more confident.

Selective prediction and out-of-distribution detection rank samples by one of these. Each is a function of a tensor
(n, k), registered in `SCORES`, so that metrics can refer to it by name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_scores
from temperance.errors import InputError
from temperance.metrics.batch import Batch, batches
from temperance.registry import Registry, first_line, plain_name


@dataclass(frozen=True)
class Score:
    """A registered confidence score.

    function   (n, k) → (n,), differentiable; of probabilities, or of logits if `needs_logits`
    of_batch   the float64 scores of checked predictions
    """

    name: str
    summary: str
    function: Callable[..., Tensor]
    of_batch: Callable[[Batch], Tensor]
    needs_logits: bool


SCORES: Registry[Score] = Registry("confidence score")


def score(probs: ArrayLike, name: str = "msp", *, from_logits: bool = False) -> Tensor:
    """The confidence score of each sample, in float64. (n,) or, for dense predictions, (n, *space)

    >>> score([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]], "margin")
    tensor([0.5000, 0.1000], dtype=torch.float64)
    """
    entry = SCORES[name]
    given = as_scores(probs, "logits" if from_logits else "probs")
    n, _, *space = given.shape
    no_labels = torch.zeros((n, *space), dtype=torch.int64, device=given.device)
    found = [entry.of_batch(batch) for batch in batches(given, no_labels, from_logits=from_logits)]
    return torch.cat(found).reshape(n, *space)


def _registered(
    of_batch: Callable[[Batch], Tensor], *, needs_logits: bool = False
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = plain_name(function.__name__)
        SCORES.add(name, Score(name, first_line(function.__doc__), function, of_batch, needs_logits))
        return function

    return register


def _logits_of(batch: Batch, name: str) -> Tensor:
    if not batch.from_logits:
        raise InputError(
            f"the {name} score needs logits; got probabilities, which have lost the scale of the logits. "
            "Pass logits with from_logits=True, or choose msp, margin or negative-entropy"
        )
    return batch.scores.double()


@_registered(lambda batch: batch.confidence)
def msp(probs: Tensor) -> Tensor:
    """Maximum softmax probability: the confidence itself. (n, k) → (n,) in [1/k, 1]"""
    return probs.amax(1)


@_registered(lambda batch: margin(batch.probs))
def margin(probs: Tensor) -> Tensor:
    """The largest probability minus the second largest. (n, k) → (n,) in [0, 1]

    With a single class the second counts as 0.
    """
    if probs.shape[1] == 1:
        return probs[:, 0]
    first, second = probs.topk(2, dim=1).values.unbind(1)
    return first - second


@_registered(lambda batch: negative_entropy(batch.probs))
def negative_entropy(probs: Tensor, *, normalised: bool = False) -> Tensor:
    """Minus the entropy of the probabilities, in nats: Σ_j p_j ln p_j. (n, k) → (n,) in [−ln k, 0]

    0 · ln 0 counts as 0. `normalised=True` gives 1 + Σ_j p_j ln p_j / ln k, from 0 (uniform) to 1 (one-hot, or a single
    class). The program of Zhou et al. (2025) has the sign of the minimum wrong there, which makes the normalised score
    1 for every sample.
    """
    k = probs.shape[1]
    # The floor is far below any rounding error and keeps the gradient finite at a probability of zero.
    floored = probs.clamp_min(torch.finfo(probs.dtype).tiny)
    total = (floored * floored.log()).sum(1)
    if not normalised:
        return total
    return 1 + total / math.log(k) if k > 1 else torch.ones_like(total)


@_registered(lambda batch: energy(_logits_of(batch, "energy")), needs_logits=True)
def energy(logits: Tensor) -> Tensor:
    """Minus the free energy of the logits: ln Σ_j exp(z_j). (n, k) → (n,)

    Liu et al. (2020), at temperature 1. It depends on the scale of the logits, which a softmax removes: logits that are
    really log-probabilities all score 0.
    """
    return logits.logsumexp(1)


@_registered(lambda batch: max_logit(_logits_of(batch, "max-logit")), needs_logits=True)
def max_logit(logits: Tensor) -> Tensor:
    """The largest logit. (n, k) → (n,)

    Hendrycks et al. (2022). It depends on the scale of the logits, as `energy` does, but not on how many are close.
    """
    return logits.amax(1)
