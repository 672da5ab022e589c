"""What a loss is: rows of logits and labels in, one value a row out, reduced as torch reduces cross-entropy.

A loss of single samples is a `SampleLoss`, or a `SamplePenalty` on another loss, and writes `_term(k)`: a formula. One
that looks at the batch writes `_losses(rows)`, or `_penalty(rows)`; `_update(rows)` if it remembers something. Shapes,
half precision, ignored labels, class weights and the reduction are the business of `Loss`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from temperance.arrays import shape_of
from temperance.errors import InputError, known_settings, one_of
from temperance.losses.formula import Batch, Term
from temperance.losses.plain import all_count, check_shapes
from temperance.losses.rows import Rows
from temperance.losses.rowwise import reduced_loss
from temperance.registry import Registry, first_line, parse_entry, plain_name


class TorchOptions(TypedDict, total=False):
    """What every loss takes beside its own settings, as `nn.CrossEntropyLoss` does."""

    weight: Tensor | None
    ignore_index: int
    reduction: str


class Loss(nn.Module):
    """A training loss; call it where `nn.CrossEntropyLoss` was called.

    Logits are (N, C) or (N, C, *space), labels are class numbers (N,) or (N, *space). Float16 and bfloat16 logits are
    computed in float32, with autocast switched off; float32 and float64 stay what they are.

    weight        how much a sample counts, by its class (C,): the mean is Σ w_y loss / Σ w_y, as in torch
    ignore_index  samples with this label do not count, in anything
    reduction     "mean", "sum" or "none"

    If no sample counts the value is 0 with a gradient of 0, where torch gives NaN. A label out of range is refused in a
    sentence on the CPU; on a GPU the check would make every step wait, so there it stops the program as in torch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    per_sample: ClassVar[bool]
    shift_invariant: ClassVar[bool]
    exact_gradient: ClassVar[bool]
    proper: ClassVar[bool]
    equals_cross_entropy_at: ClassVar[Mapping[str, Any] | None]
    hyper_parameters: ClassVar[tuple[Used, ...]]

    # What else may help where a training with it broke down.
    remedy: str | None = None
    # What `update` is to be fed with; None for a loss without memory.
    learns_from: str | None
    # Calls and updates take the numbers of the samples.
    needs_indices: bool

    weight: Tensor | None

    def __init__(self, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        one_of("reduction", reduction, ("mean", "sum", "none"))
        whole = isinstance(ignore_index, int) and not isinstance(ignore_index, bool)
        if not whole or not -(1 << 63) <= ignore_index < 1 << 63:
            raise InputError(f"ignore_index must be a whole number that a label can have; got {ignore_index!r}")
        if weight is not None:
            _check_class_weights(weight)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    # What a method writes.

    def _terms(self, k: int) -> tuple[Term, ...] | None:
        """The loss for k classes as a sum of formulas, if it is one."""
        return None

    def _losses(self, rows: Rows) -> Tensor:
        """The loss of each row. (n,) What it gives for an ignored row does not matter."""
        terms = self._terms(rows.k)
        if terms is None:
            raise NotImplementedError
        return rows.losses(terms)

    def _update(self, rows: Rows) -> None:
        """Remember what is worth remembering of these predictions, in buffers."""

    # What everyone calls.

    def forward(self, logits: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """The loss of a batch; `indices` say which training samples these are, for a loss that `needs_indices`."""
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
            raise InputError("logits and labels must be tensors, such as torch.as_tensor makes")
        if torch.is_autocast_enabled(logits.device.type):
            with torch.autocast(logits.device.type, enabled=False):
                return self._value(logits, labels, indices)
        return self._value(logits, labels, indices)

    def _value(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> Tensor:
        terms = self._terms(logits.shape[1]) if logits.ndim > 1 else None
        if terms is None:
            rows = self._rows(logits, labels, indices)
            return self._reduce(self._losses(rows), rows, labels.shape)
        return reduced_loss(self._batch(logits, labels, indices, terms))

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, indices: Tensor | None = None) -> None:
        """Take in predictions: of each training batch, or of the validation set after each epoch (`learns_from`)."""
        self._update(self._rows(logits, labels, indices))

    def end_epoch(self) -> None:
        """Say that the training set has been gone through once."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings it was made with, without torch's."""
        return {name: getattr(self, name) for name in settings_of(type(self))}

    @classmethod
    def claims(cls) -> dict[str, Any]:
        """What is said of it in the registry; the tests verify it."""
        return {name: getattr(cls, name) for name in CLAIMS}

    def extra_repr(self) -> str:
        torch_options: dict[str, Any] = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        unusual = {name: value for name, value in torch_options.items() if value != TORCH_DEFAULTS[name]}
        own = {name: value for name, value in self.settings.items() if not isinstance(value, nn.Module)}
        return ", ".join(f"{name}={value!r}" for name, value in {**own, **unusual}.items())

    # From the caller's shapes to rows and back.

    def _check(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> None:
        check_shapes(logits, labels)
        if indices is None and self.needs_indices:
            raise InputError(
                f"{self.name} keeps a record of every training sample: call it with the samples' numbers too, "
                "loss(logits, labels, indices)"
            )
        if indices is not None and indices.shape != labels.shape:
            raise InputError(f"indices must have the shape of labels {shape_of(labels)}; got {shape_of(indices)}")
        if self.weight is not None and len(self.weight) != logits.shape[1]:
            raise InputError(
                f"weight must have one number for each of {logits.shape[1]} classes; it has {len(self.weight)}"
            )

    def _batch(self, logits: Tensor, labels: Tensor, indices: Tensor | None, terms: tuple[Term, ...]) -> Batch:
        self._check(logits, labels, indices)
        return Batch(logits, labels.long(), self.weight, terms, self.ignore_index, self.reduction)

    def _rows(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> Rows:
        self._check(logits, labels, indices)
        indices = None if indices is None else indices.flatten().long()
        truth = labels.flatten().long()
        if all_count(truth, logits.shape[1], self.ignore_index):
            return Rows(logits, truth, indices=indices)
        ignored = truth == self.ignore_index
        # Whatever they are, so that not even what is no number counts.
        logits = logits.masked_fill((labels == self.ignore_index)[:, None], 0)
        return Rows(logits, truth.masked_fill(ignored, 0), ignored=ignored, indices=indices)

    def _reduce(self, losses: Tensor, rows: Rows, shape: torch.Size) -> Tensor:
        if rows.ignored is not None:
            losses = losses.masked_fill(rows.ignored, 0)
        weight, counts = self.weight, None
        if weight is not None:
            counts = weight.to(losses.dtype)[rows.labels]
            losses = losses * counts
        if self.reduction == "none":
            return losses.reshape(shape)
        if self.reduction == "sum":
            return losses.sum()
        if counts is None:
            return rows.mean(losses)
        total = (counts if rows.ignored is None else counts.masked_fill(rows.ignored, 0)).sum()
        return losses.sum() / torch.where(total > 0, total, 1)


class SampleLoss(Loss):
    """A loss of single samples, by a formula."""

    def _term(self, k: int) -> Term:
        """The formula with its settings, for k classes."""
        raise NotImplementedError

    def _terms(self, k: int) -> tuple[Term, ...]:
        return (self._term(k),)


class Regulariser(Loss):
    """A penalty on top of another loss: base + penalty, row by row.

    base  the loss it is added to, by name, "focal:gamma=2", or as a loss, `Focal(gamma=2)`; class weights, ignore_index
          and reduction are set here, not there, and count for both
    """

    def __init__(self, *, base: str | Loss = "cross-entropy", **options: Unpack[TorchOptions]) -> None:
        super().__init__(**options)
        inner = make_loss(base) if isinstance(base, str) else base
        if not isinstance(inner, Loss):
            raise InputError(f"base must be a loss of temperance or the name of one; got {base!r}")
        if inner.weight is not None or {n: getattr(inner, n) for n in TORCH_DEFAULTS} != TORCH_DEFAULTS:
            raise InputError(f"give weight, ignore_index and reduction to {self.name}, not to its base {inner.name}")
        if None not in (self.learns_from, inner.learns_from) and self.learns_from != inner.learns_from:
            raise InputError(
                f"{self.name} learns from {self.learns_from} predictions and its base {inner.name} from "
                f"{inner.learns_from} ones: choose another base"
            )
        self.base = inner
        self.learns_from = self.learns_from or inner.learns_from
        self.needs_indices = self.needs_indices or inner.needs_indices

    def _penalty(self, rows: Rows) -> Tensor:
        """What is added to the loss of each row (n,), or one value () that is added to every row alike."""
        raise NotImplementedError

    def _losses(self, rows: Rows) -> Tensor:
        return self.base._losses(rows) + self._penalty(rows)

    def _update(self, rows: Rows) -> None:
        self.base._update(rows)

    def end_epoch(self) -> None:
        self.base.end_epoch()


class SamplePenalty(Regulariser):
    """A penalty on single samples, by a formula."""

    def _term(self, k: int) -> Term:
        """The formula with its settings, for k classes."""
        raise NotImplementedError

    def _terms(self, k: int) -> tuple[Term, ...] | None:
        of_base = self.base._terms(k)
        return None if of_base is None else (*of_base, self._term(k))

    def _penalty(self, rows: Rows) -> Tensor:
        return rows.losses((self._term(rows.k),))

    def _losses(self, rows: Rows) -> Tensor:
        terms = self._terms(rows.k)
        return super()._losses(rows) if terms is None else rows.losses(terms)


# ----------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Used:
    """Settings that a paper or its program used."""

    data: str
    settings: Mapping[str, Any]
    source: str


LOSSES: Registry[type[Loss]] = Registry("loss")

CLAIMS = (
    "paper",
    "per_sample",
    "shift_invariant",
    "exact_gradient",
    "proper",
    "learns_from",
    "needs_indices",
    "equals_cross_entropy_at",
)

TORCH_DEFAULTS = {"ignore_index": -100, "reduction": "mean"}

L = TypeVar("L", bound=type[Loss])


def loss(
    *,
    paper: str,
    per_sample: bool = True,
    shift_invariant: bool = True,
    exact_gradient: bool = True,
    proper: bool = False,
    learns_from: str | None = None,
    needs_indices: bool = False,
    equals_cross_entropy_at: Mapping[str, Any] | None = None,
    hyper_parameters: tuple[Used, ...] = (),
    name: str | None = None,
) -> Callable[[L], L]:
    """Register a loss with its claims, which hold at its default settings.

    paper            where it comes from
    per_sample       the value of a sample does not depend on the rest of the batch
    shift_invariant  a number added to all logits of a row changes nothing
    exact_gradient   the gradient is that of the value; false where the method holds something constant on purpose
    proper           least, on average, for the true probabilities
    learns_from      "training" or "validation": it has a memory, in buffers, and `update` feeds it with predictions on
                     that set; after each batch, or after each epoch
    needs_indices    it keeps a record of each training sample: its setting `n_samples` says how many there are, and
                     calls and updates take their numbers
    equals_cross_entropy_at  settings that make it cross-entropy
    hyper_parameters what the papers used where, for the docs
    """

    def register(cls: L) -> L:
        cls.name = name or plain_name(cls.__name__)
        cls.summary = first_line(cls.__doc__)
        cls.paper = paper
        cls.per_sample = per_sample
        cls.shift_invariant = shift_invariant
        cls.exact_gradient = exact_gradient
        cls.proper = proper
        cls.learns_from = learns_from
        cls.needs_indices = needs_indices
        cls.equals_cross_entropy_at = equals_cross_entropy_at
        cls.hyper_parameters = hyper_parameters
        LOSSES.add(cls.name, cls)
        return cls

    return register


def settings_of(cls: type[Loss]) -> dict[str, Any]:
    """The settings of a loss with their defaults, without torch's; one without a default is left out."""
    parameters = inspect.signature(cls).parameters.values()
    return {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in TorchOptions.__annotations__
    }


def make_loss(name: str, **settings: Any) -> Loss:
    """A loss by its plain name, which may bring settings as on the command line.

    >>> make_loss("focal", gamma=2.0, reduction="sum")
    Focal(gamma=2.0, detach_weight=False, reduction='sum')
    >>> make_loss("focal:gamma=2").gamma
    2
    """
    name, written = parse_entry(name)
    cls, settings = LOSSES[name], {**written, **settings}
    known_settings(name, settings, [*settings_of(cls), *TorchOptions.__annotations__])
    return cls(**settings)


# ------------------------------------------------------------------------------------------------------------- checks


def _check_class_weights(weight: object) -> None:
    if not isinstance(weight, Tensor) or weight.ndim != 1 or not weight.is_floating_point():
        raise InputError("weight must be a tensor with one floating-point number for each class")
    if not bool((weight >= 0).all() & torch.isfinite(weight).all()):
        raise InputError(f"weight must be finite and not negative; got {weight.tolist()}")
