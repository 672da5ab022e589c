"""Measure one set of predictions: every metric with its interval, and on demand the statistics that the report draws.

Only what was asked for is computed, in one pass over the data. Memory is at most three times what a chunk of the file
(16 MB) and the statistics take; `metrics.gather` says how large these can become.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from temperance.arrays import ArrayLike, checked_logits
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, at_least, plural, seed_number
from temperance.jobs.floor import Floored
from temperance.jobs.results import Provenance, Results, Row, shown
from temperance.jobs.verdict import verdict
from temperance.metrics import METRICS, Metric
from temperance.metrics.batch import Batch, batches
from temperance.metrics.bins import Bins, SparseBins
from temperance.metrics.gather import Gatherer, Parts, Request
from temperance.metrics.selective import Ranked, RiskCoverage
from temperance.metrics.significance import resample
from temperance.metrics.statistic import Statistic
from temperance.metrics.tally import Tally, tallied
from temperance.numerics import one_thread
from temperance.predictions import Predictions
from temperance.predictions.checks import Positive, Text
from temperance.predictions.given import as_predictions
from temperance.progress import Progress, no_progress

# Numbers that are read at a time.
CHUNK_VALUES = 1 << 19

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class Pictures:
    """The statistics behind the pictures: those that some metric needed anyway, and the others when they are wanted."""

    def __init__(self, data: Predictions, calibrator: Calibrator | None, n_bins: int) -> None:
        self._data, self._calibrator = data, calibrator
        options = {"n_bins": n_bins}
        self._requests: dict[str, Request] = {
            "ece": (METRICS["ece"], options),
            "classwise-ece": (METRICS["classwise-ece"], options),
            "aurc": (METRICS["aurc"], {}),
        }
        self._known: dict[str, Statistic] = {}

    def keep(self, requests: Sequence[Request], found: Sequence[Parts]) -> None:
        """Remember what was gathered for a metric, where a picture draws it."""
        for request, parts in zip(requests, found, strict=True):
            if self._requests.get(request[0].name) == request:
                self._known[request[0].name] = parts.whole

    def __getitem__(self, name: str) -> Statistic:
        """The statistic of a metric. Where it is not known yet, all that are missing are gathered in one pass."""
        missing = {key: request for key, request in self._requests.items() if key not in self._known}
        if name in missing:
            batches = checked_batches(self._data, calibrator=self._calibrator)
            with one_thread(where=self._calibrator is None):
                found = gathered(batches, self._data.n, list(missing.values()))
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
    _pictures: Pictures = field(compare=False)

    @cached_property
    def reliability(self) -> Bins:
        """Samples by confidence. (n_bins,)"""
        return self._pictures.bins("ece")

    @cached_property
    def classwise(self) -> Bins:
        """Samples by the probability of each class. (k, n_bins)"""
        return self._pictures.bins("classwise-ece")

    @cached_property
    def risk_coverage(self) -> RiskCoverage:
        """The error among the surest predictions, at every coverage."""
        return RiskCoverage.of(cast(Ranked, self._pictures["aurc"]))

    @property
    def title(self) -> str:
        """The file's name and size."""
        settings = self.provenance.settings
        return f"{Path(self.rows[0].source).name} · {plural(settings['n'], 'sample')} · {settings['k']} classes"

    @property
    def verdict(self) -> str:
        """One paragraph in plain words: over- or under-confident, where, and what to do."""
        return verdict(*self.tallies, self.class_names)

    def to_json(self, **extra: Any) -> str:
        return super().to_json(verdict=self.verdict, notes=self.notes, **extra)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        settings = self.provenance.settings
        grouped = any(row.group for row in self.rows)
        explained = options.max_width >= 110
        table = Table()
        if grouped:
            table.add_column("group", no_wrap=True)
        table.add_column("metric", no_wrap=True)
        table.add_column("value", justify="right", no_wrap=True)
        if settings["bootstrap"]:
            table.add_column(f"{settings['level']:.0%} interval", justify="right", style="dim", no_wrap=True)
        if explained:
            table.add_column("what it is", style="dim")
        for i, row in enumerate(self.rows):
            metric = METRICS[row.metric]
            low, high = (shown(bound, percent=metric.percent) for bound in (row.low, row.high))
            bounds = [f"{low} … {high}"] if settings["bootstrap"] else []
            last = i + 1 == len(self.rows) or self.rows[i + 1].group != row.group
            cells = [metric.title, shown(row.value, percent=metric.percent), *bounds, *[metric.summary] * explained]
            table.add_row(*([Text(row.group or "all")] if grouped else []), *cells, end_section=last)
        yield Text(self.title, style="bold")  # a table's own title would be broken to the width of the table
        yield table
        yield ""
        yield Text(self.verdict)
        for note in self.notes:
            yield Text(f"\n{note}")


def evaluate(
    predictions: Predictions | str | Path | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    ignore_index: int | None = None,
    columns: Mapping[str, str] | None = None,
    calibrator: Calibrator | None = None,
    metrics: Sequence[str] = (),
    n_bins: int = 15,
    bootstrap: int = 500,
    level: float = 0.95,
    by_group: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measure predictions: a file, a `Predictions`, or probabilities (with `from_logits=True` logits) and labels.

    positive    for a binary classifier: one column, the score of this label; usually positive=1
    normalise   take probabilities that were rounded: rows need not quite sum to 1
    columns     your own names of a file's columns, {"logits": "logit_*", "label": "y"}; see `read_predictions`
    metrics     their names, "all" for every one; by default the headline ones
    n_bins      for every metric that has bins
    bootstrap   resamples for the intervals; 0 for none
    by_group    measure each group of the predictions apart, too
    calibrator  measure what this fitted calibrator makes of the logits

    >>> found = evaluate([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]] * 40, [0, 1, 1] * 40)
    >>> round(found.row("accuracy").value, 4)
    0.6667
    """
    data = as_predictions(
        predictions,
        labels,
        from_logits=from_logits,
        positive=positive,
        normalise=normalise,
        ignore_index=ignore_index,
        columns=columns,
    )
    at_least("n_bins", n_bins, 1)
    at_least("bootstrap", bootstrap, 0)
    seed_number(seed)
    chosen: list[Request] = [(m, {"n_bins": n_bins} if "n_bins" in m.options else {}) for m in chosen_metrics(metrics)]
    sizes: dict[str | None, int] = {None: data.n}
    if by_group:
        sizes.update(group_sizes(data))

    method = calibrator.name if calibrator else "uncalibrated"
    settings_of_calibrator = {"calibrator": calibrator.get_params(deep=False)} if calibrator else {}
    rows: list[Row] = []
    pictures = Pictures(data, calibrator, n_bins)
    tallies: list[Tally] = []
    floored = Floored.of(data, calibrated=calibrator is not None)
    steps = len(sizes) * (len(chosen) + 1)
    for group, n in sizes.items():
        progress(len(rows), steps, f"reading {data.source}")
        found = data.locating(checked_batches(data, group=group, calibrator=calibrator))
        if group is None:
            found = tallied(floored.counted(found), tallies)
        generator = torch.Generator().manual_seed(seed) if bootstrap else None
        with one_thread(where=calibrator is None):  # a calibrator is left its threads
            dealt = gathered(found, n, chosen, generator)
        if group is None:
            pictures.keep(chosen, dealt)
        for (metric, options), parts in zip(chosen, dealt, strict=True):
            progress(len(rows) + 1, steps, metric.title)
            start = time.perf_counter()
            value, low, high = measured(metric, parts, options, bootstrap=bootstrap, level=level, seed=seed)
            row = Row(
                source=data.source,
                split=data.split or "",
                group=group_name(group),
                method=method,
                params={"metric": options, **settings_of_calibrator},
                metric=metric.name,
                value=value,
                low=low,
                high=high,
                n=n,
                seconds=time.perf_counter() - start,
            )
            rows.append(row)
    progress(steps, steps, "done")
    settings = {"n_bins": n_bins, "bootstrap": bootstrap, "level": level, "n": data.n, "k": data.k}
    nll = next((row.value for row in rows if row.metric == "nll"), None)
    return Evaluation(
        rows=tuple(rows),
        provenance=Provenance.of({data.source: data.fingerprint}, settings, seed),
        class_names=data.class_names or tuple(map(str, range(data.k))),
        tallies=(tallies[0], tallies[1]),
        notes=(floored.note(nll, data.n),) if floored.n and nll is not None else (),
        _pictures=pictures,
    )


def gathered(
    found: Iterable[Batch], n: int, requests: Sequence[Request], generator: torch.Generator | None = None
) -> list[Parts]:
    """For each metric the statistic of n rows, in one pass; with a generator, of parts that the rows are dealt to."""
    gatherer = Gatherer(requests, n, in_parts=generator is not None, generator=generator)
    for batch in found:
        gatherer.add(batch)
    return gatherer.results()


def group_name(group: str | None) -> str:
    """A group in a row: nothing for the whole, and something to read for a group whose name is empty."""
    return "" if group is None else group or "(no name)"


def group_sizes(data: Predictions) -> dict[str, int]:
    """How many samples each group has, groups in alphabetical order."""
    if not data.has_groups:
        raise InputError(f"{data.source} has no groups: store them under the name groups, one for each sample")
    found: Counter[str] = Counter()
    for chunk in data.chunks():
        found.update(cast(Text, chunk.groups).tolist())
    return dict(sorted(found.items()))


def chosen_metrics(names: Sequence[str]) -> list[Metric]:
    """The metrics of these names: the headline ones for none, every one for "all"."""
    if not names:
        return sorted((metric for metric in METRICS if metric.headline), key=lambda metric: metric.headline)
    return list(METRICS) if "all" in names else [METRICS[name] for name in names]


def measured(
    metric: Metric, parts: Parts, options: dict[str, Any], *, bootstrap: int, level: float, seed: int
) -> tuple[float, float, float]:
    """The value and its interval, NaN without one; the same whichever other metrics are measured."""
    with one_thread():
        value = metric.value(parts.whole, **options)
        if not bootstrap or not metric.interval:
            return value, math.nan, math.nan
        draws = resample(metric, parts, bootstrap, torch.Generator().manual_seed(seed), **options)
    found = draws.interval(value, metric.range, level)
    return value, found.low, found.high


def checked_batches(
    data: Predictions, *, group: str | None = None, calibrator: Calibrator | None = None
) -> Iterator[Batch]:
    """Predictions in checked blocks: those of one group, and as a calibrator makes them, if asked."""
    data.need_labels()
    first_row = 0
    for scores, labels, groups in data.hashed(data.chunks(max(1, CHUNK_VALUES // data.k))):
        size = len(labels)
        from_logits = data.from_logits
        if group is not None:
            mine = torch.from_numpy(cast(Text, groups) == group).to(labels.device)
            scores, labels = scores[mine], labels[mine]
        if calibrator is not None:
            logits = checked_logits(scores, from_logits=from_logits, first_row=first_row)
            scores, from_logits = calibrator.predict_proba(logits), False
        if len(labels):
            yield from batches(scores, labels, from_logits=from_logits, first_row=first_row)
        first_row += size
