"""Calibrate each group: python -m benchmarks.quality.groups MMLU ADULT … --out benchmarks/results/groups.jsonl

Each .npz of the folders has groups, or several labels, which are groups too, and a val and a test set, or one set of
answers, which is halved at random. Methods
are fitted on some or all of the first part and measured on the second: one map for all, one fit for each group by
itself, `grouped`, `grouped` with the columns whose combinations the groups are, and `grouped` with groups dealt at
random, which differ by nothing. One JSON line for each.
"""

import warnings
from functools import reduce
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.calibrators import make_calibrator
from temperance.errors import InputError, TemperanceWarning
from temperance.jobs.measuring import statistics_of
from temperance.jobs.verdict import ERROR_RATE
from temperance.metrics import METRICS
from temperance.metrics.tally import Tally, significant
from temperance.predictions import Predictions, read_pair, read_predictions

METHODS = {
    "identity": "no calibration",
    "auto": "`auto`, one map for all groups",
    "each": "`auto`, a fit for each group alone",
    "grouped": "`grouped`",
    "columns": "`grouped`, sex and race as two columns",
    "dealt": "`grouped`, groups dealt at random",
}
SIZES = (0, 2_000, 500)  # of the fit part; 0: all of it
KINDS = {
    "llama31_8B": "MMLU, 57 subjects",
    "llama31_8B_base": "MMLU, 57 subjects",
    "adult_rf": "Adult, sex × race",
    "chexnet": "chest X-rays, 14 labels",
}
COLUMNS = ("adult_rf",)  # sets whose groups are the combinations of columns
ANSWERS = "MMLU-Pro, stated confidence, 14 categories"


def parts(path: Path) -> tuple[Predictions, Predictions]:
    """What is fitted on, and what is measured."""
    if path.stem == "chexnet":
        return read_pair(path, multilabel=True, columns={"probs": "scores"})
    if path.stem in KINDS:
        return read_pair(path)
    return read_predictions(path, answers=True).halves()


def probabilities(method: str, fit: Predictions, test: Predictions) -> Tensor:
    """The calibrated probabilities of the test part."""
    logits, labels, groups = fit.logits(), fit.labels, np.asarray(fit.groups)
    if method in ("identity", "auto"):
        found: Tensor = make_calibrator(method).fit(logits, labels).predict_proba(test.logits())
        return found
    if method == "each":
        return _each(logits, labels, groups, test)
    others = np.asarray(test.groups)
    if method == "columns":
        groups, others = (np.array([name.split("/") for name in names]) for names in (groups, others))
    if method == "dealt":
        generator = np.random.default_rng(0)
        groups, others = generator.permutation(groups), generator.permutation(others)
    made = make_calibrator("grouped").fit(logits, labels, groups=groups)
    return made.probs_of(test.logits(), others)


def _each(logits: Tensor, labels: Tensor, groups: npt.NDArray[np.str_], test: Predictions) -> Tensor:
    """A fit for each group by itself; one that has too few samples, or none, is left as it is."""
    rows, of_test = test.logits().double(), np.asarray(test.groups)
    found = rows.softmax(1)
    for name in np.unique(groups):
        mine, theirs = (torch.from_numpy(each == name) for each in (groups, of_test))
        try:
            found[theirs] = make_calibrator("auto").fit(logits[mine], labels[mine]).predict_proba(rows[theirs])
        except InputError:
            continue
    return found


def measured(path: Path, method: str, size: int) -> Row:
    """The line of one method on one set."""
    fit, test = parts(path)
    if size:
        samples = fit.samples_of_rows() if fit.multilabel else torch.arange(fit.n)
        drawn = np.random.default_rng(0).permutation(fit.n_counted)[:size]
        fit = fit.select(np.flatnonzero(np.isin(samples.numpy(), drawn)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        probs = probabilities(method, fit, test)
    new = test.select(np.arange(test.n)).calibrated(lambda _, __: probs, by=method)
    found = statistics_of(new, ("nll", "ece"), intervals=False, by_group=True)
    whole = found.groups[None].parts
    values = {name: METRICS[name].value(part.whole) for name, part in zip(("nll", "ece"), whole, strict=True)}
    tallies = [group.tally for group in found.groups.values() if group.tally is not None]
    off = int(significant(reduce(Tally.beside, tallies), ERROR_RATE).sum())
    return {name: round(value, 6) for name, value in values.items()} | {"groups": len(tallies), "off": off}


def markdown(rows: list[Row]) -> str:
    """The mean over sets of each kind, for each method and size of the fit part."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for method, about in METHODS.items():
            cells = []
            for size in SIZES:
                mine = [row for row in rows if (row["kind"], row["method"], row["size"]) == (kind, method, size)]
                if not mine:
                    break
                cells.append(f"{fmean(row['nll'] for row in mine):.4f}")
                if not size:
                    cells.append(f"{100 * fmean(row['ece'] for row in mine):.2f} %")
                    cells.append(f"{fmean(row['off'] for row in mine):.1f} of {mine[0]['groups']}")
            if cells:
                lines.append([kind if method == "identity" else "", about, *cells])
    sizes = (f"NLL, {size:,} samples" for size in SIZES[1:])
    return table(["groups", "method", "NLL", "ECE", "groups off", *sizes], lines)


def main() -> None:
    args = arguments(__doc__).parse_args()
    results = Results(args.out)
    for path in sorted(path for folder in args.folders for path in folder.glob("*.npz")):
        if path.stem not in KINDS and not path.stem.endswith("__verbal"):
            continue
        for size in SIZES:
            for method in METHODS:
                if method == "columns" and path.stem not in COLUMNS:
                    continue
                run: Row = {"set": path.stem, "kind": KINDS.get(path.stem, ANSWERS), "method": method, "size": size}
                if run not in results:
                    results.add(run | measured(path, method, size))
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
