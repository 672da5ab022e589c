"""Calibrate answers that have one confidence each: python -m benchmarks.quality.answers FOLDER --out results.jsonl

Each .npz of FOLDER has `confidence` and `correct`; its name ends in the kind of confidence: MODEL__verbal.npz. A random
half is fitted on, the other half measured. One JSON line for each set and method.
"""

from pathlib import Path
from statistics import fmean

from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.calibrators import make_calibrator
from temperance.jobs.application import fit
from temperance.jobs.evaluation import evaluate
from temperance.predictions import read_predictions

METHODS = ("identity", "temperature", "platt", "beta", "quadratic", "spline", "isotonic", "venn-abers", "auto")
METRICS = ("nll", "brier", "ece", "failure-auroc")
KINDS = {
    "verbal": "the number that the model states",
    "linguistic": "the certainty of its wording, as a judge reads it",
    "logit": "from the probabilities of its words",
}


def measured(path: Path, method: str) -> Row:
    """The line of one method on one set."""
    held_out, new = read_predictions(path, answers=True).halves()
    found = evaluate(new, calibrator=fit(make_calibrator(method), held_out), metrics=METRICS, bootstrap=0)
    return {row.metric: round(row.value, 6) for row in found.rows}


def markdown(rows: list[Row]) -> str:
    """The mean over models, for each kind of confidence and method."""
    lines = []
    for kind, about in KINDS.items():
        for method in METHODS:
            mine = [row for row in rows if (row["kind"], row["method"]) == (kind, method)]
            nll, brier, ece, auroc = (fmean(row[name] for row in mine) for name in METRICS)
            first = about if method == METHODS[0] else ""
            lines.append([first, method, f"{nll:.4f}", f"{brier:.4f}", f"{100 * ece:.2f} %", f"{100 * auroc:.1f} %"])
    return table(["confidence", "method", "NLL", "Brier", "ECE", "failure AUROC"], lines)


def main() -> None:
    args = arguments(__doc__).parse_args()
    results = Results(args.out)
    for path in sorted(path for folder in args.folders for path in folder.glob("*.npz")):
        for method in METHODS:
            run: Row = {"set": path.stem, "kind": path.stem.split("__")[-1], "method": method}
            if run not in results:
                results.add(run | measured(path, method))
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
