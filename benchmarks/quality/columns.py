"""Correct groups in several columns: python -m benchmarks.quality.columns --out benchmarks/results/columns.jsonl

The samples are drawn, so what each group needs is known: the groups of the columns differ, or their combinations do, or
both, or nothing does. What is measured is how far the calibrated probabilities of 20,000 new samples are from the true
ones (their Kullback-Leibler divergence), and whether a difference between groups was found. One JSON line for each
world, size of the fit part and method, with the mean over draws.
"""

import warnings
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.quality.table import Results, Row, arguments, table
from temperance.calibrators import Grouped, make_calibrator
from temperance.errors import TemperanceWarning
from temperance.jobs.measuring import statistics_of
from temperance.jobs.verdict import ERROR_RATE
from temperance.metrics.tally import Tally, significant
from temperance.predictions import Predictions

K = 4  # classes
NEW = 20_000
DRAWS = 20
SIZES = (8_000, 2_000, 500)
METHODS = ("one map", "combinations", "columns")
BASE = "vector"


class World(NamedTuple):
    """What differs: the standard deviation of slopes and shifts between the groups of columns, and combinations."""

    about: str
    sizes: tuple[int, ...]
    of_columns: tuple[float, float] = (0.0, 0.0)
    of_combinations: tuple[float, float] = (0.0, 0.0)
    same: float = 0.0  # the share of samples that have the same group in the second column as in the first


WORLDS = {
    "columns": World("two columns, each by itself", (5, 8), (0.3, 0.4)),
    "slightly": World("two columns, slightly", (5, 8), (0.1, 0.15)),
    "correlated": World("two columns, the same in 85 % of samples", (5, 8), (0.3, 0.4), same=0.85),
    "combinations": World("only their combinations", (5, 8), of_combinations=(0.3, 0.4)),
    "both": World("two columns and their combinations", (5, 8), (0.25, 0.3), (0.12, 0.15)),
    "many": World("ten columns of yes and no", (2,) * 10, (0.1, 0.15)),
    "nothing": World("nothing, two columns", (5, 8)),
    "nothing in many": World("nothing, ten columns", (2,) * 10),
}


class Samples(NamedTuple):
    logits: Tensor
    labels: Tensor
    columns: Tensor
    truth: Tensor  # log-probabilities


def draws(world: World, seed: int, *sizes: int) -> list[Samples]:
    """Samples of the world of this seed, of these numbers."""
    random = np.random.default_rng(seed)
    frequencies = [random.dirichlet(np.ones(n)) for n in world.sizes]
    if set(world.sizes) == {2}:
        frequencies = [np.array([1 - share, share]) for share in random.uniform(0.05, 0.5, len(world.sizes))]
    effects = [random.normal(size=(n, 1 + K)) for n in world.sizes]
    together = random.normal(size=(*world.sizes, 1 + K))
    found = []
    for n in sizes:
        columns = [random.choice(len(each), size=n, p=each) for each in frequencies]
        columns[1] = np.where(random.random(n) < world.same, columns[0], columns[1])
        own = sum(effect[column] for effect, column in zip(effects, columns, strict=True))
        scale = (np.array([one] + [other] * K) for one, other in (world.of_columns, world.of_combinations))
        of_columns, of_combinations = scale
        effect = torch.from_numpy(of_columns * own + of_combinations * together[tuple(columns)])
        logits = torch.from_numpy(2 * random.normal(size=(n, K)))
        truth = (logits.log_softmax(1) * (1 + effect[:, :1].clamp_min(-0.8)) + effect[:, 1:]).log_softmax(1)
        labels = (truth + torch.from_numpy(random.gumbel(size=(n, K)))).argmax(1)
        found.append(Samples(logits, labels, torch.from_numpy(np.stack(columns, 1)), truth))
    return found


def measured(method: str, fit: Samples, new: Samples) -> dict[str, float]:
    """How far a method is from the truth, how many groups are off, and whether it found groups to differ."""
    names, others = (each.columns.numpy().astype(str) for each in (fit, new))
    data = Predictions.of(new.logits, new.labels, from_logits=True, groups=others)
    if method == "combinations":
        joined = Predictions.of(fit.logits, groups=names, from_logits=True)
        names, others = np.asarray(joined.groups), np.asarray(data.groups)
    if method == "one map":
        probs, found = make_calibrator(BASE).fit(fit.logits, fit.labels).predict_proba(new.logits), False
    else:
        made = Grouped(base=BASE).fit(fit.logits, fit.labels, groups=names)
        probs, found = made.predict_proba(new.logits, groups=others), bool(made.slopes.any() or made.shifts.any())
    distance = float((new.truth.exp() * (new.truth - probs.log())).sum(1).mean())
    return {"distance": distance, "found": found, "off": _off(probs, new)}


def _off(probs: Tensor, new: Samples) -> int:
    """How many groups, of all columns, are over- or under-confident by more than chance."""
    tallies: list[Tally] = []
    for column in new.columns.T:
        data = Predictions.of(probs, new.labels, groups=column)
        found = statistics_of(data, ("nll",), intervals=False, by_group=True)
        tallies += [group.tally for group in found.groups.values() if group.tally is not None]
    beside = tallies[0]
    for each in tallies[1:]:
        beside = beside.beside(each)
    return int(significant(beside, ERROR_RATE).sum())


def markdown(rows: list[Row]) -> str:
    """The distance from the truth of each method in each world, and how often it found groups to differ."""
    lines = []
    for name, world in WORLDS.items():
        for size in SIZES:
            mine = {row["method"]: row for row in rows if (row["world"], row["size"]) == (name, size)}
            distances = [f"{1000 * mine[method]['distance']:.1f}" for method in METHODS]
            off = [f"{mine[method]['off']:.1f}" for method in METHODS]
            found = [f"{100 * mine[method]['found']:.0f} %" for method in METHODS[1:]]
            about = [world.about if size == SIZES[0] else "", f"{size:,}"]
            lines.append([*about, *distances, " · ".join(off), " · ".join(found)])
    return table(["what differs", "samples", *METHODS, "groups off", "found to differ"], lines)


def main() -> None:
    results = Results(arguments(__doc__, folders=False).parse_args().out)
    for name, world in WORLDS.items():
        for size in SIZES:
            runs = [{"world": name, "size": size, "method": method} for method in METHODS]
            if all(run in results for run in runs):
                continue
            found: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
            for seed in range(DRAWS):
                fit, new = draws(world, seed, size, NEW)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", TemperanceWarning)
                    for method in METHODS:
                        found[method].append(measured(method, fit, new))
            for run, mine in zip(runs, found.values(), strict=True):
                means = {key: round(fmean(each[key] for each in mine), 6) for key in mine[0]}
                results.add(run | means | {"draws": DRAWS})
    print(markdown(results.rows))


if __name__ == "__main__":
    main()
