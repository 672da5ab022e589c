"""Does B help where A was? python -m benchmarks.quality.paired FOLDER A B [--metric ece]

Both are fitted to every set. Over the sets: a Wilcoxon signed-rank test of the differences. For each set: the paired
bootstrap, which says on how many of them the difference is more than the noise of the test samples.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy.stats import wilcoxon

from benchmarks.quality.data import fit_and_test, sets
from temperance.jobs.outcomes import Method
from temperance.metrics import METRICS
from temperance.metrics.significance import Difference, difference


def compared(path: Path, first: Method, second: Method, metric: str) -> Difference:
    """The metric of the second less that of the first, on the test part."""
    fit_z, fit_y, test_z, test_y = fit_and_test(path)
    probs = [method.make().fit(fit_z, fit_y).predict_proba(test_z) for method in (second, first)]
    return difference(METRICS[metric], *probs, test_y, n_resamples=1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--metric", default="ece")
    args = parser.parse_args()
    methods = Method.parse(args.first), Method.parse(args.second)
    found = [
        compared(path, *methods, args.metric)
        for _, path in track(list(sets(args.folder)), console=Console(stderr=True))
    ]
    values = np.array([each.value for each in found])
    lower, higher = (sum(each.p_value < 0.05 and sign * each.value > 0 for each in found) for sign in (-1, 1))
    print(f"{args.first} → {args.second}, {args.metric} on {len(values)} sets: mean change {values.mean():+.5f}")
    print(f"lower in {(values < 0).sum()}, Wilcoxon p = {wilcoxon(values).pvalue:.3f}")
    print(f"significantly lower in {lower}, higher in {higher} (paired bootstrap, 5 %)")


if __name__ == "__main__":
    main()
