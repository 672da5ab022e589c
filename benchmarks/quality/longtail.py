"""Fit calibrators to long-tailed predictions: python -m benchmarks.quality.longtail FOLDER --out results.jsonl

Of each set the part to fit on is thinned out to a long tail, class 0 the most frequent and the last one a tenth of it;
the part to measure on stays as it is, with all classes alike. Every method with every objective, and for comparison
with as many samples as the tail has, drawn evenly. One JSON line for each; lines that are in the file already are not
run again. `--table` prints the means as Markdown.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.table import read
from temperance.data.longtail import long_tailed
from temperance.jobs.outcomes import Method, Work
from temperance.jobs.results import Provenance

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


def run(folder: Path, out: Path) -> None:
    """Measure what is not in the file yet."""
    key = ("set", "fit", "method", "objective")
    done = {tuple(row[name] for name in key) for row in read(out)}
    about = Provenance.of({}, {}, seed=SEED)
    chosen = [(name, path) for name, path in sets(folder) if name.startswith(tuple(GROUPS.values()))]
    for name, path in track(chosen, description="sets"):
        todo = [entry for entry in runs() if (name, *entry) not in done]
        work = {fit: Work(*thinned(fit_and_test(path), fit), n_bins=15, bootstrap=2, seed=0) for fit, *_ in todo}
        for fit, method, objective in todo:
            outcome = work[fit].run(Method(method, {"objective": objective} if objective else {}))
            if outcome.failure:
                raise SystemExit(f"{method} on {name}: {outcome.failure}")
            row: dict[str, Any] = {"set": name, "fit": fit, "method": method, "objective": objective}
            row |= {"n_fit": len(work[fit].fit_labels), "ratio": RATIO, "seed": SEED}
            row |= {metric: round(found.value, 6) for metric, found in outcome.measured.items()}
            row |= {"seconds": round(outcome.seconds, 3), "commit": about.commit, "torch": about.versions["torch"]}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def markdown(rows: list[dict[str, Any]]) -> str:
    """Mean NLL and ECE over the sets of each group, and on how many sets the NLL is below that of the plain objective.

    The last row of each method is its plain objective on as many samples without the tail.
    """
    by_run: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_run[row["fit"], row["method"], row["objective"]][row["set"]] = row
    lines = [
        f"| method | objective | {' | '.join(f'{group} NLL | {group} ECE' for group in GROUPS)} | NLL below `nll` |",
        "|---" * (3 + 2 * len(GROUPS)) + "|",
    ]
    for (fit, method, objective), found in by_run.items():
        cells = []
        for prefix in GROUPS.values():
            mine = [row for name, row in found.items() if name.startswith(prefix)]
            nll, ece = (math.fsum(row[metric] for row in mine) / len(mine) for metric in ("nll", "ece"))
            cells += [f"{nll:.4f}", f"{100 * ece:.2f} %"]
        plain = by_run["long tail", method, "nll"] if objective not in ("", "nll") else {}
        lower = sum(found[name]["nll"] < row["nll"] for name, row in plain.items())
        said = f"{objective}, no tail" if fit == "even" else objective
        lines.append(f"| {method} | {said} | {' | '.join(cells)} | {f'{lower} of {len(plain)}' if plain else ''} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    run(args.folder, args.out)
    if args.table:
        print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
