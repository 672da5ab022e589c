"""Formulas as programs: their steps one by one, for those who can run them faster than torch does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import fx

from temperance.losses.formula import Formula, Term, evaluate

# What programs start from, as `Sample` names it, besides the number of classes k.
MATRICES = ("z", "p")
SCALARS = ("label", "winner", "top", "confidence", "log_confidence", "nll")

# Steps that make one value of those of all classes.
REDUCTIONS = {"sum", "dot", "amax", "amin", "first_largest", "pick"}

Operand = str | float
Form = tuple[Formula, int, tuple[bool | str, ...]]


class Step(NamedTuple):
    """An operation on named values and numbers; its result has a name too."""

    name: str
    op: str
    operands: tuple[Operand, ...]


class Program(NamedTuple):
    """Steps that lead to some of value, slope and rest. The settings of formulas are n0, n1, … in their order."""

    steps: list[Step]
    results: dict[str, Operand]


def forms(terms: tuple[Term, ...]) -> tuple[Form, ...]:
    """What the programs of terms depend on: not on their numbers."""
    return tuple((term.formula, len(term.numbers), term.options) for term in terms)


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
    terms: list[Term] = []
    for formula, count, options in of:
        before = sum(len(term.numbers) for term in terms)
        terms.append(Term(formula, tuple(symbol(f"n{before + i}") for i in range(count)), options))
    value, slope, rest = (part.node if isinstance(part, fx.Proxy) else part for part in evaluate(terms, sample))
    return (
        _program(graph, value=value),
        _program(graph, slope=slope, rest=rest),
        _program(graph, value=value, slope=slope, rest=rest),
    )


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
