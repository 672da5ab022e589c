"""A loss of single samples as a formula: its value and its slope in the logits, written once.

A formula is a function of a `Sample` and of settings. It gives

    value   the loss of the sample
    slope   the derivative of that in −log p of the label
    rest    what its gradient in the logits has besides slope · (p − q), with q the one-hot label

so that the gradient is slope · (p − q) + rest; both may be numbers, and 0.0 is nothing. Slopes are written out because
value and slope are wanted together, and because some methods hold something constant on purpose. A penalty is a formula
too, and a loss with penalties is the sum of its `Term`s.

Formulas are plain torch over all samples at once, along dimension 1. `rowwise` evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

Part = Tensor | float
Parts = tuple[Tensor, Part, Part]
Formula = Callable[..., Parts]

# 1 − p is kept above this, so that the slope of a power below one stays finite where the label is certain.
FLOOR = 1e-30

# No logarithm of a probability is taken for lower than −FAR.
FAR = 1e30

# An `ignore_index` that no label has.
NOTHING = -(1 << 63)

T = TypeVar("T")
# What is computed for each sample and bin is held for so many at a time.
TILE_VALUES = 1 << 20

W = TypeVar("W", bound=Callable[..., Tensor])


class once(Generic[T]):
    """A property computed when first asked for: `functools.cached_property`, such that `torch.compile` can follow."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | once[T]:
        if instance is None:
            return self
        value = self.function(instance)
        setattr(instance, self.function.__name__, value)
        return value


class Sample:
    """What a formula sees of a sample, for all at once: (n, k) and (n, 1), with *space behind if they are dense.

    z               logits. (n, k)
    p               probabilities. (n, k)
    label           (n, 1)
    nll             −log p of the label. (n, 1)
    top             the largest logit. (n, 1)
    winner          the class that has it, the first of several. (n, 1)
    confidence      its probability. (n, 1)
    log_confidence  the logarithm of that. (n, 1)
    """

    def __init__(self, z: Tensor, label: Tensor) -> None:
        self.z = z
        self.label = label
        self.k = z.shape[1]
        self.p = z.softmax(1)
        self.top = largest(z)
        self.confidence = largest(self.p)
        self.log_confidence = self.confidence.log()
        # Differences of logits first: nothing is lost then, however large they are.
        self.nll = self.top - pick(z, label) - self.log_confidence

    @once
    def winner(self) -> Tensor:
        return first_largest(self.z)


class Term(NamedTuple):
    """A formula with its settings.

    numbers  it computes with them, and they may be others in the next call: floats, tensors with one value, tables
    options  choose between its forms
    columns  numbers that each sample has for itself. (n, 1, *space)
    vectors  numbers that each class has for itself. (1, k, *1)
    of       the terms whose sum it changes: the formula is given value, slope and rest of that after the sample
    """

    formula: Formula
    numbers: tuple[float | Tensor, ...] = ()
    options: tuple[bool | str, ...] = ()
    columns: tuple[Tensor, ...] = ()
    vectors: tuple[Tensor, ...] = ()
    of: tuple[Term, ...] = ()

    def __call__(self, sample: Sample) -> Parts:
        inner = (evaluate(self.of, sample),) if self.of else ()
        return self.formula(sample, *inner, *self.columns, *self.vectors, *self.numbers, *self.options)


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


class Batch(NamedTuple):
    """What is to be evaluated.

    logits        (n, k) or (n, k, *space)
    labels        (n, *space) int64
    weight        how much a sample counts, by its class (k,)
    terms         the loss is their sum
    ignore_index  samples with this label do not count
    reduction     "none", "sum", or "mean", which is 0 if no sample counts
    """

    logits: Tensor
    labels: Tensor
    weight: Tensor | None
    terms: tuple[Term, ...]
    ignore_index: int
    reduction: str

    def in_single(self) -> Batch:
        """Half precision as float32."""
        single = at_least_float32(self.logits)
        return self if single is self.logits else self._replace(logits=single)

    def inputs(self) -> Inputs:
        """What all terms compute with."""
        found = Inputs([], [], [])
        for term in self.terms:
            _collect(term, found)
        return found


class Inputs(NamedTuple):
    """The numbers, columns and vectors of some terms, those of inner terms before those of outer ones."""

    numbers: list[float | Tensor]
    columns: list[Tensor]
    vectors: list[Tensor]


def _collect(term: Term, found: Inputs) -> None:
    for inner in term.of:
        _collect(inner, found)
    found.numbers.extend(term.numbers)
    found.columns.extend(term.columns)
    found.vectors.extend(term.vectors)


class Outcome(NamedTuple):
    """What came of a batch.

    loss        (n, *space) or reduced
    confidence  (n, *space), if the losses are not reduced
    gradient    of the loss in the logits, if it was asked for and the losses are reduced
    """

    loss: Tensor
    confidence: Tensor | None = None
    gradient: Tensor | None = None


def evaluate(terms: Sequence[Term], sample: Sample) -> Parts:
    """Value, slope and rest of a sum of terms."""
    value, slope, rest = terms[0](sample)
    for term in terms[1:]:
        more_value, more_slope, more_rest = term(sample)
        value, slope, rest = value + more_value, plus(slope, more_slope), plus(rest, more_rest)
    return value, slope, rest


def plus(left: Part, right: Part) -> Part:
    """The sum; to add nothing costs nothing."""
    if isinstance(left, float) and left == 0:
        return right
    return left if isinstance(right, float) and right == 0 else left + right


def times(left: Part, right: Part) -> Part:
    """The product; nothing times anything is nothing."""
    nothing = any(isinstance(part, float) and part == 0 for part in (left, right))
    return 0.0 if nothing else left * right


def nll(sample: Sample) -> Parts:
    """−log p of the label: cross-entropy."""
    return sample.nll, 1.0, 0.0


NLL = (Term(nll),)


# -------------------------------------------------------------------------------------------- what formulas are made of


def word(function: W) -> W:
    """A function that is recorded, not computed, where a formula is traced with symbols in place of tensors."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        if has_torch_function(arguments):
            return handle_torch_function(call, arguments, *arguments)
        return function(*arguments)

    return cast(W, call)


def total(values: Tensor) -> Tensor:
    """The sum over the classes. (n, k) → (n, 1)"""
    return values.sum(1, keepdim=True)


@word
def dot(left: Tensor, right: Tensor) -> Tensor:
    """The sum over the classes of a product. (n, k), (n, k) → (n, 1)"""
    return total(left * right)


def largest(values: Tensor) -> Tensor:
    """The largest value of the classes. (n, k) → (n, 1)"""
    return values.amax(1, keepdim=True)


def smallest(values: Tensor) -> Tensor:
    """The smallest value of the classes. (n, k) → (n, 1)"""
    return values.amin(1, keepdim=True)


@word
def first_largest(values: Tensor) -> Tensor:
    """The first class with the largest value. (n, k) → (n, 1)"""
    return values.argmax(1, keepdim=True)


@word
def pick(values: Tensor, place: Tensor) -> Tensor:
    """The value of one class. (n, k) or (1, k), (n, 1) → (n, 1)"""
    return values.expand(len(place), -1, *place.shape[2:]).gather(1, place)


@word
def put(values: Tensor, place: Tensor, amount: Part) -> Tensor:
    """The values with another one at one class. (n, k), (n, 1), (n, 1) → (n, k)"""
    return values.scatter(1, place, amount)


@word
def lookup(value: Tensor, edges: Tensor, found: Tensor) -> Tensor:
    """What is found in the bin that a value falls into: bins lie between edges, each with its upper one. → (n, 1)"""
    return found.to(value.dtype)[torch.bucketize(value.detach(), edges.to(value.dtype))]


@word
def soft_rank(value: Tensor, shares: Tensor, bandwidth: float) -> Tensor:
    """The share of values in [0, 1] below this one, given the share in each bin, with smooth steps. → (n, 1)

    Σ_b h_b σ((x − c_b) / bandwidth), with c_b the middle of bin b.
    """
    return _over_bins(value, shares, bandwidth, lambda steps: steps)


@word
def soft_density(value: Tensor, shares: Tensor, bandwidth: float) -> Tensor:
    """The slope of `soft_rank`. → (n, 1)"""
    return _over_bins(value, shares, bandwidth, lambda steps: steps * (1 - steps) / bandwidth)


def _over_bins(value: Tensor, shares: Tensor, bandwidth: float, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of the steps, summed over the bins; of some values at a time, so that values × bins are never held."""
    middles = torch.arange(0.5, len(shares), dtype=value.dtype, device=value.device) / len(shares)
    parts = torch.split(value.flatten()[:, None], max(1, TILE_VALUES // len(shares)))
    steps = (torch.sigmoid((part - middles) / bandwidth) for part in parts)
    return torch.cat([function(step) @ shares.to(value.dtype) for step in steps]).view_as(value)


def below_top(sample: Sample) -> Tensor:
    """log p but for a constant, and finite where p is 0: p log p is 0 there. (n, k)"""
    return (sample.z - sample.top).clamp_min(-FAR)


def one_minus_p(nll: Tensor) -> Tensor:
    """1 − p from −log p, without cancellation where p is nearly 1."""
    return (-torch.expm1(-nll)).clamp_min(FLOOR)
