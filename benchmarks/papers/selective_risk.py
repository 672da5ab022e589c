"""Reweighted risk (AURC, AU, focal and inverse focal losses): the tables and figures of its paper.

claim      the AU loss has a lower ECE than cross-entropy and focal losses at about the same accuracy: ResNet-50 on
           CIFAR-100, 2.44 against 7.18 and 4.51, accuracy 74.69 against 74.37
ours       ResNet-18 on CIFAR-100, 100 epochs, beside the paper's ResNet-50, 250 epochs and three seeds.
           `temperance reproduce selective-risk --table 1` prints the numbers with their intervals
seeds      0
hardware   one H200, under two minutes for each training; the tables are read from benchmarks/results/papers.jsonl

AU is that of the published program with the paper's bandwidth, not with its choice of coverage for each network.
Numbers are percent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers import trained
from benchmarks.papers.outputs import Cell, Output

PLAIN, SCALED, ON_TRAINING = "as trained", "temperature", "temperature of the training part"

# The paper's losses, and the names here.
LOSSES = {
    "XE": "cross-entropy",
    "FL-53": "flsd",
    "inverse focal": "inverse-focal",
    "dual focal": "dual-focal",
    "KDE-XE": "kde-xe",
    "AURC": "aurc",
    "AU": "au",
}

# As printed for ResNet-50 on CIFAR-100, in the order of LOSSES.
ACCURACY = (74.37, 76.41, 75.64, 75.46, 76.25, 75.40, 74.69)
ECE = (7.18, 4.51, 10.70, 4.20, 9.59, 8.43, 2.44)
CLASSWISE = (0.235, 0.215, 0.272, 0.213, 0.252, 0.233, 0.180)
CLASSWISE_SCALED = (0.201, 0.275, 0.204, 0.255, 0.202, 0.184, 0.173)
ADAPTIVE = (7.15, 4.56, 10.70, 4.21, 9.52, 8.43, 2.52)
ADAPTIVE_SCALED = (3.10, 9.21, 4.15, 7.65, 3.12, 4.01, 1.78)


def table_1(data: Path) -> Iterator[Cell]:
    for i, (name, loss) in enumerate(LOSSES.items()):
        yield from trained.cells({name: (loss, PLAIN, {"accuracy": ACCURACY[i], "ECE": ECE[i]})})


def table_2(data: Path) -> Iterator[Cell]:
    yield from _with_temperatures("classwise ECE", CLASSWISE, CLASSWISE_SCALED)


def table_s4(data: Path) -> Iterator[Cell]:
    yield from _with_temperatures("AECE", ADAPTIVE, ADAPTIVE_SCALED)


def _with_temperatures(metric: str, plain: tuple[float, ...], scaled: tuple[float, ...]) -> Iterator[Cell]:
    """As trained, and with a temperature fitted to the training part (the paper's caption) or the validation part."""
    for i, (name, loss) in enumerate(LOSSES.items()):
        yield from trained.cells(
            {
                name: (loss, PLAIN, {metric: plain[i]}),
                f"{name} + TS, training part": (loss, ON_TRAINING, {metric: scaled[i]}),
                f"{name} + TS, validation part": (loss, SCALED, {metric: scaled[i]}),
            }
        )


INSTEAD = f"{trained.REDUCED}, in place of ResNet-50, 250 epochs and three seeds; KDE-XE waits in the queue"
DRAWN = "`temperance gradients --figure weights` draws them from the losses"
NOT_TRAINED = "trainings that were not made"

OUTPUTS = [
    Output("table 1", "accuracy and ECE of seven losses, ten networks", "reduced", INSTEAD, table_1),
    Output("table 2", "classwise ECE with and without a temperature", "reduced", INSTEAD, table_2),
    Output("table S1", "the usual confidence scores", "run", "`temperance list losses au` has them as its score"),
    Output("table S2", "the γ chosen for each network", "run", "`temperance list losses` and docs/losses have them"),
    Output("table S3", "the coverage chosen for each network", "run", "docs/losses/selective.md has them as settings"),
    Output(
        "table S4",
        "adaptive ECE with a temperature, MetaMis and MetaAcc",
        "reduced",
        f"{INSTEAD}; without MetaMis and MetaAcc, which are calibrators here",
        table_s4,
    ),
    Output("figure 1", "weights and losses against the probability", "run", DRAWN),
    Output("figure 2", "ECE of AU with three confidence scores", "not run", NOT_TRAINED),
    Output("figure 3", "reliability diagrams of PreResNet-56 on CIFAR-10", "not run", NOT_TRAINED),
    Output("figure S1", "gradients of the losses", "run", DRAWN),
    Output("figure S2", "dual focal loss on wrong predictions", "not run", "no code draws it"),
    Output("figure S3", "gradients during a training", "not run", NOT_TRAINED),
    Output("figure S4", "the choice of γ on Tiny-ImageNet", "not run", "Tiny-ImageNet is not here"),
    Output("figure S5", "the effect of the bandwidth on the CDF", "run", "`temperance gradients --figure cdf`"),
    Output("figure S6", "ECE by coverage and bandwidth", "not run", NOT_TRAINED),
]
