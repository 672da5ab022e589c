"""Formulas evaluated for a batch: one step for autograd, with the values forward and the written slopes backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from temperance.losses import compiled, fused, plain
from temperance.losses.formula import NLL, NOTHING, Batch, Outcome, Term


def row_losses(logits: Tensor, labels: Tensor, terms: tuple[Term, ...]) -> tuple[Tensor, Tensor]:
    """The sum of the terms for each sample, and its confidence, with gradients. (n, k, *space) → (n, *space) each"""
    return _evaluated(Batch(logits, labels, None, terms, NOTHING, "none"))


def reduced_loss(batch: Batch) -> Tensor:
    """The sum of the terms, as torch reduces cross-entropy; 0 if no sample counts."""
    return _evaluated(batch)[0]


def _evaluated(batch: Batch) -> tuple[Tensor, Tensor]:
    if plain.watched():
        batch = batch.in_single()
        return transformed(batch) if plain.transformed() else plain.traced(batch)
    loss, confidence = Rowwise.apply(batch.logits, batch)  # type: ignore[no-untyped-call]
    return loss, confidence


def without_gradient(batch: Batch) -> Tensor:
    """The sum of the terms for each sample. (n, *space)"""
    batch = batch._replace(logits=batch.logits.detach(), reduction="none").in_single()
    return fastest(batch).forward(batch, gradient=False).loss


def class_excess(batch: Batch) -> Tensor:
    """How much more often each class is predicted than it is there, in samples that count; without gradients. (k,)"""
    batch = batch._replace(logits=batch.logits.detach(), weight=None, terms=NLL, reduction="sum").in_single()
    # p − q, summed over the samples: what cross-entropy has for a gradient.
    return fastest(batch).class_sums(batch)


def loss_of(logits: Tensor, labels: Tensor, term: Term) -> Tensor:
    """One term for each sample. (n, k), (n,) → (n,)"""
    plain.check_shapes(logits, labels)
    return row_losses(logits, labels.long(), (term,))[0]


class Engine(Protocol):
    """Who evaluates formulas."""

    def forward(self, batch: Batch, *, gradient: bool) -> Outcome:
        """The loss; with its gradient if that is wanted and the loss is reduced."""

    def backward(self, batch: Batch, of_loss: Tensor | None, of_confidence: Tensor | None) -> Tensor:
        """The gradient in the logits, given those in the loss and in the confidences."""

    def class_sums(self, batch: Batch) -> Tensor:
        """The gradient of a loss that is reduced, summed over the samples. (k,)"""


class Rowwise(torch.autograd.Function):
    """The loss of a batch, and the confidences if it is not reduced."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        batch = batch.in_single()
        engine = fastest(batch)
        loss, confidence, gradient = engine.forward(batch, gradient=ctx.needs_input_grad[0])
        ctx.set_materialize_grads(False)
        ctx.engine, ctx.settings, ctx.gradient, ctx.dtype = engine, batch[3:], gradient, logits.dtype
        ctx.save_for_backward(logits, batch.labels, batch.weight)
        return loss, confidence

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor | None, of_confidence: Tensor | None) -> tuple[Tensor | None, None]:
        # A gradient that is to have a gradient itself, or is one of many, is computed in sight of torch.
        in_sight = torch.is_grad_enabled() or plain.watched() or _stands_for_many(of_loss, of_confidence)
        if ctx.gradient is not None and of_loss is not None and not in_sight:
            # Given away, and so to be found again by who goes backward once more.
            gradient, ctx.gradient = ctx.gradient, None
            if not of_loss.is_cpu or float(of_loss) != 1:
                gradient.mul_(of_loss)
        else:
            batch = Batch(*ctx.saved_tensors, *ctx.settings).in_single()
            gradient = (plain if in_sight else ctx.engine).backward(batch, of_loss, of_confidence)
        return gradient.to(ctx.dtype), None


def _stands_for_many(*given: Tensor | None) -> bool:
    """Is one of these not in memory, as where `torch.autograd` takes many gradients at once?"""
    try:
        for tensor in given:
            if tensor is not None:
                tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def transformed(batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss and the confidences for `torch.func` and forward derivatives, of any order."""
    leaves, shape = tree_flatten((batch.labels, batch.weight, *batch[3:]))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    tensors = (leaves[place] for place in places)
    loss, confidence = Transformed.apply(batch.logits, (others, places, shape), *tensors)  # type: ignore[no-untyped-call]
    return loss, confidence


class Transformed(torch.autograd.Function):
    """`Rowwise` in plain torch. Whoever transforms it is to see all tensors, so that the batch is taken apart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, parts: Any, *tensors: Tensor) -> tuple[Tensor, Tensor | None]:
        loss, confidence, _ = plain.forward(_together(logits, parts, tensors), gradient=False)
        return loss, confidence

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        logits, ctx.parts, *tensors = inputs
        ctx.save_for_backward(logits, *tensors)
        ctx.save_for_forward(logits, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor | None, of_confidence: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, *tensors = ctx.saved_tensors
        gradient = plain.backward(_together(logits, ctx.parts, tensors), of_loss, of_confidence)
        return gradient, None, *[None for _ in tensors]

    @staticmethod
    def jvp(ctx: Any, move: Tensor, *_: object) -> tuple[Tensor, Tensor | None]:
        logits, *tensors = ctx.saved_tensors
        batch = _together(logits, ctx.parts, tensors)
        each = torch.ones_like(logits[:, 0])
        if batch.reduction != "none":
            return (plain.backward(batch, torch.ones_like(logits.sum()), None) * move).sum(), None
        loss, confidence = (plain.backward(batch, *of) * move for of in ((each, None), (None, each)))
        return loss.sum(1), confidence.sum(1)


def _together(logits: Tensor, parts: Any, tensors: Sequence[Tensor]) -> Batch:
    """The batch that `transformed` took apart."""
    others, places, shape = parts
    leaves = list(others)
    for place, tensor in zip(places, tensors, strict=True):
        leaves[place] = tensor
    return Batch(logits, *tree_unflatten(leaves, shape))


def fastest(batch: Batch) -> Engine:
    """Who evaluates this batch."""
    found: Engine | None = None
    if batch.logits.is_cpu:
        found = compiled.engine(batch)
    elif batch.logits.is_cuda:
        found = fused.engine(batch)
    return found or plain
