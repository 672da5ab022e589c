"""Formulas on a GPU: each printed as one kernel in Triton.

A step in plain torch is a kernel of its own, and to start one takes longer than to compute it: a loss written in steps
takes many times as long as cross-entropy, for batches of usual size. Here the loss and its gradient are one kernel.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from temperance.losses import plain
from temperance.losses.formula import NLL, NOTHING, Batch, Outcome
from temperance.losses.launch import Kernel, counter, readable
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

# Up to so many samples each program counts all of them by itself; more are counted by torch before.
FEW = 1 << 12

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

# A kernel for some samples at a time.
TEXT = """
@triton.jit
def expm1(x):
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
    return tl.where(tl.abs(x) < 0.3, series, tl.exp(x) - 1)


@triton.jit
def lookup(x, edges, found, size):
    place = tl.zeros_like(x).to(tl.int32)
    for start in range(0, size, 16):
        i = start + tl.arange(0, 16)[None, :]
        edge = tl.load(edges + i, mask=i < size, other=float('inf'))
        place += tl.sum((x > edge).to(tl.int32), 1, keep_dims=True)
    return tl.load(found + place)


@triton.jit
def soft(x, shares, size, width, DENSITY: tl.constexpr):
    value = tl.zeros_like(x)
    for start in range(0, size, 64):
        i = start + tl.arange(0, 64)[None, :]
        share = tl.load(shares + i, mask=i < size, other=0.0)
        up = tl.sigmoid((x - (i + 0.5) / size) / width)
        value += tl.sum(share * (up * (1 - up) / width if DENSITY else up), 1, keep_dims=True)
    return value


@triton.jit
def finish(sums, loss, done):
    programs = tl.num_programs(0)
    if tl.atomic_add(done, 1) == programs - 1:
        total = tl.zeros([256], tl.float32)
        for start in range(0, programs, 256):
            i = start + tl.arange(0, 256)
            total += tl.load(sums + i, mask=i < programs, other=0.0)
        tl.store(loss, tl.sum(total))
        tl.store(done, 0)


@triton.jit
def counted(label{weight}):
    known = (label >= 0) & (label < {k})
    count = tl.where(known, {known_weight}, float('nan'))
    return tl.where({ignored}, 0.0, count)


@triton.jit(do_not_specialize={integers})
def kernel({arguments}):
    row = tl.program_id(0).to(tl.int64) * {rows} + tl.arange(0, {rows})[:, None]
    classes = tl.arange(0, {classes})[None, :]
    here = row < n
    inside = here & (classes < {k})
    place = {place}
    z = tl.load(logits + place, mask=inside, other=-float('inf'))
    label = tl.load(labels + row, mask=here, other=0)
    count = tl.where(here, counted(label{weight}), 0.0)
    label = tl.where((label >= 0) & (label < {k}), label, 0)
    top = tl.max(z, 1, keep_dims=True)
    winner = tl.argmax(z, 1, keep_dims=True)
    p = tl.exp(z - top)
    confidence = 1 / tl.sum(p, 1, keep_dims=True)
    p *= confidence
    log_confidence = tl.log(confidence)
    nll = top - tl.sum(tl.where(classes == label, z, 0.0), 1, keep_dims=True) - log_confidence
{lines}
"""

# What each sample counts for a mean.
COUNT_ALL = [
    "everyone = tl.arange(0, {reach})",
    "all_labels = tl.load(labels + everyone, mask=everyone < n, other=0)",
    "whole = tl.sum(tl.where(everyone < n, counted(all_labels{weight}), 0.0))",
    "count /= tl.where(whole == 0, 1.0, whole)",
]

# How each array that is wanted is filled.
OUTPUTS = {
    "losses": ["tl.store(losses + row, tl.where(count == 0, 0.0, count * {value}), mask=here)"],
    "sums": ["tl.store(sums + tl.program_id(0), tl.sum(tl.where(count == 0, 0.0, count * {value})))"],
    "loss": ["finish(sums, loss, done)"],
    "confidences": ["tl.store(confidences + row, confidence, mask=here)"],
    "gradient": [
        "push = step * {slope}",
        "found = push * p + step * {rest} - tl.where(classes == label, push, 0.0)",
        "found = tl.where(count == 0, 0.0, found)",
        "found += tl.where(classes == winner, pull, 0.0) - pull * p",
        "tl.store(gradient + place, found, mask=inside)",
    ],
}


def engine(batch: Batch) -> Fused | None:
    """What can evaluate this batch, if anything here can."""
    logits, n = batch.logits, batch.labels.numel()
    fits = logits.dtype == torch.float32 and logits.shape[1] <= MOST_CLASSES and 0 < n < 1 << 31
    return _fused(forms(batch.terms)) if fits and works() else None


@cache
def works() -> bool:
    """Can Triton make a kernel here, and start it again? It wants a GPU that it knows, and a C compiler."""
    try:
        logits, labels = torch.zeros(1, 2, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        batch, fused = Batch(logits, labels, None, NLL, -100, "mean"), Fused(forms(NLL))
        found = [float(fused.forward(batch, gradient=True).loss) for _ in range(2)]
        return all(math.isclose(loss, math.log(2), rel_tol=1e-5) for loss in found)
    except Exception:
        return False


@lru_cache(maxsize=256)
def _fused(of: tuple[Form, ...]) -> Fused | None:
    try:
        return Fused(of)
    except NotImplementedError:
        return None


class Fused:
    """A sum of terms: a kernel for each question that may be asked."""

    def __init__(self, of: tuple[Form, ...]) -> None:
        self.of = of
        self.value, self.slopes, self.both = programs(of)
        self.printed: dict[Question, Printed] = {}
        unknown = {step.op for step in self.both.steps} - set(STEPS)
        if unknown:
            raise NotImplementedError(f"there are no steps {unknown} in Triton")

    def forward(self, batch: Batch, *, gradient: bool) -> Outcome:
        logits, labels = batch.logits, batch.labels
        if batch.reduction == "none":
            losses, confidence = logits.new_empty((2, *labels.shape)).unbind()
            self.run(self.value, batch, {"losses": losses, "confidences": confidence})
            return Outcome(losses, confidence)
        # The last program to end adds up what all found.
        rows = rows_of(logits.shape[1])
        sums = logits.new_empty((labels.numel() + rows - 1) // rows)
        arrays = {"sums": sums, "loss": logits.new_empty(()), "done": counter(logits.device)}
        if gradient:
            arrays["gradient"] = torch.empty_like(logits, memory_format=torch.contiguous_format)
        self.run(self.both if gradient else self.value, batch, arrays)
        return Outcome(arrays["loss"], None, arrays.get("gradient"))

    def backward(self, batch: Batch, of_loss: Tensor | None, of_confidence: Tensor | None) -> Tensor:
        gradient = torch.empty_like(batch.logits, memory_format=torch.contiguous_format)
        if of_loss is None:
            of_loss = gradient.new_zeros(())
        arrays = {"of_losses": readable(of_loss.expand(batch.labels.shape))}
        if of_confidence is not None:
            arrays["of_confidences"] = readable(of_confidence)
        self.run(self.slopes, batch, {**arrays, "gradient": gradient})
        return gradient

    def class_sums(self, batch: Batch) -> Tensor:
        return plain.over_samples(self.forward(batch, gradient=True))

    def run(self, program: Program, batch: Batch, arrays: dict[str, Tensor]) -> None:
        """Fill the arrays that are outputs, given those that are not."""
        logits, labels, weight, _, ignore_index, reduction = batch
        n, n_rows, k = labels.numel(), logits.shape[0], logits.shape[1]
        reach = 0
        if reduction == "mean":
            if n <= FEW:
                reach = power_of_two(n)
            else:
                arrays["whole"] = torch.as_tensor(plain.whole(batch, plain.counts_of(batch)), device=logits.device)
        if weight is not None:
            arrays["weight"] = readable(weight)
        question = Question(tuple(arrays), k, n == n_rows, reach, ignore_index)
        printed = self.printed.get(question)
        if printed is None:
            printed = self.printed[question] = Printed(program, self.of, question)
        numbers, columns, vectors = batch.inputs()
        given: list[Any] = [readable(logits), readable(labels), *arrays.values()]
        given += [readable(number) if isinstance(number, Tensor) else float(number) for number in numbers]
        given += [readable(array) for array in (*columns, *vectors)]
        given += [cast(Tensor, numbers[place]).numel() for place in printed.tables]
        given += n, n // n_rows
        printed.kernel((n + printed.rows - 1) // printed.rows, given, warps=printed.warps)


def power_of_two(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def rows_of(k: int) -> int:
    """How many samples a program takes at a time."""
    return max(1, TILE // power_of_two(k))


class Question(NamedTuple):
    """What a kernel is printed for.

    arrays        what it reads and fills besides logits and labels, by name
    k             the number of classes
    flat          there is no space: each sample has its logits side by side
    reach         if the mean is wanted of that many samples at most: the next power of two
    ignore_index  samples with this label do not count
    """

    arrays: tuple[str, ...]
    k: int
    flat: bool
    reach: int
    ignore_index: int


class Printed:
    """A program as a kernel."""

    def __init__(self, program: Program, of: tuple[Form, ...], question: Question) -> None:
        self.rows = rows_of(question.k)
        self.warps = max(4, min(32, power_of_two(question.k) // 512))
        self.tables = [setting_place(name) - 1 for name in program.tables]
        self.kernel = Kernel(kernel_text(program, of, question))


def kernel_text(program: Program, of: tuple[Form, ...], question: Question) -> str:
    """The text of that."""
    arrays, k, flat, reach, ignore_index = question
    made = {step.name for step in program.steps}

    def text(operand: Operand) -> str:
        if isinstance(operand, str):
            return f"its_{operand}" if operand in made else str(k) if operand == "k" else operand
        return repr(operand) if math.isfinite(operand) else f"float('{operand}')"

    on_device = [there for form in all_forms(of) for there in form.on_device]
    numbers, columns, vectors = [f"n{i}" for i in range(len(on_device))], columns_of(of), vectors_of(of)
    weight = ", weight" if "weight" in arrays else ""
    lines = [f"{name} = tl.load({name})" for name, there in zip(numbers, on_device, strict=True) if there]
    lines += [f"{name} = tl.load({name} + row, mask=here, other=0.0)" for name in columns]
    lines += [f"{name} = tl.load({name} + classes, mask=classes < {k}, other=0.0)" for name in vectors]
    lines += [f"its_{step.name} = " + STEPS[step.op].format(*map(text, step.operands)) for step in program.steps]
    if reach:
        lines += [line.format(reach=reach, weight=weight) for line in COUNT_ALL]
    elif "whole" in arrays:
        lines.append("count /= tl.load(whole)")
    of_loss = "tl.load(of_losses + row, mask=here, other=0.0)" if "of_losses" in arrays else "1.0"
    of_confidence = "tl.load(of_confidences + row, mask=here, other=0.0)" if "of_confidences" in arrays else "0.0"
    lines += [f"step = tl.where(count == 0, 0.0, count * {of_loss})", f"pull = confidence * {of_confidence}"]
    results = {name: text(result) for name, result in program.results.items()}
    lines += [line.format(**results) for name in arrays for line in OUTPUTS.get(name, ())]
    integers = [*(f"{name}_size" for name in program.tables), "n", "space"]
    return TEXT.format(
        integers=integers,
        arguments=", ".join(["logits", "labels", *arrays, *numbers, *columns, *vectors, *integers]),
        k=k,
        rows=rows_of(k),
        classes=power_of_two(k),
        place=f"row * {k} + classes"
        if flat
        else f"row // space * {k} * space + row % space + classes.to(tl.int64) * space",
        weight=weight,
        known_weight="tl.load(weight + label, mask=known, other=0.0)" if weight else "1.0",
        ignored=f"label == {ignore_index}" if ignore_index > NOTHING else "label != label",
        lines="\n".join(f"    {line}" for line in lines),
    )
