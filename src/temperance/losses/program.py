"""Formulas as programs: their steps one by one, for those who can run them faster than torch does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import Tensor, fx

from temperance.losses.formula import Formula, Term, evaluate

# What programs start from, as `Sample` names it, besides the number of classes k.
MATRICES = ("z", "p")
SCALARS = ("label", "winner", "top", "confidence", "log_confidence", "nll")

# Steps that make one value of those of all classes.
REDUCTIONS = {"sum", "dot", "amax", "amin", "first_largest", "pick"}

# Which operands of a step are tables.
TABLES = {"lookup": (1, 2), "soft_rank": (1,), "soft_density": (1,)}

Operand = str | float


class Form(NamedTuple):
    """What the programs of a term depend on: not on its numbers, but on which of them are tensors with one value."""

    formula: Formula
    on_device: tuple[bool, ...]
    options: tuple[bool | str, ...]
    columns: int
    vectors: int
    of: tuple[Form, ...]


class Step(NamedTuple):
    """An operation on named values and numbers; its result has a name too."""

    name: str
    op: str
    operands: tuple[Operand, ...]


class Program(NamedTuple):
    """Steps that lead to some of value, slope and rest.

    The numbers of terms are n0, n1, … in their order, columns are c0, c1, … and vectors v0, v1, …
    """

    steps: list[Step]
    results: dict[str, Operand]

    @property
    def tables(self) -> list[str]:
        """The numbers that are tables."""
        found = [str(step.operands[i]) for step in self.steps for i in TABLES.get(step.op, ())]
        return list(dict.fromkeys(found))


def forms(terms: tuple[Term, ...]) -> tuple[Form, ...]:
    """What programs depend on."""
    found = []
    for formula, numbers, options, columns, vectors, of in terms:
        on_device = tuple([isinstance(number, Tensor) and not number.ndim for number in numbers])
        found.append(Form(formula, on_device, options, len(columns), len(vectors), forms(of) if of else ()))
    return tuple(found)


def all_forms(of: tuple[Form, ...]) -> list[Form]:
    """Forms, and those inside of them, the inner ones before those that they are inside of."""
    return [inner for form in of for inner in (*all_forms(form.of), form)]


def columns_of(of: tuple[Form, ...]) -> list[str]:
    """The names of columns."""
    return [f"c{i}" for i in range(sum(form.columns for form in all_forms(of)))]


def vectors_of(of: tuple[Form, ...]) -> list[str]:
    """The names of vectors."""
    return [f"v{i}" for i in range(sum(form.vectors for form in all_forms(of)))]


def setting_place(name: Operand) -> int:
    """Where the number of this name is in [k, n0, n1, …]."""
    return 0 if name == "k" else 1 + int(str(name)[1:])


def programs(of: tuple[Form, ...]) -> tuple[Program, Program, Program]:
    """How to compute the value of a sum of terms, its slope and rest, and all three together."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)

    def symbol(name: str) -> Any:
        return fx.Proxy(graph.placeholder(name), tracer)

    sample: Any = SimpleNamespace(**{name: symbol(name) for name in (*MATRICES, *SCALARS, "k")})
    numbers, columns, vectors = (map(symbol, names) for names in map(_numbered, "ncv"))

    def term(form: Form) -> Term:
        inner = tuple(map(term, form.of))
        own_numbers = tuple(islice(numbers, len(form.on_device)))
        own = tuple(islice(columns, form.columns)), tuple(islice(vectors, form.vectors))
        return Term(form.formula, own_numbers, form.options, *own, inner)

    parts = evaluate(tuple(map(term, of)), sample)
    value, slope, rest = (part.node if isinstance(part, fx.Proxy) else part for part in parts)
    return (
        _program(graph, value=value),
        _program(graph, slope=slope, rest=rest),
        _program(graph, value=value, slope=slope, rest=rest),
    )


def _numbered(letter: str) -> Iterator[str]:
    return (f"{letter}{i}" for i in count())


def _program(graph: fx.Graph, **results: Any) -> Program:
    needed = set(results.values())
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    nodes = [node for node in graph.nodes if node in needed and node.op != "placeholder" and _op(node) != "to"]
    steps = [Step(node.name, _op(node), tuple(map(_operand, _operands(node)))) for node in nodes]
    return Program(steps, {name: _operand(result) for name, result in results.items()})


def _op(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _operands(node: fx.Node) -> tuple[Any, ...]:
    return node.args[:1] if _op(node) in ("sum", "amax", "amin") else node.args


def _operand(value: Any) -> Operand:
    """By name, or as a number; the type of truth values does not matter here."""
    if not isinstance(value, fx.Node):
        return float(value)
    return _operand(value.args[0]) if _op(value) == "to" else value.name
