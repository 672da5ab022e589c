"""The leaderboard from the lines of `python -m benchmarks.quality`: tables for the docs, and the picture."""

import math
from collections import Counter
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks.quality.table import Row, point, table
from temperance.errors import plural
from temperance.jobs.outcomes import BASELINE
from temperance.jobs.standings import Standing, standings
from temperance.metrics.significance import Interval
from temperance.report.svg.sheet import standalone
from temperance.report.svg.standings import standings_chart

MEASURED = ("nll", "brier", "ece", "classwise-ece", "accuracy", "seconds")

# The kind of data by folder, where there are more than two classes; other folders are kinds of their own.
KINDS = {
    "logits": "vision",
    "vision_cv": "vision",
    "llm": "text",
    "mmlu": "text",
    "longtail": "long tail",
    "labelshift": "long tail",
}
BINARY = "binary"
DEVELOPED_ON = ("logits", "llm")
ROUNDING = 1e-9
SIZES = (0, 300, 1000, 4000, 10**9)  # samples to fit on

# Sets that predict the same samples, by how their names begin, or by folder.
SAME_SAMPLES = {"c10lt": "c10", "cifar10": "c10"}
ONE_FAMILY = ("llm", "mmlu")


def kind_of(row: Row) -> str:
    """Vision, text, tabular, long tail or binary."""
    return BINARY if row["k"] == 2 else KINDS.get(row["folder"], str(row["folder"]))


def size_of(row: Row) -> str:
    """The range of the number of samples to fit on."""
    low, high = next((low, high) for low, high in pairwise(SIZES) if low <= row["n_fit"] < high)
    return f"from {low:,}" if high == SIZES[-1] else f"{low:,} to {high - 1:,}" if low else f"under {high:,}"


def family_of(row: Row) -> str:
    """What a set has in common with others whose models predict the same samples."""
    if row["folder"] in ONE_FAMILY:
        return str(row["folder"])
    first = str(row["set"]).split("_")[0]
    return SAME_SAMPLES.get(first, first)


def finished(rows: list[Row]) -> list[Row]:
    """The lines of the sets that every method in the file was run on, fitted on all samples."""
    whole = [row for row in rows if not row["samples"]]
    lines = Counter((row["folder"], row["set"]) for row in whole)
    every = len({row["method"] for row in whole})
    return [row for row in whole if lines[row["folder"], row["set"]] == every]


def standings_of(rows: list[Row]) -> tuple[Standing, ...]:
    """Where methods stand on the sets of these lines; families of sets are resampled as a whole."""
    sets: dict[str, dict[str, dict[str, float]]] = {}
    families = {}
    for row in rows:
        name = f"{row['folder']}/{row['set']}"
        measured, families[name] = sets.setdefault(name, {}), family_of(row)
        if "failure" not in row:
            measured[row["method"]] = {metric: row[metric] for metric in MEASURED}
    return standings(sets, families=families)


def markdown(rows: list[Row], by: str = "") -> str:
    """Every method over all sets, or its wins and harm by kind of data or by number of samples."""
    begun, rows = rows, finished(rows)
    if by:
        return _parts(rows, {"kinds": kind_of, "samples": size_of}[by])
    found = standings_of(rows)
    accuracy = next(standing.means["accuracy"] for standing in found if standing.method == BASELINE)
    n_sets, n_begun = (len({(row["folder"], row["set"]) for row in each}) for each in (rows, begun))
    missing = f" {plural(n_begun - n_sets, 'other set')} not finished yet." if n_begun > n_sets else ""
    measured = ["NLL", "Brier", "ECE", "classwise ECE", "accuracy", "CPU seconds"]
    lines = []
    for standing in found:
        mean = standing.means
        cells = [
            standing.method,
            f"{standing.rank.value:.1f}",
            _with_bounds(standing.wins),
            _with_bounds(standing.harm),
        ]
        if standing.failures:
            cells += [f"failed on {plural(standing.failures, 'set')}", *["–"] * 5]
        else:
            cells += [f"{mean['nll']:.4f}", f"{mean['brier']:.4f}"]
            cells += [f"{100 * mean[name]:.2f} %" for name in ("ece", "classwise-ece")]
            cells += [_points(mean["accuracy"] - accuracy), f"{mean['seconds']:.2f}"]
        lines.append(cells)
    said = f"{n_sets} sets, {len(found)} methods.{missing}"
    return f"{said}\n\n{table(['method', 'mean rank', 'wins', 'harm', *measured], lines)}"


def _with_bounds(found: Interval) -> str:
    value = f"{100 * found.value:.0f} %"
    return value if math.isnan(found.low) else f"{value} ({100 * found.low:.0f} … {100 * found.high:.0f})"


def _points(change: float) -> str:
    text = f"{100 * change:+.2f}"
    return text.replace("-", "−") if float(text) else "0.00"


def _parts(rows: list[Row], part_of: Any) -> str:
    """Wins and harm of each method in each part of the sets, methods in the order of all sets together."""
    parts: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["n_fit"]):
        parts.setdefault(part_of(row), []).append(row)
    found = {name: {each.method: each for each in standings_of(mine)} for name, mine in parts.items()}
    counts = {name: len({(row["folder"], row["set"]) for row in mine}) for name, mine in parts.items()}
    heads = [f"{name} ({plural(n, 'set')})" for name, n in counts.items()]
    lines = []
    for standing in standings_of(rows):
        mine = (each.get(standing.method) for each in found.values())
        cells = [f"{100 * each.wins.value:.0f} %, {100 * each.harm.value:.0f} %" if each else "–" for each in mine]
        lines.append([standing.method, *cells])
    return table(["method", *heads], lines)


def headline(rows: list[Row]) -> str:
    """What the leaderboard says of `auto` beside the methods that people use most, as a point of a list."""
    whole = finished(rows)
    found = {standing.method: standing for standing in standings_of(whole)}
    n_sets = len({(row["folder"], row["set"]) for row in whole})

    def rank(method: str) -> str:
        return f"{found[method].rank.value:.1f}"

    def harm(method: str) -> str:
        return f"{100 * found[method].harm.value:.0f} %"

    peer, isotonic = "probmetrics-sms", "scikit-learn-isotonic"
    text = (
        f"**It chooses for you, and rarely does harm.** On {n_sets} sets of real predictions, `auto` has a mean rank "
        f"of {rank('auto')} among {len(found)} methods and makes {harm('auto')} of the sets worse. The best method of "
        f"another library (probmetrics' structured matrix scaling) ranks {rank(peer)} and harms {harm(peer)}, "
        f"temperature scaling {rank('temperature')} and {harm('temperature')}, scikit-learn's isotonic calibration, "
        f"which fails on {found[isotonic].failures} sets, {rank(isotonic)} and {harm(isotonic)} "
        "([leaderboard](docs/leaderboard.md)). `auto` also predicts the risk of harm, and [that prediction was "
        "tested](docs/results.md#how-often-calibrating-does-harm)."
    )
    return point(text)


def harm_markdown(rows: list[Row]) -> str:
    """How often each method does harm, and by how much at most; the 34 sets that `auto` was developed on apart."""
    groups: dict[str, list[Row]] = {"other": [], "developed on": []}
    for row in finished(rows):
        groups["developed on" if row["folder"] in DEVELOPED_ON else "other"].append(row)
    measured = {name: _harm_by_method(mine) for name, mine in groups.items()}
    heads = [
        f"{head}, {plural(len({(row['folder'], row['set']) for row in mine}), 'set')}"
        for mine in groups.values()
        for head in ("harm", "most harm", "NLL")
    ]
    lines = []
    first = measured["other"]
    for method in sorted(first, key=lambda name: first[name][-1]):
        cells = [method]
        for found in measured.values():
            share, most, mean = found.get(method, (math.nan,) * 3)
            cells += [f"{100 * share:.1f} %", f"{most:.4f}", f"{mean:.4f}"]
        lines.append(cells)
    return table(["method", *heads], lines).replace("nan %", "–").replace("nan", "–")


def _harm_by_method(rows: list[Row]) -> dict[str, tuple[float, float, float]]:
    """The share of sets with a higher NLL than without calibration, the most it rose and its mean, of methods that
    could be fitted to every set.
    """
    before = {(row["folder"], row["set"]): row["nll"] for row in rows if row["method"] == BASELINE}
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "failure" not in row and row["method"] != BASELINE:
            found.setdefault(row["method"], []).append(row)
    rises = {
        method: [row["nll"] - before[row["folder"], row["set"]] for row in mine]
        for method, mine in found.items()
        if len(mine) == len(before)
    }
    return {
        method: (fmean(by > ROUNDING for by in mine), max(0.0, *mine), fmean(row["nll"] for row in found[method]))
        for method, mine in rises.items()
    }


def picture(rows: list[Row]) -> str:
    """Wins and harm of every method as an SVG file of its own."""
    return standalone(standings_chart(standings_of(finished(rows))))
