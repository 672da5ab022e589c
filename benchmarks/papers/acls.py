"""ACLS: the tables and figures of its paper, with the networks of the queue.

claim      ACLS has a lower ECE and AECE than every other regulariser: ResNet-50 on Tiny-ImageNet, ECE 1.05 against 1.64
           (MbLS), 3.17 (label smoothing) and 3.73 (cross-entropy)
ours       ResNet-18 on CIFAR-100, 100 epochs of SGD, margin 10, beside the paper's Tiny-ImageNet, its nearest data;
           `temperance reproduce acls --table 3` prints the numbers with their intervals
seeds      0; 0, 1 and 2 for MbLS
hardware   one H200, under two minutes for each training; the tables are read from benchmarks/results/papers.jsonl

Numbers are percent, ECE and AECE in 15 bins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers import trained
from benchmarks.papers.outputs import Cell, Output

PLAIN, SCALED = "as trained", "temperature"


def _numbers(accuracy: float, ece: float, aece: float) -> dict[str, float]:
    return {"accuracy": accuracy, "ECE": ece, "AECE": aece}


# As printed for ResNet-50 on Tiny-ImageNet.
TABLE_3 = {
    "CE": ("cross-entropy", PLAIN, _numbers(65.02, 3.73, 3.69)),
    "CE + TS": ("cross-entropy", SCALED, _numbers(65.02, 1.63, 1.52)),
    "MMCE": ("mmce", PLAIN, _numbers(64.75, 5.15, 5.12)),
    "ECP": ("entropy-penalty", PLAIN, _numbers(64.98, 4.00, 3.92)),
    "LS": ("label-smoothing", PLAIN, _numbers(65.78, 3.17, 3.16)),
    "FL": ("focal", PLAIN, _numbers(63.09, 2.96, 3.12)),
    "FLSD": ("flsd", PLAIN, _numbers(64.09, 2.91, 2.95)),
    "MDCA": ("mdca", PLAIN, _numbers(63.57, 2.77, 2.61)),
    "CPC": ("cpc", PLAIN, _numbers(65.44, 3.12, 3.05)),
    "MbLS": ("mbls", PLAIN, _numbers(64.74, 1.64, 1.73)),
    "CRL": ("crl", PLAIN, _numbers(64.88, 1.65, 1.52)),
    "ACLS": ("acls", PLAIN, _numbers(64.84, 1.05, 1.03)),
}
TABLE_B = TABLE_3 | {"CutMix": ("cutmix", PLAIN, _numbers(65.11, 2.71, 2.66))}


def table_1(data: Path) -> Iterator[Cell]:
    yield from _chosen(("LS", "FLSD", "CPC", "MDCA", "MbLS", "CRL", "ACLS"), ("ECE",))


def table_3(data: Path) -> Iterator[Cell]:
    yield from trained.cells(TABLE_3)


def table_5(data: Path) -> Iterator[Cell]:
    yield from _chosen(("LS", "MDCA", "MbLS", "ACLS"), ("ECE", "AECE"))


def table_b(data: Path) -> Iterator[Cell]:
    yield from _chosen(("CE", "CE + TS", "MMCE", "CutMix", "ACLS"), ("accuracy", "ECE", "AECE"))


def _chosen(rows: tuple[str, ...], metrics: tuple[str, ...]) -> Iterator[Cell]:
    """Some rows and metrics of ResNet-50 on Tiny-ImageNet; the paper prints the same numbers in several tables."""
    for row in rows:
        method, state, numbers = TABLE_B[row]
        yield from trained.cells({row: (method, state, {metric: numbers[metric] for metric in metrics})})


INSTEAD = f"{trained.REDUCED}, in place of ResNet-50 on Tiny-ImageNet"
NO_DATA = "Tiny-ImageNet and ImageNet are not here"

OUTPUTS = [
    Output("table 1", "ECE of seven regularisers", "reduced", f"{INSTEAD}; CPC and CRL wait in the queue", table_1),
    Output(
        "table 2",
        "the smoothing function of each regulariser, as formulas",
        "run",
        "`temperance gradients` draws them from the losses themselves",
    ),
    Output(
        "table 3",
        "accuracy, ECE and AECE of 13 methods, five networks",
        "reduced",
        f"{INSTEAD}; MMCE, ECP, CPC and CRL wait in the queue, and so do the CIFAR-10 columns",
        table_3,
    ),
    Output(
        "table 4",
        "segmentation of PASCAL VOC with DeepLabV3",
        "not run",
        "the images are not here; losses and metrics take dense predictions",
    ),
    Output(
        "table 5",
        "ablation: the adaptive and the conditional part alone",
        "reduced",
        f"{INSTEAD}; the two parts alone were not trained",
        table_5,
    ),
    Output(
        "table 6",
        "ablation: a ranking condition in place of the margin",
        "not run",
        "not trained yet: `acls-ranking` and `crl-margin` are the losses that it compares",
    ),
    Output(
        "table A", "accuracy and ECE by both strengths of the penalty", "not run", "16 trainings that were not made"
    ),
    Output(
        "table B",
        "accuracy, ECE and AECE in 10 and 15 bins, eight methods",
        "reduced",
        f"{INSTEAD}, 15 bins; MMCE and CutMix wait in the queue; CaPE and MC dropout are not part of temperance",
        table_b,
    ),
    Output("figure 1", "sketches of smoothing", "run", "`temperance gradients` draws them from the losses themselves"),
    Output("figure 2", "reliability diagrams of six losses", "not run", f"{NO_DATA}; `temperance evaluate --report`"),
    Output(
        "figure 3",
        "histograms of the penalty with a ranking condition and with a margin",
        "not run",
        "the two networks were not trained",
    ),
    Output("figure A", "ECE by margin", "not run", "trainings that were not made"),
]
