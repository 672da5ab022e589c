"""Decide with costs: python -m benchmarks.quality.decisions TABULAR BINARY --out benchmarks/results/decisions.jsonl

Each .npz of the folders with two classes and a val and a test set is decided on at several costs, by its probabilities
as they are and by those of `auto`, fitted on val. One JSON line for each set and pair of costs.
"""

import warnings
from pathlib import Path
from statistics import fmean

from benchmarks.quality.table import Results, Row, arguments, read, table
from temperance.errors import TemperanceWarning
from temperance.jobs.decisions import decide
from temperance.predictions import read_predictions

# What a false alarm and a miss cost.
COSTS = ((1, 1), (1, 5), (1, 20), (5, 1), (20, 1))


def measured(path: Path, false_alarm: float, miss: float) -> Row:
    """The line of one set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        found = decide(path, false_alarm=false_alarm, miss=miss)
    assert found.calibrated is not None and found.saving is not None
    costs = {"constant": found.constant, "given": found.given, "calibrated": found.calibrated}
    claim = "saves" if found.saving.saves else "loses" if found.saving.loses else "none"
    return {name: round(policy.cost, 6) for name, policy in costs.items()} | {"n": found.n, "claim": claim}


def markdown(rows: list[Row]) -> str:
    """The mean over sets, and on how many of them calibration saves, for each pair of costs."""
    lines = []
    for costs in COSTS:
        mine = [row for row in rows if (row["false_alarm"], row["miss"]) == costs]
        means = (f"{fmean(row[name] for row in mine):.3f}" for name in ("constant", "given", "calibrated"))
        cheaper, dearer = (sum(sign * (row["given"] - row["calibrated"]) > 0 for row in mine) for sign in (1, -1))
        claims = (str(sum(row["claim"] == claim for row in mine)) for claim in ("saves", "loses"))
        lines.append([f"{costs[0]} and {costs[1]}", *means, f"{cheaper} and {dearer} of {len(mine)}", *claims])
    heads = ["false alarm and miss", "best single decision", "as they are", "calibrated"]
    return table([*heads, "cheaper and dearer", "saving shown", "loss shown"], lines)


def main() -> None:
    args = arguments(__doc__).parse_args()
    results = Results(args.out)
    for path in sorted(path for folder in args.folders for path in folder.glob("*.npz")):
        if read_predictions(path).k != 2:
            continue
        for false_alarm, miss in COSTS:
            run: Row = {"set": path.stem, "false_alarm": false_alarm, "miss": miss}
            if run not in results:
                results.add(run | measured(path, false_alarm, miss))
    print(markdown(read(args.out)))


if __name__ == "__main__":
    main()
