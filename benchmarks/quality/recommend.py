"""How often does `compare` recommend what is worse? python -m benchmarks.quality.recommend FOLDERS --out FILE

Of each set, n samples are drawn at random and compared as `temperance compare` does it: halved, fitted on one half,
measured on the other. What it recommends is then measured on up to 5,000 of the samples that were left, and so is no
calibration. With `--calibrated` the labels are drawn from the predicted probabilities, so that there is nothing to
gain. Beside them is `temperature`, recommended or not, with the probability of harm that `compare` states of it and its
NLL on the samples that were left. One JSON line for each set and n; lines that are in the file already are
not run again. `--table` prints a table.
"""

import argparse
import json
import warnings
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import read
from temperance.calibrators.auto import FEWEST_MISTAKES
from temperance.jobs.comparison import Outcome, compare
from temperance.jobs.results import Provenance
from temperance.metrics import nll
from temperance.predictions import Predictions
from temperance.showing import percent

SIZES = (10, 20, 40, 80, 160, 500)
SHORT = "temperature,vector,isotonic,histogram"
MOST = 5000

COLUMNS = ("recommended", "before", "after", "stated", "stated_after")
EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)

Draw = tuple[str, float, float]


def run(folders: list[Path], out: Path, methods: str, draws: int, sizes: list[int], labels: str) -> None:
    """Compare what is not in the file yet."""
    done = {(row["set"], row["n"], row["methods"], row["labels"]) for row in read(out)}
    about = Provenance.of({}, {}, seed=0)
    for name, path in track([each for folder in folders for each in sets(folder)], description="sets"):
        todo = [n for n in sizes if (name, n, methods, labels) not in done]
        if not todo:
            continue
        fit_z, fit_y, test_z, test_y = fit_and_test(path)
        z, y = torch.cat([fit_z, test_z]), torch.cat([fit_y, test_y])
        if labels == "drawn":
            y = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
        for n in todo:
            found = [drawn(z, y, n, draw, methods) for draw in range(draws)]
            columns = zip(COLUMNS, map(list, zip(*found, strict=True)), strict=True)
            row = {"set": name, "n": n, "methods": methods, "labels": labels, **dict(columns)}
            with out.open("a") as file:
                file.write(json.dumps(row | {"commit": about.commit, "torch": about.versions["torch"]}) + "\n")


def drawn(z: Tensor, y: Tensor, n: int, draw: int, methods: str) -> tuple[str, float, float, float, float]:
    """What is recommended for n samples, the NLL of others without calibration and with it, and stated harm.

    Harm is stated of temperature scaling if it looks better and there are ten mistakes or more; otherwise it is -1.
    """
    order = torch.from_numpy(np.random.default_rng([n, draw]).permutation(len(y)))
    some, rest = order[:n], order[n : n + MOST]
    chosen = [] if methods == "all" else methods.split(",")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that did not settle; the comparison judges what they are worth
        found = compare(Predictions.of(z[some], y[some], from_logits=True), methods=chosen)

    def of_others(outcome: Outcome) -> float:
        if outcome is found.baseline or outcome.fitted is None:
            return round(nll(z[rest], y[rest], from_logits=True), 5)
        return round(nll(outcome.fitted.predict_proba(z[rest]), y[rest]), 5)

    favourite = next((outcome for outcome in found.ranked if outcome.label == "temperature"), found.baseline)
    looks_better = favourite.measured["nll"].value < found.baseline.measured["nll"].value
    stated = round(favourite.harm, 5) if looks_better and found.baseline.mistakes >= FEWEST_MISTAKES else -1.0
    before, after, stated_after = map(of_others, (found.baseline, found.recommended, favourite))
    return found.recommended.label, before, after, stated, stated_after


def markdown(rows: list[dict[str, Any]]) -> str:
    """For each number of samples how often something is recommended, and how often that is worse."""
    by_run: dict[tuple[str, int, str], list[Draw]] = defaultdict(list)
    for row in rows:
        found = zip(row["recommended"], row["before"], row["after"], strict=True)
        by_run[row["methods"], row["n"], row["labels"]] += found
    head = ["methods", "samples", "draws", "recommended", "worse", "NLL of others", "draws, calibrated", "recommended"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for methods in dict.fromkeys(row["methods"] for row in rows):
        for n in SIZES:
            real, calibrated = by_run[methods, n, "real"], by_run[methods, n, "drawn"]
            if real:
                cells = [methods.replace(",", ", "), str(n), *_told(real), *_told(calibrated)[:2]]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def stated_markdown(rows: list[dict[str, Any]]) -> str:
    """How likely temperature scaling was said to do harm, and how often it did on the samples that were left."""
    cases = [
        (stated, after > before)
        for row in rows
        if "stated" in row
        for stated, before, after in zip(row["stated"], row["before"], row["stated_after"], strict=True)
        if stated >= 0
    ]
    lines = ["| stated | cases | stated, mean | it does harm |", "|---|---|---|---|"]
    for low, high in pairwise(EDGES):
        found = [case for case in cases if low <= case[0] < high or case[0] == high == 1]
        if found:
            stated, came = (percent(fmean(each), 1) for each in zip(*found, strict=True))
            lines.append(f"| {percent(low, 0)} to {percent(high, 0)} | {len(found):,} | {stated} | {came} |")
    return "\n".join(lines)


def _told(draws: list[Draw]) -> list[str]:
    if not draws:
        return ["–"] * 4
    given = sum(name != "identity" for name, *_ in draws) / len(draws)
    worse = sum(after > before for _, before, after in draws) / len(draws)
    before, after = fmean(b for _, b, _ in draws), fmean(a for _, _, a in draws)
    return [f"{len(draws):,}", f"{100 * given:.1f} %", f"{100 * worse:.1f} %", f"{before:.3f} → {after:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=SHORT, help='comma-separated, or "all"')
    parser.add_argument("--draws", type=int, default=20, help="of each set and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--calibrated", action="store_true", help="draw the labels from the predicted probabilities")
    parser.add_argument("--table", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()
    labels = "drawn" if args.calibrated else "real"
    run(args.folders, args.out, args.methods, args.draws, args.sizes, labels)
    if args.table:
        print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
