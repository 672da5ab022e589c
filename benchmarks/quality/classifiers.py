"""CalibratedClassifier beside scikit-learn's CalibratedClassifierCV, on the data sets that come with scikit-learn.

    python -m benchmarks.quality.classifiers --out benchmarks/results/classifiers.jsonl

Each classifier is fitted on half of a data set and measured on the other half, for 20 stratified splits: log-loss as
scikit-learn computes it, ECE in 15 bins, and the CPU seconds of `fit`. One JSON line for each data set, classifier and
method, with a value for each split; lines that are in the file already are not run again. It takes about five minutes
on one core.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

import numpy as np
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.quality.table import Results, arguments, table
from temperance.interop.sklearn import CalibratedClassifier
from temperance.metrics import ece

SPLITS = 20
DATA = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "naive Bayes": GaussianNB,
    "random forest": lambda: RandomForestClassifier(30, random_state=0),
    "support vectors": lambda: make_pipeline(StandardScaler(), SVC()),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "uncalibrated": lambda classifier: classifier,
    "scikit-learn sigmoid": lambda classifier: CalibratedClassifierCV(classifier, method="sigmoid"),
    "scikit-learn isotonic": lambda classifier: CalibratedClassifierCV(classifier, method="isotonic"),
    "scikit-learn temperature": lambda classifier: CalibratedClassifierCV(classifier, method="temperature"),
    "temperature": lambda classifier: CalibratedClassifier(classifier, method="temperature"),
    "auto": CalibratedClassifier,
}


def measured(data: str, classifier: str, method: str) -> dict[str, list[float]]:
    """Log-loss, ECE and seconds of every split; nothing for a classifier that has no probabilities of its own."""
    X, y = DATA[data](return_X_y=True)
    found: dict[str, list[float]] = {"log_loss": [], "ece": [], "seconds": []}
    for train, test in StratifiedShuffleSplit(SPLITS, test_size=0.5, random_state=0).split(X, y):
        made = METHODS[method](CLASSIFIERS[classifier]())
        if not hasattr(made, "predict_proba"):
            return {}
        begun = time.process_time()
        made.fit(X[train], y[train])
        seconds = time.process_time() - begun
        probs = made.predict_proba(X[test])
        found["log_loss"].append(round(float(log_loss(y[test], probs)), 6))
        found["ece"].append(round(ece(probs, y[test]), 6))
        found["seconds"].append(round(seconds, 4))
    return found


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """The mean log-loss of each classifier on each data set, the least in bold; and over all, ECE and time."""
    by_run = {(row["data"], row["classifier"], row["method"]): row for row in rows}
    runs = list(dict.fromkeys((data, classifier) for data, classifier, _ in by_run))
    lines = []
    for data, classifier in runs:
        cells = [by_run.get((data, classifier, method)) for method in METHODS]
        means = [fmean(cell["log_loss"]) if cell else np.inf for cell in cells]
        shown = ["" if m == np.inf else f"**{m:.3f}**" if m == min(means) else f"{m:.3f}" for m in means]
        lines.append([f"{data}, {classifier}", *shown])
    for title, key, scale in (
        ("mean log-loss", "log_loss", 1),
        ("mean ECE, %", "ece", 100),
        ("mean CPU seconds", "seconds", 1),
    ):
        each = [[fmean(row[key]) for (_, _, name), row in by_run.items() if name == method] for method in METHODS]
        complete = [f"{scale * fmean(values):.3g}" if len(values) == len(runs) else "" for values in each]
        lines.append([title, *complete])
    return table(["data, classifier", *METHODS], lines)


def main() -> None:
    args = arguments(__doc__, folders=False).parse_args()
    results = Results(args.out, **{"scikit-learn": sklearn.__version__})
    warnings.simplefilter("ignore")
    for data, classifier, method in ((d, c, m) for d in DATA for c in CLASSIFIERS for m in METHODS):
        row = {"data": data, "classifier": classifier, "method": method, "splits": SPLITS}
        if row in results or not (found := measured(data, classifier, method)):
            continue
        means = {key: round(fmean(values), 4) for key, values in found.items()}
        print(f"{data:14} {classifier:20} {method:25} {means}", flush=True)
        results.add(row | found)


if __name__ == "__main__":
    main()
