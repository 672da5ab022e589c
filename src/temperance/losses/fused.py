"""Formulas on a GPU: each printed as one kernel in Triton, which comes with torch there.

A step in plain torch is a kernel of its own, and to start one takes longer than to compute it: a loss written in steps
takes many times as long as cross-entropy, for batches of usual size. Here it is one kernel forward and one backward.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import math
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from temperance.losses.formula import NLL, Batch, Outcome, Part, once
from temperance.losses.program import (
    Form,
    Operand,
    Program,
    all_forms,
    columns_of,
    forms,
    programs,
    setting_place,
    vectors_of,
)

# With more classes than this a sample does not fit into the registers of a multiprocessor.
MOST_CLASSES = 1 << 15

# Logits that one program of a kernel takes at a time.
TILE = 1 << 11

# What steps are in Triton. Beyond the last class there is anything, so reductions look at what is `inside`.
STEPS = {
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "expm1": "expm1({0})",
    "log": "tl.log({0})",
    "abs": "tl.abs({0})",
    "relu": "tl.where({0} < 0, 0.0, {0})",
    "square": "{0} * {0}",
    "ones_like": "tl.full({0}.shape, 1.0, tl.float32)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "truediv": "{0} / {1}",
    "pow": "tl.exp({1} * tl.log({0}))",
    "clamp_min": "tl.where({0} < {1}, {1}, {0})",
    "clamp_max": "tl.where({0} > {1}, {1}, {0})",
    "minimum": "tl.where({0} > {1}, {1}, {0})",
    "eq": "tl.where({0} == {1}, 1.0, 0.0)",
    "lt": "tl.where({0} < {1}, 1.0, 0.0)",
    "le": "tl.where({0} <= {1}, 1.0, 0.0)",
    "gt": "tl.where({0} > {1}, 1.0, 0.0)",
    "ge": "tl.where({0} >= {1}, 1.0, 0.0)",
    "where": "tl.where({0} != 0, {1}, {2})",
    "sum": "tl.sum(tl.where(inside, {0}, 0.0), 1, keep_dims=True)",
    "dot": "tl.sum(tl.where(inside, {0} * {1}, 0.0), 1, keep_dims=True)",
    "amax": "tl.max(tl.where(inside, {0}, -float('inf')), 1, keep_dims=True)",
    "amin": "tl.min(tl.where(inside, {0}, float('inf')), 1, keep_dims=True)",
    "first_largest": "tl.argmax(tl.where(inside, {0}, -float('inf')), 1, keep_dims=True)",
    "pick": "tl.sum(tl.where(classes == {1}, {0}, 0.0), 1, keep_dims=True)",
    "put": "tl.where(classes == {1}, {2}, {0})",
    "lookup": "lookup({0}, {1}, {2}, {1}_size)",
    "soft_rank": "soft({0}, {1}, {1}_size, {2}, False)",
    "soft_density": "soft({0}, {1}, {1}_size, {2}, True)",
}

# A kernel for `ROWS` samples; what is None is not there.
SOURCE = """
@triton.jit
def expm1(x):
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
    return tl.where(tl.abs(x) < 0.3, series, tl.exp(x) - 1)


@triton.jit
def lookup(x, edges, found, size):
    value = tl.zeros_like(x) + tl.load(found)
    for i in range(size):
        value = tl.where(x > tl.load(edges + i), tl.load(found + i + 1), value)
    return value


@triton.jit
def soft(x, shares, size, width, DENSITY: tl.constexpr):
    value = tl.zeros_like(x)
    for i in range(size):
        up = tl.sigmoid((x - (i + 0.5) / size) / width)
        value += tl.load(shares + i) * (up * (1 - up) / width if DENSITY else up)
    return value


@triton.jit(do_not_specialize=["ignore_index", "n"])
def kernel(logits, labels, weight, ignore_index, n, k, space, {arguments}, ROWS: tl.constexpr, CLASSES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    classes = tl.arange(0, CLASSES)[None, :]
    here = row < n
    inside = here & (classes < k)
    place = row // space * k * space + row % space + classes.to(tl.int64) * space
    z = tl.load(logits + place, mask=inside, other=-float('inf')).to(tl.float32)
    label = tl.load(labels + row, mask=here, other=ignore_index)
    known = (label >= 0) & (label < k)
    count = tl.where(known, 1.0, float('nan'))
    if weight is not None:
        count *= tl.load(weight + label, mask=known, other=0.0)
    count = tl.where(label == ignore_index, 0.0, count)
    label = tl.where(known, label, 0)
    top = tl.max(z, 1, keep_dims=True)
    winner = tl.argmax(z, 1, keep_dims=True)
    p = tl.exp(z - top)
    confidence = 1 / tl.sum(p, 1, keep_dims=True)
    p *= confidence
    log_confidence = tl.log(confidence)
    nll = top - tl.sum(tl.where(classes == label, z, 0.0), 1, keep_dims=True) - log_confidence
{loads}
{steps}
"""

FORWARD = """
    tl.store(losses + row, tl.where(count == 0, 0.0, count * {value}), mask=here)
    if counts is not None:
        tl.store(counts + row, count + tl.where(row == 0, 1e-30, 0.0), mask=here)
    if confidences is not None:
        tl.store(confidences + row, confidence, mask=here)
"""

BACKWARD = """
    slope = tl.zeros_like(z)
    if of_losses is not None:
        step = tl.load(of_losses + row * stride, mask=here, other=0.0)
        if whole is not None:
            step /= tl.load(whole)
        step = tl.where(count == 0, 0.0, step * count)
        push = step * {slope}
        slope += push * p + step * {rest} - tl.where(classes == label, push, 0.0)
    if of_confidences is not None:
        pull = tl.load(of_confidences + row, mask=here, other=0.0) * confidence
        slope += tl.where(classes == winner, pull, 0.0) - pull * p
    tl.store(gradient + place, slope, mask=inside)
"""


def engine(batch: Batch) -> Fused | None:
    """What can evaluate this batch, if anything here can."""
    logits = batch.logits
    fits = logits.dtype == torch.float32 and logits.shape[1] <= MOST_CLASSES and batch.labels.numel() > 0
    return _fused(forms(batch.terms)) if fits and works() else None


@cache
def works() -> bool:
    """Can Triton make a kernel here? It wants a GPU that it knows, and a C compiler."""
    try:
        logits, labels = torch.zeros(1, 2, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        batch = Batch(logits, labels, None, NLL, -100, "mean")
        found = Fused(forms(NLL)).forward(batch, gradient=False)
        return math.isclose(float(found.loss), math.log(2), rel_tol=1e-5)
    except Exception:
        return False


@lru_cache(maxsize=256)
def _fused(of: tuple[Form, ...]) -> Fused | None:
    try:
        return Fused(of)
    except NotImplementedError:
        return None


class Fused:
    """A sum of terms: a kernel for its value and one for its gradient."""

    def __init__(self, of: tuple[Form, ...]) -> None:
        value, slopes, _ = programs(of)
        self.value = Kernel(value, of, FORWARD, ("losses", "counts", "confidences"))
        self.slopes = Kernel(slopes, of, BACKWARD, ("gradient", "of_losses", "stride", "whole", "of_confidences"))

    def forward(self, batch: Batch, *, gradient: bool) -> Outcome:
        two = torch.empty((2, *batch.labels.shape), dtype=torch.float32, device=batch.logits.device)
        if batch.reduction == "none":
            losses, confidence = two
            self.value(batch, losses, None, confidence)
            return Outcome(losses, confidence, None)
        losses, counts = two
        self.value(batch, losses, counts, None)
        if batch.reduction == "sum":
            return Outcome(losses.sum(), None, 1.0)
        loss, whole = two.flatten(1).sum(1)
        return Outcome(loss / whole, None, whole)

    def class_sums(self, batch: Batch) -> tuple[Tensor, Part]:
        kept = (batch.labels != batch.ignore_index)[:, None]
        probs = batch.logits.softmax(1)
        return probs.where(kept, 0).sum([0, *range(2, probs.ndim)]), kept.sum().clamp_min(1)

    def backward(
        self, batch: Batch, whole: Part | None, of_loss: Tensor | None, of_confidence: Tensor | None
    ) -> Tensor:
        gradient = torch.empty(batch.logits.shape, dtype=batch.logits.dtype, device=batch.logits.device)
        divisor = whole if isinstance(whole, Tensor) else None
        each = None if of_loss is None else of_loss.contiguous()
        stride = 1 if each is not None and each.ndim else 0
        self.slopes(
            batch, gradient, each, stride, divisor, None if of_confidence is None else of_confidence.contiguous()
        )
        return gradient


class Kernel:
    """A program as a kernel."""

    def __init__(self, program: Program, of: tuple[Form, ...], end: str, arrays: tuple[str, ...]) -> None:
        made, self.tables = {step.name for step in program.steps}, program.tables

        def text(operand: Operand) -> str:
            if isinstance(operand, str):
                return f"its_{operand}" if operand in made else operand
            return repr(operand) if math.isfinite(operand) else f"float('{operand}')"

        steps = []
        for step in program.steps:
            if step.op not in STEPS:
                raise NotImplementedError(f"there is no step {step.op} in Triton")
            steps.append(f"    its_{step.name} = " + STEPS[step.op].format(*map(text, step.operands)))
        on_device = [there for form in all_forms(of) for there in form.on_device]
        numbers, columns, vectors = [f"n{i}" for i in range(len(on_device))], columns_of(of), vectors_of(of)
        loads = [f"    {name} = tl.load({name})" for name, there in zip(numbers, on_device, strict=True) if there]
        loads += [f"    {name} = tl.load({name} + row, mask=here, other=0.0)" for name in columns]
        loads += [f"    {name} = tl.load({name} + classes, mask=classes < k, other=0.0)" for name in vectors]
        arguments = [*numbers, *columns, *vectors, *(f"{name}_size" for name in self.tables), *arrays]
        end = end.format(**{name: text(result) for name, result in program.results.items()})
        lines = {"loads": "\n".join(loads), "steps": "\n".join(steps)}
        self.source = SOURCE.format(arguments=", ".join(arguments), **lines) + end

    @once
    def function(self) -> Any:
        """What Triton makes of it."""
        triton = importlib.import_module("triton")
        names = {"__name__": __name__, "triton": triton, "tl": importlib.import_module("triton.language")}
        # Triton reads the source again, of a file that there is not.
        file = f"<a kernel of temperance.losses, {hashlib.sha256(self.source.encode()).hexdigest()}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(keepends=True), file)
        exec(compile(self.source, file, "exec"), names)
        return names["kernel"]

    def __call__(self, batch: Batch, *arrays: Any) -> None:
        n, k, labels = batch.labels.numel(), batch.logits.shape[1], batch.labels.contiguous()
        numbers: list[Any] = [x.float().contiguous() if isinstance(x, Tensor) else x for x in batch.numbers]
        own = [tensor.float().contiguous() for tensor in (*batch.columns, *batch.vectors)]
        sizes = [len(numbers[setting_place(name) - 1]) for name in self.tables]
        weight = None if batch.weight is None else batch.weight.float()
        given = (batch.logits.contiguous(), labels, weight, batch.ignore_index, n, k, n // len(labels))
        classes = 1 << (k - 1).bit_length()
        rows = max(1, TILE // classes)
        shape = {"ROWS": rows, "CLASSES": classes, "num_warps": max(4, min(32, classes // 512))}
        with torch.cuda.device(batch.logits.device):
            self.function[((n + rows - 1) // rows,)](*given, *numbers, *own, *sizes, *arrays, **shape)
