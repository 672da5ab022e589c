"""How often an interval holds the true value: python -m benchmarks.quality.coverage --out FILE

Logits are drawn at random, and labels from probabilities that are known, so the true value of every metric is known: it
is that of many rows, each counted once for each label with the label's probability as its weight. There are two
intervals: the basic bootstrap for every metric, and the one that `evaluate` shows, if it shows one.

calibrated      labels as the model says: every error is 0
over-confident  the logits of the labels are those of the model divided by 1.5
slightly over   ... divided by 1.1
steep           over-confident where it is sure, under-confident where it is not

One JSON line for each case, number of samples and metric; lines that are in the file already are not run again.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from benchmarks.quality.table import Results, Row, arguments, point, table
from temperance.jobs.evaluation import evaluate
from temperance.metrics import METRICS
from temperance.metrics.batch import batches
from temperance.metrics.gather import Request
from temperance.metrics.significance import deal, resample

Truth = Callable[[Tensor], Tensor]

METRIC_NAMES = (
    "accuracy",
    "nll",
    "brier",
    "aurc",
    "ece",
    "adaptive-ece",
    "smooth-ece",
    "classwise-ece",
    "debiased-ece",
    "mce",
)
SIZES = (100, 300, 1000, 10_000)
DRAWS, RESAMPLES, ROWS = 100, 200, 200_000
LEVEL = 0.95
BINNED = {"debiased-ece": "ece"}  # what it estimates


def _tempered(temperature: float) -> Truth:
    return lambda logits: (logits / temperature).softmax(1)


def _steep(logits: Tensor) -> Tensor:
    sure = logits.softmax(1).amax(1, keepdim=True) > 0.7
    return torch.where(sure, (logits / 1.6).softmax(1), (logits * 1.6).softmax(1))


# name: classes, size of the logits, the true probabilities
CASES: dict[str, tuple[int, float, Truth]] = {
    "calibrated": (4, 1.0, _tempered(1)),
    "calibrated, sure": (10, 6.0, _tempered(1)),
    "slightly over": (10, 5.0, _tempered(1.1)),
    "over-confident": (4, 2.0, _tempered(1.5)),
    "steep": (4, 2.0, _steep),
}


def drawn(case: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The probabilities that the model says, and the true ones."""
    k, size, truth = CASES[case]
    logits = size * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits.softmax(1), truth(logits)


def true_values(case: str) -> dict[str, float]:
    """Each metric of very many rows, every label counted with its probability."""
    says, true = drawn(case, ROWS, torch.Generator().manual_seed(1))
    k = says.shape[1]
    weights = true.reshape(-1)
    some = weights > 1e-12
    rows, labels = says.repeat_interleave(k, 0)[some], torch.arange(k).repeat(ROWS)[some]
    found = {name: METRICS[BINNED.get(name, name)](rows, labels, weights=weights[some]) for name in METRIC_NAMES}
    return {name: 0.0 if value < 1e-4 else value for name, value in found.items()}  # what rounding leaves of 0


def covered(case: str, n: int, truth: dict[str, float]) -> list[Row]:
    """For each metric how often an interval holds its true value, how often there is one, and how wide it is."""
    held: dict[tuple[str, str], list[bool]] = defaultdict(list)
    widths: dict[tuple[str, str], list[float]] = defaultdict(list)
    generator = torch.Generator().manual_seed(n)
    for seed in range(DRAWS):
        says, true = drawn(case, n, generator)
        labels = torch.multinomial(true, 1, generator=generator).squeeze(1)
        requests: list[Request] = [(METRICS[name], {}) for name in METRIC_NAMES]
        parts = deal(batches(says, labels), n, requests, torch.Generator().manual_seed(seed))
        shown = evaluate(says, labels, metrics=METRIC_NAMES, bootstrap=RESAMPLES, level=LEVEL, seed=seed)
        for (metric, _), part, ours in zip(requests, parts, shown.rows, strict=True):
            draws = resample(metric, part, RESAMPLES, torch.Generator().manual_seed(seed))
            basic = draws.interval(metric.value(part.whole), metric.range, LEVEL)
            for rule, found in (("basic", basic), ("ours", ours)):
                if not math.isnan(found.low):
                    held[rule, metric.name].append(found.low <= truth[metric.name] <= found.high)
                    widths[rule, metric.name].append(found.high - found.low)
    return [
        {
            "rule": rule,
            "metric": name,
            "truth": round(truth[name], 6),
            "draws": DRAWS,
            "shown": len(held[rule, name]),
            "held": sum(held[rule, name]),
            "width": round(fmean(widths[rule, name]), 6) if widths[rule, name] else None,
        }
        for rule in ("basic", "ours")
        for name in METRIC_NAMES
    ]


def run(out: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """Measure what is not in the file yet."""
    results = Results(out)
    for case in CASES:
        todo = [n for n in sizes if {"case": case, "n": n} not in results]
        truth = true_values(case) if todo else {}
        for n in todo:
            for row in covered(case, n, truth):
                results.add({"case": case, "n": n, **row})


def markdown(rows: list[Row]) -> str:
    """How often the true value is held, for each metric and number of samples: of all cases, and of the worst."""
    found: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["rule"], row["metric"], row["n"]].append(row)
    lines = []
    for name in METRIC_NAMES:
        both = {"basic": "basic bootstrap", "ours": "as shown"}
        for rule in both if METRICS[name].interval != "mean" else ("ours",):  # of a mean they are the same
            lines.append([METRICS[name].title, both[rule], *(_cell(found[rule, name, n]) for n in SIZES)])
    return table(["metric", "interval", *(f"n = {n:,}" for n in SIZES)], lines)


def headline(rows: list[Row]) -> str:
    """What intervals of the ECE are worth, as a point of a list."""

    def held(rule: str) -> str:
        of_size = [[row for row in rows if (row["rule"], row["metric"], row["n"]) == (rule, "ece", n)] for n in SIZES]
        means = [fmean(_rates(some)) for some in of_size]
        return f"{100 * min(means):.0f} to {100 * max(means):.0f} %"

    text = (
        "**Honest error bars.** Metrics have intervals, comparisons a paired test. Where the true ECE is known, our "
        f"interval covers it in {held('ours')} of draws of {min(SIZES):,} to {max(SIZES):,} samples; the usual "
        f"bootstrap interval does in {held('basic')} ([how](docs/metrics.md#how-far-to-trust-it))."
    )
    return point(text)


def _cell(rows: list[Row]) -> str:
    rates = _rates(rows)
    return f"{100 * fmean(rates):.0f} % ({100 * min(rates):.0f} %)" if rates else "none"


def _rates(rows: list[Row]) -> list[float]:
    """For each case in which most draws have an interval, how often it holds the true value."""
    return [row["held"] / row["shown"] for row in rows if 2 * row["shown"] > row["draws"]]


def main() -> None:
    parser = arguments(__doc__, folders=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run(args.out, tuple(args.sizes))


if __name__ == "__main__":
    main()
