"""The base class of heads: classifiers that are trained on the frozen features of a network and replace its own.

A method implements `_build` (its parameters) and `_deployed` (its logits), and if needed `_begin` (other initial
values), `_logits` (other logits in training), `_check_settings`, `_objective`, `_after_step` and `_end_epoch`. `Head`
does the rest: the loop, the losses, the files and the checks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Required, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from temperance.arrays import shape_of
from temperance.errors import FileError, InputError, NotFittedError, unknown_name
from temperance.files import check_format, read_tensors, reading, write_tensors
from temperance.heads.features import Features, check_features
from temperance.heads.loop import FeatureBatch, Loop, generator_of, start_layer
from temperance.losses import Loss
from temperance.numerics import uncast
from temperance.progress import Progress, no_progress
from temperance.registry import Registry, parse_entry, registered
from temperance.settings import Count, CountOrZero, HasSettings, NonNegative, Positive, Seed, of_kind
from temperance.training.criterion import as_loss

FORMAT = 1


class TrainingSettings(TypedDict, total=False):
    """The settings that all heads share."""

    epochs: int
    batch_size: int
    optimiser: Literal["sgd", "adam"]
    lr: float
    momentum: float
    weight_decay: float
    schedule: Literal["constant", "cosine"]
    clip: float | None


class Head(HasSettings, nn.Module):
    """A classifier of frozen features.

    `fit(features)` trains it and forgets any earlier fit. Called with features (n, d) it returns logits (n, k), the
    same every time. It computes in float32 on the features' device, also in a network that is cast, and the seed
    determines every random draw. After a fit `history` has a row for each epoch, `info` what else was learnt, and
    `seconds` the time it took.

    epochs        number of passes over the training samples, each in a new order
    batch_size    samples per step
    optimiser     "sgd" (with `momentum`) or "adam"
    lr            initial learning rate
    momentum      of SGD
    weight_decay  factor of the weights that is added to the gradient, as in torch
    schedule      of the learning rate: "constant", or "cosine" from lr down to 0
    clip          largest norm of the gradient; None: no limit

    Settings are checked when a head is made, and again by `fit`, before any data is used.
    """

    summary: ClassVar[str]
    paper: ClassVar[str]
    needs_val: ClassVar[bool] = False
    needs_wide_features: ClassVar[bool] = False
    gives_log_probs: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]

    # The defaults are those of the MaC-Cal paper.
    def __init__(
        self,
        *,
        epochs: CountOrZero = 40,
        batch_size: Count = 128,
        optimiser: Literal["sgd", "adam"] = "sgd",
        lr: NonNegative = 0.1,
        momentum: NonNegative = 0.9,
        weight_decay: NonNegative = 5e-4,
        schedule: Literal["constant", "cosine"] = "constant",
        clip: Positive | None = None,
    ) -> None:
        super().__init__()
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimiser = optimiser
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.clip = clip
        self.history: list[dict[str, Any]] = []
        self.info: dict[str, Any] = {}
        self.seconds = 0.0
        self._shape: tuple[int, int] | None = None

    # What a method implements.

    def _check_features(self, features: Features) -> None:
        """Refuse features that do not fit the settings."""

    def _needs_val(self) -> str:
        """The setting that needs held-out features, if there is one."""
        return ""

    def _build(self, d: int, k: int) -> None:
        """Make all parameters and buffers that are saved: only their shapes matter here, not their values."""
        raise NotImplementedError

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        """Set the parameters to their initial values, linear layers as torch does, with this CPU generator."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                start_layer(module, generator)

    def _begin_epoch(self, generator: torch.Generator) -> None:
        """Draw the random numbers of an epoch, with a generator on the device."""

    def _logits(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Logits of a training batch."""
        return self._deployed(features)

    def _objective(self, batch: FeatureBatch, loss: Loss, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The value that a step minimises, and the logits of the batch."""
        logits = self._logits(batch.features, generator)
        return loss(logits, batch.labels, batch.indices), logits

    def _after_step(self) -> None:
        """Undo changes that the optimiser should not have made."""

    def _end_epoch(self, epoch: int, features: Features, generator: torch.Generator) -> dict[str, Any]:
        """Update what changes once per epoch, counted from 1, and return the epoch's entries in the history."""
        return {}

    def _deployed(self, features: Tensor) -> Tensor:
        """Logits of the deployed head."""
        raise NotImplementedError

    def _finish(self, features: Features, generator: torch.Generator) -> None:
        """Turn the trained parameters into those that are deployed."""

    # What users call.

    def fit(
        self,
        features: Features,
        *,
        loss: Loss | str = "cross-entropy",
        seed: int = 0,
        progress: Progress = no_progress,
    ) -> Self:
        """Train on the training part of the features.

        loss  any loss of temperance, or its name with settings, such as "focal:gamma=2"
        """
        self.check_settings()
        of_kind("seed", seed, Seed)
        check_features(features)
        self._check_features(features)
        if self.needs_wide_features and features.d < features.k:
            raise InputError(
                f"{self.name} needs at least as many features as classes; got {features.d} for {features.k} classes"
            )
        if features.val is None and (setting := self._needs_val()):
            raise InputError(
                f"{self.name} with {setting} needs held-out features: pass val_features and val_labels, or change this "
                "setting"
            )
        objective = _loss_for(loss, features)
        self._forget()
        with torch.no_grad():
            self._build(features.d, features.k)
            self.to(features.device)
            self._begin(features, generator_of("cpu", seed, 0))
        loop = Loop(self, features, objective, seed)
        start = time.perf_counter()
        for row in loop:
            self.history.append(row)
            progress(row["epoch"], self.epochs, f"loss {row['loss']:.4f}")
        with torch.no_grad():
            self._finish(features, generator_of(features.device, seed, self.epochs + 1))
        if features.device.type == "cuda":
            torch.cuda.synchronize(features.device)
        self.seconds = time.perf_counter() - start
        self.requires_grad_(False)
        self._shape = features.d, features.k
        return self

    def forward(self, features: Tensor) -> Tensor:
        """Logits (n, k) of features (n, d)."""
        d, _ = self._fitted_shape
        if features.ndim != 2 or features.shape[1] != d:
            raise InputError(f"this head was fitted on {d} features per sample; these are {shape_of(features)}")
        return self._deployed(features.float())

    @property
    def k(self) -> int:
        """The number of classes it was fitted on."""
        return self._fitted_shape[1]

    @property
    def _fitted_shape(self) -> tuple[int, int]:
        """The numbers of features and classes."""
        if self._shape is None:
            raise NotFittedError(f"this {self.name} head is not fitted yet: call fit(features) first")
        return self._shape

    @property
    def caveat(self) -> str:
        """What a reader should know about how the training ended, in a sentence; empty if there is nothing."""
        return ""

    @classmethod
    def claims(cls) -> dict[str, Any]:
        """What the registry says about it; the contract tests check it."""
        return {name: getattr(cls, name) for name in HeadClaims.__annotations__}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move with the network, but do not round when the network is cast: a head computes in float32."""
        super()._apply(uncast(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        if not (self._parameters or self._buffers or self._modules):
            raise NotFittedError(
                f"this {self.name} head is not fitted yet, so it has no parameters to load: save the head with its own "
                "save(file), and put load_head(file) in its place"
            )
        super()._load_from_state_dict(state_dict, prefix, *more)

    def _forget(self) -> None:
        self._parameters.clear()
        self._buffers.clear()
        self._modules.clear()
        self.history, self.info, self._shape = [], {}, None

    # Files: safetensors with a JSON header. Nothing is ever unpickled.

    def save(self, path: str | Path) -> None:
        """Write the fitted head to one .safetensors file."""
        header = {
            "temperance_head": str(FORMAT),
            "head": self.name,
            "classes": str(self.k),
            "settings": json.dumps(self.get_params(deep=False)),
            "shape": json.dumps(self._shape),
            "info": json.dumps(self.info),
            "history": json.dumps(self.history),
        }
        write_tensors(path, self.state_dict(), header)

    @classmethod
    def load(cls, path: str | Path) -> Head:
        """Read a head of any method that `save` wrote."""
        return load_head(path)


def _loss_for(loss: Loss | str, features: Features) -> Loss:
    found = as_loss(loss, len(features.train))
    if found.learns_from == "validation" and features.val is None:
        raise InputError(f"{found.name} learns from held-out predictions: pass val_features and val_labels")
    return found.to(features.device)


# ----------------------------------------------------------------------------------------------------------- the table


HEADS: Registry[type[Head]] = Registry("head")

H = TypeVar("H", bound=type[Head])


class HeadClaims(TypedDict, total=False):
    """What a head claims, at its default settings.

    paper                where it comes from
    needs_val            it refuses to fit without held-out features
    needs_wide_features  it refuses to fit fewer features than classes
    gives_log_probs      its logits are log-probabilities, such as the log of a mean of probabilities
    """

    paper: Required[str]
    needs_val: bool
    needs_wide_features: bool
    gives_log_probs: bool


def head(
    *, name: str | None = None, presets: Mapping[str, Mapping[str, Any]] | None = None, **claims: Unpack[HeadClaims]
) -> Callable[[H], H]:
    """Register a head with its claims; `presets` are named settings that a paper compares, or that work well."""
    return registered(HEADS, name, {"presets": presets or {}, **claims})


def make_head(name: str, *, preset: str | None = None, **settings: Any) -> Head:
    """The head of this name, which may carry settings; invalid ones are refused. Settings override the preset's.

    >>> make_head("mac-cal", preset="masked-retraining", epochs=5).width is None
    True
    """
    name, written = parse_entry(name)
    preset = written.pop("preset", preset)
    presets = HEADS[name].presets
    if preset is not None and preset not in presets:
        raise unknown_name(f"preset of {name}", str(preset), presets)
    found: Head = HEADS.make(name, **{**(presets[preset] if preset else {}), **written, **settings})
    found.check_settings()
    return found


def load_head(path: str | Path) -> Head:
    """Read a head from a file that `save` wrote."""
    tensors, header = read_tensors(path)
    with reading(path):
        if "temperance_head" not in header:
            raise FileError(f"{path} is not a head saved by temperance")
        check_format(path, header["temperance_head"], FORMAT)
        found = make_head(header["head"], **json.loads(header["settings"]))
        d, k = json.loads(header["shape"])
        found._build(d, k)
        found.load_state_dict(tensors)
        found.requires_grad_(False)
        found._shape = d, k
        found.info, found.history = json.loads(header["info"]), json.loads(header["history"])
    return found
