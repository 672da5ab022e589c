"""How often calibrating does harm: python -m benchmarks.quality.harm FOLDERS --out FILE [--methods …] [--samples …]

Harm is a higher NLL on the test part than without calibration. Every method is fitted to the fit part of every set, or
to that many samples of it, drawn at random. One JSON line for each; lines that are in the file already are not run
again. `auto` states the probability of harm: with it there is the NLL that calibrating would have had (`whole`), also
where it was not done.
"""

import argparse
import json
import math
import warnings
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from rich.progress import track

from benchmarks.quality.data import Pair, fit_and_test, sets
from benchmarks.quality.table import read
from temperance.calibrators import auto, make_calibrator
from temperance.errors import TemperanceWarning
from temperance.jobs.outcomes import CANNOT_BE_FITTED
from temperance.jobs.results import Provenance
from temperance.metrics import ece, nll

METHODS = (
    "auto",
    "structured-matrix",
    "structured-vector",
    "gap-scaling",
    "temperature",
    "ensemble-temperature",
    "kernel-logistic",
    "class-temperature",
    "bias-corrected-temperature",
    "vector",
    "beta",
    "platt",
    "quadratic",
    "spline",
    "isotonic",
    "histogram",
)
GROUPS = {"34 sets": ("logits", "llm")}  # by folder; all others are the 130
OTHERS = "130 sets"
EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 1.0)
ROUNDING = 1e-9


def measured(pair: Pair, method: str, samples: int) -> dict[str, Any]:
    """One method on one set; 0 samples are all."""
    fit_z, fit_y, test_z, test_y = pair
    some = torch.randperm(len(fit_y), generator=torch.Generator().manual_seed(samples))[: samples or None]
    row: dict[str, Any] = {"n_fit": len(some), "n_test": len(test_y), "identity": nll(test_z, test_y, from_logits=True)}
    try:
        found = make_calibrator(method).fit(fit_z[some], fit_y[some])
    except CANNOT_BE_FITTED as error:
        return row | {"failure": str(error)}
    probs = found.predict_proba(test_z)
    row |= {"nll": nll(probs, test_y), "ece": ece(probs, test_y)}
    if method == "auto":
        row |= {"stated": found.info["harm"], "whole": row["nll"]}
        if found.info["harm"] >= auto.TOO_LIKELY:
            with patch.object(auto, "TOO_LIKELY", math.inf):
                anyway = make_calibrator(method).fit(fit_z[some], fit_y[some])
            row["whole"] = nll(anyway.predict_proba(test_z), test_y)
    return row


def run(folders: list[Path], out: Path, methods: tuple[str, ...], samples: int) -> None:
    """Measure what is not in the file yet."""
    done = {(row["set"], row["method"], row["samples"]) for row in read(out)}
    about = Provenance.of({}, {}, seed=0)
    warnings.simplefilter("ignore", TemperanceWarning)
    chosen = [(name, path) for folder in folders for name, path in sets(folder)]
    for name, path in track(chosen, description="sets"):
        pair = fit_and_test(path)
        for method in methods:
            if (name, method, samples) in done or samples >= len(pair[1]):
                continue
            row = {"set": name, "folder": path.parent.name, "method": method, "samples": samples}
            row |= {
                key: round(value, 6) if isinstance(value, float) else value
                for key, value in measured(pair, method, samples).items()
            }
            with out.open("a") as file:
                file.write(json.dumps(row | {"commit": about.commit, "torch": about.versions["torch"]}) + "\n")


def _group(row: dict[str, Any]) -> str:
    return next((group for group, folders in GROUPS.items() if row["folder"] in folders), OTHERS)


def markdown(rows: list[dict[str, Any]]) -> str:
    """For each method the share of sets with harm, the most harm and the means, of methods that fitted every set."""
    lines = ["| sets | method | harm | most harm | NLL | ECE |", "|---|---|---|---|---|---|"]
    for group in (OTHERS, *GROUPS):
        mine = [row for row in rows if not row["samples"] and _group(row) == group]
        by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in mine:
            if "nll" in row:
                by_method[row["method"]].append(row)
        every = len({row["set"] for row in mine})
        for method, found in sorted(by_method.items(), key=lambda each: fmean(row["nll"] for row in each[1])):
            if len(found) == every:
                by = [row["nll"] - row["identity"] for row in found]
                lines.append(
                    f"| {group} | {method} | {sum(each > ROUNDING for each in by) / every:.1%} | {max(0.0, *by):.4f} "
                    f"| {fmean(row['nll'] for row in found):.4f} | {fmean(row['ece'] for row in found):.2%} |"
                )
    return "\n".join(lines).replace("%", " %")


def stated_markdown(rows: list[dict[str, Any]]) -> str:
    """Where harm was stated with a probability in each range: how often calibrating does harm, and what `auto` does."""
    stated = [row for row in rows if "stated" in row]
    lines = ["| stated | cases | mean of it | calibrating does harm | `auto` does harm |", "|---|---|---|---|---|"]
    for low, high in pairwise(EDGES):
        found = [row for row in stated if low <= row["stated"] and (row["stated"] < high or high == row["stated"] == 1)]
        if found:
            whole, kept = (fmean(row[key] > row["identity"] + ROUNDING for row in found) for key in ("whole", "nll"))
            lines.append(
                f"| {low:.0%} to {high:.0%} | {len(found)} | {fmean(row['stated'] for row in found):.1%} "
                f"| {whole:.1%} | {kept:.1%} |"
            )
    return "\n".join(lines).replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    parser.add_argument("--samples", type=int, default=0, help="so many of the fit part (default: all)")
    parser.add_argument("--table", action="store_true", help="print the tables as Markdown")
    args = parser.parse_args()
    run(args.folders, args.out, tuple(args.methods.split(",")), args.samples)
    if args.table:
        print(markdown(read(args.out)), stated_markdown(read(args.out)), sep="\n\n")


if __name__ == "__main__":
    main()
