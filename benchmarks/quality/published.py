"""Our methods beside a published table: python -m benchmarks.quality.published SET.npz TABLE.json --out results.jsonl

Huang et al. (h-calibration, 2025) publish 18 metrics of 20 methods on the predictions of a DenseNet-40 for CIFAR-10
(`c10_densenet40`). TABLE.json holds their numbers, {method: {metric: value}}. Ten of the metrics are ours too; the
uncalibrated predictions, measured by both, show that they are the same. One JSON line for each method, theirs and ours.
"""

import argparse
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from benchmarks.quality.data import fit_and_test
from benchmarks.quality.table import made_with, read, table, write
from temperance.calibrators import make_calibrator
from temperance.errors import TemperanceWarning
from temperance.metrics import METRICS, kernel

# Their name: our metric, its settings, and what their value is divided by: CWECE_s is a sum over ten classes, in the 14
# bins between 15 edges. The metrics that are not ours are named in docs/results.md.
SHARED: dict[str, tuple[str, dict[str, Any], int]] = {
    "nll": ("nll", {}, 1),
    "ECE_ew": ("ece", {}, 1),
    "ECE_em": ("adaptive-ece", {"rule": "interp"}, 1),
    "ECE_s_r1": ("ece-sweep", {}, 1),
    "ECE_r2": ("rms-ce", {}, 1),
    "KSerror": ("ks", {}, 1),
    "MMCE": ("mmce", {}, 1),
    "CWECE_a": ("classwise-ece", {}, 1),
    "CWECE_s": ("classwise-ece", {"n_bins": 14}, 10),
    "DKDE_CE": ("kde-ece-canonical", {"p": 2, "bandwidth": 1.0}, 1),
}
MARGIN = 1e-25  # how far their kernel estimate keeps probabilities from 0, which changes it by a tenth
METHODS = (
    "identity",
    "temperature",
    "temperature:objective=class-scaled",
    "temperature:objective=soft-ece",
    "temperature:objective=h-calibration",
    "ensemble-temperature",
    "vector",
    "structured-matrix",
    "dirichlet",
    "isotonic",
    "spline",
    "gap-scaling",
    "order-preserving",
    "order-preserving:variant=diag",
    "order-preserving:variant=diag:objective=h-calibration:batch_size=1000:epochs=100:weight_decay=0",
    "parameterised-temperature:preset=smart:objective=soft-ece",
    "auto",
)


def measured(log_probs: Tensor, labels: Tensor) -> dict[str, float]:
    """The shared metrics of these predictions, by their names there."""
    with patch.object(kernel, "MARGIN", MARGIN):
        return {
            theirs: METRICS[ours](log_probs, labels, from_logits=True, **settings)
            for theirs, (ours, settings, _) in SHARED.items()
        }


def published(theirs: dict[str, dict[str, float]]) -> Iterable[dict[str, Any]]:
    for method, values in theirs.items():
        yield {"who": "published", "method": method} | {name: values[name] / SHARED[name][2] for name in SHARED}


def run(path: Path, theirs: Path, out: Path) -> None:
    fit_z, fit_y, test_z, test_y = fit_and_test(path)
    rows = list(published(json.loads(theirs.read_text())))
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)
            found = make_calibrator(method).fit(fit_z, fit_y)
        rows.append({"who": "temperance", "method": method} | measured(found(test_z), test_y))
    rounded = [
        {name: round(value, 7) if isinstance(value, float) else value for name, value in row.items()} for row in rows
    ]
    write(out, [{"set": path.stem} | row | made_with() for row in rounded])


def markdown(rows: list[dict[str, Any]]) -> str:
    """Lowest NLL first; theirs in italics. NLL in nats, everything else in percent."""
    heads = [" ".join([name, *(f"{key}={value}" for key, value in more.items())]) for name, more, _ in SHARED.values()]
    lines = []
    for row in sorted(rows, key=lambda row: row["nll"]):
        name = f"*{row['method']}*" if row["who"] == "published" else row["method"].replace(":", " ")
        cells = [f"{row[key]:.4f}" if key == "nll" else f"{100 * row[key]:.3f}" for key in SHARED]
        lines.append([name, *cells])
    return table(["method", *heads], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    run(args.set, args.table, args.out)
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
