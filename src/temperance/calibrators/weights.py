"""Sample weights: how many samples each row counts as in a fit."""

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_weights, no_weight, repeated_rows
from temperance.errors import InputError
from temperance.numerics import is_whole


def either(weights: ArrayLike | None, sample_weight: ArrayLike | None) -> ArrayLike | None:
    """The weights under either name, ours or scikit-learn's; both at once are refused."""
    if weights is not None and sample_weight is not None:
        raise InputError("weights and sample_weight are two names for the same argument; pass one of them")
    return sample_weight if weights is None else weights


def counted_rows(
    labels: Tensor, ignore_index: int | None, weights: ArrayLike | None, given: Tensor
) -> tuple[Tensor | slice, Tensor | None]:
    """Which rows are neither ignored nor of weight 0, and how many samples each of them counts as.

    `given` are the original logits, (n, k, *space).
    """
    labelled = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels.ne(ignore_index)
    if not bool(labelled.any()):
        raise InputError(f"every label is ignore_index={ignore_index}: there is nothing to fit")
    if weights is None:
        return slice(None) if ignore_index is None else labelled, None
    counts = as_weights(weights, (given.shape[0], *given.shape[2:])).reshape(-1).to(labels.device)
    kept = labelled & (counts > 0)
    if not bool(kept.any()):
        raise no_weight()
    return kept, _sample_counts(counts[kept])


def _sample_counts(weights: Tensor) -> Tensor:
    """Weights as numbers of samples: whole ones unchanged, others scaled to sum to (Σw)² / Σw². (n,)

    That is the number of equally weighted samples whose mean varies as much, so a prior that counts as a number of
    samples keeps its meaning.
    """
    return weights if is_whole(weights) else weights * (weights.sum() / weights.square().sum())


def weighed(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values (n, d) times the weights divided by their mean, so that the plain mean is the weighted mean."""
    return values if weights is None else values * (weights / weights.mean())[:, None]


def repeated(name: str, weights: Tensor) -> Tensor:
    """Each row's index, repeated by its weight, for the method or objective `name`, which needs whole weights."""
    remedy = "Use a method and an objective that allow any weights, such as auto, or temperature with nll"
    if not is_whole(weights):
        raise InputError(
            f"{name} counts samples one by one, so weights must be whole numbers; some of these are not. {remedy}, "
            "or fit without weights"
        )
    return repeated_rows(name, weights, remedy)
