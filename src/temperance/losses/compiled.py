"""Formulas on a CPU by _formulas.c, where that was compiled: logits are read once, and a gradient is written once."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.formula import Batch, Outcome
from temperance.losses.plain import all_count, elsewhere
from temperance.losses.program import (
    MATRICES,
    REDUCTIONS,
    SCALARS,
    Form,
    Operand,
    Program,
    Step,
    columns_of,
    forms,
    programs,
    setting_place,
    vectors_of,
)

# What functions of _formulas.c may return besides 0.
NO_MEMORY, WRONG_LABEL = 1, 2


class CStep(ctypes.Structure):
    """`step` in _formulas.c."""

    _fields_ = [("op", ctypes.c_int32), ("out", ctypes.c_int32), ("operands", ctypes.c_int32 * 3)]


class Job(ctypes.Structure):
    """`job` in _formulas.c."""

    _fields_ = [
        *((name, ctypes.c_ssize_t) for name in ("n", "k", "space")),
        *((name, ctypes.c_void_p) for name in ("logits", "labels", "weight")),
        ("ignore_index", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("steps", "constants", "columns", "vectors", "tables", "table_sizes")),
        *((name, ctypes.c_int32) for name in ("n_steps", "n_matrices", "n_scalars")),
        *((name, ctypes.c_int32) for name in ("n_columns", "n_vectors", "n_constants")),
        *((name, ctypes.c_int32) for name in ("value", "slope", "rest", "needs_p", "needs_winner")),
        *((name, ctypes.c_void_p) for name in ("loss", "values", "confidences", "gradient", "class_sums")),
        *((name, ctypes.c_void_p) for name in ("of_values", "of_confidences")),
        ("of_each_value", ctypes.c_float),
        ("mean", ctypes.c_int32),
        *((name, ctypes.c_ssize_t) for name in ("chunk", "next")),
        *((name, ctypes.c_void_p) for name in ("sums", "gradients")),
        ("whole", ctypes.c_double),
    ]


def _library() -> ctypes.CDLL | None:
    """What was compiled on installation; nothing where there was no C compiler."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_formulas.so")))
        library.run.argtypes = [ctypes.POINTER(Job), ctypes.c_int]
        where, size = ctypes.c_void_p, ctypes.c_ssize_t
        library.survey.argtypes = [
            where,
            where,
            size,
            ctypes.c_int64,
            where,
            size,
            ctypes.c_double,
            where,
            where,
            where,
        ]
        library.rank.argtypes = [where, where, size, ctypes.c_int64, where]
        library.step_code.argtypes = [ctypes.c_char_p]
        library.job_size.restype = ctypes.c_size_t
    except (OSError, AttributeError):
        return None
    return library if library.job_size() == ctypes.sizeof(Job) else None


LIBRARY = _library()


def engine(batch: Batch) -> Compiled | None:
    """What can evaluate this batch, if anything here can."""
    if LIBRARY is None or batch.logits.dtype != torch.float32 or not batch.labels.numel():
        return None
    return _compiled(forms(batch.terms))


@lru_cache(maxsize=256)
def _compiled(of: tuple[Form, ...]) -> Compiled | None:
    try:
        return Compiled(of)
    except NotImplementedError:
        return None


def surveyed(
    scores: Tensor, labels: Tensor, ignore_index: int, histogram: Tensor, share: float
) -> tuple[float, float, Tensor] | None:
    """The quantile of the scores in [0, 1] whose labels are not ignored, their number, and shares.

    Those are of them and of those counted already, in each bin. (n,), (n,), (n_bins,) → (n_bins,). None where this
    cannot be done here.
    """
    if not _fits(scores):
        return None
    assert LIBRARY is not None
    labels, histogram = labels.contiguous(), histogram.contiguous()
    if not histogram.is_cpu:
        raise elsewhere("cpu", histogram.device)
    quantile, whole, shares = ctypes.c_float(), ctypes.c_float(), scores.new_empty(histogram.shape)
    found = shares.data_ptr(), ctypes.byref(quantile), ctypes.byref(whole)
    places = scores.data_ptr(), labels.data_ptr(), scores.numel(), ignore_index, histogram.data_ptr(), len(histogram)
    _succeed(LIBRARY.survey(*places, share, *found))
    return quantile.value, whole.value, shares


def rank_weights(scores: Tensor, labels: Tensor, ignore_index: int) -> Tensor | None:
    """What each sample counts in AURC, and 0 if its label is ignored: see `selective.rank_weights`. (n,), (n,) → (n,)

    None where this cannot be done here.
    """
    if not _fits(scores):
        return None
    assert LIBRARY is not None
    labels, weights = labels.contiguous(), torch.empty_like(scores)
    _succeed(LIBRARY.rank(scores.data_ptr(), labels.data_ptr(), scores.numel(), ignore_index, weights.data_ptr()))
    return weights


def _fits(scores: Tensor) -> bool:
    usual = scores.is_cpu and scores.dtype == torch.float32 and scores.is_contiguous()
    return LIBRARY is not None and usual and bool(scores.numel())


class Compiled:
    """A sum of terms, assembled for each question that may be asked."""

    def __init__(self, of: tuple[Form, ...]) -> None:
        self.value, self.slopes, self.both = (Assembly(program, of) for program in programs(of))

    def forward(self, batch: Batch, *, gradient: bool) -> Outcome:
        if batch.reduction == "none":
            losses, confidence = (batch.logits.new_empty(batch.labels.shape) for _ in range(2))
            self.value.run(batch, values=losses, confidences=confidence)
            return Outcome(losses, confidence)
        loss, slopes = batch.logits.new_empty(()), _like(batch.logits) if gradient else None
        (self.both if gradient else self.value).run(batch, loss=loss, gradient=slopes)
        return Outcome(loss, None, slopes)

    def backward(self, batch: Batch, of_loss: Tensor | None, of_confidence: Tensor | None) -> Tensor:
        gradient = _like(batch.logits)
        of_values = of_loss if of_loss is not None and of_loss.ndim else None
        of_each = float(of_loss) if of_loss is not None and not of_loss.ndim else 0.0
        self.slopes.run(batch, of_each, gradient=gradient, of_values=of_values, of_confidences=of_confidence)
        return gradient

    def class_sums(self, batch: Batch) -> Tensor:
        found = batch.logits.new_empty(batch.logits.shape[1])
        self.slopes.run(batch, class_sums=found)
        return found


class Assembly:
    """A program on the registers of _formulas.c: matrices, with a value for each class, and then scalars."""

    def __init__(self, program: Program, of: tuple[Form, ...]) -> None:
        assert LIBRARY is not None
        columns, vectors, tables = columns_of(of), vectors_of(of), program.tables
        steps, matrices = _spread(program, {*MATRICES, *vectors})
        operands = [operand for step in steps for operand in step.operands] + list(program.results.values())
        known = {*(step.name for step in steps), *MATRICES, *vectors, *SCALARS, *columns, *tables}
        constants = list(dict.fromkeys(operand for operand in operands if operand not in known))
        given = [*MATRICES, *vectors], [*SCALARS, *columns, *constants]
        places = _places(steps, matrices, *given, list(program.results.values()))
        n_matrices = 1 + max(place for name, place in places.items() if name in matrices)

        def register(operand: Operand) -> int:
            if operand in tables:
                return tables.index(str(operand))
            return places[operand] + (0 if operand in matrices else n_matrices)

        self.steps = (CStep * len(steps))()
        for code, step in zip(self.steps, steps, strict=True):
            code.op = LIBRARY.step_code(step.op.encode())
            if code.op < 0:
                raise NotImplementedError(f"_formulas.c has no step {step.op}")
            code.out = register(step.name)
            for i, operand in enumerate(step.operands):
                code.operands[i] = register(operand)
        value, slope, rest = (program.results.get(name) for name in ("value", "slope", "rest"))
        self.job = Job(
            steps=ctypes.addressof(self.steps),
            n_steps=len(steps),
            n_matrices=n_matrices,
            n_scalars=1 + max(place for name, place in places.items() if name not in matrices),
            n_columns=len(columns),
            n_vectors=len(vectors),
            n_constants=len(constants),
            value=-1 if value is None else register(value),
            slope=-1 if slope is None else register(slope),
            rest=register(rest) if rest is not None and rest in matrices else -1,
            needs_p="p" in operands,
            needs_winner="winner" in operands,
        )
        # Numbers, or where they are among the settings.
        self.constants = [(0.0, setting_place(x)) if isinstance(x, str) else (x, None) for x in constants]
        self.tables = [setting_place(name) for name in tables]

    def run(self, batch: Batch, of_each: float = 1.0, **arrays: Tensor | None) -> None:
        """Fill the arrays of `job` that are outputs, given those that are not."""
        assert LIBRARY is not None
        job = Job.from_buffer_copy(self.job)
        numbers, columns, vectors = batch.inputs()
        settings: list[Any] = [batch.logits.shape[1], *numbers]
        job.n, job.k = batch.logits.shape[:2]
        job.space = batch.labels.numel() // job.n
        job.ignore_index, job.of_each_value, job.mean = batch.ignore_index, of_each, batch.reduction == "mean"
        # A job only knows where they are: they are held here until it is done.
        labels, held = batch.labels.contiguous(), []
        job.labels = labels.data_ptr()
        for name, array in ("logits", batch.logits), ("weight", batch.weight), *arrays.items():
            if array is not None:
                held.append(_readable(array))
                setattr(job, name, held[-1].data_ptr())
        if self.constants:
            values = [value if place is None else settings[place] for value, place in self.constants]
            constants = (ctypes.c_float * len(values))(*values)
            job.constants = ctypes.addressof(constants)
        if columns:
            of_columns = Pointers(columns)
            job.columns = of_columns.address
        if vectors:
            of_vectors = Pointers(vectors)
            job.vectors = of_vectors.address
        if self.tables:
            tables = Pointers([settings[place] for place in self.tables])
            job.tables, job.table_sizes = tables.address, tables.sizes
        if job.of_confidences:
            job.needs_winner = True
        _succeed(LIBRARY.run(job, torch.get_num_threads()), batch)


class Pointers:
    """Where some tensors are, as _formulas.c reads them."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.held = [_readable(tensor) for tensor in tensors]
        self.places = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in self.held))
        self.lengths = (ctypes.c_ssize_t * len(tensors))(*(tensor.numel() for tensor in self.held))
        self.address, self.sizes = ctypes.addressof(self.places), ctypes.addressof(self.lengths)


def _readable(array: Tensor) -> Tensor:
    """As _formulas.c reads it; what is like that already, such as all that it fills, stays where it is."""
    if not array.is_cpu:
        raise elsewhere("cpu", array.device)
    return array.float().contiguous()


def _like(logits: Tensor) -> Tensor:
    """Room for a gradient."""
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _succeed(outcome: int, batch: Batch | None = None) -> None:
    """Say in words what went wrong, if something did."""
    if outcome == NO_MEMORY:
        raise MemoryError("there is no memory to compute a loss in")
    if outcome == WRONG_LABEL and batch is not None:
        all_count(batch.labels, batch.logits.shape[1], batch.ignore_index)
        raise InputError("weight must not be negative, for any class")


def _spread(program: Program, given: set[Operand]) -> tuple[list[Step], set[Operand]]:
    """The steps, with the first two operands of a choice made matrices if one is; and the names of matrices."""
    matrices = set(given)
    steps: list[Step] = []
    for step in program.steps:
        if step.op in REDUCTIONS or matrices.isdisjoint(step.operands):
            steps.append(step)
            continue
        if step.op == "where":
            for operand in step.operands[:2]:
                if operand not in matrices:
                    steps.append(Step(f"{operand} for {step.name}", "spread", (operand,)))
                    matrices.add(steps[-1].name)
            wide = (operand if operand in matrices else f"{operand} for {step.name}" for operand in step.operands[:2])
            step = step._replace(operands=(*wide, step.operands[2]))
        steps.append(step)
        matrices.add(step.name)
    return steps, matrices


def _places(
    steps: list[Step],
    matrices: set[Operand],
    given_matrices: list[str],
    given_scalars: list[Operand],
    results: list[Operand],
) -> dict[Operand, int]:
    """Which matrix or which scalar each value is. What is not needed any more makes place for another."""
    places: dict[Operand, int] = {name: place for place, name in enumerate(given_matrices)}
    places |= {name: place for place, name in enumerate(given_scalars)}
    free: dict[bool, list[int]] = {True: [], False: []}
    used = {True: len(given_matrices), False: len(given_scalars)}
    last = {operand: i for i, step in enumerate(steps) for operand in step.operands}
    made: set[Operand] = set()
    for i, step in enumerate(steps):
        kind = step.name in matrices
        done = [x for x in dict.fromkeys(step.operands) if x in made and x not in results and last[x] == i]
        if step.op == "put" and step.operands[0] in done:
            places[step.name] = places[step.operands[0]]
            done.remove(step.operands[0])
        elif free[kind]:
            places[step.name] = free[kind].pop()
        else:
            places[step.name] = used[kind]
            used[kind] += 1
        for operand in done:
            free[operand in matrices].append(places[operand])
        made.add(step.name)
    return places
