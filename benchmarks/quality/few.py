"""Ten to eighty samples to fit on: python -m benchmarks.quality.few FOLDER --out FILE [--table]

Of each set, methods are fitted on that many samples drawn at random, five times, and measured on 5,000 others: the NLL
and that of the network's own softmax. One JSON line for each; lines that are in the file already are not run again.
`--table` prints means of the ratio as Markdown.
"""

import argparse
import json
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import track
from torch.nn.functional import nll_loss

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import read
from temperance.calibrators import Identity, make_calibrator
from temperance.errors import TemperanceWarning
from temperance.jobs.results import Provenance

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


def run(folder: Path, out: Path) -> None:
    """Measure what is not in the file yet."""
    done = {(row["set"], row["samples"], row["draw"], row["method"]) for row in read(out)}
    about = Provenance.of({}, {}, seed=0)
    warnings.simplefilter("ignore", TemperanceWarning)
    for name, path in track([each for each in sets(folder) if each[0] in NAMES], description="sets"):
        fit_z, fit_y, test_z, test_y = fit_and_test(path)
        logits, labels = torch.cat([fit_z, test_z]), torch.cat([fit_y, test_y])
        for n, draw in ((n, draw) for n in SIZES for draw in range(DRAWS)):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 * n + draw))
            some, others = order[:n], order[n : n + OTHERS]
            for method in (method for method in METHODS if (name, n, draw, method) not in done):
                row: dict[str, Any] = {"set": name, "samples": n, "draw": draw, "method": method}
                for key, made in (("nll", make_calibrator(method)), ("identity", Identity())):
                    fitted = made.fit(logits[some], labels[some])
                    row[key] = round(float(nll_loss(fitted(logits[others]), labels[others])), 6)
                row |= {"commit": about.commit, "torch": about.versions["torch"]}
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def markdown(rows: list[dict[str, Any]]) -> str:
    """The mean of NLL / identity's NLL over sets and draws, the largest, and how many are above 2."""
    by_run: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        by_run[row["method"], row["samples"]].append(row["nll"] / row["identity"])
    lines = [f"| method | {' | '.join(map(str, SIZES))} |", "|---|" + "---|" * len(SIZES)]
    for method in METHODS:
        cells = (by_run[method, n] for n in SIZES)
        shown = (f"{fmean(each):.2f}, {max(each):.2f}, {sum(value > 2 for value in each)}" for each in cells)
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the means as Markdown")
    args = parser.parse_args()
    run(args.folder, args.out)
    if args.table:
        print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
