"""Reweighted risk (AURC, AU, focal and inverse focal losses): the tables and figures of its paper.

claim      the AU loss has a lower ECE than cross-entropy and focal losses at about the same accuracy: ResNet-50 on
           CIFAR-100, 2.44 against 7.18 and 4.51, accuracy 74.69 against 74.37; on CIFAR-10 1.59 against 3.00 and 3.98,
           accuracy 92.34 against 94.51
ours       ResNet-18, 100 epochs, beside the paper's ResNet-50, 200 or 250 epochs and three seeds, and small networks on
           5,000 images of CIFAR-10. `temperance reproduce selective-risk --table 1` prints the numbers with their
           intervals, and `--list` says which trainings still wait
seeds      0; 0, 1 and 2 where a table says "mean of 3"
hardware   one H200, under two minutes for each training, and two cores of a CPU for small networks; the tables are read
           from benchmarks/results/papers.jsonl

AU is that of the published program with the paper's bandwidth, not with its choice of coverage for each network; the
last row is AU as the paper prints it. Numbers are percent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.papers import trained, trainings
from benchmarks.papers.figures import gaps, reliability_figure
from benchmarks.papers.outputs import Cell, Output
from benchmarks.papers.trainings import SMALL
from temperance.metrics.bins import Bins

PLAIN, SCALED, ON_TRAINING = "as trained", "temperature", "temperature of the training part"

# The paper's losses, and the names here. The paper has no row for AU as printed.
LOSSES = {
    "XE": "cross-entropy",
    "FL-53": "flsd",
    "inverse focal": "inverse-focal",
    "dual focal": "dual-focal",
    "KDE-XE": "kde-xe",
    "AURC": "aurc",
    "AU": "au",
    "AU (as printed)": trainings.AU_AS_PRINTED,
}

IN_TABLE_1 = {row: method for row, method in LOSSES.items() if row != "AU (as printed)"}

# As printed for ResNet-50, in the order of LOSSES.
ACCURACY = {
    "cifar100": (74.37, 76.41, 75.64, 75.46, 76.25, 75.40, 74.69),
    "cifar10": (94.51, 93.58, 94.36, 94.09, 94.46, 93.32, 92.34),
}
ECE = {
    "cifar100": (7.18, 4.51, 10.70, 4.20, 9.59, 8.43, 2.44),
    "cifar10": (3.00, 3.98, 4.05, 1.27, 3.09, 2.53, 1.59),
}
CLASSWISE = {
    "cifar100": (0.235, 0.215, 0.272, 0.213, 0.252, 0.233, 0.180),
    "cifar10": (0.665, 0.881, 0.849, 0.478, 0.677, 0.575, 0.497),
}
CLASSWISE_SCALED = {
    "cifar100": (0.201, 0.275, 0.204, 0.255, 0.202, 0.184, 0.173),
    "cifar10": (0.486, 0.825, 0.704, 0.636, 0.499, 0.430, 0.406),
}
ADAPTIVE = {
    "cifar100": (7.15, 4.56, 10.70, 4.21, 9.52, 8.43, 2.52),
    "cifar10": (2.97, 3.92, 4.03, 1.21, 3.07, 2.42, 1.47),
}
ADAPTIVE_SCALED = {
    "cifar100": (3.10, 9.21, 4.15, 7.65, 3.12, 4.01, 1.78),
    "cifar10": (1.98, 3.61, 3.29, 1.98, 2.04, 1.10, 1.03),
}
# Adaptive ECE and accuracy.
META = {
    "MetaMis": {
        "cifar100": ((1.99, 63.7), (5.36, 59.1), (1.51, 47.6), (4.56, 60.7), (1.20, 74.3), (2.78, 68.2), (1.19, 69.2)),
        "cifar10": ((0.73, 84.7), (3.58, 86.6), (0.81, 84.3), (1.90, 85.5), (0.55, 84.3), (0.64, 87.1), (0.53, 87.6)),
    },
    "MetaAcc": {
        "cifar100": ((2.13, 61.0), (3.30, 38.6), (0.95, 37.6), (2.62, 40.9), (0.68, 38.6), (3.38, 73.3), (1.40, 71.8)),
        "cifar10": ((0.42, 77.5), (3.13, 74.9), (0.58, 78.7), (1.91, 72.0), (0.46, 76.9), (0.93, 90.0), (0.72, 89.9)),
    },
}
META_STATES = {"MetaMis": "meta-mis", "MetaAcc": "meta-acc"}
Printed = Mapping[str, tuple[float, ...]]


def table_1(data: Path) -> Iterator[Cell]:
    printed = {
        name: dict(zip(LOSSES, zip(ACCURACY[name], ECE[name], strict=True), strict=False)) for name in trained.SETS
    } | {SMALL: {}}
    rows = {row: (loss, PLAIN) for row, loss in LOSSES.items()}
    return trained.cells(rows, ("accuracy", "ECE"), printed)


def table_2(data: Path) -> Iterator[Cell]:
    return _with_temperatures("classwise ECE", CLASSWISE, CLASSWISE_SCALED)


def table_s4(data: Path) -> Iterator[Cell]:
    yield from _with_temperatures("AECE", ADAPTIVE, ADAPTIVE_SCALED)
    for name, state in META_STATES.items():
        rows = {f"{row} + {name}": (loss, state) for row, loss in LOSSES.items()}
        printed = {data: dict(zip(rows, numbers, strict=False)) for data, numbers in META[name].items()} | {SMALL: {}}
        yield from trained.cells(rows, ("AECE", "accuracy"), printed)


def with_meta() -> str:
    """Which losses were measured with MetaMis and MetaAcc."""
    states, sets = META_STATES.values(), trained.ALL
    found = [row for row, loss in LOSSES.items() if any(trained.lines(loss, s, data) for s in states for data in sets)]
    return f"MetaMis and MetaAcc are measured on later trainings only: {', '.join(found) or 'none yet'}"


def _with_temperatures(metric: str, plain: Printed, scaled: Printed) -> Iterator[Cell]:
    """As trained, and with a temperature fitted to the training part (the paper's caption) or the validation part."""
    states = {"": PLAIN, " + TS, training part": ON_TRAINING, " + TS, validation part": SCALED}
    rows = {f"{name}{said}": (loss, state) for name, loss in LOSSES.items() for said, state in states.items()}
    printed: dict[str, dict[str, tuple[float, ...]]] = {}
    for data in trained.SETS:
        for said in states:
            numbers = (scaled if said else plain)[data]
            for name, number in zip(LOSSES, numbers, strict=False):
                printed.setdefault(data, {})[f"{name}{said}"] = (number,)
    return trained.cells(rows, (metric,), printed | {SMALL: {}})


def figure_2(data: Path) -> Iterator[Cell]:
    """The paper's figure prints no numbers."""
    return _by_setting({"confidence": "au"} | trainings.SCORES, "cifar100")


def figure_s4(data: Path) -> Iterator[Cell]:
    """The paper's figure is of the validation part of Tiny-ImageNet."""
    usual = {"inverse focal γ 1": "inverse-focal:gamma=1.0", "dual focal γ 5": "dual-focal:gamma=5.0"}
    return _by_setting(usual | trainings.GAMMAS, "cifar100")


def figure_s6(data: Path) -> Iterator[Cell]:
    """The paper's figure is of the validation part of PreResNet-56."""
    return _by_setting({"κ 0.9/ν 0.1": "au"} | trainings.COVERAGES, "cifar10")


def _by_setting(methods: Mapping[str, str], data: str) -> Iterator[Cell]:
    rows = {row: (method, PLAIN) for row, method in sorted(methods.items())}
    return trained.cells(rows, ("ECE", "accuracy"), {data: {}, SMALL: {}})


def said_of_sides(found: dict[str, Bins]) -> str:
    claim = "focal loss makes networks over-confident, and inverse focal loss and AURC make them under-confident"
    return f"The paper says that {claim}. {gaps(found)}"


INSTEAD = f"{trained.REDUCED}, in place of ResNet-50, 200 or 250 epochs and three seeds"
DRAWN = "`temperance gradients --figure weights` draws them from the losses"

OUTPUTS = [
    trained.output("table 1", "accuracy and ECE of seven losses, ten networks", INSTEAD, table_1, LOSSES),
    trained.output("table 2", "classwise ECE with and without a temperature", INSTEAD, table_2, LOSSES),
    Output("table S1", "the usual confidence scores", "run", "`temperance list losses au` has them as its score"),
    Output("table S2", "the γ chosen for each network", "run", "`temperance list losses` and docs/losses have them"),
    Output("table S3", "the coverage chosen for each network", "run", "docs/losses/selective.md has them as settings"),
    trained.output(
        "table S4",
        "adaptive ECE with a temperature, MetaMis and MetaAcc",
        f"{INSTEAD}; {with_meta()}",
        table_s4,
        LOSSES,
    ),
    Output("figure 1", "weights and losses against the probability", "run", DRAWN),
    trained.output(
        "figure 2", "ECE of AU with three confidence scores", INSTEAD, figure_2, trainings.SCORES, ["cifar100", SMALL]
    ),
    Output(
        "figure 3",
        "reliability diagrams of seven losses",
        "reduced",
        "ResNet-18 on CIFAR-100, in place of PreResNet-56 on CIFAR-10",
        figure=reliability_figure(IN_TABLE_1, said_of_sides, columns=4),
    ),
    Output("figure S1", "gradients of the losses", "run", DRAWN),
    Output(
        "figure S2", "dual focal loss on wrong predictions", "run", "`temperance gradients --figure rival` draws it"
    ),
    Output("figure S3", "gradients during a training", "not run", "no training here records its gradients"),
    trained.output(
        "figure S4",
        "the choice of γ on Tiny-ImageNet",
        f"{trained.REDUCED}, on CIFAR-100, by ECE on the test part",
        figure_s4,
        trainings.GAMMAS,
        ["cifar100", SMALL],
    ),
    Output(
        "figure S5", "the effect of the bandwidth on the CDF", "run", "`temperance gradients --figure cdf` draws it"
    ),
    trained.output(
        "figure S6",
        "ECE by coverage and bandwidth",
        f"{trained.REDUCED}, in place of PreResNet-56; nine settings, by ECE on the test part",
        figure_s6,
        trainings.COVERAGES,
        ["cifar10", SMALL],
    ),
]
