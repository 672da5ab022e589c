"""Formulas evaluated by torch, on any device and in any precision."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.formula import Batch, Outcome, Part, Sample, evaluate, pick, put, total


def forward(batch: Batch, *, gradient: bool) -> Outcome:
    """The loss and what belongs to it, but without the gradient."""
    sample, counts = _counted(batch)
    value, _, _ = evaluate(batch.terms, sample)
    loss, whole = _reduced(batch, value, counts)
    if batch.reduction == "none":
        return Outcome(loss, sample.confidence.squeeze(1), None)
    return Outcome(loss, None, whole)


def backward(batch: Batch, whole: Part | None, of_loss: Tensor | None, of_confidence: Tensor | None) -> Tensor:
    """The gradient in the logits, given those in the loss and in the confidence; it has a gradient itself."""
    sample, counts = _counted(batch)
    gradient = torch.zeros_like(sample.p)
    if of_loss is not None:
        _, slope, rest = evaluate(batch.terms, sample)
        step = (of_loss[:, None] if of_loss.ndim else of_loss) * (counts if whole is None else counts / whole)
        gradient = step * _in_logits(sample, slope, rest)
    if of_confidence is not None:
        towards_winner = put(-sample.p, sample.winner, 1 - sample.confidence)
        gradient = gradient + of_confidence[:, None] * sample.confidence * towards_winner
    return gradient


def class_sums(batch: Batch) -> tuple[Tensor, Part]:
    """The sums of the probabilities of samples that count, and how many these are, at least 1. (k,)"""
    sample, counts = _counted(batch)
    space = [0, *range(2, sample.p.ndim)]
    if isinstance(counts, Tensor):
        return (sample.p * counts).sum(space), counts.sum().clamp_min(1)
    return sample.p.sum(space), float(max(sample.label.numel(), 1))


def watched() -> bool:
    """Is what we do followed, step by step, by `torch.compile` or by a transform of `torch.func`?"""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def traced(batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss and the confidences for who follows; a compiler makes one fast step of plain torch by itself."""
    held = batch._replace(logits=batch.logits.detach())
    sample, counts = _counted(held)
    value, slope, rest = evaluate(batch.terms, sample)
    gradient = _in_logits(sample, slope, rest)
    # 0, with the written gradient as its own. A logit of minus infinity has none.
    moves = torch.where(gradient != 0, gradient * (batch.logits - held.logits), 0)
    loss, _ = _reduced(batch, value + total(moves), counts)
    return loss, pick(batch.logits.softmax(1), sample.winner).squeeze(1)


def _in_logits(sample: Sample, slope: Part, rest: Part) -> Tensor:
    """slope · (p − q) + rest. (n, k)"""
    return slope * put(sample.p, sample.label, pick(sample.p, sample.label) - 1) + rest


def _reduced(batch: Batch, value: Tensor, counts: Part) -> tuple[Tensor, Part]:
    """The loss, and what the sum of the losses (n, 1) was divided by."""
    if isinstance(counts, Tensor):
        value = value.where(counts > 0, 0) * counts  # to count 0 times would leave a NaN as it is
    if batch.reduction == "none":
        return value.squeeze(1), 1.0
    whole: Part = 1.0
    if batch.reduction == "mean":
        whole = above_zero(counts.sum()) if isinstance(counts, Tensor) else float(max(value.numel(), 1))
    return value.sum() / whole, whole


def above_zero(whole: Tensor) -> Tensor:
    """A sum to divide by: 1 if it is 0."""
    return torch.where(whole > 0, whole, 1)


def _counted(batch: Batch) -> tuple[Sample, Part]:
    """The samples, with labels in range also where they do not count, and what each counts (n, 1); 1.0 if all alike."""
    label = batch.labels[:, None]
    if batch.weight is None and all_count(batch.labels, batch.logits.shape[1], batch.ignore_index):
        return Sample(batch.logits, label), 1.0
    kept = label != batch.ignore_index
    label = label.where(kept, 0)
    counts = kept.to(batch.logits.dtype)
    if batch.weight is not None:
        counts = counts * batch.weight.to(counts.dtype)[label]
    return Sample(batch.logits, label), counts


def all_count(labels: Tensor, k: int, ignore_index: int) -> bool:
    """Is it known, without making a GPU wait, that no label is ignored? Refuses labels out of range on the way."""
    if watched() or not labels.is_cpu or not labels.numel():
        return False
    low, high = labels.aminmax()
    if int(low) >= 0 and int(high) < k:
        return not 0 <= ignore_index < k
    wrong = ((labels < 0) | (labels >= k)) & (labels != ignore_index)
    if bool(wrong.any()):
        found = int(labels[wrong][0])
        raise InputError(
            f"labels must lie in 0 … {k - 1} for {k} classes, or be ignore_index={ignore_index}; found {found}"
        )
    return False
