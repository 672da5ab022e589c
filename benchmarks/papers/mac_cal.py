"""MaC-Cal: the tables and figures of its paper, with the networks of the queue and two more.

claim      a classifier trained again under adaptive masks has a lower ECE than any other method and keeps the accuracy:
           ResNet-50 on CIFAR-100, ECE 2.90 against 14.36 of the network, on CIFAR-10 0.92 against 4.11; it lowers the
           ECE of other losses too
ours       ResNet-18, 100 epochs, beside the paper's ResNet-50, 350 epochs (Tables 1 and 3); two ResNet-18 on CIFAR-100
           for the heads and the ablation (Tables 1 and 5); `temperance reproduce mac-cal` prints them with their
           intervals, and `--list` says which trainings still wait
seeds      0; 0, 1 and 2 where a table says "mean of 3"
hardware   one H200, under two minutes for each training and seconds for each head; the tables are read from
           benchmarks/results/papers.jsonl and heads.jsonl

Where the paper is not clear, `mac-cal:preset=paper` is the reading that calibrated (docs/heads.md has all of them).
Numbers are percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers import mac_cal_figures, trained, trainings
from benchmarks.papers.outputs import RESULTS, Cell, Output
from benchmarks.papers.trainings import SMALL
from benchmarks.quality.table import read

PLAIN, MASKED, KEPT_ACCURACY = "as trained", "mac-cal:preset=paper", "mac-cal:preset=kept-accuracy"

# γ, which the paper does not give, from held-out images; and one layer in place of the paper's two, too: the default.
HELD_OUT, ONE_LAYER = "mac-cal:preset=paper:acc_discount=auto", "mac-cal:width=none:acc_discount=auto"

# The rows of Table 1: the method and the state here.
ROWS = {
    "vanilla": ("cross-entropy", PLAIN),
    "ACLS": ("acls", PLAIN),
    "LS": ("label-smoothing", PLAIN),
    "MbLS": ("mbls", PLAIN),
    "mixup": ("mixup", PLAIN),
    "MIT": ("mit", PLAIN),
    "FL": ("focal", PLAIN),
    "FLSD": ("flsd", PLAIN),
    "DFL": ("dual-focal", PLAIN),
    "CPC": ("cpc", PLAIN),
    "MMCE": ("mmce", PLAIN),
    "MaC-Cal": ("cross-entropy", MASKED),
}
METHODS = {row: method for row, (method, state) in ROWS.items() if state == PLAIN}

# As printed for ResNet-50, in the order of ROWS: ECE.
TABLE_1 = {
    "cifar100": (14.36, 7.94, 4.28, 6.66, 4.82, 7.09, 5.56, 5.46, 3.01, 7.42, 6.00, 2.90),
    "cifar10": (4.11, 2.40, 3.96, 1.37, 1.74, 2.61, 2.34, 2.50, 2.21, 3.92, 2.71, 0.92),
}
# Trained otherwise than with another loss; BalCAL is a head below, and here what its paper trains.
JOINT = {"PLP": "plp", "BalCAL (joint)": "balcal"}
TABLE_1_JOINT = {"cifar100": (7.73, 3.45), "cifar10": (2.97, 1.32)}
HEADS = {
    "TST": ("tst:preset=mac-cal-paper", 11.01),
    "VTST": ("vtst:preset=mac-cal-paper", 4.83),
    "BalCAL": ("balcal", 3.45),
}

# As printed, the mean of four networks: accuracy and ECE, without and with MaC-Cal. The first row is DenseNet-121's in
# Table 5; Table 3 has none for cross-entropy.
TABLE_3 = {
    "cifar100": {
        "vanilla": ((78.03, 16.04), (77.88, 1.73)),
        "ACLS": ((77.74, 10.65), (77.77, 3.49)),
        "LS": ((77.54, 5.24), (77.52, 3.47)),
        "MbLS": ((77.65, 9.48), (77.68, 3.74)),
        "mixup": ((80.82, 4.86), (80.75, 3.29)),
        "MIT": ((78.67, 8.05), (78.43, 2.75)),
        "FL": ((77.44, 5.26), (77.67, 1.70)),
        "FLSD": ((77.36, 5.23), (76.45, 1.36)),
        "DFL": ((77.63, 3.15), (77.17, 1.35)),
        "CPC": ((77.42, 9.23), (77.46, 5.35)),
        "MMCE": ((77.48, 7.18), (77.21, 2.06)),
    },
    "cifar10": {
        "vanilla": ((94.61, 3.68), (95.26, 1.05)),
        "ACLS": ((95.23, 2.27), (95.22, 1.44)),
        "LS": ((95.09, 3.66), (95.07, 1.41)),
        "MbLS": ((95.18, 1.52), (95.20, 1.35)),
        "mixup": ((96.12, 2.40), (96.03, 1.10)),
        "MIT": ((96.15, 2.76), (96.26, 0.92)),
        "FL": ((95.16, 2.05), (94.98, 0.71)),
        "FLSD": ((95.00, 2.15), (95.14, 0.81)),
        "DFL": ((95.09, 1.83), (94.98, 0.64)),
        "CPC": ((93.68, 4.26), (94.33, 1.35)),
        "MMCE": ((95.11, 2.64), (95.18, 0.98)),
    },
}

# As printed: AUROC and FPR95, the mean over SVHN and the other CIFAR.
TABLE_2 = {
    "cifar100": {"vanilla": (78.66, 82.91), "MaC-Cal": (79.05, 77.06)},
    "cifar10": {"vanilla": (88.07, 56.79), "MaC-Cal": (88.91, 54.11)},
}

# As printed for ResNet-50 on CIFAR-100: the seconds of all training, without and with MaC-Cal.
SECONDS = (13726, 14417)

# As printed for CIFAR-100: accuracy and ECE.
TABLE_5 = {
    "vanilla": ("vanilla", 78.03, 16.04),
    "+ masked retraining": ("masked-retraining", 77.80, 13.11),
    "+ gradient restriction": ("gradient-restriction", 76.15, 2.94),
    "+ classifier restructure": ("classifier-restructure", 77.95, 2.22),
    "+ static adaptive sparsity": ("static-sparsity", 77.24, 1.81),
    "+ decaying adaptive sparsity": ("paper", 77.88, 1.73),
}


# The mixtures of Figure 6; α is 1 where none is named.
MIXTURES = {"mixup α 1.0": "mixup", "mit α 1.0": "mit"} | trainings.MIXTURES


def table_1(data: Path) -> Iterator[Cell]:
    rows = ROWS | {row: (method, PLAIN) for row, method in JOINT.items()}
    printed = {
        name: {row: (number,) for row, number in zip(rows, numbers + TABLE_1_JOINT[name], strict=True)}
        for name, numbers in TABLE_1.items()
    } | {SMALL: {}}
    yield from trained.cells(rows, ("ECE",), printed)
    for row, (method, number) in HEADS.items():
        yield _head(row, method, "ECE", number)


def table_2(data: Path) -> Iterator[Cell]:
    """The mean over the other data sets that the network was shown."""
    for name, by_row in (TABLE_2 | {SMALL: dict.fromkeys(TABLE_2["cifar10"], (None, None))}).items():
        for row, printed in by_row.items():
            lines = [line["unfamiliar"] for line in trained.lines(*ROWS[row], name) if "unfamiliar" in line]
            for metric, number in zip(("auroc", "fpr95"), printed, strict=True):
                per_training = [[numbers[metric] for numbers in line.values()] for line in lines]
                yield from _cell(row, name, TITLES[metric], number, per_training)


def figure_5(data: Path) -> Iterator[Cell]:
    """The mean over corruptions at each severity; the paper's figure prints no numbers."""
    for name in trained.ALL:
        for row in ("vanilla", "MaC-Cal"):
            lines = [line["corrupted"] for line in trained.lines(*ROWS[row], name) if "corrupted" in line]
            severities = sorted({key.split(":")[1] for line in lines for key in line})
            for severity in severities:
                for metric in ("ece", "accuracy"):
                    chosen = [[line[key][metric] for key in line if key.endswith(severity)] for line in lines]
                    found = [[[value, math.nan, math.nan] for value in values] for values in chosen]
                    yield from _cell(f"{row}, severity {severity}", name, TITLES[metric], None, found)


TITLES = {"auroc": "AUROC", "fpr95": "FPR95", "ece": "ECE", "accuracy": "accuracy"}


def _cell(row: str, data: str, metric: str, printed: float | None, found: list[list[list[float]]]) -> Iterator[Cell]:
    """The mean over trainings of the mean over what each was shown, in percent, if there is any."""
    if found:
        means = [[math.fsum(numbers) / len(numbers) for numbers in zip(*each, strict=True)] for each in found]
        ours, low, high = (100 * number for number in trained.interval(means))
        yield Cell(row, trained.ALL[data], metric, printed, ours, low, high, len(means))


def table_3(data: Path) -> Iterator[Cell]:
    for name, by_row in (TABLE_3 | {SMALL: dict.fromkeys(METHODS, ((), ()))}).items():
        for row, (before, after) in by_row.items():
            rows = {row: (METHODS[row], PLAIN), f"{row} + MaC-Cal": (METHODS[row], MASKED)}
            printed = dict(zip(rows, (before, after), strict=True))
            yield from trained.cells(rows, ("accuracy", "ECE"), {name: printed})


def table_4(data: Path) -> Iterator[Cell]:
    """What MaC-Cal takes in addition, in percent of the time of the training."""
    found = trained.lines("cross-entropy")
    epochs = trainings.NETWORKS["cifar100"][1]
    shares = [line["head_seconds"][MASKED] / (epochs * line["seconds_per_epoch"]) for line in found]
    printed = 100 * (SECONDS[1] / SECONDS[0] - 1)
    yield Cell(
        "MaC-Cal", "CIFAR-100", "additional time", printed, 100 * math.fsum(shares) / len(shares), trainings=len(shares)
    )


def table_5(data: Path) -> Iterator[Cell]:
    for row, (preset, accuracy, ece) in TABLE_5.items():
        yield _head(row, f"mac-cal:preset={preset}", "accuracy", accuracy)
        yield _head(row, f"mac-cal:preset={preset}", "ECE", ece)


def _head(row: str, method: str, metric: str, printed: float) -> Cell:
    """The mean over the two networks whose features were kept."""
    found = [line for line in read(RESULTS / "heads.jsonl") if line["method"] == method and line.get("seed") == 0]
    ours = math.fsum(100 * line[trained.PERCENT[metric]] for line in found) / len(found)
    return Cell(row, "CIFAR-100", metric, printed, ours, trainings=len(found))


def figure_4(data: Path) -> Iterator[Cell]:
    """The paper's figure prints no numbers; it has the mean over all networks."""
    return trained.cells(ROWS, ("accuracy", "AECE", "MCE"), {name: {} for name in trained.ALL})


def figure_6(data: Path) -> Iterator[Cell]:
    """By the strength α; the paper's figure prints no numbers."""
    rows = {row: (method, PLAIN) for row, method in sorted(MIXTURES.items())}
    rows |= {f"{row} + MaC-Cal": (method, MASKED) for row, method in MIXTURES.items() if row.startswith("mixup")}
    return trained.cells(rows, ("accuracy", "ECE"), {"cifar10": {}, SMALL: {}})


INSTEAD = f"{trained.REDUCED}, in place of the paper's networks and 350 epochs"


OUTPUTS = [
    trained.output(
        "table 1",
        "ECE of 16 methods, nine networks",
        f"{INSTEAD}; TST, VTST and BalCAL are heads on two other ResNet-18",
        table_1,
        METHODS | JOINT,
    ),
    trained.shown(
        "table 2",
        "detection of other data (AUROC, FPR95)",
        INSTEAD,
        "the other CIFAR, without SVHN",
        "unfamiliar",
        table_2,
    ),
    trained.output("table 3", "ten methods with and without MaC-Cal, means over networks", INSTEAD, table_3, METHODS),
    Output(
        "table 4",
        "seconds of training",
        "reduced",
        f"the additional time only: {INSTEAD}, and features are kept instead of computed in every epoch",
        table_4,
    ),
    Output(
        "table 5",
        "ablation",
        "reduced",
        "two ResNet-18 on CIFAR-100, in place of DenseNet-121 (the caption says ResNet59); accuracy and ECE",
        table_5,
    ),
    trained.shown(
        "figure 1",
        "confidence and accuracy with weights masked at random",
        INSTEAD,
        "`temperance analyse` draws it for any run",
        "masked",
        figure=mac_cal_figures.MASKED,
    ),
    Output(
        "figure 2",
        "maps of the logits, angles of the classifier, reliability",
        "reduced",
        "ResNet-18 and angles between mean logits, in place of ResNet-50 and classifier weights; "
        "`temperance analyse` draws it for any run",
        figure=mac_cal_figures.LOGITS,
    ),
    Output("figure 3", "a diagram of the method", "not run", "there is nothing to measure"),
    trained.output("figure 4", "mean accuracy, MCE and AECE over all networks", INSTEAD, figure_4, METHODS),
    trained.shown(
        "figure 5",
        "ECE on corrupted images",
        INSTEAD,
        "five corruptions of three severities, the mean of them",
        "corrupted",
        figure_5,
    ),
    trained.output(
        "figure 6",
        "ECE and accuracy by the strength of mixup",
        INSTEAD,
        figure_6,
        trainings.MIXTURES,
        ("cifar10", SMALL),
    ),
    Output(
        "figure 7",
        "ECE by γ",
        "reduced",
        "three values (`acc_discount`) and four readings, two ResNet-18",
        figure=mac_cal_figures.GAMMA,
    ),
    Output(
        "figure 8",
        "the keep rate by epoch",
        "reduced",
        f"{INSTEAD}",
        figure=mac_cal_figures.RATES,
    ),
]
