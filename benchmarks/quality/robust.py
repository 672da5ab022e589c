"""Few samples to fit on, or other class frequencies afterwards: python -m benchmarks.quality.robust FOLDER --out FILE

Of each set, methods are fitted on so many samples drawn at random, and measured on all of the test part; or fitted on
everything, and measured on test samples thinned out so that one class is ten times as common as another. One JSON line
for each; lines that are in the file already are not run again. `--table` prints the means as Markdown.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.table import read
from temperance.compare import Method, Work
from temperance.results import Provenance

METHODS = ("identity", "temperature", "gap-scaling", "structured-vector", "structured-matrix", "auto")
SIZES = (50, 100, 200, 500, 1000)
RATIO, SEED = 0.1, 0
SHIFTED = "shifted classes"


def condition(pair: Pair, name: str) -> Pair:
    """The parts to fit and to measure on under a condition: a number of samples, or shifted classes."""
    fit_z, fit_y, test_z, test_y = pair
    generator = torch.Generator().manual_seed(SEED)
    if name == SHIFTED:
        k = fit_z.shape[1]
        share = RATIO ** (torch.randperm(k, generator=generator).double() / (k - 1))
        keep = torch.rand(len(test_y), generator=generator) < share[test_y]
        return fit_z, fit_y, test_z[keep], test_y[keep]
    some = torch.randperm(len(fit_y), generator=generator)[: int(name)]
    return fit_z[some], fit_y[some], test_z, test_y


def run(folder: Path, out: Path) -> None:
    """Measure what is not in the file yet."""
    done = {(row["set"], row["condition"], row["method"]) for row in read(out)}
    about = Provenance.of({}, {}, seed=SEED)
    for name, path in track(list(sets(folder)), description="sets"):
        for case in (*map(str, SIZES), SHIFTED):
            todo = [method for method in METHODS if (name, case, method) not in done]
            work = Work(*condition(fit_and_test(path), case), n_bins=15, bootstrap=2, seed=SEED)
            for method in todo:
                outcome = work.run(Method.parse(method))
                row: dict[str, Any] = {"set": name, "condition": case, "method": method}
                row |= {metric: round(outcome.measured[metric].value, 6) for metric in ("nll", "ece", "accuracy")}
                row |= {"seconds": round(outcome.seconds, 3), "commit": about.commit, "torch": about.versions["torch"]}
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def markdown(rows: list[dict[str, Any]]) -> str:
    """Mean NLL and ECE over the sets, for each method and condition."""
    by_run: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_run[row["method"], row["condition"]].append(row)
    cases = [*map(str, SIZES), SHIFTED]
    lines = [f"| method | {' | '.join(cases)} |", "|---|" + "---|" * len(cases)]
    for method in METHODS:
        means = [[fmean(row[m] for row in by_run[method, case]) for m in ("nll", "ece")] for case in cases]
        lines.append(f"| {method} | " + " | ".join(f"{nll:.3f}, {100 * ece:.1f} %" for nll, ece in means) + " |")
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
