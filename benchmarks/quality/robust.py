"""Few samples to fit on, or other class frequencies afterwards: python -m benchmarks.quality.robust FOLDERS --out FILE

Of each set, methods are fitted on so many samples drawn at random, three times, and measured on all of the test part;
or fitted on everything, and measured on test samples thinned out so that one class is ten times as common as another.
One JSON line for each; lines that are in the file already are not run again. At the end it prints the means, and where
`auto` is worse than doing less.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.jobs.outcomes import Method, Work

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


def run(folders: list[Path], out: Path) -> None:
    """Measure what has no line yet."""
    results = Results(out)
    for name, path in track(list(sets(*folders)), description="sets"):
        pair = fit_and_test(path)
        for case, draw in CASES:
            work = Work(*condition(pair, case, draw), n_bins=15, bootstrap=2, seed=0)
            for method in METHODS:
                row: Row = {"set": name, "condition": case, "draw": draw, "method": method}
                if row in results:
                    continue
                outcome = work.run(Method.parse(method))
                row |= {metric: round(outcome.measured[metric].value, 6) for metric in ("nll", "ece", "accuracy")}
                results.add(row | {"seconds": round(outcome.seconds, 3)})


def markdown(rows: list[Row]) -> str:
    """Mean NLL and ECE over sets and draws, for each method and condition."""
    by_run: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_run[row["method"], row["condition"]].append(row)
    cases = [*map(str, SIZES), SHIFTED]
    lines = []
    for method in METHODS:
        means = [[fmean(row[m] for row in by_run[method, case]) for m in ("nll", "ece")] for case in cases]
        lines.append([method, *(f"{nll:.3f}, {100 * ece:.1f} %" for nll, ece in means)])
    return table(["method", *cases], lines)


def worse(rows: list[Row], than: str) -> str:
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
    args = arguments(__doc__).parse_args()
    run(args.folders, args.out)
    rows = read(args.out)
    print(markdown(rows), worse(rows, "temperature"), worse(rows, "identity"), sep="\n")


if __name__ == "__main__":
    main()
