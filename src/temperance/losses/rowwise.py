"""Formulas evaluated for a batch: one step for autograd, with the values forward and the written slopes backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from temperance.losses import compiled, plain
from temperance.losses.formula import Batch, Term

# An `ignore_index` that no label has.
NOTHING = -(1 << 63)


def row_losses(logits: Tensor, labels: Tensor, terms: tuple[Term, ...]) -> tuple[Tensor, Tensor]:
    """The sum of the terms for each sample, and its confidence, with gradients. (n, k, *space) → (n, *space) each"""
    return _evaluated(Batch(at_least_float32(logits), labels, None, terms, NOTHING, "none"))


def reduced_loss(
    logits: Tensor,
    labels: Tensor,
    terms: tuple[Term, ...],
    *,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """The sum of the terms, as torch reduces cross-entropy; 0 if no sample counts."""
    return _evaluated(Batch(at_least_float32(logits), labels, weight, terms, ignore_index, reduction))[0]


def _evaluated(batch: Batch) -> tuple[Tensor, Tensor]:
    if plain.watched():
        return plain.traced(batch)
    loss, confidence = Rowwise.apply(batch.logits, batch)  # type: ignore[no-untyped-call]
    return loss, confidence


def loss_of(logits: Tensor, labels: Tensor, term: Term) -> Tensor:
    """One term for each sample. (n, k), (n,) → (n,)"""
    return row_losses(logits, labels.long(), (term,))[0]


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


class Rowwise(torch.autograd.Function):
    """The loss of a batch, and the confidences if it is not reduced."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        engine = (compiled.engine(batch) if logits.is_cpu else None) or plain
        found = engine.forward(batch, gradient=ctx.needs_input_grad[0])
        ctx.set_materialize_grads(False)
        ctx.engine, ctx.settings, ctx.whole, ctx.gradient = engine, batch[3:], found.whole, found.gradient
        ctx.save_for_backward(logits, batch.labels, batch.weight)
        return found.loss, found.confidence

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor | None, of_confidence: Tensor | None) -> tuple[Tensor | None, None]:
        if ctx.gradient is not None and of_loss is not None and not torch.is_grad_enabled():
            # Given away, and so found again by whoever goes backward once more.
            gradient, ctx.gradient = ctx.gradient, None
            return gradient if of_loss.is_cpu and float(of_loss) == 1 else gradient.mul_(of_loss), None
        batch = Batch(*ctx.saved_tensors, *ctx.settings)
        # A gradient that is to have a gradient itself is computed in sight of autograd.
        engine = plain if torch.is_grad_enabled() else ctx.engine
        return engine.backward(batch, ctx.whole, of_loss, of_confidence), None
