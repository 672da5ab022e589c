"""Formulas on a CPU by _formulas.c, where that was compiled: logits are read once, and a gradient is written once."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.losses.formula import Batch, Outcome, Part
from temperance.losses.plain import all_count
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
from temperance.numerics import LARGE, with_helpers


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
        *((name, ctypes.c_void_p) for name in ("values", "confidences", "sums", "class_sums", "gradient")),
        *((name, ctypes.c_void_p) for name in ("of_values", "of_confidences")),
        ("of_each_value", ctypes.c_float),
        *((name, ctypes.c_ssize_t) for name in ("chunk", "next")),
    ]


def _library() -> ctypes.CDLL | None:
    """What was compiled on installation; nothing where there was no C compiler."""
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_formulas.so")))
        for function in (library.count_labels, library.cut, library.run_formula):
            function.argtypes = [ctypes.POINTER(Job)]
        library.count_labels.restype, library.cut.restype = ctypes.c_double, ctypes.c_ssize_t
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


class Compiled:
    """A sum of terms, assembled for each question that may be asked."""

    def __init__(self, of: tuple[Form, ...]) -> None:
        self.value, self.slopes, self.both = (Assembly(program, of) for program in programs(of))

    def forward(self, batch: Batch, *, gradient: bool) -> Outcome:
        if batch.reduction == "none":
            losses, confidence = torch.empty(batch.labels.shape), torch.empty(batch.labels.shape)
            _, whole = self.value.run(batch, values=losses, confidences=confidence)
            return Outcome(losses, confidence, whole)
        slopes = torch.empty(batch.logits.shape) if gradient else None
        total, whole = (self.both if gradient else self.value).run(batch, gradient=slopes)
        whole = whole if batch.reduction == "mean" else 1.0
        return Outcome(torch.tensor(total / whole, dtype=torch.float32), None, whole, slopes)

    def class_sums(self, batch: Batch) -> tuple[Tensor, Part]:
        of_chunks = torch.empty(0)
        _, whole = self.value.run(batch, of_chunks)
        return of_chunks.sum(0), whole

    def backward(
        self, batch: Batch, whole: Part | None, of_loss: Tensor | None, of_confidence: Tensor | None
    ) -> Tensor:
        gradient = torch.empty(batch.logits.shape)
        if of_loss is None or not of_loss.ndim:
            of_loss = torch.zeros(()) if of_loss is None else of_loss / (whole or 1.0)
            of_loss = of_loss.expand(batch.labels.shape)
        self.slopes.run(batch, of_values=of_loss, of_confidences=of_confidence, gradient=gradient)
        return gradient


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

    def run(self, batch: Batch, class_sums: Tensor | None = None, **arrays: Tensor | None) -> tuple[float, float]:
        """Go through a batch with these arrays of `job`: the sum of the losses, and what to divide it by for a mean."""
        assert LIBRARY is not None
        job = Job.from_buffer_copy(self.job)
        settings: list[Any] = [batch.logits.shape[1], *batch.numbers]
        job.n, job.k = batch.logits.shape[:2]
        job.space = batch.labels.numel() // job.n
        job.ignore_index = batch.ignore_index
        if arrays.get("of_confidences") is not None:
            job.needs_winner = True
        constants = (ctypes.c_float * len(self.constants))(
            *(value if place is None else settings[place] for value, place in self.constants)
        )
        job.constants = ctypes.addressof(constants)
        arrays.update(logits=batch.logits, weight=batch.weight)
        # A job only knows where they are: they are held here until it is done.
        held = {name: _readable(array) for name, array in arrays.items() if array is not None}
        labels = batch.labels.contiguous()
        job.labels = labels.data_ptr()
        for name, array in held.items():
            setattr(job, name, array.data_ptr())
        lists = {
            "columns": [_readable(column) for column in batch.columns],
            "vectors": [_readable(vector) for vector in batch.vectors],
            "tables": [_readable(settings[place]) for place in self.tables],
        }
        pointers = {name: _pointers(tensors) for name, tensors in lists.items() if tensors}
        for name, addresses in pointers.items():
            setattr(job, name, ctypes.addressof(addresses))
        sizes = (ctypes.c_ssize_t * len(self.tables))(*map(len, lists["tables"]))
        job.table_sizes = ctypes.addressof(sizes)
        whole = LIBRARY.count_labels(job)
        if whole < 0:
            all_count(batch.labels, job.k, batch.ignore_index)
        whole = whole or 1.0
        job.of_each_value = 1 / whole if batch.reduction == "mean" else 1.0
        n_chunks = LIBRARY.cut(job)
        if class_sums is not None:
            class_sums.resize_(n_chunks, job.k).zero_()
            job.class_sums, job.needs_p = class_sums.data_ptr(), True
        sums = (ctypes.c_double * n_chunks)()
        job.sums = ctypes.addressof(sums)
        with_helpers(lambda: _follow(job), torch.get_num_threads() - 1 if batch.logits.numel() > LARGE else 0)
        return sum(sums), whole


def _readable(array: Tensor) -> Tensor:
    """As _formulas.c reads it."""
    return array.float().contiguous()


def _pointers(tensors: list[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _follow(job: Job) -> None:
    assert LIBRARY is not None
    if LIBRARY.run_formula(job):
        raise MemoryError("there is no memory for the registers of a formula")


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
