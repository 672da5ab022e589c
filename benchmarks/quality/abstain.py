"""How often the promise of `abstain` is broken: python -m benchmarks.quality.abstain --out FILE

Confidences are drawn at random, and right or wrong answers from a probability that is known, so the true error above
every threshold is known: that of many confidences, each counted with its probability of being wrong. The promise is
broken in a draw if the threshold that is found has a true error that is not below the risk. That may happen in at most
5 % of draws.

calibrated      right as often as it says
over-confident  right less often than it says, the more so the surer it is
sure but wrong  right as often as it says, but nearly certain answers are often wrong
few levels      over-confident, with confidences in steps of 0.1
no use          the error is the risk at every confidence: any threshold breaks the promise

One JSON line for each population and number of samples; lines that are in the file already are not run again.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.quality.table import Results, Row, arguments, table
from temperance.jobs.thresholds import THRESHOLDS, counts, rule_for

SIZES = (200, 500, 1000, 5000)
DRAWS, ROWS = 2000, 2_000_000
RISK, ALLOWED = 0.1, 0.05

# name: the confidence that a uniform number becomes, and the probability that an answer of this confidence is right
Population = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def _sure(uniform: Tensor) -> Tensor:
    """Most confidences are high: the largest of five uniform numbers."""
    return uniform ** (1 / 5)


POPULATIONS: dict[str, Population] = {
    "calibrated": (_sure, lambda confidence: confidence),
    "over-confident": (_sure, lambda confidence: confidence**1.5),
    "sure but wrong": (_sure, lambda confidence: torch.where(confidence > 0.99, 0.85, confidence)),
    "few levels": (lambda uniform: (10 * _sure(uniform)).round() / 10, lambda confidence: confidence**1.5),
    "no use": (_sure, lambda confidence: torch.full_like(confidence, 1 - RISK)),
}


def drawn(name: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Confidences, and the probability that each answer is right."""
    confidence_of, right = POPULATIONS[name]
    confidence = confidence_of(torch.rand(n, generator=generator, dtype=torch.float64))
    return confidence, right(confidence)


def true_errors(name: str) -> Tensor:
    """The error above each threshold, of very many samples."""
    confidence, right = drawn(name, ROWS, torch.Generator().manual_seed(1))
    highest = torch.searchsorted(-THRESHOLDS, -confidence)
    wrong, kept = (
        torch.bincount(highest, each, minlength=len(THRESHOLDS)).cumsum(0)
        for each in (1 - right, torch.ones_like(right))
    )
    return wrong / kept


def broken(name: str, n: int, truth: Tensor) -> Row:
    """In how many draws a threshold is found, in how many of them it breaks the promise, and how much is used."""
    generator = torch.Generator().manual_seed(n)
    errors = dict(zip(THRESHOLDS.tolist(), truth.tolist(), strict=True))
    found = failed = 0
    used = 0.0
    for _ in range(DRAWS):
        confidence, right = drawn(name, n, generator)
        correct = torch.rand(n, generator=generator, dtype=torch.float64) < right
        rule = rule_for(counts(confidence, correct), RISK, ALLOWED)
        if rule.found:
            found += 1
            used += rule.coverage
            failed += errors[rule.threshold] >= RISK - 1e-9
    return {"draws": DRAWS, "found": found, "broken": failed, "used": round(used / found, 6) if found else None}


def run(out: Path, sizes: tuple[int, ...] = SIZES) -> None:
    """Measure what is not in the file yet."""
    results = Results(out)
    for name in POPULATIONS:
        todo = [n for n in sizes if {"population": name, "n": n} not in results]
        truth = true_errors(name) if todo else torch.empty(0)
        for n in todo:
            results.add({"population": name, "n": n, **broken(name, n, truth)})


def markdown(rows: list[Row]) -> str:
    """For each population and size, the share of draws that break the promise, and of those that find a threshold."""
    by_run = {(row["population"], row["n"]): row for row in rows}
    sizes = sorted({row["n"] for row in rows})
    lines = [
        [name, *(_cell(by_run[name, n]) for n in sizes)] for name in dict.fromkeys(row["population"] for row in rows)
    ]
    return table(["population", *(f"n = {n:,}" for n in sizes)], lines)


def _cell(row: Row) -> str:
    return f"{100 * row['broken'] / row['draws']:.1f} % ({100 * row['found'] / row['draws']:.1f} %)"


def main() -> None:
    parser = arguments(__doc__, folders=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run(args.out, tuple(args.sizes))


if __name__ == "__main__":
    main()
