"""Is the stated probability of harm right? python -m benchmarks.quality.harm FOLDERS --out FILE [--samples 0 20 50 …]

Harm is a higher NLL on the test part than without calibration. `auto` is fitted to the fit part of every set, or to a
number of its samples, drawn at random, and states how likely harm is. Beside the NLL that it has there is the one that
calibrating would have had (`whole`), also where `auto` left the probabilities as they were. One JSON line for each set
and number of samples; lines that are in the file already are not run again. At the end it prints the tables.
"""

import math
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.calibrators import Auto, auto
from temperance.errors import TemperanceWarning
from temperance.metrics import nll
from temperance.metrics.bins import Bins, bin_index
from temperance.report.svg.charts import reliability
from temperance.report.svg.sheet import sheet
from temperance.report.words import OF_PREDICTIONS

EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 1.0)
BINS = 10
ROUNDING = 1e-9


def measured(pair: Pair, samples: int) -> Row:
    """`auto` on one set, fitted to that many samples; 0 are all."""
    fit_z, fit_y, test_z, test_y = pair
    some = torch.randperm(len(fit_y), generator=torch.Generator().manual_seed(samples))[: samples or None]

    def fitted() -> Auto:
        return Auto().fit(fit_z[some], fit_y[some])

    found = fitted()
    whole = after = nll(found.predict_proba(test_z), test_y)
    if found.info["harm"] >= auto.TOO_LIKELY:
        with patch.object(auto, "TOO_LIKELY", math.inf):
            whole = nll(fitted().predict_proba(test_z), test_y)
    before = nll(test_z, test_y, from_logits=True)
    numbers = {"identity": before, "nll": after, "whole": whole, "stated": found.info["harm"]}
    return {"n_fit": len(some), "n_test": len(test_y), **{name: round(value, 6) for name, value in numbers.items()}}


def run(folders: list[Path], out: Path, sizes: list[int]) -> None:
    """Measure what has no line yet."""
    results = Results(out)
    warnings.simplefilter("ignore", TemperanceWarning)
    for name, path in track(list(sets(*folders)), description="sets"):
        pair = fit_and_test(path)
        for samples in sizes:
            row = {"set": name, "folder": path.parent.name, "samples": samples}
            if row not in results and samples < len(pair[1]):
                results.add(row | measured(pair, samples))


def by_statement(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The cases in each range of the stated probability."""
    for low, high in pairwise(EDGES):
        found = [row for row in rows if low <= row["stated"] and (row["stated"] < high or high == row["stated"] == 1)]
        if found:
            yield f"{low:.0%} to {high:.0%}", found


def by_samples(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The cases with each number of samples to fit on, all of them last."""
    for samples in sorted({row["samples"] for row in rows}, key=lambda n: n or math.inf):
        yield f"{samples:,}" if samples else "all", [row for row in rows if row["samples"] == samples]


def happened(row: Row, which: str = "whole") -> bool:
    """Whether calibrating did harm (`whole`), or what `auto` shipped (`nll`)."""
    return bool(row[which] > row["identity"] + ROUNDING)


def markdown(rows: list[Row], by: str) -> str:
    """How likely harm was said to be and how often it came, by what was stated or by the number of samples."""
    heads = [by, "cases", "stated, mean", "calibrating does harm", "`auto` does harm", "most harm", "NLL"]
    lines = []
    for name, found in {"stated": by_statement, "samples": by_samples}[by](rows):
        most = max(0.0, *(row["nll"] - row["identity"] for row in found))
        stated, before, after = (fmean(row[key] for row in found) for key in ("stated", "identity", "nll"))
        did, shipped = (fmean(happened(row, which) for row in found) for which in ("whole", "nll"))
        shares = (f"{share:.1%}" for share in (stated, did, shipped))
        lines.append([name, str(len(found)), *shares, f"{most:.4f}", f"{before:.3f} → {after:.3f}"])
    return table(heads, lines).replace("%", " %")


def picture(rows: list[Row]) -> str:
    """A reliability diagram of the stated probability: how often calibrating did harm, as an SVG file."""
    stated = torch.tensor([row["stated"] for row in rows], dtype=torch.float64)
    harmed = torch.tensor([happened(row) for row in rows])
    index = bin_index(stated, BINS, "left")
    sums = [torch.bincount(index, weights, BINS) for weights in (stated, harmed.double())]
    bins = Bins(torch.bincount(index, minlength=BINS), sums[0], sums[1].long())
    words = OF_PREDICTIONS._replace(
        said="stated probability of harm", happened="share of cases with harm", event="harm", row="case", rows="cases"
    )
    drawn = reliability(bins, words=words)
    return sheet([(f"{len(rows)} cases: sets and numbers of samples", drawn)])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[0], help="of the fit part; 0: all")
    args = parser.parse_args()
    run(args.folders, args.out, args.samples)
    print(markdown(read(args.out), "stated"), markdown(read(args.out), "samples"), sep="\n\n")


if __name__ == "__main__":
    main()
