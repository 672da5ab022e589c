"""Fit calibrators to long-tailed predictions: python -m benchmarks.quality.longtail FOLDERS --out results.jsonl

Of each set the part to fit on is thinned out to a long tail, class 0 the most frequent and the last one a tenth of it;
the part to measure on stays as it is, with all classes alike. Every method with every objective, and for comparison
with as many samples as the tail has, drawn evenly. One JSON line for each; lines that are in the file already are not
run again. At the end it prints the means.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.data.longtail import long_tailed
from temperance.jobs.outcomes import Method, Work

RATIO, SEED = 0.1, 0
METHODS = ("temperature", "class-temperature", "vector", "structured-vector", "structured-matrix")
OBJECTIVES = ("nll", "class-balanced-nll", "class-scaled")
GROUPS = {"CIFAR-10": "c10_", "CIFAR-100": "c100_"}


def runs() -> Iterator[tuple[str, str, str]]:
    """The fit part, the method and its objective."""
    yield "long tail", "identity", ""
    for method in METHODS:
        for objective in OBJECTIVES:
            yield "long tail", method, objective
        yield "even", method, "nll"


def thinned(pair: Pair, fit: str) -> Pair:
    """The long tail of the part to fit on, or as many of its samples drawn at random from all classes alike."""
    logits, labels, *test = pair
    chosen = long_tailed(labels, RATIO, SEED)
    if fit == "even":
        chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))[: len(chosen)]
    return logits[chosen], labels[chosen], test[0], test[1]


def run(folders: list[Path], out: Path) -> None:
    """Measure what has no line yet."""
    results = Results(out)
    chosen = [(name, path) for name, path in sets(*folders) if name.startswith(tuple(GROUPS.values()))]
    for name, path in track(chosen, description="sets"):
        pair = fit_and_test(path)
        work = {fit: Work(*thinned(pair, fit), n_bins=15, bootstrap=2, seed=0) for fit in ("long tail", "even")}
        for fit, method, objective in runs():
            row: Row = {"set": name, "fit": fit, "method": method, "objective": objective}
            if row in results:
                continue
            outcome = work[fit].run(Method(method, {"objective": objective} if objective else {}))
            if outcome.failure:
                raise SystemExit(f"{method} on {name}: {outcome.failure}")
            row |= {"n_fit": len(work[fit].fit_labels), "ratio": RATIO, "seed": SEED}
            row |= {metric: round(found.value, 6) for metric, found in outcome.measured.items()}
            results.add(row | {"seconds": round(outcome.seconds, 3)})


def markdown(rows: list[Row]) -> str:
    """Mean NLL and ECE over the sets of each group, and on how many sets the NLL is below that of the plain objective.

    The last row of each method is its plain objective on as many samples without the tail.
    """
    by_run: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        by_run[row["fit"], row["method"], row["objective"]][row["set"]] = row
    groups = {name: start for name, start in GROUPS.items() if any(row["set"].startswith(start) for row in rows)}
    lines = []
    for (fit, method, objective), found in by_run.items():
        cells = [method, f"{objective}, no tail" if fit == "even" else objective]
        for prefix in groups.values():
            mine = [row for name, row in found.items() if name.startswith(prefix)]
            nll, ece = (math.fsum(row[metric] for row in mine) / len(mine) for metric in ("nll", "ece"))
            cells += [f"{nll:.4f}", f"{100 * ece:.2f} %"]
        plain = by_run["long tail", method, "nll"] if objective not in ("", "nll") else {}
        lower = sum(found[name]["nll"] < row["nll"] for name, row in plain.items())
        lines.append([*cells, f"{lower} of {len(plain)}" if plain else ""])
    measured = (f"{group} {metric}" for group in groups for metric in ("NLL", "ECE"))
    return table(["method", "objective", *measured, "NLL below `nll`"], lines)


def main() -> None:
    args = arguments(__doc__).parse_args()
    run(args.folders, args.out)
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
