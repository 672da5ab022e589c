"""The results of the quality benchmark: rows from the file, means over sets, a table."""

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

METRICS = ("nll", "ece", "accuracy", "brier", "classwise-ece")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def means(rows: list[dict[str, Any]]) -> list[tuple[str, int, dict[str, float]]]:
    """For each method the means over the sets it could be fitted to, lowest NLL first."""
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if "nll" in row:
            by_method[row["method"]].append(row)
    found = [
        (name, len(mine), {key: math.fsum(row[key] for row in mine) / len(mine) for key in (*METRICS, "seconds")})
        for name, mine in by_method.items()
    ]
    return sorted(found, key=lambda entry: entry[2]["nll"])


def markdown(rows: list[dict[str, Any]]) -> str:
    """The means as a Markdown table, of the methods that were measured on every set."""
    found = means(rows)
    every = max((n for _, n, _ in found), default=0)
    lines = ["| method | NLL | ECE | accuracy | classwise ECE | seconds |", "|---|---|---|---|---|---|"]
    for name, n, mean in found:
        if n == every:
            lines.append(
                f"| {name} | {mean['nll']:.4f} | {100 * mean['ece']:.2f} % | {100 * mean['accuracy']:.2f} % "
                f"| {100 * mean['classwise-ece']:.3f} % | {mean['seconds']:.2f} |"
            )
    return "\n".join(lines)


def by_objective(rows: list[dict[str, Any]]) -> str:
    """Each method with each other objective beside itself with NLL, on the same sets: means, and how often lower."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        name, _, objective = row["method"].partition("objective=")
        found[name.rstrip(":")][objective or "nll"][row["set"]] = row
    lines = [
        "| method | objective | sets | NLL | ECE | classwise ECE | NLL lower | ECE lower |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, objectives in found.items():
        plain = objectives.pop("nll")
        for objective, mine in objectives.items():
            cells = [name.replace(":", " "), objective, str(len(mine))]
            for metric, unit, digits, sign in (
                ("nll", 1, 4, ""),
                ("ece", 100, 2, " %"),
                ("classwise-ece", 100, 3, " %"),
            ):
                before, after = (
                    unit * math.fsum(measured[each][metric] for each in mine) / len(mine) for measured in (plain, mine)
                )
                cells.append(f"{before:.{digits}f} → {after:.{digits}f}{sign}")
            for metric in ("nll", "ece"):
                cells.append(str(sum(mine[each][metric] < plain[each][metric] for each in mine)))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
