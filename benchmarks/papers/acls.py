"""ACLS: the tables and figures of its paper, with the networks of the queue.

claim      ACLS has a lower ECE and AECE than every other regulariser: ResNet-50 on Tiny-ImageNet, ECE 1.05 against 1.64
           (MbLS), 3.17 (label smoothing) and 3.73 (cross-entropy); on CIFAR-10, 1.12 against 1.16, 2.79 and 5.85
ours       ResNet-18, 100 epochs of SGD: CIFAR-100 with margin 10 beside the paper's Tiny-ImageNet, its nearest data,
           and CIFAR-10 with margin 6 beside its own; small networks on 5,000 images of CIFAR-10, with margin 6.
           `temperance reproduce acls --table 3` prints the numbers with their intervals, and `--list` says which
           trainings still wait
seeds      0; 0, 1 and 2 where a table says "mean of 3"
hardware   one H200, under two minutes for each training, and two cores of a CPU for small networks; the tables are read
           from benchmarks/results/papers.jsonl

Numbers are percent, ECE and AECE in 15 bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.papers import acls_figures, trained, trainings
from benchmarks.papers.figures import gaps, reliability_figure
from benchmarks.papers.outputs import Cell, Output
from benchmarks.papers.trainings import SMALL

PLAIN, SCALED = "as trained", "temperature"
METRICS = ("accuracy", "ECE", "AECE")
RELEASED = "ACLS (released)"

# The rows of the paper, the method and the state here; the last is not in the paper.
ROWS = {
    "CE": ("cross-entropy", PLAIN),
    "CE + TS": ("cross-entropy", SCALED),
    "MMCE": ("mmce", PLAIN),
    "ECP": ("entropy-penalty", PLAIN),
    "LS": ("label-smoothing", PLAIN),
    "FL": ("focal", PLAIN),
    "FLSD": ("flsd", PLAIN),
    "MDCA": ("mdca", PLAIN),
    "CPC": ("cpc", PLAIN),
    "MbLS": ("mbls", PLAIN),
    "CRL": ("crl", PLAIN),
    "ACLS": ("acls", PLAIN),
    RELEASED: (trainings.ACLS_RELEASED, PLAIN),
}
METHODS = {row: method for row, (method, state) in ROWS.items() if state == PLAIN}

# As printed for ResNet-50 on Tiny-ImageNet, beside which CIFAR-100 stands, and on CIFAR-10.
TABLE_3 = {
    "cifar100": {
        "CE": (65.02, 3.73, 3.69),
        "CE + TS": (65.02, 1.63, 1.52),
        "MMCE": (64.75, 5.15, 5.12),
        "ECP": (64.98, 4.00, 3.92),
        "LS": (65.78, 3.17, 3.16),
        "FL": (63.09, 2.96, 3.12),
        "FLSD": (64.09, 2.91, 2.95),
        "MDCA": (63.57, 2.77, 2.61),
        "CPC": (65.44, 3.12, 3.05),
        "MbLS": (64.74, 1.64, 1.73),
        "CRL": (64.88, 1.65, 1.52),
        "ACLS": (64.84, 1.05, 1.03),
    },
    "cifar10": {
        "CE": (93.20, 5.85, 5.84),
        "CE + TS": (93.20, 3.68, 3.67),
        "MMCE": (95.18, 3.10, 3.10),
        "ECP": (94.75, 3.01, 2.99),
        "LS": (94.87, 2.79, 3.85),
        "FL": (94.82, 3.90, 3.86),
        "FLSD": (94.77, 3.84, 3.60),
        "MDCA": (94.84, 6.86, 6.73),
        "CPC": (95.04, 3.91, 3.91),
        "MbLS": (95.25, 1.16, 3.18),
        "CRL": (95.08, 3.14, 3.11),
        "ACLS": (95.40, 1.12, 2.87),
    },
}

# The other tables are of Tiny-ImageNet; they repeat rows of Table 3 and add these.
TABLE_1 = ("LS", "FLSD", "CPC", "MDCA", "MbLS", "CRL", "ACLS")
FIGURE_2 = ("CE", "LS", "MDCA", "MbLS", "CRL", "ACLS")
TABLE_5 = {
    "LS": (3.17, 3.16),
    "MDCA": (2.77, 2.61),
    "ACLS (adaptive only)": (1.54, 1.42),
    "MbLS": (1.64, 1.73),
    "ACLS (conditional only)": (1.32, 1.43),
    "ACLS": (1.05, 1.03),
}
TABLE_6 = {
    "CRL (ranking)": (1.65, 1.52),
    "CRL (margin)": (1.47, 1.40),
    "ACLS (ranking)": (1.48, 1.19),
    "ACLS (margin)": (1.05, 1.03),
}
TABLE_B_ROWS = {row: ROWS[row] for row in ("CE", "CE + TS", "MMCE", "ACLS")} | {"CutMix": ("cutmix", PLAIN)}
TABLE_B = {row: TABLE_3["cifar100"][row] for row in ("CE", "CE + TS", "MMCE", "ACLS")} | {"CutMix": (65.11, 2.71, 2.66)}

# As printed for ResNet-50 on a split of Tiny-ImageNet's training part: accuracy and ECE by λ1/λ2. With 0/0.015 the
# paper's training failed.
TABLE_A = {
    "0/0": (64.62, 4.39),
    "0/0.005": (64.43, 3.42),
    "0/0.01": (55.81, 2.94),
    "0/0.015": (),
    "0.05/0": (64.83, 2.36),
    "0.05/0.005": (64.83, 1.95),
    "0.05/0.01": (64.76, 1.73),
    "0.05/0.015": (64.48, 1.41),
    "0.1/0": (65.43, 2.67),
    "0.1/0.005": (64.74, 1.94),
    "0.1/0.01": (65.40, 1.31),
    "0.1/0.015": (65.17, 1.52),
    "0.15/0": (65.04, 2.71),
    "0.15/0.005": (65.18, 1.44),
    "0.15/0.01": (65.23, 1.42),
    "0.15/0.015": (64.11, 1.47),
}


def table_1(data: Path) -> Iterator[Cell]:
    return (cell for cell in table_3(data) if cell.row in TABLE_1 and cell.metric == "ECE")


def table_3(data: Path) -> Iterator[Cell]:
    return trained.cells(ROWS, METRICS, TABLE_3 | {SMALL: {}})


def table_5(data: Path) -> Iterator[Cell]:
    return _beside_tiny_imagenet(METHODS | trainings.PARTS, ("ECE", "AECE"), TABLE_5)


def table_6(data: Path) -> Iterator[Cell]:
    methods = {"CRL (ranking)": "crl", "ACLS (margin)": "acls"} | trainings.CONDITIONS
    return _beside_tiny_imagenet(methods, ("ECE", "AECE"), TABLE_6)


def table_a(data: Path) -> Iterator[Cell]:
    methods = {"0/0": "cross-entropy", "0.1/0.01": "acls"} | trainings.STRENGTHS
    return _beside_tiny_imagenet(methods, ("accuracy", "ECE"), TABLE_A)


def table_b(data: Path) -> Iterator[Cell]:
    return trained.cells(TABLE_B_ROWS, METRICS, {"cifar100": TABLE_B, SMALL: {}})


def figure_a(data: Path) -> Iterator[Cell]:
    """The paper's figure prints no numbers."""
    return _beside_tiny_imagenet(trainings.MARGINS, ("ECE",), dict.fromkeys(trainings.MARGINS, ()))


def _beside_tiny_imagenet(
    methods: dict[str, str], metrics: tuple[str, ...], printed: Mapping[str, tuple[float, ...]]
) -> Iterator[Cell]:
    """The printed rows as trained: on CIFAR-100 beside the paper's numbers of Tiny-ImageNet, and by small networks."""
    rows = {row: (methods[row], PLAIN) for row in printed}
    return trained.cells(rows, metrics, {"cifar100": printed, SMALL: {}})


ON = ("cifar100", SMALL)
ON_CIFAR_100 = f"{trained.REDUCED}; CIFAR-100 is compared with the paper's ResNet-50 on Tiny-ImageNet"
INSTEAD = f"{ON_CIFAR_100}, CIFAR-10 with its ResNet-50 on CIFAR-10"
GRADIENTS = "`temperance gradients` draws them from the losses themselves"

OUTPUTS = [
    trained.output("table 1", "ECE of seven regularisers", INSTEAD, table_1, {row: METHODS[row] for row in TABLE_1}),
    Output("table 2", "the smoothing function of each regulariser, as formulas", "run", GRADIENTS),
    trained.output("table 3", "accuracy, ECE and AECE of 13 methods, five networks", INSTEAD, table_3, METHODS),
    Output(
        "table 4",
        "segmentation of PASCAL VOC with DeepLabV3",
        "not run",
        "we do not have the images; losses and metrics take dense predictions",
    ),
    trained.output(
        "table 5",
        "ablation: the adaptive and the conditional part alone",
        ON_CIFAR_100,
        table_5,
        trainings.PARTS,
        ON,
    ),
    trained.output(
        "table 6",
        "ablation: a ranking condition in place of the margin",
        ON_CIFAR_100,
        table_6,
        trainings.CONDITIONS,
        ON,
    ),
    trained.output(
        "table A",
        "accuracy and ECE by both strengths of the penalty",
        ON_CIFAR_100,
        table_a,
        trainings.STRENGTHS,
        ON,
    ),
    trained.output(
        "table B",
        "accuracy, ECE and AECE in 10 and 15 bins, eight methods",
        f"{ON_CIFAR_100}, 15 bins; CaPE and MC dropout are not part of temperance",
        table_b,
        {row: method for row, (method, state) in TABLE_B_ROWS.items() if state == PLAIN},
        ON,
    ),
    Output("figure 1", "sketches of smoothing", "run", GRADIENTS),
    Output(
        "figure 2",
        "reliability diagrams of six losses",
        "reduced",
        f"{ON_CIFAR_100}",
        figure=reliability_figure({row: METHODS[row] for row in FIGURE_2}, gaps, columns=3),
    ),
    Output(
        "figure 3",
        "histograms of the penalty with a ranking condition and with a margin",
        "reduced",
        f"{ON_CIFAR_100}; the margin only",
        figure=acls_figures.PENALTIES,
    ),
    trained.output("figure A", "ECE by margin", ON_CIFAR_100, figure_a, trainings.MARGINS, ON),
]
