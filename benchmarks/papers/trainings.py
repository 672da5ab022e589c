"""Which networks the papers' tables need, the most telling first.

A training is written as a line: data, network, epochs, loss, and what differs from the usual recipe:

    cifar100 resnet18 100 label-smoothing
    cifar100 resnet18 100 cross-entropy mix=mixup seed=1
    cifar100 densenet40 200 cross-entropy preset=long-tail long_tail=0.1 val_fraction=0.5 lr=0.01 weight_decay=0.0001

Losses have the settings of their paper, or of the first program that is known, on that data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from temperance.losses import LOSSES
from temperance.registry import as_entry, parse_entry
from temperance.settings import defaults_of
from temperance.training import Job

# A tenth of CIFAR-10 in a quarter of its size: small enough to train every method several times without a GPU.
SMALL = "cifar10-5k"

# The data whose settings in the papers are used.
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", SMALL: "CIFAR-10"}


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

    @property
    def of_any_seed(self) -> Training:
        """The training whose line does not name a seed.

        >>> Training.parse("cifar10 resnet18 100 focal seed=1").of_any_seed.line
        'cifar10 resnet18 100 focal'
        """
        return replace(self, changes=tuple(change for change in self.changes if not change.startswith("seed=")))

    @property
    def of_last_epoch(self) -> Training:
        """The training that ends the same way, and keeps the network of the last epoch.

        >>> Training.parse("cifar100 resnet50 200 au keep=best seed=1").of_last_epoch.line
        'cifar100 resnet50 200 au seed=1'
        """
        return replace(self, changes=tuple(change for change in self.changes if not change.startswith("keep=")))

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
    return published_on(name, DATA[data])


def published_on(name: str, on: str) -> str:
    """The same, by what its settings say they were used on.

    >>> published_on("au", "CIFAR-100, WRN")
    'au:low_conf_coverage=0.8:score=margin'
    """
    return _entry(name, next((used.settings for used in LOSSES[name].hyper_parameters if on in used.data), {}))


def _entry(name: str, settings: Mapping[str, Any]) -> str:
    """A loss with those of its settings that are not its defaults."""
    usual = defaults_of(LOSSES[name])
    return as_entry(name, {key: value for key, value in settings.items() if value != usual[key]})


def training_of(method: str, data: str) -> Training:
    """The usual network, with a method of the papers, or a network on a long tail.

    method  a loss, with changes to its published settings; one of RECIPES, with changes to its mix; or LONG_TAIL, with
            one of the networks of LONG_TAILED. Another network, other epochs and changes to the recipe may follow

    >>> training_of("acls:terms=adaptive", "cifar100").line
    'cifar100 resnet18 100 acls:margin=10.0:terms=adaptive'
    >>> training_of("mixup", "cifar10").line
    'cifar10 resnet18 100 cross-entropy mix=mixup'
    >>> training_of("acls", "cifar10").line
    'cifar10 resnet18 100 acls clip=2.0'
    >>> training_of("focal keep=refined", "cifar10").line
    'cifar10 resnet18 100 focal keep=refined'
    >>> training_of("focal epochs=160 seed=1", SMALL).line
    'cifar10-5k small-resnet:width=16 160 focal seed=1'
    >>> training_of(f"au {LARGER}", "cifar10").line
    'cifar10 resnet50 200 au'
    """
    method, *words = method.split()
    recipe = [word for word in words if not word.startswith(("network=", "epochs="))]
    told = dict(word.split("=", 1) for word in words if word not in recipe)
    name, changes = parse_entry(method)
    if name == LONG_TAIL:
        lr, weight_decay = RATES[data][changes["network"]]
        own = (f"lr={lr:g}", f"weight_decay={weight_decay:g}")
        return Training(data, changes["network"], 200, "cross-entropy", (*ON_LONG_TAIL, *own, *recipe))
    usual_network, usual_epochs = NETWORKS[data]
    network, epochs = told.get("network", usual_network), int(told.get("epochs", usual_epochs))
    if name in RECIPES:
        more = (f"mix.{key}={value}" for key, value in changes.items())
        return Training(data, network, epochs, "cross-entropy", (RECIPES[name], *more, *recipe))
    # As printed, AU does not leave chance with the narrow bandwidth of CIFAR-100.
    _, usual = parse_entry(name if method == AU_AS_PRINTED else published(name, data))
    # Without a limit ACLS became NaN on CIFAR-10 in its first epoch; its own program has this one.
    limit = ("clip=2.0",) if (name, DATA[data]) == ("acls", "CIFAR-10") else ()
    return Training(data, network, epochs, _entry(name, usual | changes), (*limit, *recipe))


# The usual network on each data set, and its epochs.
NETWORKS = {"cifar100": ("resnet18", 100), "cifar10": ("resnet18", 100), SMALL: ("small-resnet:width=16", 40)}

# Every training method of the papers, in the order in which claims hang on it.
AU_AS_PRINTED, ACLS_RELEASED, MMCE_AS_PRINTED = "au:variant=paper", "acls:variant=released", "mmce:double_norm=false"
MIXES = ("mixup", "mit", "cutmix")
RECIPES = {mix: f"mix={mix}" for mix in MIXES} | {"plp": "freeze=11", "balcal": "balance=0.95"}
LOSS_METHODS = (
    *("cross-entropy", "acls", "mbls", "label-smoothing", "au", "focal", "aurc", "mdca", "flsd", "dual-focal"),
    *("inverse-focal", "brier", "mmce", "crl", "cpc", "adafocal", "entropy-penalty", "kde-xe"),
)
METHODS = (*LOSS_METHODS, *MIXES, ACLS_RELEASED, AU_AS_PRINTED, MMCE_AS_PRINTED)
CLAIMED = ("cross-entropy", "acls", "mbls", "label-smoothing", "au", "focal")

# The network of the papers' headlines, and others of which MaC-Cal and AU have tables. The paper of AU keeps the
# network with the lowest validation loss.
LARGER, HEADLINE = "network=resnet50 epochs=200", ("cross-entropy", "au", "acls", "mbls", "label-smoothing")
BEST, KEPT_BEST = "keep=best", ("cross-entropy", "au")
OTHERS, ON_OTHERS = ("network=densenet121 epochs=200", "network=wrn-26-10 epochs=200"), ("cross-entropy", "au")

# Losses of which the network of the refined epoch is kept too, not only that of the last.
KEPT, REFINED = ("cross-entropy", "acls"), "keep=refined"

# What may explain that our numbers are not the papers': small networks that train four times as long, and of these the
# one with the lowest validation loss.
LONGER = "epochs=160"
TRAINED_LONGER = (*CLAIMED, "dual-focal")
BEST_OF_LONGER = ("cross-entropy", "au", "focal")

# Changes to one method, by what the tables call them. On CIFAR-100: tables 5 and 6, figure A and table A of ACLS, and
# figure 2 of selective risk.
PARTS = {"ACLS (adaptive only)": "acls:terms=adaptive", "ACLS (conditional only)": "acls:terms=conditional"}
CONDITIONS = {"CRL (margin)": "crl-margin:margin=10.0", "ACLS (ranking)": "acls-ranking:margin=10.0"}
SCORES = {"margin": "au:score=margin", "negative entropy": "au:score=negative-entropy"}
MARGINS = {f"margin {margin:g}": f"acls:margin={margin}" for margin in (2.0, 6.0, 10.0, 14.0, 20.0)}
STRENGTHS = {
    f"{positive:g}/{negative:g}": f"acls:pos_weight={positive}:neg_weight={negative}"
    for positive in (0.0, 0.05, 0.1, 0.15)
    for negative in (0.0, 0.005, 0.01, 0.015)
    if (positive, negative) not in ((0.0, 0.0), (0.1, 0.01))  # cross-entropy, and ACLS as it is
}
# On CIFAR-100: figure S4 of selective risk, at the values of γ that the paper chose somewhere and at 4 and 5, where it
# finds inverse focal loss worse. That of the usual training is left out.
GAMMAS = {f"inverse focal γ {gamma:g}": f"inverse-focal:gamma={gamma}" for gamma in (1.5, 2.0, 3.0)}
GAMMAS |= {f"inverse focal γ {gamma}": f"inverse-focal:gamma={gamma}.0:allow_reversal=true" for gamma in (4, 5)}
GAMMAS |= {f"dual focal γ {gamma:g}": f"dual-focal:gamma={gamma}" for gamma in (1.0, 2.6, 3.9, 6.1)}
# On CIFAR-10: figure S6 of selective risk, without the usual training, and figure 6 of MaC-Cal.
COVERAGES = {
    f"κ {coverage:g}/ν {width:g}": f"au:low_conf_coverage={coverage}:cdf_bandwidth={width}"
    for coverage in (0.3, 0.6, 0.9)
    for width in (0.01, 0.05, 0.1)
    if (coverage, width) != (0.9, 0.1)
}
MIXTURES = {f"{mix} α {alpha}": f"{mix}:alpha={alpha}" for mix in ("mixup", "mit") for alpha in (0.2, 0.5, 2.0)}

# SCTL's classifiers on long-tailed data, half of which is for calibration: the networks by what its table 4 calls them,
# and the learning rate and weight decay there.
LONG_TAIL, RATIO = "long-tail", "long_tail=0.1"
ON_LONG_TAIL = ("preset=long-tail", RATIO, "val_fraction=0.5")
LONG_TAILED = {
    name: f"{LONG_TAIL}:network={network}"
    for name, network in (
        ("DenseNet-40", "densenet40"),
        ("WRN-28", "wrn-28-10"),
        ("ResNet-110", "resnet110"),
        ("ResNet-110-SD", "resnet110-sd"),
    )
}
RATES = {
    "cifar100": {
        "densenet40": (0.01, 1e-4),
        "wrn-28-10": (0.1, 5e-4),
        "resnet110": (0.1, 1e-4),
        "resnet110-sd": (0.05, 1e-3),
    },
    "cifar10": {
        "densenet40": (0.01, 1e-4),
        "wrn-28-10": (0.1, 5e-4),
        "resnet110": (0.1, 1e-4),
        "resnet110-sd": (0.04, 1e-4),
    },
}


def queue() -> list[Training]:
    """All trainings, in the order in which they are run."""
    return list(dict.fromkeys(_in_order()))


@cache
def queued() -> frozenset[Training]:
    """All trainings whatever their seed."""
    return frozenset(training.of_any_seed for training in queue())


def _in_order() -> Iterator[Training]:
    for data in ("cifar100", "cifar10"):
        for method in LOSS_METHODS:
            yield training_of(method, data)
    for data in ("cifar100", "cifar10"):
        for seed in (1, 2):
            for method in CLAIMED:
                yield training_of(f"{method} seed={seed}", data)
    for data in ("cifar100", "cifar10"):
        for method in KEPT:
            yield training_of(f"{method} {REFINED}", data)
    for recipe in (BEST, f"{LARGER} {BEST}"):
        for method in KEPT_BEST:
            yield training_of(f"{method} {recipe}", "cifar100")
    for data in ("cifar100", "cifar10"):
        for method in HEADLINE:
            yield training_of(f"{method} {LARGER}", data)
    for data in ("cifar100", "cifar10"):
        for method in (*METHODS, "balcal", "plp"):
            yield training_of(method, data)
    for changed in (PARTS, CONDITIONS, SCORES, MARGINS):
        for method in changed.values():
            yield training_of(method, "cifar100")
    for network in OTHERS:
        for method in ON_OTHERS:
            yield training_of(f"{method} {network}", "cifar100")
    for data in ("cifar100", "cifar10"):
        for method in LONG_TAILED.values():
            yield training_of(method, data)
    for method in MIXTURES.values():
        yield training_of(method, "cifar10")
    for method in STRENGTHS.values():
        yield training_of(method, "cifar100")
    for method in GAMMAS.values():
        yield training_of(method, "cifar100")
    for method in COVERAGES.values():
        yield training_of(method, "cifar10")
    yield from _small()


def _small() -> Iterator[Training]:
    """Small networks, several of each."""
    methods = (*METHODS, "balcal", "plp")
    changed = (PARTS, CONDITIONS, SCORES, MARGINS, MIXTURES, GAMMAS, COVERAGES, STRENGTHS)
    changes = [method for each in changed for method in each.values()]
    reasons = [f"{method} {LONGER}" for method in TRAINED_LONGER]
    reasons += [f"{method} {LONGER} {BEST}" for method in BEST_OF_LONGER]
    refined = [f"{method} {REFINED}" for method in KEPT]
    once = [*reasons, *refined, *changes]
    first, more = range(3), range(3, 5)
    for chosen, seeds in ((methods, first), (CLAIMED, more), (once, first), (methods, more)):
        for seed in seeds:
            for method in chosen:
                yield training_of(f"{method} seed={seed}", SMALL)
