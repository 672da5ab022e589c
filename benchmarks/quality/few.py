"""Ten to eighty samples to fit on: python -m benchmarks.quality.few FOLDERS --out FILE

Of each set, methods are fitted on that many samples drawn at random, five times, and measured on 5,000 others: the NLL
and that of the network's own softmax. One JSON line for each; lines that are in the file already are not run again. At
the end it prints means of the ratio.
"""

import warnings
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from rich.progress import track
from torch.nn.functional import nll_loss

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.calibrators import Identity, make_calibrator
from temperance.errors import TemperanceWarning

METHODS = (
    "temperature",
    "ensemble-temperature",
    "class-temperature",
    "bias-corrected-temperature",
    "vector",
    "isotonic",
    "histogram",
)
NAMES = (
    "c10_densenet40",
    "c10_resnet18_undertrained",
    "c10_resnet50_focal",
    "c10_unknown",
    "c10_wideresnet164_nc",
    "c100_resnet56",
    "c100_vgg19_bn",
    "fmnist_densenet",
)
SIZES, DRAWS, OTHERS = (10, 20, 40, 80), 5, 5000


def run(folders: list[Path], out: Path) -> None:
    """Measure what has no line yet."""
    results = Results(out)
    warnings.simplefilter("ignore", TemperanceWarning)
    for name, path in track([each for each in sets(*folders) if each[0] in NAMES], description="sets"):
        fit_z, fit_y, test_z, test_y = fit_and_test(path)
        logits, labels = torch.cat([fit_z, test_z]), torch.cat([fit_y, test_y])
        for n, draw in ((n, draw) for n in SIZES for draw in range(DRAWS)):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 * n + draw))
            some, others = order[:n], order[n : n + OTHERS]
            for method in METHODS:
                row: Row = {"set": name, "samples": n, "draw": draw, "method": method}
                if row in results:
                    continue
                for key, made in (("nll", make_calibrator(method)), ("identity", Identity())):
                    fitted = made.fit(logits[some], labels[some])
                    row[key] = round(float(nll_loss(fitted(logits[others]), labels[others])), 6)
                results.add(row)


def markdown(rows: list[Row]) -> str:
    """The mean of NLL / identity's NLL over sets and draws, the largest, and how many are above 2."""
    by_run: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        by_run[row["method"], row["samples"]].append(row["nll"] / row["identity"])

    def cell(values: list[float]) -> str:
        return f"{fmean(values):.2f}, {max(values):.2f}, {sum(value > 2 for value in values)}"

    rows_of = ([method, *(cell(by_run[method, n]) for n in SIZES)] for method in METHODS)
    return table(["method", *map(str, SIZES)], rows_of)


def main() -> None:
    args = arguments(__doc__).parse_args()
    run(args.folders, args.out)
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
