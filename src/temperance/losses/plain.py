"""Formulas evaluated by torch, on any device and in any precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from temperance.arrays import shape_of
from temperance.errors import InputError
from temperance.losses.formula import NOTHING, Batch, Outcome, Part, Sample, evaluate, pick, put, total

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def forward(batch: Batch, *, gradient: bool) -> Outcome:
    """The loss and what belongs to it."""
    sample, counts = _counted(batch)
    value, slope, rest = evaluate(batch.terms, sample)
    loss = _reduced(batch, value, counts)
    if batch.reduction == "none":
        return Outcome(loss, sample.confidence.squeeze(1))
    return Outcome(loss, gradient=_weighed(batch, counts, _in_logits(sample, slope, rest)) if gradient else None)


def backward(batch: Batch, of_loss: Tensor | None, of_confidence: Tensor | None) -> Tensor:
    """The gradient in the logits, given those in the loss and in the confidence; it has a gradient itself."""
    sample, counts = _counted(batch)
    gradient = torch.zeros_like(sample.p)
    if of_loss is not None:
        _, slope, rest = evaluate(batch.terms, sample)
        of_each = of_loss[:, None] if of_loss.ndim else of_loss
        gradient = of_each * _weighed(batch, counts, _in_logits(sample, slope, rest))
    if of_confidence is not None:
        towards_winner = put(-sample.p, sample.winner, 1 - sample.confidence)
        gradient = gradient + of_confidence[:, None] * sample.confidence * towards_winner
    return gradient


def class_sums(batch: Batch) -> Tensor:
    """The gradient, summed over the samples. (k,)"""
    return over_samples(forward(batch, gradient=True))


def over_samples(outcome: Outcome) -> Tensor:
    """The sum of a gradient (n, k, *space) over all but the classes. (k,)"""
    assert outcome.gradient is not None
    return outcome.gradient.sum([0, *range(2, outcome.gradient.ndim)])


def watched() -> bool:
    """Is what we do followed, step by step, by a compiler, a transform of `torch.func` or another that traces?"""
    return torch.compiler.is_compiling() or transformed() or bool(_modes()) or _tracing()


def transformed() -> bool:
    """Are derivatives taken by `torch.func`, or forward?"""
    return _transforms() or forward_ad._current_level >= 0


# No torch has these in public, and one may come without them.
_transforms: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def traced(batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss and the confidences for who follows; a compiler makes one fast step of plain torch by itself."""
    held = batch._replace(logits=batch.logits.detach())
    sample, counts = _counted(held)
    value, slope, rest = evaluate(batch.terms, sample)
    gradient = _in_logits(sample, slope, rest)
    # 0, with the written gradient as its own. A logit of minus infinity has none.
    moves = torch.where(gradient != 0, gradient * (batch.logits - held.logits), 0)
    return _reduced(batch, value + total(moves), counts), pick(batch.logits.softmax(1), sample.winner).squeeze(1)


def _in_logits(sample: Sample, slope: Part, rest: Part) -> Tensor:
    """slope · (p − q) + rest. (n, k)"""
    return slope * put(sample.p, sample.label, pick(sample.p, sample.label) - 1) + rest


def _reduced(batch: Batch, value: Tensor, counts: Tensor | None) -> Tensor:
    """The loss, of the losses (n, 1)."""
    if counts is not None:
        value = value.where(counts > 0, 0) * counts  # to count 0 times would leave a NaN as it is
    if batch.reduction == "none":
        return value.squeeze(1)
    return value.sum() / whole(batch, counts) if batch.reduction == "mean" else value.sum()


def _weighed(batch: Batch, counts: Tensor | None, gradient: Tensor) -> Tensor:
    """The gradients of the samples' losses as they enter that of the loss. (n, k) each"""
    each: Part = 1.0 if counts is None else counts
    found: Tensor = (each / whole(batch, counts) if batch.reduction == "mean" else each) * gradient
    return found if counts is None else found.where(counts > 0, 0)  # as for values


def whole(batch: Batch, counts: Tensor | None) -> Part:
    """What the sum of the losses is divided by for their mean: 1 if no sample counts."""
    if counts is None:
        return float(max(batch.labels.numel(), 1))
    total = counts.sum()
    return torch.where(total > 0, total, 1)


def _counted(batch: Batch) -> tuple[Sample, Tensor | None]:
    """The samples, with labels in range also where they do not count, and `counts_of` them."""
    label = batch.labels[:, None]
    counts = counts_of(batch)
    if counts is not None:
        label = label.where(label != batch.ignore_index, 0)
    return Sample(batch.logits, label), counts


def counts_of(batch: Batch) -> Tensor | None:
    """What each sample counts (n, 1); None if it is known that all count alike."""
    labels, weight = batch.labels[:, None], batch.weight
    if weight is None and all_count(batch.labels, batch.logits.shape[1], batch.ignore_index):
        return None
    kept = labels != batch.ignore_index
    counts = kept.to(batch.logits.dtype)
    return counts if weight is None else counts * weight.to(counts.dtype)[labels.where(kept, 0)]


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
        ignored = f", or be ignore_index={ignore_index}" if ignore_index != NOTHING else ""
        raise InputError(f"labels must lie in 0 … {k - 1} for {k} classes{ignored}; found {found}")
    return False


def elsewhere(here: object, there: object) -> InputError:
    """The error for a tensor that is not where the others are."""
    return InputError(f"a loss and all that it is given must be on one device; found {here} and {there}")


def check_shapes(logits: Tensor, labels: Tensor) -> None:
    """Refuse what is no batch of logits with its labels."""
    if logits.ndim < 2 or not logits.is_floating_point():
        raise InputError(
            f"logits must be floating-point numbers (N, C) or (N, C, ...); got {logits.dtype} {shape_of(logits)}"
        )
    if not logits.shape[1]:
        raise InputError(f"logits must have at least one class; got {shape_of(logits)}")
    if labels.device != logits.device:
        raise elsewhere(logits.device, labels.device)
    expected = logits.shape[:1] + logits.shape[2:]
    if labels.dtype not in WHOLE or labels.shape != expected:
        raise InputError(
            f"labels must be class numbers of shape {tuple(expected)} to fit logits {shape_of(logits)}; "
            f"got {labels.dtype} {shape_of(labels)}"
        )
