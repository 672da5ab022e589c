"""MaC-Cal: the tables and figures of its paper, with the networks of the queue and two more.

claim      a classifier trained again under adaptive masks has a lower ECE than any other method and keeps the accuracy:
           ResNet-50 on CIFAR-100, ECE 2.90 against 14.36 of the network; it lowers the ECE of other losses too
ours       ResNet-18 on CIFAR-100, 100 epochs, beside the paper's ResNet-50, 350 epochs (Tables 1 and 3); two ResNet-18
           on CIFAR-100 for the heads and the ablation (Tables 1 and 5); `temperance reproduce mac-cal` prints them
seeds      0; 0, 1 and 2 for MbLS
hardware   one H200, under two minutes for each training and seconds for each head; the tables are read from
           benchmarks/results/papers.jsonl and heads.jsonl

Where the paper is not clear, `mac-cal` is the reading that calibrated (docs/heads.md has all of them). Numbers are
percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.papers import trained
from benchmarks.papers.outputs import RESULTS, Cell, Output
from benchmarks.quality.table import read

PLAIN, MASKED = "as trained", "mac-cal"

# As printed for ResNet-50 on CIFAR-100: ECE.
TABLE_1 = {
    "vanilla": ("cross-entropy", PLAIN, {"ECE": 14.36}),
    "ACLS": ("acls", PLAIN, {"ECE": 7.94}),
    "LS": ("label-smoothing", PLAIN, {"ECE": 4.28}),
    "MbLS": ("mbls", PLAIN, {"ECE": 6.66}),
    "mixup": ("mixup", PLAIN, {"ECE": 4.82}),
    "MIT": ("mit", PLAIN, {"ECE": 7.09}),
    "FL": ("focal", PLAIN, {"ECE": 5.56}),
    "FLSD": ("flsd", PLAIN, {"ECE": 5.46}),
    "DFL": ("dual-focal", PLAIN, {"ECE": 3.01}),
    "CPC": ("cpc", PLAIN, {"ECE": 7.42}),
    "MMCE": ("mmce", PLAIN, {"ECE": 6.00}),
    "MaC-Cal": ("cross-entropy", MASKED, {"ECE": 2.90}),
}
HEADS = {
    "TST": ("tst:preset=mac-cal-paper", 11.01),
    "VTST": ("vtst:preset=mac-cal-paper", 4.83),
    "BalCAL": ("balcal", 3.45),
}

# As printed for CIFAR-100, the mean of four networks: accuracy and ECE, without and with MaC-Cal. The first row is
# DenseNet-121's in Table 5; Table 3 has none for cross-entropy.
TABLE_3 = {
    "CE": ("cross-entropy", (78.03, 16.04), (77.88, 1.73)),
    "ACLS": ("acls", (77.74, 10.65), (77.77, 3.49)),
    "LS": ("label-smoothing", (77.54, 5.24), (77.52, 3.47)),
    "MbLS": ("mbls", (77.65, 9.48), (77.68, 3.74)),
    "mixup": ("mixup", (80.82, 4.86), (80.75, 3.29)),
    "MIT": ("mit", (78.67, 8.05), (78.43, 2.75)),
    "FL": ("focal", (77.44, 5.26), (77.67, 1.70)),
    "FLSD": ("flsd", (77.36, 5.23), (76.45, 1.36)),
    "DFL": ("dual-focal", (77.63, 3.15), (77.17, 1.35)),
    "CPC": ("cpc", (77.42, 9.23), (77.46, 5.35)),
    "MMCE": ("mmce", (77.48, 7.18), (77.21, 2.06)),
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
    "+ decaying adaptive sparsity": ("decaying-sparsity", 77.88, 1.73),
}


def table_1(data: Path) -> Iterator[Cell]:
    yield from trained.cells(TABLE_1)
    for row, (method, printed) in HEADS.items():
        yield _head(row, method, "ECE", printed)


def table_3(data: Path) -> Iterator[Cell]:
    for row, (method, before, after) in TABLE_3.items():
        for name, state, numbers in ((row, PLAIN, before), (f"{row} + MaC-Cal", MASKED, after)):
            yield from trained.cells({name: (method, state, dict(zip(("accuracy", "ECE"), numbers, strict=True)))})


def table_4(data: Path) -> Iterator[Cell]:
    """What MaC-Cal takes in addition, in percent of the time of the training."""
    found = trained.lines("cross-entropy")
    shares = [line["head_seconds"]["mac-cal"] / (trained.EPOCHS * line["seconds_per_epoch"]) for line in found]
    printed = 100 * (SECONDS[1] / SECONDS[0] - 1)
    yield Cell("MaC-Cal", "", "additional time", printed, 100 * math.fsum(shares) / len(shares), trainings=len(shares))


def table_5(data: Path) -> Iterator[Cell]:
    for row, (preset, accuracy, ece) in TABLE_5.items():
        yield _head(row, f"mac-cal:preset={preset}", "accuracy", accuracy)
        yield _head(row, f"mac-cal:preset={preset}", "ECE", ece)


def _head(row: str, method: str, metric: str, printed: float) -> Cell:
    """The mean over the two networks whose features were kept."""
    found = [line for line in read(RESULTS / "heads.jsonl") if line["method"] == method and line.get("seed") == 0]
    ours = math.fsum(100 * line[trained.PERCENT[metric]] for line in found) / len(found)
    return Cell(row, "", metric, printed, ours, trainings=len(found))


INSTEAD = f"{trained.REDUCED}, in place of the paper's networks and 350 epochs"
WAITS = "MIT, CPC and MMCE wait in the queue"
ANALYSE = "`temperance analyse` draws it for any run"
NOT_TRAINED = "trainings that were not made"

OUTPUTS = [
    Output(
        "table 1",
        "ECE of 16 methods, nine networks",
        "reduced",
        f"{INSTEAD}; TST, VTST and BalCAL are heads on two other ResNet-18; PLP was not trained; {WAITS}",
        table_1,
    ),
    Output(
        "table 2",
        "detection of other data (AUROC, FPR95)",
        "not run",
        "SVHN is not here; `temperance ood` measures any pair of predictions",
    ),
    Output(
        "table 3",
        "ten methods with and without MaC-Cal, means over networks",
        "reduced",
        f"{INSTEAD}; {WAITS}",
        table_3,
    ),
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
    Output("figure 1", "confidence and accuracy with weights masked at random", "reduced", ANALYSE),
    Output("figure 2", "maps of the logits, angles of the classifier, reliability", "reduced", ANALYSE),
    Output("figure 3", "a diagram of the method", "not run", "there is nothing to measure"),
    Output("figure 4", "mean accuracy, MCE and AECE over all networks", "not run", NOT_TRAINED),
    Output(
        "figure 5",
        "ECE on corrupted images",
        "not run",
        "the networks of the queue are not kept; `temperance shift` measures any run",
    ),
    Output("figure 6", "ECE and accuracy by the strength of mixup", "not run", NOT_TRAINED),
    Output(
        "figure 7", "ECE by γ", "reduced", "docs/heads.md has three values of it (`acc_discount`) for every reading"
    ),
    Output(
        "figure 8",
        "the keep rate by epoch",
        "reduced",
        "benchmarks/results/papers.jsonl has the rates for every training; no picture",
    ),
]
