"""Formulas evaluated for a batch: one step for autograd, forward with the values, backward with the written slopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from temperance.losses.formula import Part, Sample, Term, evaluate, first_largest, pick, put, total


def row_losses(
    logits: Tensor,
    labels: Tensor,
    terms: Sequence[Term],
    *,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "none",
) -> tuple[Tensor, Tensor]:
    """The sum of the terms, of each sample or of all of them, and the confidence of each; with gradients.

    logits        (n, k) or (n, k, *space)
    labels        (n, *space) int64
    weight        how much a sample counts, by its class (k,)
    ignore_index  samples with this label do not count; None if it is known that there are none
    reduction     "none" for (n, *space); "sum"; "mean", which is 0 if no sample counts
    """
    evaluation = _traced if torch.compiler.is_compiling() else Rowwise.apply
    loss, confidence = evaluation(at_least_float32(logits), labels, tuple(terms), weight, ignore_index, reduction)
    return loss, confidence


def loss_of(logits: Tensor, labels: Tensor, term: Term) -> Tensor:
    """One term for each sample. (n, k), (n,) → (n,)"""
    return row_losses(logits, labels.long(), (term,))[0]


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


class Rowwise(torch.autograd.Function):
    """The arguments are those of `row_losses`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        terms: tuple[Term, ...],
        weight: Tensor | None,
        ignore_index: int | None,
        reduction: str,
    ) -> tuple[Tensor, Tensor]:
        counting = _counting(labels, weight, ignore_index, logits.dtype, reduction)
        sample = Sample(logits, counting.label)
        value, slope, rest = evaluate(terms, sample)
        parts = (slope, rest, counting.share)
        ctx.set_materialize_grads(False)
        ctx.terms = terms
        ctx.numbers = [None if isinstance(part, Tensor) else part for part in parts]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        ctx.save_for_backward(logits, sample.label, sample.p, sample.confidence, *tensors)
        return counting.reduced(value, reduction), sample.confidence.squeeze(1)

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor | None, of_confidence: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, label, p, confidence, *tensors = ctx.saved_tensors
        slope, rest, share = (tensors.pop(0) if number is None else number for number in ctx.numbers)
        if torch.is_grad_enabled():
            # This gradient is to have a gradient itself: compute it again from the logits, in sight of autograd.
            sample = Sample(logits, label)
            p, confidence = sample.p, sample.confidence
            _, slope, rest = evaluate(ctx.terms, sample)
        step = p.new_zeros(()) if of_loss is None else (of_loss[:, None] if of_loss.ndim else of_loss) * share
        along_nll = (step * slope).expand(label.shape)
        if of_confidence is None:
            gradient = p * along_nll
        else:
            along_confidence = of_confidence[:, None] * confidence
            gradient = p * (along_nll - along_confidence)
            gradient.scatter_add_(1, first_largest(logits), along_confidence)
        gradient.scatter_add_(1, label, -along_nll)
        if isinstance(rest, Tensor):
            gradient.addcmul_(rest, step)
        return (gradient, *[None] * 5)


def _traced(
    logits: Tensor,
    labels: Tensor,
    terms: tuple[Term, ...],
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """The same for `torch.compile`, which makes a fast step of the plain formulas by itself."""
    counting = _counting(labels, weight, ignore_index, logits.dtype, reduction)
    sample = Sample(logits.detach(), counting.label)
    value, slope, rest = evaluate(terms, sample)
    gradient = slope * put(sample.p, sample.label, pick(sample.p, sample.label) - 1) + rest
    # 0 with the gradient as its slope; a logit of minus infinity has none.
    moves = torch.where(gradient != 0, gradient * (logits - sample.z), 0)
    confidence = pick(logits.softmax(1), sample.winner)
    return counting.reduced(value + total(moves), reduction), confidence.squeeze(1)


class Counting(NamedTuple):
    """What each sample counts.

    label   the labels, in range where they do not count either. (n, 1)
    counts  (n, 1), or 1.0 for all
    whole   what their sum is divided by
    """

    label: Tensor
    counts: Part
    whole: Part

    @property
    def share(self) -> Part:
        return self.counts / self.whole

    def reduced(self, value: Tensor, reduction: str) -> Tensor:
        """The losses (n, 1) as they count: all of them, or one value."""
        if isinstance(self.counts, Tensor):
            value = value.where(self.counts > 0, 0) * self.counts  # to count 0 times would leave a NaN as it is
        return value.squeeze(1) if reduction == "none" else value.sum() / self.whole


def _counting(
    labels: Tensor, weight: Tensor | None, ignore_index: int | None, dtype: torch.dtype, reduction: str
) -> Counting:
    label, mean = labels[:, None], reduction == "mean"
    if ignore_index is None and weight is None:
        return Counting(label, 1.0, float(max(label.numel(), 1)) if mean else 1.0)
    kept = torch.ones_like(label, dtype=torch.bool) if ignore_index is None else label != ignore_index
    label = label.where(kept, 0)
    counts = kept.to(dtype) if weight is None else weight.to(dtype)[label].where(kept, 0)
    whole = counts.sum()
    return Counting(label, counts, torch.where(whole > 0, whole, 1) if mean else 1.0)
