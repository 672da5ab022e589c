"""What a head is: trained on the frozen features of a network, it takes the place of the network's classifier.

A method writes `_build` (its parameters), `_begin` (their first values), `_logits` (what is trained) and `_deployed`
(what is used), and where it needs them `_objective`, `_after_step` and `_end_epoch`. The loop, the losses, files and
checks are the business of `Head`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from temperance.arrays import shape_of
from temperance.errors import (
    FileError,
    InputError,
    NotFittedError,
    at_least,
    known_settings,
    number,
    one_of,
    positive,
    seed_number,
    unknown_name,
)
from temperance.files import read_tensors, reading, write_tensors
from temperance.heads.features import Features
from temperance.heads.loop import Batch, Loop, generator_of
from temperance.losses import Loss
from temperance.progress import Progress, no_progress
from temperance.registry import Registry, first_line, plain_name
from temperance.training.criterion import as_loss

FORMAT = 1


class TrainingSettings(TypedDict, total=False):
    """What every head takes beside its own settings."""

    epochs: int
    batch_size: int
    optimiser: str
    lr: float
    momentum: float
    weight_decay: float
    schedule: str
    clip: float | None


# As MaC-Cal trains; a head that was published with others has them as its own.
TRAINING: TrainingSettings = {
    "epochs": 40,
    "batch_size": 128,
    "optimiser": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "constant",
    "clip": None,
}


class Head(nn.Module):
    """A classifier of frozen features.

    `fit(features)` trains it, forgetting any earlier fit; called with features (n, d) it gives logits (n, k), the same
    every time. Work happens in float32 on the features' device, and a seed decides everything that is drawn.

    epochs, batch_size  how long and how; the order is drawn anew for each epoch
    optimiser           "sgd" (with `momentum`) or "adam", with `weight_decay` added to the gradient as in torch
    lr, schedule        "constant", or "cosine" from lr down to 0
    clip                largest norm of the gradient; None for any
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    needs_val: ClassVar[bool]
    needs_wide_features: ClassVar[bool]
    gives_log_probs: ClassVar[bool]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    training_defaults: ClassVar[TrainingSettings] = {}

    epochs: int
    batch_size: int
    optimiser: str
    lr: float
    momentum: float
    weight_decay: float
    schedule: str
    clip: float | None

    def __init__(self, **training: Unpack[TrainingSettings]) -> None:
        super().__init__()
        known_settings(self.name, training, TRAINING)
        for name, value in {**TRAINING, **self.training_defaults, **training}.items():
            setattr(self, name, value)
        self.history: list[dict[str, Any]] = []
        self.info: dict[str, Any] = {}
        self._shape: tuple[int, int] | None = None

    # What a method writes.

    def _check(self, features: Features) -> None:
        """Refuse settings and features that cannot be trained with."""

    def _build(self, d: int, k: int) -> None:
        """Make all parameters and buffers that are kept, of the right shapes, with any values."""
        raise NotImplementedError

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        """Give the parameters their first values, drawn with a generator of the CPU."""
        raise NotImplementedError

    def _begin_epoch(self, generator: torch.Generator) -> None:
        """What is drawn once an epoch, with a generator of the device."""

    def _logits(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Logits of a training batch."""
        raise NotImplementedError

    def _objective(self, batch: Batch, loss: Loss, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What a step minimises, and the logits of the batch."""
        logits = self._logits(batch.features, generator)
        return loss(logits, batch.labels, batch.indices), logits

    def _after_step(self) -> None:
        """Put right what the optimiser should not have changed."""

    def _end_epoch(self, epoch: int, features: Features, generator: torch.Generator) -> dict[str, Any]:
        """Learn what is learnt once an epoch, counted from 1, and give what the history should say about it."""
        return {}

    def _deployed(self, features: Tensor) -> Tensor:
        """Logits as the head is used."""
        raise NotImplementedError

    def _finish(self, features: Features, generator: torch.Generator) -> None:
        """Make of what was trained what is used."""

    # What everyone calls.

    def fit(
        self,
        features: Features,
        *,
        loss: Loss | str = "cross-entropy",
        seed: int = 0,
        progress: Progress = no_progress,
    ) -> Self:
        """Train on the training part of features, with any loss: its name with settings, "focal:gamma=2", or a loss."""
        self._check_training(seed)
        self._check(features)
        if self.needs_wide_features and features.d < features.k:
            raise InputError(
                f"{self.name} needs at least as many features as classes; got {features.d} for {features.k} classes"
            )
        if self.needs_val and features.val is None:
            raise InputError(f"{self.name} needs held-out features to choose by: give val_features and val_labels")
        objective = _loss_for(loss, features)
        self._forget()
        with torch.no_grad():
            self._build(features.d, features.k)
            self.to(features.device)
            self._begin(features, generator_of("cpu", seed, 0))
        for row in Loop(self, features, objective, seed):
            self.history.append(row)
            progress(row["epoch"], self.epochs, f"loss {row['loss']:.4f}")
        with torch.no_grad():
            self._finish(features, generator_of(features.device, seed, self.epochs + 1))
        self.requires_grad_(False)
        self._shape = features.d, features.k
        return self

    def forward(self, features: Tensor) -> Tensor:
        """Logits (n, k) of features (n, d)."""
        if self._shape is None:
            raise NotFittedError(f"this {self.name} head is not fitted yet: call fit(features) first")
        d, _ = self._shape
        if features.ndim != 2 or features.shape[1] != d:
            raise InputError(f"this head was fitted on {d} features a sample; these are {shape_of(features)}")
        return self._deployed(features.float())

    @property
    def k(self) -> int:
        """The number of classes it was fitted on."""
        if self._shape is None:
            raise NotFittedError(f"this {self.name} head is not fitted yet: call fit(features) first")
        return self._shape[1]

    def get_params(self) -> dict[str, Any]:
        """The settings it was made with."""
        return {name: getattr(self, name) for name in settings_of(type(self))}

    @classmethod
    def claims(cls) -> dict[str, Any]:
        """What is said of it in the registry; the tests verify it."""
        return {name: getattr(cls, name) for name in CLAIMS}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())

    def _forget(self) -> None:
        self._parameters.clear()
        self._buffers.clear()
        self._modules.clear()
        self.history, self.info, self._shape = [], {}, None

    def _check_training(self, seed: int) -> None:
        seed_number(seed)
        at_least("epochs", self.epochs, 0)
        at_least("batch_size", self.batch_size, 1)
        one_of("optimiser", self.optimiser, ("sgd", "adam"))
        one_of("schedule", self.schedule, ("constant", "cosine"))
        for name in ("lr", "momentum", "weight_decay"):
            number(name, getattr(self, name), 0)
        if self.clip is not None:
            positive("clip", self.clip)

    # Files: safetensors for what it learnt, JSON in its header for the rest. Nothing is ever unpickled.

    def save(self, path: str | Path) -> None:
        """Write the fitted head to one .safetensors file."""
        header = {
            "temperance_head": str(FORMAT),
            "head": self.name,
            "classes": str(self.k),
            "settings": json.dumps(self.get_params()),
            "shape": json.dumps(self._shape),
            "info": json.dumps(self.info),
            "history": json.dumps(self.history),
        }
        write_tensors(path, self.state_dict(), header)

    @classmethod
    def load(cls, path: str | Path) -> Head:
        """Read a head that `save` wrote, of whichever method."""
        return load_head(path)


def _loss_for(loss: Loss | str, features: Features) -> Loss:
    found = as_loss(loss, len(features.train))
    if found.learns_from == "validation" and features.val is None:
        raise InputError(f"{found.name} learns from held-out predictions: give val_features and val_labels")
    return found.to(features.device)


# ----------------------------------------------------------------------------------------------------------- the table


HEADS: Registry[type[Head]] = Registry("head")

CLAIMS = ("paper", "needs_val", "needs_wide_features", "gives_log_probs")

H = TypeVar("H", bound=type[Head])


def head(
    *,
    paper: str,
    needs_val: bool = False,
    needs_wide_features: bool = False,
    gives_log_probs: bool = False,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    name: str | None = None,
) -> Callable[[H], H]:
    """Register a head with its claims, which hold at its default settings.

    paper                where it comes from
    needs_val            it refuses to fit without held-out features
    needs_wide_features  it refuses to fit fewer features than classes
    gives_log_probs      its logits are log-probabilities: the log of a mean over samples
    presets              settings with a name: variants that a paper compares, or that do well
    """

    def register(cls: H) -> H:
        cls.name = name or plain_name(cls.__name__)
        cls.summary = first_line(cls.__doc__)
        cls.paper = paper
        cls.needs_val = needs_val
        cls.needs_wide_features = needs_wide_features
        cls.gives_log_probs = gives_log_probs
        cls.presets = presets or {}
        HEADS.add(cls.name, cls)
        return cls

    return register


def settings_of(cls: type[Head]) -> dict[str, Any]:
    """The settings of a head with their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {**own, **TRAINING, **cls.training_defaults}


def make_head(name: str, *, preset: str | None = None, **settings: Any) -> Head:
    """A head by its plain name; a preset gives settings, which others given beside it replace.

    >>> make_head("mac-cal", preset="masked-retraining", epochs=5).width is None
    True
    """
    cls = HEADS[name]
    known_settings(name, settings, settings_of(cls))
    if preset is not None and preset not in cls.presets:
        raise unknown_name(f"preset of {name}", preset, cls.presets)
    return cls(**{**(cls.presets[preset] if preset else {}), **settings})


def load_head(path: str | Path) -> Head:
    """Read a head from a file that `save` wrote."""
    tensors, header = read_tensors(path)
    with reading(path):
        if "temperance_head" not in header:
            raise FileError(f"{path} is not a file that temperance saved a head in")
        if not header["temperance_head"].isdigit() or int(header["temperance_head"]) > FORMAT:
            raise FileError(
                f"{path} is of format {header['temperance_head']}, newer than this version reads ({FORMAT})"
            )
        found = make_head(header["head"], **json.loads(header["settings"]))
        d, k = json.loads(header["shape"])
        found._build(d, k)
        found.load_state_dict(tensors)
        found.requires_grad_(False)
        found._shape = d, k
        found.info, found.history = json.loads(header["info"]), json.loads(header["history"])
    return found
