"""Class-based temperature scaling (CTS): the tables and figures of its paper, on other networks.

claim      a temperature for each class, chosen greedily for the least ECE, has a lower test ECE than one temperature
           and keeps the accuracy: CIFAR-100, mean of four networks, ECE 18.22 before, 3.75 with TS, 2.17 with CTS
Table I    8 networks on CIFAR-100 and 15 on CIFAR-10 that others trained with cross-entropy, 5,000 samples to fit on;
           ResNet-18 on CIFAR-100 and CIFAR-10, 100 epochs of each of the four losses, and small networks on 5,000
           images. Read from benchmarks/results
Table II   the same 23 networks, without the condition on accuracy. Run on the predictions
Table III  the 8 networks on CIFAR-100, in the paper's 25 bins. Run on the predictions
ours       `temperance reproduce cts` prints the numbers
seeds      none is drawn; 0 for the trainings, 0, 1 and 2 where a table says "mean of 3"
hardware   one core of a CPU, about half a minute for Table II and as long for Table III

Numbers are percent; ECE has 15 bins where nothing else is said. A mean over networks stands beside the mean of the
paper's networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.papers import cts_figures, trained
from benchmarks.papers.outputs import RESULTS, Cell, Output
from benchmarks.papers.trainings import SMALL
from benchmarks.quality.data import fit_and_test
from benchmarks.quality.table import read
from temperance.calibrators import ClassTemperatureGreedy, make_calibrator
from temperance.metrics import accuracy, ece

# Networks by the data they were trained on. The focal one was not trained with cross-entropy.
PREFIXES = {"CIFAR-100": "c100_", "CIFAR-10": "c10_"}
FILES = tuple(f"logits/{prefix}*.npz" for prefix in PREFIXES.values())
OTHER_LOSS = ("c10_resnet50_focal",)

BELOW = "share of networks below TS"

# As printed for cross-entropy: before, TS and CTS; ResNet-50, ResNet-110, WRN-26-10 and DenseNet-121.
TABLE_1 = {
    "CIFAR-100": ((17.52, 3.42, 2.72), (19.05, 4.43, 1.74), (15.33, 2.88, 2.14), (20.98, 4.27, 2.06)),
    "CIFAR-10": ((4.35, 1.35, 0.99), (4.41, 1.09, 0.90), (3.23, 0.92, 0.80), (4.52, 1.31, 1.00)),
}
METHODS = {"before": "identity", "TS": "temperature-ece", "CTS": "class-temperature-greedy"}

# As printed for ResNet-50: before, TS and CTS.
TRAINED = {
    "cifar100": {
        "cross-entropy": (17.52, 3.42, 2.72),
        "brier": (6.52, 3.64, 1.59),
        "mmce": (15.32, 2.38, 2.48),
        "label-smoothing": (7.81, 4.01, 2.37),
    },
    "cifar10": {
        "cross-entropy": (4.35, 1.35, 0.99),
        "brier": (1.82, 1.08, 1.33),
        "mmce": (4.56, 1.19, 0.83),
        "label-smoothing": (2.96, 1.67, 1.04),
    },
}

# As printed for cross-entropy: CTS, U-CTS, and how much accuracy U-CTS loses.
TABLE_2 = {
    "CIFAR-100": ((2.72, 2.50, 4.6), (1.74, 1.33, 0.7), (2.14, 1.57, 5.1), (2.06, 2.43, 1.8)),
    "CIFAR-10": ((0.99, 0.95, 0.1), (0.90, 0.73, 0.0), (0.80, 0.76, 0.0), (1.00, 1.09, 0.0)),
}

# As printed for ImageNet (two networks) and SVHN, in 25 bins.
BINS_3 = 25
TABLE_3 = {
    "identity": ("uncalibrated", (5.720, 6.545, 0.877)),
    f"temperature-ece:n_bins={BINS_3}": ("TS", (2.059, 2.166, 0.675)),
    "vector": ("vector scaling", (2.637, 2.641, 0.630)),
    "matrix-odir": ("MS-ODIR", (4.337, 5.377, 0.646)),
    "dirichlet": ("Dir-ODIR", (3.989, 4.556, 0.651)),
    f"class-temperature-greedy:n_bins={BINS_3}": ("CTS", (2.158, 2.149, 0.458)),
}


def table_1(data: Path) -> Iterator[Cell]:
    yield from on_published()
    yield from on_trained()


def on_published() -> Iterator[Cell]:
    """Means over published networks, and the share of them on which CTS is below TS."""
    for name, printed in TABLE_1.items():
        found = {row: measured(method, name) for row, method in METHODS.items()}
        column = f"{name}, mean of {len(found['TS'])}"
        for i, (row, by_set) in enumerate(found.items()):
            yield Cell(row, column, "ECE", mean([one[i] for one in printed]), mean(list(by_set.values())))
        lower = [found["CTS"][network] < found["TS"][network] for network in found["TS"]]
        printed_lower = [after < before for _, before, after in printed]
        yield Cell("CTS", column, BELOW, 100 * mean(printed_lower), 100 * mean(lower))


def on_trained() -> Iterator[Cell]:
    """Networks of the queue."""
    for data_set, by_loss in (TRAINED | {SMALL: dict.fromkeys(TRAINED["cifar10"], ())}).items():
        network = "a small network" if data_set == SMALL else "ResNet-18"
        for loss, numbers in by_loss.items():
            rows = {row: (loss, "as trained" if row == "before" else method) for row, method in METHODS.items()}
            expected = {row: (number,) for row, number in zip(rows, numbers, strict=False)}
            columns = {data_set: f"{trained.ALL[data_set]}, {network}, {loss}"}
            yield from trained.cells(rows, ("ECE",), {data_set: expected}, columns)


def table_2(data: Path) -> Iterator[Cell]:
    for name, printed in TABLE_2.items():
        rows = [_both(path) for path in networks(data, name)]
        column = f"{name}, mean of {len(rows)}"
        for i, row in enumerate(("CTS", "U-CTS")):
            yield Cell(row, column, "ECE", mean([one[i] for one in printed]), mean([one[i] for one in rows]))
        yield Cell("U-CTS", column, "accuracy lost", mean([one[2] for one in printed]), mean([one[2] for one in rows]))


def table_3(data: Path) -> Iterator[Cell]:
    pairs = [fit_and_test(path) for path in networks(data, "CIFAR-100")]
    column = f"ImageNet and SVHN; ours CIFAR-100, mean of {len(pairs)}"
    for method, (row, printed) in TABLE_3.items():
        errors = [
            ece(make_calibrator(method).fit(logits, labels).predict_proba(test), truth, n_bins=BINS_3)
            for logits, labels, test, truth in pairs
        ]
        yield Cell(row, column, "ECE, 25 bins", mean(printed), 100 * mean(errors))


def measured(method: str, name: str) -> dict[str, float]:
    """The ECE of a calibrator on each network of a data set, in percent."""
    return {
        line["set"]: 100 * line["ece"]
        for line in read(RESULTS / "quality.jsonl")
        if line["method"] == method and _belongs(line["set"], name)
    }


def networks(data: Path, name: str) -> list[Path]:
    return [path for path in sorted((data / "logits").glob("*.npz")) if _belongs(path.stem, name)]


def _belongs(network: str, name: str) -> bool:
    return network.startswith(PREFIXES[name]) and network not in OTHER_LOSS


def _both(path: Path) -> tuple[float, float, float]:
    """Test ECE of CTS and of U-CTS, and the accuracy that U-CTS loses."""
    logits, labels, test, truth = fit_and_test(path)
    errors = []
    for constrained in (True, False):
        probs = ClassTemperatureGreedy(constrained=constrained).fit(logits, labels).predict_proba(test)
        errors.append(100 * ece(probs, truth))
    lost = accuracy(test.softmax(1), truth) - accuracy(probs, truth)
    return errors[0], errors[1], 100 * lost


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


OURS = "ResNet-18 on CIFAR-100, in place of the paper's ResNet-110"

OUTPUTS = [
    trained.output(
        "table I",
        "ECE before, with TS and with CTS; nine networks, four losses",
        "23 published networks and our ResNet-18, in place of the paper's",
        table_1,
        {loss: loss for loss in TRAINED["cifar100"]},
    ),
    Output(
        "table II",
        "CTS with and without its condition on accuracy",
        "reduced",
        "23 published networks trained with cross-entropy, in place of the paper's",
        table_2,
        FILES,
    ),
    Output(
        "table III",
        "ECE in 25 bins of six calibrators on ImageNet and SVHN",
        "reduced",
        "eight published networks on CIFAR-100; we do not have those predictions",
        table_3,
        FILES[:1],
    ),
    Output("figure 1", "class ECE against class accuracy", "reduced", OURS, figure=cts_figures.CLASSES),
    Output("figure 2", "reliability before, with TS and with CTS", "reduced", OURS, figure=cts_figures.RELIABILITY),
    Output("figure 3", "class temperatures against class accuracy", "reduced", OURS, figure=cts_figures.TEMPERATURES),
]
