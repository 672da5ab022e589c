"""Measure rows block by block, wherever the blocks are, and combine the results."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from temperance.arrays import ArrayLike
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, plural
from temperance.jobs.evaluation import Evaluation, evaluation
from temperance.jobs.measuring import statistics_of
from temperance.jobs.statistics import Statistics, total
from temperance.metrics.gather import Parts, Request
from temperance.predictions import Predictions
from temperance.predictions.checks import Positive
from temperance.predictions.given import Set, as_predictions
from temperance.settings import ResamplesOrNone, Seed, of_kind

# The first rows of a block decide how its rows are assigned to parts.
LOOKED_AT = 1 << 10


def statistics(
    block: Set | ArrayLike | Mapping[str, Any],
    metrics: Sequence[str] = (),
    *,
    labels: ArrayLike | None = None,
    from_logits: bool = False,
    positive: Positive | None = None,
    ignore_index: int | None = None,
    weights: ArrayLike | None = None,
    columns: Mapping[str, str] | None = None,
    answers: bool = False,
    calibrator: Calibrator | None = None,
    n_bins: int = 15,
    intervals: bool = True,
    by_group: bool = False,
    seed: int = 0,
) -> Statistics:
    """What some rows add to an evaluation: a few numbers for each metric, which can be pickled and added.

    Pass each block of the data to this function, on any machine, and everything it returns to `combine`. A block is a
    table (of pandas, polars, Arrow or Hugging Face), a dictionary of arrays, a file, a `Predictions`, or probabilities
    (with `from_logits=True` logits) with `labels`.

    metrics    their names, "all" for every one; by default the headline ones. Those that sort the rows (AURC, adaptive
               and smooth ECE, KS, …) keep about nine bytes of each, the others nothing
    intervals  assign the rows to parts, so that `combine` can resample them; without it statistics are smaller

    The other settings are those of `evaluate`, and must be the same for all blocks.

    >>> blocks = [{"probs": [[0.9, 0.1], [0.8, 0.2]], "label": [0, 1]}, {"probs": [[0.3, 0.7]], "label": [1]}]
    >>> found = combine(statistics(block, ["accuracy"]) for block in blocks)
    >>> round(found.row("accuracy").value, 4)
    0.6667
    """
    of_kind("seed", seed, Seed)
    data = as_predictions(
        block,
        labels,
        from_logits=from_logits,
        positive=positive,
        ignore_index=ignore_index,
        columns=columns,
        weights=weights,
        answers=answers,
    )
    return statistics_of(
        data,
        metrics,
        calibrator=calibrator,
        n_bins=n_bins,
        intervals=intervals,
        by_group=by_group,
        of_block=True,
        seed=seed ^ _mark(data),
    )


def combine(
    several: Iterable[Statistics],
    *,
    source: str | None = None,
    bootstrap: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """The evaluation of all blocks together, from the `statistics` of each.

    Counts, and metrics that are ratios of counts, are those of `evaluate` on all rows to the last bit, and all other
    values to 1e-12, however the rows were split. Intervals come from the same resampling with other random numbers.
    Rows that tie are taken in the order of the blocks, as in a file.

    source     a name for the data in tables and reports
    bootstrap  resamples for the intervals; 0 for none
    """
    of_kind("bootstrap", bootstrap, ResamplesOrNone)
    of_kind("seed", seed, Seed)
    found = total(several)
    if source is None:
        source = next(iter(found.inputs)) if len(found.inputs) == 1 else plural(len(found.inputs), "file")
    if not found.measuring.intervals:
        bootstrap = 0
    return evaluation(found, source, bootstrap=bootstrap, level=level, seed=seed, measure=_not_measured)


def _not_measured(requests: Sequence[Request]) -> list[Parts]:
    names = ", ".join(metric.name for metric, _ in requests)
    raise InputError(f"this picture needs {names}, which the blocks were not measured for: add it to metrics")


def _mark(data: Predictions) -> int:
    """A number that differs from block to block, so that rows are assigned to parts differently in each."""
    data.need_labels()
    first = next(data.chunks(LOOKED_AT))
    return zlib.crc32(first.labels.cpu().numpy().tobytes(), zlib.crc32(first.scores.cpu().double().numpy().tobytes()))
