"""Other libraries' calibrators on the same predictions: python -m benchmarks.quality.peers FOLDER --out results.jsonl

SVS and SMS as their authors publish them (probmetrics, default settings). Rows as those of `python -m
benchmarks.quality`, with the version of the library; pairs that are in the file already are not run again.
"""

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from probmetrics.calibrators import SMSCalibrator, SVSCalibrator
from probmetrics.distributions import CategoricalLogits
from rich.progress import track

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import METRICS, read
from temperance.jobs.results import Provenance
from temperance.metrics import METRICS as REGISTRY

PEERS: dict[str, Callable[[], Any]] = {
    "probmetrics-svs": lambda: SVSCalibrator(print_init_info=False),
    "probmetrics-sms": lambda: SMSCalibrator(print_init_info=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    done = {(row["set"], row["method"]) for row in read(args.out)}
    found = Provenance.of({}, {}, seed=0)
    made_with = {"commit": found.commit, "torch": found.versions["torch"], "probmetrics": version("probmetrics")}
    for name, path in track(list(sets(args.folder)), description="sets"):
        fit_z, fit_y, test_z, test_y = fit_and_test(path)
        for method, make in PEERS.items():
            if (name, method) in done:
                continue
            start = time.perf_counter()
            fitted = make().fit_torch(CategoricalLogits(fit_z), fit_y)
            seconds = time.perf_counter() - start
            probs = fitted.predict_proba_torch(CategoricalLogits(test_z)).get_probs().double().numpy()
            probs /= probs.sum(1, keepdims=True)
            row: dict[str, Any] = {"set": name, "method": method, "seconds": round(seconds, 3)}
            row |= {metric: float(REGISTRY[metric](probs, np.asarray(test_y))) for metric in METRICS}
            with args.out.open("a") as file:
                file.write(json.dumps(row | made_with) + "\n")


if __name__ == "__main__":
    main()
