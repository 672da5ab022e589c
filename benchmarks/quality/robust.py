"""Few samples to fit on, or other class frequencies afterwards: python -m benchmarks.quality.robust FOLDER --out FILE

Of each set, methods are fitted on so many samples drawn at random, three times, and measured on all of the test part;
or fitted on everything, and measured on test samples thinned out so that one class is ten times as common as another.
One JSON line for each; lines that are in the file already are not run again. `--table` prints the means as Markdown,
and where `auto` is worse than doing less.
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
from temperance.jobs.outcomes import Method, Work
from temperance.jobs.results import Provenance

METHODS = ("identity", "temperature", "gap-scaling", "structured-vector", "structured-matrix", "auto")
SIZES = (50, 100, 200, 500, 1000)
RATIO, DRAWS = 0.1, 3
SHIFTED = "shifted classes"
CASES = [*((str(size), draw) for size in SIZES for draw in range(DRAWS)), (SHIFTED, 0)]


def condition(pair: Pair, name: str, draw: int) -> Pair:
    """The parts to fit and to measure on under a condition: a number of samples, or shifted classes."""
    fit_z, fit_y, test_z, test_y = pair
    generator = torch.Generator().manual_seed(draw)
    if name == SHIFTED:
        k = fit_z.shape[1]
        share = RATIO ** (torch.randperm(k, generator=generator).double() / (k - 1))
        keep = torch.rand(len(test_y), generator=generator) < share[test_y]
        return fit_z, fit_y, test_z[keep], test_y[keep]
    some = torch.randperm(len(fit_y), generator=generator)[: int(name)]
    return fit_z[some], fit_y[some], test_z, test_y


def run(folder: Path, out: Path) -> None:
    """Measure what is not in the file yet."""
    done = {(row["set"], row["condition"], row["draw"], row["method"]) for row in read(out)}
    about = Provenance.of({}, {}, seed=0)
    for name, path in track(list(sets(folder)), description="sets"):
        pair = fit_and_test(path)
        for case, draw in CASES:
            todo = [method for method in METHODS if (name, case, draw, method) not in done]
            work = Work(*condition(pair, case, draw), n_bins=15, bootstrap=2, seed=0)
            for method in todo:
                outcome = work.run(Method.parse(method))
                row: dict[str, Any] = {"set": name, "condition": case, "draw": draw, "method": method}
                row |= {metric: round(outcome.measured[metric].value, 6) for metric in ("nll", "ece", "accuracy")}
                row |= {"seconds": round(outcome.seconds, 3), "commit": about.commit, "torch": about.versions["torch"]}
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def markdown(rows: list[dict[str, Any]]) -> str:
    """Mean NLL and ECE over sets and draws, for each method and condition."""
    by_run: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_run[row["method"], row["condition"]].append(row)
    cases = [*map(str, SIZES), SHIFTED]
    lines = [f"| method | {' | '.join(cases)} |", "|---|" + "---|" * len(cases)]
    for method in METHODS:
        means = [[fmean(row[m] for row in by_run[method, case]) for m in ("nll", "ece")] for case in cases]
        lines.append(f"| {method} | " + " | ".join(f"{nll:.3f}, {100 * ece:.1f} %" for nll, ece in means) + " |")
    return "\n".join(lines)


def worse(rows: list[dict[str, Any]], than: str) -> str:
    """How often and by how much at most the NLL of `auto` is above another method's: in runs, and in means of sets."""
    found = {(row["condition"], row["set"], row["draw"], row["method"]): row["nll"] for row in rows}
    lines = []
    for case in (*map(str, SIZES), SHIFTED):
        excess: dict[str, list[float]] = defaultdict(list)
        for (condition, name, draw, method), value in found.items():
            if condition == case and method == "auto":
                excess[name].append(value / found[case, name, draw, than] - 1)
        runs, means = [each for mine in excess.values() for each in mine], [fmean(mine) for mine in excess.values()]
        many = " and ".join(
            f"{sum(each > 0.02 for each in values)} of {len(values)} {what} (at most {max(values):.1%})"
            for what, values in (("runs", runs), ("sets", means))
        )
        lines.append(f"{case}: more than 2 % worse than {than} in {many}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the means as Markdown")
    args = parser.parse_args()
    run(args.folder, args.out)
    if args.table:
        rows = read(args.out)
        print(markdown(rows), worse(rows, "temperature"), worse(rows, "identity"), sep="\n")


if __name__ == "__main__":
    main()
