"""Which networks the papers' tables need, the most telling first.

A training is written as a line: data, network, epochs, loss, and what differs from the usual recipe:

    cifar100 resnet18 100 label-smoothing
    cifar100 resnet18 100 cross-entropy mix=mixup seed=1

Losses have the settings of their paper, or of the first program that is known, on that data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from temperance.losses import LOSSES
from temperance.registry import as_entry, parse_entry
from temperance.settings import defaults_of
from temperance.training import Job

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


@dataclass(frozen=True)
class Training:
    """One training of the queue."""

    data: str
    network: str
    epochs: int
    loss: str
    changes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: str) -> Training:
        """A training from its line.

        >>> Training.parse("cifar10 resnet18 100 focal seed=1").seed
        1
        """
        data, network, epochs, loss, *changes = line.split()
        return cls(data, network, int(epochs), loss, tuple(changes))

    @property
    def line(self) -> str:
        return " ".join([self.data, self.network, str(self.epochs), self.loss, *self.changes])

    @property
    def file(self) -> str:
        """The name of its file of predictions."""
        return re.sub(r"[^\w.-]+", "_", self.line) + ".npz"

    @property
    def seed(self) -> int:
        return self.job("").recipe.seed

    def job(self, folder: str, *, fast: bool = False) -> Job:
        """What `temperance train` would do, with images from FOLDER/DATA.npz; fast where there is a GPU."""
        _, changes = parse_entry(":".join(["recipe", *self.changes]))
        speed = {"compile": True, "precision": "bfloat16"} if fast else {}
        settings = {"epochs": self.epochs, "clip": None, **speed, **changes}
        return Job.of(data=f"{folder}/{self.data}.npz", network=self.network, loss=self.loss, **settings)


def published(name: str, data: str) -> str:
    """A loss with the settings that its paper, or the first program that is known, used on this data.

    >>> published("kde-xe", "cifar100")
    'kde-xe:strength=0.5'
    """
    if name == "au":  # the program's confidence is the default, not the paper's choice for each network
        return "au:cdf_bandwidth=0.01" if data == "cifar100" else "au"
    found = next((used.settings for used in LOSSES[name].hyper_parameters if DATA[data] in used.data), {})
    usual = defaults_of(LOSSES[name])
    return as_entry(name, {key: value for key, value in found.items() if value != usual[key]})


# Every training method of the papers, in the order in which claims hang on it.
LOSS_NAMES = ("cross-entropy", "acls", "mbls", "label-smoothing", "au", "focal", "aurc", "mdca", "flsd", "dual-focal")
MORE_LOSSES = ("inverse-focal", "brier", "mmce", "crl", "cpc", "adafocal", "entropy-penalty", "kde-xe")
MIXES = ("mixup", "mit", "cutmix")
CLAIMED = ("cross-entropy", "acls", "mbls", "label-smoothing", "au", "focal")
HEADLINE = ("cross-entropy", "label-smoothing", "mbls", "acls", "au")


def queue() -> list[Training]:
    """All trainings, in the order in which they are run."""
    return list(dict.fromkeys(_in_order()))


def _in_order() -> Iterator[Training]:
    for data in ("cifar100", "cifar10"):
        for name in LOSS_NAMES:
            yield Training(data, "resnet18", 100, published(name, data))
        for name in MORE_LOSSES:
            yield Training(data, "resnet18", 100, published(name, data))
        for mix in MIXES:
            yield Training(data, "resnet18", 100, "cross-entropy", (f"mix={mix}",))
        yield Training(data, "resnet18", 100, f"{published('acls', data)}:variant=released")
        yield Training(data, "resnet18", 100, "au:variant=paper")
    for seed in (1, 2):
        for data in ("cifar100", "cifar10"):
            for name in CLAIMED:
                yield Training(data, "resnet18", 100, published(name, data), (f"seed={seed}",))
    for data in ("cifar100", "cifar10"):
        for name in HEADLINE:
            yield Training(data, "resnet50", 200, published(name, data))
    for network in ("densenet121", "wrn-26-10"):
        for name in ("cross-entropy", "au"):
            yield Training("cifar100", network, 200, published(name, "cifar100"))
