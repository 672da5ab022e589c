"""What fitting costs: python -m benchmarks.speed.cost --out results.jsonl [--methods temperature,vector]

Every calibrator on the predictions that ship, 5,000 × 100, and on the same with classes merged by tens, 5,000 × 10. One
JSON line for each: the seconds of one core, the least of three runs, and how many numbers are learnt. It is the time
that the process was given, so that whatever else the machine does hardly matters. A method that is measured again takes
the place of its old line.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.quality.table import made_with, read, table, write
from temperance.calibrators import CALIBRATORS, make_calibrator
from temperance.demo import demo_predictions

ROUNDS = 3
LONG = 20.0  # seconds, after which once is enough
CLASSES = (10, 100)


def data(k: int) -> tuple[Tensor, Tensor]:
    """The validation part of the demo, neighbouring classes merged until k are left."""
    val, _ = demo_predictions()
    merged = val.k // k
    return val.scores.double().reshape(-1, k, merged).logsumexp(2), val.labels // merged


def measure(name: str, logits: Tensor, labels: Tensor) -> tuple[float, int]:
    """The least seconds of a fit, and how many numbers it learns."""
    seconds: list[float] = []
    while len(seconds) < ROUNDS and (not seconds or seconds[-1] < LONG):
        method = make_calibrator(name)
        start = time.process_time()
        method.fit(logits, labels)
        seconds.append(time.process_time() - start)
    return min(seconds), method.n_parameters


def run(out: Path, methods: list[str]) -> None:
    torch.set_num_threads(1)
    make_calibrator("vector").fit(*data(10))  # what is loaded on first use is not part of anyone's time
    rows = {(row["method"], row["k"]): row for row in read(out)}
    for k in CLASSES:
        logits, labels = data(k)
        for name in track(methods, description=f"{len(labels)} x {k}"):
            seconds, parameters = measure(name, logits, labels)
            row: dict[str, Any] = {"method": name, "n": len(labels), "k": k}
            row |= {"seconds": round(seconds, 4), "parameters": parameters}
            rows[name, k] = row | {"threads": 1, **made_with()}
            write(out, rows.values())


def markdown(rows: list[dict[str, Any]], family: str) -> str:
    """The methods of a family, with seconds and numbers learnt; a dash where they were not measured."""
    found = {(row["method"], row["k"]): row for row in rows}
    heads = [f"{what}, 5,000 × {k}" for what in ("seconds", "parameters") for k in CLASSES]
    lines = []
    for method in CALIBRATORS:
        if method.family == family:
            seconds, parameters = zip(*(shown(found.get((method.name, k))) for k in CLASSES), strict=True)
            lines.append([method.name, *seconds, *parameters])
    return table(["method", *heads], lines)


def shown(row: dict[str, Any] | None) -> tuple[str, str]:
    """Seconds to two digits, parameters with thousands apart."""
    if row is None:
        return "–", "–"
    seconds = row["seconds"]
    text = f"{seconds:.2g}" if 0.001 <= seconds < 10 else "0" if seconds < 0.001 else f"{seconds:.0f}"
    return text, f"{row['parameters']:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default=",".join(CALIBRATORS.names), help="comma-separated")
    args = parser.parse_args()
    run(args.out, args.methods.split(","))


if __name__ == "__main__":
    main()
