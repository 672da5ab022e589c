"""Fit every calibrator to real predictions: python -m benchmarks.quality FOLDER --out results.jsonl [--methods …]

One JSON line for each (set, method): NLL, 15-bin ECE and accuracy on the test part, with the seconds to fit. Pairs that
are in the file already are not run again, so a stopped run goes on where it was. `--table` prints the means.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import METRICS, markdown, means, read
from temperance.calibrators import CALIBRATORS
from temperance.jobs.outcomes import Method, Work
from temperance.jobs.results import Provenance


def run(folder: Path, out: Path, methods: list[Method]) -> None:
    """Measure what is not in the file yet."""
    done = {(row["set"], row["method"]) for row in read(out)}
    found = Provenance.of({}, {}, seed=0)
    for name, path in track(list(sets(folder)), description="sets"):
        todo = [method for method in methods if (name, method.label) not in done]
        if not todo:
            continue
        work = Work(*fit_and_test(path), n_bins=15, bootstrap=2, seed=0)
        with out.open("a") as file:
            for method in todo:
                outcome = work.run(method)
                row: dict[str, Any] = {"set": name, "method": method.label, "seconds": round(outcome.seconds, 3)}
                row |= {metric: outcome.measured[metric].value for metric in METRICS if outcome.measured}
                row |= {"failure": outcome.failure} if outcome.failure else {}
                file.write(json.dumps(row | {"commit": found.commit, "torch": found.versions["torch"]}) + "\n")
                file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(CALIBRATORS.names), help="comma-separated, name:setting=value")
    parser.add_argument("--table", action="store_true", help="print the means as Markdown")
    args = parser.parse_args()
    run(args.folder, args.out, [Method.parse(text) for text in args.methods.split(",")])
    rows = read(args.out)
    if args.table:
        print(markdown(rows))
        return
    table = Table("method", "sets", "NLL", "ECE", "accuracy", "seconds")
    for name, n, mean in means(rows):
        table.add_row(
            name,
            str(n),
            f"{mean['nll']:.4f}",
            f"{mean['ece']:.2%}",
            f"{mean['accuracy']:.2%}",
            f"{mean['seconds']:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
