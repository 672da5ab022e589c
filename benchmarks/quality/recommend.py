"""How often does `compare` recommend what is worse? python -m benchmarks.quality.recommend FOLDERS --out FILE

Of each set, n samples are drawn at random and compared as `temperance compare` does it: halved, fitted on one half,
measured on the other. What it recommends is then measured on up to 5,000 of the samples that were left, and so is no
calibration. With `--calibrated` the labels are drawn from the predicted probabilities, so that there is nothing to
gain. Beside them is `temperature`, recommended or not, with the probability of harm that `compare` states of it and its
NLL on the samples that were left. One JSON line for each set and n; lines that are in the file already are not run
again. At the end it prints a table.
"""

import warnings
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.calibrators.auto import FEWEST_MISTAKES
from temperance.jobs.comparison import compare
from temperance.jobs.outcomes import Outcome
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
    """Compare what has no line yet."""
    results = Results(out)
    for name, path in track(list(sets(*folders)), description="sets"):
        rows: list[Row] = [{"set": name, "n": n, "methods": methods, "labels": labels} for n in sizes]
        todo = [row for row in rows if row not in results]
        if not todo:
            continue
        fit_z, fit_y, test_z, test_y = fit_and_test(path)
        z, y = torch.cat([fit_z, test_z]), torch.cat([fit_y, test_y])
        if labels == "drawn":
            y = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
        for row in todo:
            found = [drawn(z, y, row["n"], draw, methods) for draw in range(draws)]
            results.add(row | dict(zip(COLUMNS, map(list, zip(*found, strict=True)), strict=True)))


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


def markdown(rows: list[Row]) -> str:
    """For each number of samples how often something is recommended, and how often that is worse."""
    by_run: dict[tuple[str, int, str], list[Draw]] = defaultdict(list)
    for row in rows:
        found = zip(row["recommended"], row["before"], row["after"], strict=True)
        by_run[row["methods"], row["n"], row["labels"]] += found
    heads = ["methods", "samples", "draws", "recommended", "worse", "NLL of others", "draws, calibrated", "recommended"]
    lines = []
    for methods in dict.fromkeys(row["methods"] for row in rows):
        for n in SIZES:
            real, calibrated = by_run[methods, n, "real"], by_run[methods, n, "drawn"]
            if real:
                lines.append([methods.replace(",", ", "), str(n), *_told(real), *_told(calibrated)[:2]])
    return table(heads, lines)


def stated_markdown(rows: list[Row]) -> str:
    """How likely temperature scaling was said to do harm, and how often it did on the samples that were left."""
    cases = [
        (stated, after > before)
        for row in rows
        if "stated" in row
        for stated, before, after in zip(row["stated"], row["before"], row["stated_after"], strict=True)
        if stated >= 0
    ]
    lines = []
    for low, high in pairwise(EDGES):
        found = [case for case in cases if low <= case[0] < high or case[0] == high == 1]
        if found:
            stated, came = (percent(fmean(each), 1) for each in zip(*found, strict=True))
            lines.append([f"{percent(low, 0)} to {percent(high, 0)}", f"{len(found):,}", stated, came])
    return table(["stated", "cases", "stated, mean", "it does harm"], lines)


def _told(draws: list[Draw]) -> list[str]:
    if not draws:
        return ["–"] * 4
    given = sum(name != "identity" for name, *_ in draws) / len(draws)
    worse = sum(after > before for _, before, after in draws) / len(draws)
    before, after = fmean(b for _, b, _ in draws), fmean(a for _, _, a in draws)
    return [f"{len(draws):,}", f"{100 * given:.1f} %", f"{100 * worse:.1f} %", f"{before:.3f} → {after:.3f}"]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--methods", default=SHORT, help='comma-separated, or "all"')
    parser.add_argument("--draws", type=int, default=20, help="of each set and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--calibrated", action="store_true", help="draw the labels from the predicted probabilities")
    args = parser.parse_args()
    labels = "drawn" if args.calibrated else "real"
    run(args.folders, args.out, args.methods, args.draws, args.sizes, labels)
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
