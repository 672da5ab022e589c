"""The results of studies: files of JSON lines, and tables of them in Markdown."""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from temperance.jobs.results import Provenance

Row = dict[str, Any]

METRICS = ("nll", "ece", "accuracy", "brier", "classwise-ece")
SHARES = {"ece": 2, "accuracy": 2, "classwise-ece": 3}  # with their decimals in percent


class Results:
    """A file of JSON lines, one for each run of a study. A run that has a line is not run again."""

    def __init__(self, path: Path, **versions: str) -> None:
        self.path, self.rows = path, read(path)
        self._made_with = {**versions, **made_with()}

    def __contains__(self, run: Row) -> bool:
        return any(run.items() <= row.items() for row in self.rows)

    def add(self, row: Row) -> None:
        """Write a line at once, so that a study that is stopped goes on where it was."""
        self.rows.append(row | self._made_with)
        with self.path.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a file anew."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@cache
def made_with() -> dict[str, str]:
    """What a line says of the program that it is of."""
    about = Provenance.of({}, {}, seed=0)
    return {"commit": about.commit, "torch": about.versions["torch"]}


def arguments(doc: str | None, *, folders: bool = True) -> argparse.ArgumentParser:
    """A parser of what every study takes: folders of predictions, and the file of its results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if folders:
        parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    return parser


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def point(text: str) -> str:
    """A point of a list in Markdown, as wide as the docs are."""
    return fill(text, 120, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def means(rows: list[Row]) -> list[tuple[str, int, dict[str, float]]]:
    """For each method the means over the sets it could be fitted to, lowest NLL first."""
    by_method: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if "nll" in row:
            by_method[row["method"]].append(row)
    found = [
        (name, len(mine), {key: math.fsum(row[key] for row in mine) / len(mine) for key in (*METRICS, "seconds")})
        for name, mine in by_method.items()
    ]
    return sorted(found, key=lambda entry: entry[2]["nll"])


def markdown(rows: list[Row]) -> str:
    """The means as a Markdown table, of the methods that were measured on every set."""
    found = means(rows)
    every = max((n for _, n, _ in found), default=0)
    cells = []
    for name, n, mean in found:
        if n == every:
            shares = (f"{100 * mean[key]:.{digits}f} %" for key, digits in SHARES.items())
            cells.append([name, f"{mean['nll']:.4f}", *shares, f"{mean['seconds']:.2f}"])
    return table(["method", "NLL", "ECE", "accuracy", "classwise ECE", "seconds"], cells)


def by_objective(rows: list[Row]) -> str:
    """Each method with each other objective beside itself with NLL, on the same sets: means, and how often lower."""
    found: dict[str, dict[str, dict[str, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        name, _, objective = row["method"].partition("objective=")
        found[name.rstrip(":")][objective or "nll"][row["set"]] = row
    lines = []
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
            lines.append(cells)
    heads = ["method", "objective", "sets", "NLL", "ECE", "classwise ECE", "NLL lower", "ECE lower"]
    return table(heads, lines)
