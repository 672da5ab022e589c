"""The base class of losses: one value per row of a batch, reduced as torch reduces cross-entropy.

`Loss.forward` turns the batch into `Rows`, asks the method for the loss of each row, and reduces. A method implements
`_losses(rows)` in plain torch, or `_penalty(rows)` if it adds to another loss; autograd does the rest. A method with
a memory also implements `_update(rows)`. Shapes, half precision, ignored labels, class weights and the reduction are
handled here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Required, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from temperance.arrays import flatten, shape_of
from temperance.errors import InputError
from temperance.losses.rows import TINY, Rows
from temperance.numerics import uncast
from temperance.registry import Registry, as_entry, parse_entry, registered
from temperance.settings import Bounds, HasSettings, Setting, named, settings_of

# A loss that its paper prints in one way and its program computes in another.
Variant = Literal["paper", "released"]

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class TorchOptions(TypedDict, total=False):
    """The options that every loss shares with `nn.CrossEntropyLoss`."""

    weight: Tensor | None
    ignore_index: int
    reduction: Literal["mean", "sum", "none"]


class Loss(HasSettings, nn.Module):
    """A training loss; call it where `nn.CrossEntropyLoss` was called.

    Logits are (N, C) or (N, C, *space), labels are class numbers (N,) or (N, *space). A loss with `soft_targets` also
    takes target probabilities of the logits' shape, as mixup makes them; like torch it does not check that they sum to
    1, weights each class of a target, and divides by N. Float16 and bfloat16 logits are computed in float32, with
    autocast off; float32 and float64 keep their dtype.

    weight        class weights (C,): a sample is weighted by its class, and the mean is Σ w_y loss / Σ w_y
    ignore_index  samples with this label are ignored, in every part of the loss
    reduction     "mean", "sum" or "none"

    If every sample is ignored, the value is 0 with a gradient of 0, where torch gives NaN. On the CPU a label out of
    range raises an InputError; on a GPU the check would stall every step, so it fails as torch does.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    shift_invariant: ClassVar[bool] = True
    exact_gradient: ClassVar[bool] = True
    proper: ClassVar[bool] = False
    soft_targets: ClassVar[bool] = False
    equals_cross_entropy_at: ClassVar[Mapping[str, Any] | None] = None
    hyper_parameters: ClassVar[tuple[Used, ...]]

    # What to change, besides the learning rate, if training with this loss breaks down.
    remedy: str | None = None
    # Which predictions `update` needs; None for a loss without a memory.
    learns_from: str | None = None
    # Calls and updates also take the indices of the samples.
    needs_indices: bool = False
    # The loss of a sample does not depend on the rest of the batch.
    per_sample: bool = True

    weight: Tensor | None

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        if settings.get("weight") is not None:
            with named(cls.name):
                cls._check_class_weights(settings["weight"])
        return super().__new__(cls, *args, **settings)

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        ignore_index: Annotated[int, Bounds(-(1 << 63), 1 << 63, below=True)] = -100,
        reduction: Literal["mean", "sum", "none"] | None = "mean",
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction or "none"  # the command line reads "none" as None

    # What a method implements.

    def _losses(self, rows: Rows) -> Tensor:
        """The loss of each row (n,); the value of an ignored row does not matter."""
        raise NotImplementedError

    def _update(self, rows: Rows) -> None:
        """Add these predictions to the memory, which is kept in buffers."""

    # What users call.

    def forward(self, logits: Tensor, labels: Tensor, indices: Tensor | None = None) -> Tensor:
        """The loss of a batch; `indices` are those of the training samples, for a loss that `needs_indices`."""
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
            raise InputError("logits and labels must be tensors: use torch.as_tensor")
        kind = logits.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            rows = self._rows(logits, labels, indices)
            shape = logits.shape[:1] + logits.shape[2:] if self.reduction == "none" else ()
            return self._reduce(rows).reshape(shape)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, indices: Tensor | None = None) -> None:
        """Feed the memory with predictions: of each training batch, or of the validation set after each epoch."""
        self._update(self._rows(logits, labels, indices))

    def end_epoch(self) -> None:
        """Called after each epoch of training."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move class weights and memory with the network, but do not round them when the network is cast."""
        super()._apply(uncast(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Its own settings, without torch's."""
        return {name: getattr(self, name) for name in self.own_settings()}

    @classmethod
    def own_settings(cls) -> Mapping[str, Setting]:
        """The declarations of its own settings, without torch's."""
        return {name: s for name, s in settings_of(cls).items() if name not in TorchOptions.__annotations__}

    @classmethod
    def claims(cls) -> dict[str, Any]:
        """What the registry says about it; the contract tests check it."""
        return {name: getattr(cls, name) for name in LossClaims.__annotations__}

    def extra_repr(self) -> str:
        torch_options: dict[str, Any] = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        unusual = {name: value for name, value in torch_options.items() if value != TORCH_DEFAULTS[name]}
        own = {name: value for name, value in self.settings.items() if not isinstance(value, nn.Module)}
        return ", ".join(f"{name}={value!r}" for name, value in {**own, **unusual}.items())

    # From the caller's shapes to rows and back.

    def _rows(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> Rows:
        self._check(logits, labels, indices)
        if labels.is_floating_point():
            return Rows.of_probabilities(flatten(logits), flatten(labels), self.weight)
        flat, truth = flatten(logits), labels.flatten().long()
        ignored = truth == self.ignore_index
        # Ignored rows are zeroed, so that not even NaN or infinity there has an effect.
        flat, truth = flat.masked_fill(ignored[:, None], 0), truth.masked_fill(ignored, 0)
        try:
            return Rows(flat, truth, ~ignored, None if indices is None else indices.flatten().long())
        except (IndexError, RuntimeError):
            wrong = truth[(truth < 0) | (truth >= flat.shape[1])]
            if not len(wrong):
                raise
            raise InputError(
                f"labels must lie in 0 … {flat.shape[1] - 1} for {flat.shape[1]} classes, or be "
                f"ignore_index={self.ignore_index}; found {int(wrong[0])}"
            ) from None

    def _reduce(self, rows: Rows) -> Tensor:
        dtype = rows.nll.dtype
        weight = None if self.weight is None else self.weight.to(dtype)
        counts = rows.kept if weight is None else rows.kept * rows.counts(weight)
        weighted = self._weighted(rows, counts, weight)
        if self.reduction == "none":
            return weighted
        if self.reduction == "sum":
            return weighted.sum()
        # If no row counts, 0 / tiny is 0, with a gradient of 0.
        total = (counts if rows.soft is None else rows.kept).sum(dtype=dtype)
        return weighted.sum() / self._total(total).clamp_min(TINY)

    def _weighted(self, rows: Rows, counts: Tensor, weight: Tensor | None) -> Tensor:
        """What each row adds to the sum over the batch; `counts` (n,) is how much it counts by class weight. (n,)"""
        return counts * self._losses(rows)

    def _total(self, total: Tensor) -> Tensor:
        """The divisor of the mean, given the total count of the rows."""
        return total

    def _check(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> None:
        if logits.ndim < 2 or not logits.is_floating_point():
            raise InputError(
                f"logits must be floating-point numbers (N, C) or (N, C, ...); got {logits.dtype} {shape_of(logits)}"
            )
        if not logits.shape[1]:
            raise InputError(f"logits must have at least one class; got {shape_of(logits)}")
        expected = logits.shape[:1] + logits.shape[2:]
        if labels.is_floating_point() and labels.shape == logits.shape:
            self._check_soft_targets()
        elif labels.dtype not in WHOLE or labels.shape != expected:
            raise InputError(
                f"labels must be class numbers of shape {tuple(expected)} to fit logits {shape_of(logits)}; "
                f"got {labels.dtype} {shape_of(labels)}"
            )
        if indices is None and self.needs_indices:
            raise InputError(
                f"{self.name} keeps a record of every training sample: pass the indices of the samples too, "
                "loss(logits, labels, indices); it has no value for other samples, so validate with another loss"
            )
        if indices is not None and indices.shape != expected:
            raise InputError(f"indices must have the shape of labels {tuple(expected)}; got {shape_of(indices)}")
        if self.weight is not None and len(self.weight) != logits.shape[1]:
            raise InputError(
                f"weight must have one number for each of the {logits.shape[1]} classes; it has {len(self.weight)}"
            )
        for tensor in (labels, *self.buffers()):
            if tensor.device != logits.device:
                raise InputError(
                    f"logits, labels and the loss must be on the same device; found {logits.device} and {tensor.device}"
                )

    def _check_soft_targets(self) -> None:
        if not self.soft_targets:
            raise InputError(
                f"{self.name} is not defined for target probabilities: pass class numbers, or mix images with "
                "temperance.losses.mixup, which works with every loss"
            )
        if self.ignore_index >= 0:
            raise InputError(
                f"target probabilities have no label to ignore, but {self.name} was made with "
                f"ignore_index={self.ignore_index}"
            )

    @classmethod
    def _check_class_weights(cls, weight: object) -> None:
        if not isinstance(weight, Tensor) or weight.ndim != 1 or not weight.is_floating_point():
            hint = "; the weight of the penalty is `strength`" if "strength" in settings_of(cls) else ""
            raise InputError(f"weight must be a tensor of class weights, one for each class; got {weight!r}{hint}")
        if not bool((weight >= 0).all() & torch.isfinite(weight).all()):
            raise InputError(f"weight must be finite and not negative; got {weight.tolist()}")


class PenaltyOptions(TorchOptions, total=False):
    """The options that every penalty shares."""

    base: str | Loss


class Regulariser(Loss):
    """A penalty on top of another loss: base + penalty, row by row.

    base  the loss it is added to, by name, "focal:gamma=2", or as a loss, `Focal(gamma=2)`; class weights, ignore_index
          and reduction are set on the regulariser, not on the base, and apply to both
    """

    def __init__(self, *, base: str | Loss = "cross-entropy", **options: Unpack[TorchOptions]) -> None:
        super().__init__(**options)
        inner = make_loss(base) if isinstance(base, str) else base
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
        self.per_sample = self.per_sample and inner.per_sample

    def _penalty(self, rows: Rows) -> Tensor:
        """The penalty of each row (n,), or one value () that is added to every row."""
        raise NotImplementedError

    def _losses(self, rows: Rows) -> Tensor:
        return self.base._losses(rows) + self._penalty(rows)

    def _weighted(self, rows: Rows, counts: Tensor, weight: Tensor | None) -> Tensor:
        return self.base._weighted(rows, counts, weight) + counts * self._penalty(rows)

    def _update(self, rows: Rows) -> None:
        self.base._update(rows)

    def end_epoch(self) -> None:
        self.base.end_epoch()

    def _check_soft_targets(self) -> None:
        super()._check_soft_targets()
        self.base._check_soft_targets()


# -------------------------------------------------------------------------------------------------------- the registry


@dataclass(frozen=True)
class Used:
    """Settings that a paper or its program used."""

    data: str
    settings: Mapping[str, Any]
    source: str


LOSSES: Registry[type[Loss]] = Registry("loss")

TORCH_DEFAULTS = {"ignore_index": -100, "reduction": "mean"}

L = TypeVar("L", bound=type[Loss])


class LossClaims(TypedDict, total=False):
    """What a loss claims, at its default settings.

    paper            where it comes from
    per_sample       the loss of a sample does not depend on the rest of the batch
    shift_invariant  a number added to all logits of a row changes nothing
    exact_gradient   the gradient is that of the value; false if the method holds something constant on purpose
    proper           minimised, on average, by the true probabilities
    soft_targets     it takes target probabilities (N, C) too; a penalty does if its base does
    learns_from      "training" or "validation": it has a memory, in buffers, and `update` feeds it with predictions on
                     that set, after each batch or after each epoch
    needs_indices    it keeps a record of each training sample: its setting `n_samples` is their number, and calls and
                     updates take their indices
    equals_cross_entropy_at  settings that make it cross-entropy
    """

    paper: Required[str]
    per_sample: bool
    shift_invariant: bool
    exact_gradient: bool
    proper: bool
    soft_targets: bool
    learns_from: str | None
    needs_indices: bool
    equals_cross_entropy_at: Mapping[str, Any] | None


def loss(
    *, name: str | None = None, hyper_parameters: tuple[Used, ...] = (), **claims: Unpack[LossClaims]
) -> Callable[[L], L]:
    """Register a loss with its claims; `hyper_parameters` are the papers' settings by dataset, for the docs."""
    return registered(LOSSES, name, {"hyper_parameters": hyper_parameters, **claims})


def make_loss(name: str, **settings: Any) -> Loss:
    """The loss of this name, which may carry settings as on the command line.

    >>> make_loss("focal", gamma=2.0, reduction="sum")
    Focal(gamma=2.0, detach_weight=False, reduction='sum')
    >>> make_loss("focal:gamma=2").gamma
    2
    """
    made: Loss = LOSSES.make(name, **settings)
    return made


def with_samples(name: str, n_samples: int) -> str:
    """The same loss, told the number of training samples if it, or a loss within it, keeps a record of each.

    >>> with_samples("acls:base=crl", 100), with_samples("focal:gamma=2", 100)
    ('acls:base=crl:base.n_samples=100', 'focal:gamma=2')
    """
    plain, settings = parse_entry(name)
    if LOSSES[plain].needs_indices:
        settings.setdefault("n_samples", n_samples)
    if isinstance(settings.get("base"), str):
        settings["base"] = with_samples(settings["base"], n_samples)
    return as_entry(plain, settings)
