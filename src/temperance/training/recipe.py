"""How to train: everything about a run except the network, the data and the loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from temperance.errors import InputError, plural
from temperance.losses.mixup import MIT, CutMix, Mixup
from temperance.registry import Registry
from temperance.settings import (
    AtLeastTwo,
    Bounds,
    Count,
    CountOrZero,
    NameOf,
    NonNegative,
    OpenFraction,
    Positive,
    PositiveFraction,
    Seed,
    check_settings,
    one_of,
    plain,
    settings_of,
)

MIXES: Registry[type[Mixup] | type[CutMix] | type[MIT]] = Registry("mix")
for kind in (Mixup, CutMix, MIT):
    MIXES.add(kind.name, kind)

Pixels = Annotated[int, Bounds(0, 10_000)]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train.

    epochs         number of passes over the training images; an incomplete last batch of an epoch is dropped
    batch_size     images per step, over all processes
    optimiser      "sgd" or "adamw"
    lr             initial learning rate
    momentum       of SGD
    nesterov       use Nesterov's momentum with SGD
    weight_decay   strength of the penalty on squared weights; with AdamW decoupled from the gradient
    schedule       "steps": multiply the learning rate by `factor` at each of `drops`; "cosine": down to 0; "constant"
    drops          when the learning rate drops: epochs (whole numbers), or shares of all epochs (below 1)
    factor         factor of the learning rate at a drop
    warmup         number of epochs in which the learning rate rises to its initial value
    clip           largest norm of the gradient; None: no limit. Without it a steep penalty, such as that of ACLS, can
                   break training in its first steps
    crop           crop at random after adding a black border of this many pixels, or of this share (below 1) of the
                   image's shorter side; 0: do not crop
    flip           flip half of the images at random, left to right; not for digits or letters
    mix            "mixup:alpha=1.0", "cutmix" or "mit": train on mixtures of images
    balance        train a second, fixed classifier beside the network's own, and mix both so that confidence in
                   training is this share of accuracy (BalCAL), such as 0.95
    freeze         number of groups in which the network is frozen while it trains, from the classifier down (PLP)
    keep           "last": the network of the last epoch; "best": the one with the lowest validation loss; "refined":
                   the one with the lowest validation NLL after a temperature, to be calibrated afterwards
    keep_from      number of epochs that "best" and "refined" skip; by default a third of all, at most 40
    precision      "float32" or "bfloat16" (autocast); predictions are always float32
    compile        compile the network, which takes about a minute and pays off if epochs are long
    deterministic  the same bits in every run on a GPU, at the price of speed; a CPU always gives them
    seed           for the order of images, crops, flips, mixtures and dropout

    >>> Recipe(epochs=350, drops=(150, 250)).lr_at(150)
    0.01
    """

    epochs: Count = 100
    batch_size: Count = 128
    optimiser: Literal["sgd", "adamw"] = "sgd"
    lr: NonNegative = 0.1
    momentum: NonNegative = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 5e-4
    schedule: Literal["steps", "cosine", "constant"] = "steps"
    drops: tuple[NonNegative, ...] = (0.43, 0.71)
    factor: PositiveFraction = 0.1
    warmup: CountOrZero = 0
    clip: Positive | None = 2.0
    crop: Pixels | OpenFraction = 0.125
    flip: bool = True
    mix: Annotated[str, NameOf("a mix", MIXES.make)] | None = None
    balance: PositiveFraction | None = None
    freeze: AtLeastTwo | None = None
    keep: Literal["last", "best", "refined"] = "last"
    keep_from: CountOrZero | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    deterministic: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        _check(vars(self))
        if self.nesterov and not self.momentum:
            raise InputError("nesterov needs a momentum above 0")
        for name in ("warmup", "keep_from"):
            if (getattr(self, name) or 0) >= self.epochs:
                raise InputError(
                    f"{name} must be less than the {plural(self.epochs, 'epoch')}; got {getattr(self, name)}",
                    flags={name: f"--{name.replace('_', '-')}"},
                )
        for name, value in vars(self).items():
            object.__setattr__(self, name, tuple(map(plain, value)) if name == "drops" else plain(value))

    @classmethod
    def of(cls, preset: str | None = None, **settings: Any) -> Recipe:
        """A recipe from a preset; settings given here replace those of the preset.

        With another number of epochs, the learning rate drops at the same shares of them.

        >>> Recipe.of("cifar", epochs=70).drops
        (30, 50)
        """
        _check(settings)
        if preset is not None:
            one_of("preset", preset, RECIPES)
        recipe = RECIPES[preset] if preset else cls()
        if "epochs" in settings:
            # What a preset counts in epochs is for its own number of epochs.
            longer = settings["epochs"] / recipe.epochs
            settings.setdefault("drops", tuple(drop if drop < 1 else round(drop * longer) for drop in recipe.drops))
            settings.setdefault("keep_from", None)
        return dataclasses.replace(recipe, **settings)

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        if epoch < self.warmup:
            return self.lr * (epoch + 1) / (self.warmup + 1)
        if self.schedule == "cosine":
            done = (epoch - self.warmup) / max(self.epochs - self.warmup, 1)
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "constant":
            return self.lr
        passed = sum(epoch >= self._epoch_of(drop) for drop in self.drops)
        # Rounded, because 0.1 · 0.1 is not 0.01 in floating point, and people compare logs.
        return float(f"{self.lr * self.factor**passed:.12g}")

    def _epoch_of(self, drop: float) -> int:
        return round(drop * self.epochs) if drop < 1 else int(drop)

    def border(self, height: int, width: int) -> int:
        """How wide the border of images of this size is, in pixels."""
        return round(self.crop * min(height, width)) if self.crop < 1 else int(self.crop)

    @property
    def first_kept(self) -> int:
        """The first epoch, counted from 0, whose network may be the best one."""
        return min(40, self.epochs // 3) if self.keep_from is None else self.keep_from

    def mixing(self) -> Mixup | CutMix | MIT | None:
        """The mixing of a batch's images, if there is any."""
        return None if self.mix is None else MIXES.make(self.mix)

    def make_optimiser(self, network: nn.Module) -> torch.optim.Optimizer:
        """The optimiser for all parameters of a network."""
        parameters = list(network.parameters())
        fused = all(parameter.is_cuda for parameter in parameters)
        if self.optimiser == "adamw":
            return torch.optim.AdamW(parameters, self.lr, weight_decay=self.weight_decay, fused=fused)
        return torch.optim.SGD(
            parameters,
            self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=fused,
        )


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse invalid settings of a recipe; on the command line each is a flag."""
    try:
        check_settings("recipe", settings_of(Recipe), settings)
    except InputError as error:
        flags = {f"recipe: {name} must": f"--{name.replace('_', '-')} must" for name in settings}
        error.flags = {**flags, "recipe: ": ""}
        raise


# The settings of the papers, by data set or method.
RECIPES = {
    "cifar": Recipe(epochs=350, drops=(150, 250)),
    "tiny-imagenet": Recipe(drops=(40, 60), batch_size=64, crop=4),
    "imagenet": Recipe(epochs=200, optimiser="adamw", lr=5e-4, weight_decay=0.05, batch_size=256, schedule="cosine"),
    "selective-cifar10": Recipe(epochs=200, drops=(60, 120, 160), factor=0.2, keep="best"),
    "selective-cifar100": Recipe(epochs=250, drops=(60, 120, 160), factor=0.2, keep="best"),
    "selective-tiny-imagenet": Recipe(
        epochs=90, lr=1e-4, batch_size=256, schedule="cosine", crop=0, flip=False, keep="best", keep_from=20
    ),
    "long-tail": Recipe(epochs=200, drops=(100, 150)),
    "plp": Recipe(epochs=350, drops=(150, 250), freeze=11),
    # The program uses Adam, which is AdamW without weight decay.
    "balcal": Recipe(
        epochs=600, optimiser="adamw", lr=1e-4, weight_decay=0.0, batch_size=256, schedule="constant", balance=0.95
    ),
}

MUKHOTI = "Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020"
PARK = "Park et al., ACLS: adaptive and conditional label smoothing for network calibration, ICCV 2023"
ZHOU = "Zhou et al., Revisiting reweighted risk for calibration: AURC, focal and inverse focal loss, 2025"

PAPERS = {
    "cifar": MUKHOTI,
    "tiny-imagenet": PARK,
    "imagenet": PARK,
    "selective-cifar10": ZHOU,
    "selective-cifar100": ZHOU,
    "selective-tiny-imagenet": ZHOU,
    "long-tail": "Jung et al., Scaling of class-wise training losses for post-hoc calibration, ICML 2023; when the "
    "learning rate drops is our choice, because the paper does not say",
    "balcal": "Ni et al., Balancing two classifiers via a simplex ETF structure for model calibration, CVPR 2025",
    "plp": "Wang and Zhang, Calibration bottleneck: over-compressed representations are less calibratable, ICML 2024",
}
