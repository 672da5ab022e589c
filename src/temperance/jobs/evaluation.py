"""Measure one set of predictions: the metrics with intervals, and on demand the statistics that the report draws.

Only what was asked for is computed, in one pass over the data. Memory is at most three times what a chunk of the file
and the statistics take; `metrics.gather` says how large these can become.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from temperance.arrays import ArrayLike
from temperance.calibrators.base import Calibrator, make_calibrator
from temperance.errors import plural
from temperance.jobs.application import fitted_on_these
from temperance.jobs.gap import calibration_gap, gap_sentence
from temperance.jobs.label_verdict import verdict_of_labels
from temperance.jobs.macro import MEAN_OF_LABELS, SUMMARIES, TITLES, mean_over_labels
from temperance.jobs.measuring import checked_batches, statistics_of
from temperance.jobs.notes import group_name, notes
from temperance.jobs.results import Provenance, Results, Row, how_read, shown, shown_range
from temperance.jobs.sides import counted
from temperance.jobs.spending import capital
from temperance.jobs.statistics import Measuring, Statistics, not_below_gap
from temperance.jobs.verdict import verdict
from temperance.metrics import METRICS, Metric
from temperance.metrics.bins import Bins, SparseBins
from temperance.metrics.gather import Gatherer, Parts, Request
from temperance.metrics.selective import Ranked, RiskCoverage
from temperance.metrics.significance import FEWEST_RESAMPLES, bounded, can_be_bounded, resample
from temperance.metrics.statistic import Statistic
from temperance.metrics.tally import Tally
from temperance.predictions import Predictions
from temperance.predictions.checks import Positive
from temperance.predictions.given import Set, as_predictions
from temperance.progress import Progress, no_progress
from temperance.settings import OpenFraction, ResamplesOrNone, of_kind
from temperance.showing import paragraphs
from temperance.threads import one_thread

# The verdict on samples that have weights.
WITH_WEIGHTS = "The samples have weights. There is no verdict, because its tests are for samples that count equally"

# With more than a hundred groups, each has fewer resamples: an interval takes their time for every metric and group.
MOST_DRAWS = 50_000

Measure = Callable[[Sequence[Request]], list[Parts]]


class Pictures:
    """The statistics behind the pictures: those that a metric needed anyway, and the others on demand."""

    def __init__(self, measure: Measure, n_bins: int) -> None:
        self._measure = measure
        options = {"n_bins": n_bins}
        self._requests: dict[str, Request] = {
            "ece": (METRICS["ece"], options),
            "classwise-ece": (METRICS["classwise-ece"], options),
            "aurc": (METRICS["aurc"], {}),
        }
        self._known: dict[str, Statistic] = {}

    def keep(self, requests: Sequence[Request], found: Sequence[Parts]) -> None:
        """Remember the statistics of metrics that a picture draws."""
        for request, parts in zip(requests, found, strict=True):
            if self._requests.get(request[0].name) == request:
                self._known[request[0].name] = parts.whole

    def __getitem__(self, name: str) -> Statistic:
        """The statistic of a metric. If it is not known yet, all missing ones are gathered in one pass."""
        missing = {key: request for key, request in self._requests.items() if key not in self._known}
        if name in missing:
            found = self._measure(list(missing.values()))
            self._known |= {key: parts.stats for key, parts in zip(missing, found, strict=True)}
        return self._known[name]

    def bins(self, name: str) -> Bins:
        """The statistic of a binned metric with all its bins, empty ones too."""
        found = self[name]
        return found.dense() if isinstance(found, SparseBins) else cast(Bins, found)


@dataclass(frozen=True, repr=False)
class Evaluation(Results):
    """The metrics of one set of predictions, and on demand the statistics behind the pictures.

    `reliability`, `classwise` and `risk_coverage` are measured when they are first asked for, unless a metric needed
    them too.
    """

    class_names: tuple[str, ...]
    tallies: tuple[Tally, Tally]  # by confidence and by predicted class, for the verdict
    notes: tuple[str, ...]
    n_counted: int  # how many samples, pixels or answers were measured, however many labels a sample can have
    _measuring: Measuring = field(compare=False)
    _pictures: Pictures = field(compare=False)
    label_tally: Tally | None = None  # of several labels, by label and score. (L, n_bins)
    unrelated: bool = False  # the labels look wrong, as a note says

    @cached_property
    def reliability(self) -> Bins:
        """Samples by confidence. (n_bins,)"""
        return self._pictures.bins("ece")

    @cached_property
    def classwise(self) -> Bins:
        """Samples by the probability of each class, or of each of several labels. (k, n_bins)"""
        if self.label_tally is not None:
            return Bins(self.label_tally.count, self.label_tally.confidence, self.label_tally.hits)
        return self._pictures.bins("classwise-ece")

    @cached_property
    def risk_coverage(self) -> RiskCoverage:
        """The error among the most confident predictions, at every coverage."""
        return RiskCoverage.of(cast(Ranked, self._pictures["aurc"]))

    @property
    def title(self) -> str:
        """The file's name and size."""
        classes = "" if self.one_score else f" · {self._measuring.k:,} classes"
        return f"{Path(self.rows[0].source).name} · {self.counted}{classes}"

    @property
    def counted(self) -> str:
        """How many samples were measured, in words."""
        rows = counted(self.n_counted, self.row_name, weights=self._measuring.has_weights)
        return f"{rows} · {plural(len(self.class_names), 'label')}" if self.multilabel else rows

    @property
    def row_name(self) -> str:
        """What a row is: a sample, a pixel or an answer."""
        return self._measuring.row_name

    @property
    def answers(self) -> bool:
        """Are these a model's answers, each with one confidence, rather than the probabilities of classes?"""
        return self._measuring.answers

    @property
    def one_score(self) -> bool:
        """Does a row have one probability: that an answer is right, or that a label applies?"""
        return self.answers or self.multilabel

    @property
    def multilabel(self) -> bool:
        """Can a sample have several labels, each with a score of its own?"""
        return self.label_tally is not None

    def metric_title(self, name: str) -> str:
        """What a metric is called; some have another name where a label applies or does not."""
        return TITLES.get(name, METRICS[name].title) if self.multilabel else METRICS[name].title

    def metric_summary(self, name: str) -> str:
        """What a metric is, in a line."""
        return SUMMARIES.get(name, METRICS[name].summary) if self.multilabel else METRICS[name].summary

    @property
    def calibrated(self) -> bool:
        """Are these the predictions of a calibrator, rather than the model's own?"""
        return self._measuring.made_by is not None

    @property
    def verdict(self) -> str:
        """One paragraph in plain words: over- or under-confident, where, and what to do.

        Its tests are for samples that count equally, so with weights there is none.
        """
        if self._measuring.has_weights:
            has_intervals = any(not math.isnan(row.low) for row in self.rows)
            return f"{WITH_WEIGHTS}{'; the intervals are of the weighted samples' * has_intervals}."
        if self.label_tally is not None:
            how: dict[str, Any] = {"calibrated": self.calibrated, "rounding": self._measuring.rounding}
            return verdict_of_labels(self.label_tally, self.class_names, self.n_counted, **how)
        return verdict(
            *self.tallies,
            self.class_names,
            f"{self.row_name}s",
            calibrated=self.calibrated,
            unrelated=self.unrelated,
            rounding=self._measuring.rounding,
        )

    def to_json(self, **extra: Any) -> str:
        return super().to_json(verdict=self.verdict, notes=self.notes, **extra)

    def _counted_in(self, row: Row) -> str:
        """How many samples a row of the table is about; nothing for a mean over labels."""
        n = row.n if row.group else self.n_counted
        return "" if row.group == MEAN_OF_LABELS else f"{n:,}"

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        settings = self.provenance.settings
        grouped = any(row.group for row in self.rows)
        explained = width >= 110
        table = Table()
        if grouped:
            table.add_column("label" if self.multilabel else "group", no_wrap=True)
            table.add_column(f"{self.row_name}s", justify="right", no_wrap=True)
        table.add_column("metric", no_wrap=True)
        table.add_column("value", justify="right", no_wrap=True)
        if settings["bootstrap"]:
            table.add_column(f"{100 * settings['level']:g} % interval", justify="right", style="dim", no_wrap=True)
        if explained:
            table.add_column("what it is", style="dim")
        for i, row in enumerate(self.rows):
            metric = METRICS[row.metric]
            bounds = [shown_range(row.low, row.high, percent=metric.percent)] if settings["bootstrap"] else []
            first = not i or self.rows[i - 1].group != row.group
            last = i + 1 == len(self.rows) or self.rows[i + 1].group != row.group
            group = [Text(row.group or "all"), Text(self._counted_in(row) * first)] if grouped else []
            what = self.metric_summary(row.metric) if not row.group else ""  # once, not again for each group
            title, value = self.metric_title(row.metric), shown(row.value, percent=metric.percent)
            table.add_row(*group, title, value, *bounds, *[what] * explained, end_section=last)
        yield Text(self.title, style="bold")  # a table's own title would wrap at the table's width
        yield table
        yield from paragraphs(self.verdict, *self.notes)


def evaluate(
    predictions: Set | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    ignore_index: int | None = None,
    weights: ArrayLike | None = None,
    columns: Mapping[str, str] | None = None,
    answers: bool = False,
    multilabel: bool = False,
    calibrator: Calibrator | None = None,
    metrics: Sequence[str] = (),
    n_bins: int = 15,
    bootstrap: int = 500,
    level: float = 0.95,
    by_group: bool = False,
    gap: str | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measure predictions: a file, a `Predictions`, or probabilities (with `from_logits=True` logits) and labels.

    positive    for a binary classifier: one column, the score of this label; usually positive=1
    normalise   accept probabilities that were rounded: rows need not quite sum to 1
    weights     how much each label counts, for arrays; a file has them in a column of its own
    columns     your own names of a file's columns, {"logits": "logit_*", "label": "y"}; see `read_predictions`
    ignore_index  leave out rows with this label, such as unlabelled pixels
    answers     for a model that gives each answer a confidence: one column of these, and whether each answer is right
    multilabel  a sample can have several labels: a column for each, the probability that it applies, and labels of 0
                and 1. Measured over all labels of all samples, and as the mean over the labels
    metrics     their names, "all" for every one; by default the headline ones
    n_bins      for every metric that has bins
    bootstrap   resamples for the intervals; 0 for none
    by_group    also measure each group of the predictions separately; with several labels, each label
    gap         add a note about the calibration error without bins, by this method; see `calibration_gap`
    calibrator  measure the probabilities that this fitted calibrator makes

    >>> found = evaluate([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]] * 40, [0, 1, 1] * 40)
    >>> round(found.row("accuracy").value, 4)
    0.6667
    """
    if gap is not None:
        make_calibrator(gap)  # a wrong name is refused before anything is measured
    data = as_predictions(
        predictions,
        labels,
        from_logits=from_logits,
        positive=positive,
        normalise=normalise,
        ignore_index=ignore_index,
        columns=columns,
        weights=weights,
        answers=answers,
        multilabel=multilabel,
    )
    if gap is not None:
        data.need_one_label()
    of_kind("bootstrap", bootstrap, ResamplesOrNone)
    of_kind("level", level, OpenFraction)
    found = statistics_of(
        data,
        metrics,
        calibrator=calibrator,
        n_bins=n_bins,
        intervals=bootstrap > 0,
        by_group=by_group,
        seed=seed,
        progress=progress,
    )

    def measure(requests: Sequence[Request]) -> list[Parts]:
        gatherer = Gatherer(requests, data.n, in_parts=False)
        with one_thread(where=calibrator is None):
            for batch in checked_batches(data, calibrator=calibrator):
                gatherer.add(batch)
            return gatherer.results()

    evaluated = evaluation(
        found, data.source, bootstrap=bootstrap, level=level, seed=seed, measure=measure, progress=progress
    )
    more = []
    if known := fitted_on_these(calibrator, data):
        more.append(f"{capital(known)}, and looks better on them than on new ones. Measure it on others.")
    if gap is not None:
        more.append(_gap_note(data, calibrator, gap, level, seed))
    return replace(evaluated, notes=(*evaluated.notes, *more))


def evaluation(
    found: Statistics,
    source: str,
    *,
    bootstrap: int,
    level: float,
    seed: int,
    measure: Measure,
    progress: Progress = no_progress,
) -> Evaluation:
    """Values and intervals from statistics; `measure` gathers those of pictures that are not among them."""
    measuring, n = found.measuring, found.n
    requests = measuring.requests
    pictures = Pictures(measure, measuring.n_bins)
    pictures.keep(requests, found.groups[None].parts)
    rows: list[Row] = []
    steps = 2 * len(found.groups) * len(requests)
    shown_groups = {name: group for name, group in found.groups.items() if name is None or measuring.by_group}
    n_groups = len(shown_groups) - 1
    of_group = min(bootstrap, max(FEWEST_RESAMPLES, MOST_DRAWS // max(1, n_groups)))
    what = "labels" if measuring.multilabel else "groups"
    fewer = f"With {n_groups:,} {what}, the intervals of each rest on {of_group} resamples instead of {bootstrap:,}."
    for name, group in shown_groups.items():
        enough = group.evidence.enough
        resamples = (bootstrap if name is None else of_group) if enough else 0
        gap = None
        if len(requests) > len(measuring.metrics):
            (by, with_bins), gap_parts = requests[-1], group.parts[-1]
            gap = with_interval(by, gap_parts, with_bins, bootstrap=resamples, level=level, seed=seed)
        for (metric, options), parts in zip(requests[: len(measuring.metrics)], group.parts, strict=False):
            progress(steps // 2 + len(rows), steps, metric.title)
            start = time.perf_counter()
            value, low, high = with_interval(metric, parts, options, bootstrap=resamples, level=level, seed=seed)
            if gap is not None and not_below_gap(metric) and not math.isnan(low + gap[1]):
                low, high = min(max(low, gap[1], -gap[2]), value), max(high, gap[2], -gap[1])
            row = Row(
                source=source,
                split=measuring.split or "",
                group=group_name(name),
                method=measuring.method,
                params={"metric": metric.chosen | options, **measuring.params},
                metric=metric.name,
                value=value,
                low=low,
                high=high,
                n=group.n,
                seconds=time.perf_counter() - start,
            )
            rows.append(row)
        if name is None and measuring.multilabel:
            rows += _means_over_labels(found, rows, bootstrap=resamples, level=level, seed=seed)
    progress(steps, steps, "done")
    settings: dict[str, Any] = {
        "n_bins": measuring.n_bins,
        "bootstrap": bootstrap,
        "level": level,
        "n": n,
        "k": measuring.k,
    }
    settings |= how_read(measuring, measuring.made_by)
    settings |= {"samples": found.n_samples} if measuring.multilabel else {}
    names = found.names
    return Evaluation(
        rows=tuple(rows),
        provenance=Provenance.of(found.inputs, settings, seed),
        class_names=names,
        tallies=found.tallies,
        notes=(*notes(found, rows, names, intervals=bootstrap > 0), *[fewer] * (of_group < bootstrap)),
        n_counted=found.n_samples if measuring.multilabel else n,
        _measuring=measuring,
        _pictures=pictures,
        label_tally=found.label_tally,
        unrelated=bool(found.labels.notes(found.tallies[1], names, answers=measuring.answers)),
    )


def _means_over_labels(found: Statistics, rows: Sequence[Row], *, bootstrap: int, level: float, seed: int) -> list[Row]:
    """For each metric of all rows, its mean over the labels; n is the number of these."""
    means = []
    for i, row in enumerate(rows):
        start = time.perf_counter()
        value, low, high, n = mean_over_labels(found, i, bootstrap=bootstrap, level=level, seed=seed)
        seconds = time.perf_counter() - start
        means.append(replace(row, group=MEAN_OF_LABELS, value=value, low=low, high=high, n=n, seconds=seconds))
    return means


def _gap_note(data: Predictions, calibrator: Calibrator | None, method: str, level: float, seed: int) -> str:
    measured = data if calibrator is None else data.calibrated(calibrator.probs_of, by=calibrator.name)
    return gap_sentence(calibration_gap(measured, method=method, level=level, seed=seed))


def with_interval(
    metric: Metric, parts: Parts, options: dict[str, Any], *, bootstrap: int, level: float, seed: int
) -> tuple[float, float, float]:
    """The value and its interval, NaN if there is none; neither depends on which other metrics are measured."""
    with one_thread():
        value = metric.value(parts.whole, **options)
        if not bootstrap or not can_be_bounded(metric, parts):
            return value, math.nan, math.nan
        draws = resample(metric, parts, bootstrap, torch.Generator().manual_seed(seed), **options)
    found = bounded(metric, parts, value, draws, level)
    return value, found.low, found.high
