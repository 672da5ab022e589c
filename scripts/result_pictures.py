"""Pictures of what benchmarks found, from the lines that they keep in benchmarks/results."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from family_pictures import INK, title
from temperance.report.figures import GUIDE, OVER, PLAIN, UNDER, new_figure

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


# ------------------------------------------------------------------------------------------------------------ pictures


def losses() -> Figure:
    """Every loss as trained and after temperature scaling, all its seeds, beside those of cross-entropy."""
    seeds = learnt("losses.jsonl")
    names = sorted(seeds, key=lambda name: fmean(row["as trained"]["ece"] for row in seeds[name]), reverse=True)
    figure = new_figure(8.6, 6.4)
    errors, scores = figure.subplots(1, 2, sharey=True)
    before, after = {"marker": "o", "ls": "", "ms": 6.5, "mew": 0}, {"marker": "o", "ls": "", "ms": 6.5, "mfc": "none"}
    for ax, metric, unit in ((errors, "ece", 100), (scores, "nll", 1)):
        for y, row in ((y, row) for y, name in enumerate(names) for row in seeds[name]):
            trained, scaled = (unit * row[state][metric] for state in ("as trained", "scaled"))
            ax.plot([trained, scaled], [y, y], color=GUIDE, lw=1, zorder=1)
            ax.plot(trained, y, color=OVER if row["as trained"]["confidence-gap"] > 0 else UNDER, **before)
            ax.plot(scaled, y, color=INK, zorder=3, **after)
        chance = [unit * row["scaled"][metric] for row in seeds["cross-entropy"]]
        ax.axvspan(min(chance), max(chance), color=PLAIN, alpha=0.5, lw=0, zorder=0)
        ax.grid(axis="y", color=GUIDE, lw=0.3, alpha=0.5)
        ax.tick_params(axis="y", length=0)
    errors.set_yticks(range(len(names)), map(label_of, names))
    for label, name in zip(errors.get_yticklabels(), names, strict=True):
        label.set(fontsize="small", fontweight="bold" if name == "cross-entropy" else "normal")
    errors.set(ylim=(-0.7, len(names) - 0.3), xlim=(0, None), xlabel="ECE in %")
    scores.set_xlabel("NLL")
    title(errors, "calibration error")
    title(scores, "how good the probabilities are")
    handles = [
        Line2D([], [], color=OVER, label="as trained, too sure", **before),
        Line2D([], [], color=UNDER, label="as trained, not sure enough", **before),
        Line2D([], [], color=INK, label="after temperature scaling", **after),
        Patch(color=PLAIN, alpha=0.5, lw=0, label="cross-entropy after it, three seeds"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4, fontsize="small", frameon=False)
    return figure


STUDIES: Mapping[str, Callable[[], Figure]] = {"results-losses": losses}


# --------------------------------------------------------------------------------------------------------------- parts


def learnt(name: str) -> dict[str, list[dict[str, Any]]]:
    """Runs by the recipe of all that got at least half of the test part right: those of each loss, with any seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in (json.loads(line) for line in (RESULTS / name).read_text().splitlines()):
        run = re.sub(r" seed=\d+", "", row["run"])
        usual = not any(change in run for change in ("lr=", "epochs=", "clip="))
        if "failure" not in row and usual and row["as trained"]["accuracy"] > 0.5:
            found.setdefault(run, []).append(row)
    return found


def label_of(run: str) -> str:
    """A run in short, without the numbers that it was trained with."""
    return re.sub(r":\w+=[\d.]+", "", run.removeprefix("cross-entropy mix=")).replace(":", ", ")
