"""Fit every calibrator, rank them honestly on other data, recommend one and say why."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from temperance.arrays import log_probs
from temperance.calibrators import CALIBRATORS
from temperance.calibrators.base import Calibrator, make_calibrator
from temperance.errors import InputError, TemperanceError, at_least, seed_number
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.jobs.results import Provenance, Results, Row, shown
from temperance.metrics import METRICS
from temperance.metrics.batch import batches
from temperance.metrics.gather import Request
from temperance.metrics.significance import Difference, Draws, Interval, combine, deal, resample
from temperance.predictions import Predictions, read_pair, read_predictions
from temperance.progress import Progress, no_progress
from temperance.registry import parse_entry

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

BASELINE = "identity"
MEASURED = ("nll", "ece", "accuracy", "brier", "classwise-ece")
SIGNIFICANT = 0.05
FEWEST_RESAMPLES = 20  # with fewer no p-value can be below 0.05


@dataclass(frozen=True)
class Method:
    """A calibrator by name, with settings: `vector`, or `temperature:objective=class-scaled`."""

    name: str
    settings: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Method:
        method = cls(*parse_entry(text))
        method.make()  # refuses an unknown name or setting
        return method

    def make(self) -> Calibrator:
        """A new calibrator, not fitted yet."""
        return make_calibrator(self.name, **self.settings)

    @property
    def label(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one method: its measurements on the test part, or why there are none."""

    method: Method
    fitted: Calibrator | None
    failure: str
    seconds: float
    measured: dict[str, Interval]
    draws: dict[str, Draws]

    @property
    def label(self) -> str:
        return self.method.label

    @property
    def n_parameters(self) -> int:
        """How many numbers it learnt."""
        return self.fitted.n_parameters if self.fitted else 0

    def minus(self, other: Outcome, metric: str) -> Difference:
        """How much more of a metric this one has than another, on the same samples."""
        value = self.measured[metric].value - other.measured[metric].value
        return self.draws[metric].minus(other.draws[metric]).difference(value, 0.95)

    def differs(self, other: Outcome) -> bool:
        """Is its NLL significantly above or below another's?"""
        return self.minus(other, "nll").p_value < SIGNIFICANT

    def worse_than(self, other: Outcome) -> tuple[str, ...]:
        """In which of NLL, ECE and accuracy it is significantly worse than another."""
        found = []
        for name in ("nll", "ece", "accuracy"):
            by = self.minus(other, name)
            if by.p_value < SIGNIFICANT and (by.value > 0) == (METRICS[name].lower_is_better is not False):
                found.append(METRICS[name].title)
        return tuple(found)

    def improves_on(self, other: Outcome) -> bool:
        """Is its NLL significantly lower than another's, and nothing significantly worse?"""
        return METRICS["nll"].title in other.worse_than(self) and not self.worse_than(other)


@dataclass(frozen=True)
class Comparison(Results):
    """Every method on the same test data, best first, and the one to use."""

    outcomes: tuple[Outcome, ...]
    recommended: Outcome
    before: Evaluation
    after: Evaluation
    split: str

    @property
    def baseline(self) -> Outcome:
        """No calibration."""
        return next(outcome for outcome in self.outcomes if outcome.method.name == BASELINE)

    @property
    def ranked(self) -> tuple[Outcome, ...]:
        """Those that could be fitted, lowest NLL first."""
        return tuple(outcome for outcome in self.outcomes if not outcome.failure)

    @property
    def any_fitted(self) -> bool:
        """Is there a calibrator to choose, beside none at all?"""
        return len(self.ranked) > 1

    def level_with_best(self, outcome: Outcome) -> bool:
        """Is its NLL not significantly above the lowest?"""
        return not outcome.differs(self.ranked[0])

    @property
    def verdict(self) -> str:
        """What to use and why, in plain words."""
        return _verdict(self)

    def to_json(self, **extra: Any) -> str:
        failures = {outcome.label: outcome.failure for outcome in self.outcomes if outcome.failure}
        return super().to_json(
            verdict=self.verdict, recommended=self.recommended.label, split=self.split, failures=failures, **extra
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        title = Text.assemble((self.before.title, "bold"), f"\n{self.split}")
        table = Table(title=title, title_justify="left", title_style="")
        table.add_column("method", no_wrap=True)
        detailed = options.max_width >= 110
        for name in ("NLL", "ECE", "accuracy", *(("parameters", "seconds") if detailed else ())):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", style="dim")
        for outcome in self.ranked:
            m = outcome.measured
            change = m["accuracy"].value - self.baseline.measured["accuracy"].value
            moved = "" if outcome is self.baseline or abs(change) < 5e-5 else f" ({100 * change:+.2f})"
            cost = [f"{outcome.n_parameters:,}", f"{outcome.seconds:.2f}"] if detailed else []
            table.add_row(
                Text(outcome.label),
                f"{m['nll'].value:.4f}",
                shown(m["ece"].value, percent=True),
                f"{shown(m['accuracy'].value, percent=True)}{moved}",
                *cost,
                self.remark(outcome),
                style="bold green" if outcome is self.recommended else "",
            )
        for outcome in self.outcomes:
            if outcome.failure:
                table.add_row(Text(outcome.label), *["–"] * (5 if detailed else 3), Text(outcome.failure), style="dim")
        yield table
        yield ""
        yield Text(self.verdict)

    def remark(self, outcome: Outcome) -> str:
        """Where one method stands, in a few words."""
        worse = outcome.worse_than(self.baseline)
        remarks = {
            "recommended": outcome is self.recommended and self.any_fitted,
            "no calibration": outcome is self.baseline,
            "level with the best": outcome is not self.recommended and self.level_with_best(outcome),
            "worse than none" if "NLL" in worse else f"{' and '.join(worse)} worse than none": bool(worse),
        }
        return ", ".join(remark for remark, holds in remarks.items() if holds)


def compare(
    fit: Predictions | str | Path,
    test: Predictions | str | Path | None = None,
    *,
    methods: Sequence[str] = (),
    n_bins: int = 15,
    bootstrap: int = 500,
    jobs: int = 1,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Comparison:
    """Fit calibrators on one set of predictions, measure them on another, and recommend one.

    Without `test`, a file with val and test parts is fitted on the first and measured on the second; any other set is
    halved at random. Nothing is ever measured on what it was fitted on.

    methods   names, with settings as in `temperature:objective=class-scaled`; by default every one
    jobs      methods fitted at the same time, each in a process of its own
    """
    at_least("jobs", jobs, 1)
    at_least("bootstrap", bootstrap, FEWEST_RESAMPLES)
    chosen = _chosen(methods)
    seed_number(seed)
    fit_part, test_part, split = fit_and_test(fit, test, seed)
    work = Work(logits_of(fit_part), fit_part.labels, logits_of(test_part), test_part.labels, n_bins, bootstrap, seed)
    baseline = work.run(Method(BASELINE, {}))
    if baseline.failure:
        raise InputError(f"there is nothing to compare: {baseline.failure}")
    steps = len(chosen) + 2
    outcomes = [baseline]
    for outcome in _run(work, chosen, jobs):
        outcomes.append(outcome)
        progress(len(outcomes), steps, outcome.label)
    outcomes.sort(key=lambda o: o.measured["nll"].value if o.measured else float("inf"))
    recommended = next((o for o in outcomes if not o.failure and o.improves_on(baseline)), baseline)
    progress(steps - 1, steps, "measuring before and after")
    options: dict[str, Any] = {"n_bins": n_bins, "bootstrap": bootstrap, "seed": seed}
    # What was not calibrated goes the same way through a calibrator, so that before and after are measured alike.
    before, after = (evaluate(test_part, calibrator=o.fitted, **options) for o in (baseline, recommended))
    progress(steps, steps, "done")
    return Comparison(
        rows=tuple(row for outcome in outcomes for row in _rows(outcome, test_part)),
        provenance=Provenance.of(
            {f"fit: {fit_part.source}": fit_part.fingerprint, f"test: {test_part.source}": test_part.fingerprint},
            {**options, "methods": [method.label for method in chosen], "n_fit": fit_part.n, "n_test": test_part.n},
            seed,
        ),
        outcomes=tuple(outcomes),
        recommended=recommended,
        before=before,
        after=after,
        split=split,
    )


def _chosen(methods: Sequence[str]) -> list[Method]:
    """The methods to fit, each once; the baseline is always there and not among them."""
    named = [Method.parse(text) for text in methods] or [Method(name, {}) for name in CALIBRATORS.names]
    return list({method.label: method for method in named if method.name != BASELINE}.values())


def fit_and_test(
    fit: Predictions | str | Path, test: Predictions | str | Path | None, seed: int
) -> tuple[Predictions, Predictions, str]:
    """The part to fit on, the part to measure on, and a sentence that says how they came about."""
    if test is not None:
        fit_part = fit if isinstance(fit, Predictions) else read_for_fitting(fit)
        test_part = test if isinstance(test, Predictions) else read_predictions(test)
        _check_pair(fit_part, test_part)
        return fit_part, test_part, f"fitted on {fit_part.n:,} samples, measured on {test_part.n:,} others"
    whole = fit if isinstance(fit, Predictions) else read_predictions(fit)
    if not isinstance(fit, Predictions) and whole.split is not None:
        val, held_out = read_pair(fit)
        _check_pair(val, held_out)
        return val, held_out, f"fitted on its {val.n:,} val samples, measured on its {held_out.n:,} test samples"
    first, second = whole.halves(seed)
    return first, second, f"split at random: fitted on {first.n:,} samples, measured on the other {second.n:,}"


def read_for_fitting(path: str | Path) -> Predictions:
    """The predictions of a file, and of one that holds two sets those to fit on."""
    found = read_predictions(path)
    return found if found.split is None else read_predictions(path, "val")


def _check_pair(fit: Predictions, test: Predictions) -> None:
    if fit.k != test.k:
        raise InputError(f"the two sets must have the same classes; got {fit.k} and {test.k}")
    for j, (one, other) in enumerate(zip(fit.class_names or (), test.class_names or (), strict=False)):
        if one != other:
            raise InputError(
                f"the two sets must have the same classes; class {j} is {one!r} in one, {other!r} in the other"
            )
    if fit.fingerprint == test.fingerprint:
        raise InputError(
            "the two sets are the same; a calibrator must be measured on other samples than it was fitted on"
        )


def logits_of(predictions: Predictions) -> Tensor:
    """The logits, or log-probabilities where a file holds probabilities: to a calibrator they are the same."""
    return predictions.scores if predictions.from_logits else log_probs(predictions.scores)


@dataclass(frozen=True)
class Work:
    """What every method gets."""

    fit_logits: Tensor
    fit_labels: Tensor
    test_logits: Tensor
    test_labels: Tensor
    n_bins: int
    bootstrap: int
    seed: int

    def run(self, method: Method) -> Outcome:
        """Fit and measure one method. A failure is an outcome too."""
        start = time.perf_counter()
        try:
            found = method.make().fit(self.fit_logits, self.fit_labels)
            seconds = time.perf_counter() - start
            measured, draws = self._measure(found)
        except Exception as error:  # whatever it is, it must not cost the others
            said = " ".join(str(error).split())
            failure = said if isinstance(error, TemperanceError) else f"{type(error).__name__}: {said[:200]}"
            return Outcome(method, None, failure, time.perf_counter() - start, {}, {})
        return Outcome(method, found, "", seconds, measured, draws)

    def _measure(self, found: Calibrator) -> tuple[dict[str, Interval], dict[str, Draws]]:
        probs = found.predict_proba(self.test_logits)
        requests: list[Request] = [
            (METRICS[name], {"n_bins": self.n_bins} if "n_bins" in METRICS[name].options else {}) for name in MEASURED
        ]
        generator = torch.Generator().manual_seed(self.seed)
        dealt = deal(batches(probs, self.test_labels), len(self.test_labels), requests, generator)
        measured, draws = {}, {}
        for (metric, options), parts in zip(requests, dealt, strict=True):
            value = metric.value(combine(parts), **options)
            # The same seed for every method: the resamples are of the same rows, so that differences are paired.
            drawn = resample(metric, parts, self.bootstrap, torch.Generator().manual_seed(self.seed), **options)
            draws[metric.name] = drawn
            measured[metric.name] = drawn.interval(value, metric.range, 0.95)
        return measured, draws


def _run(work: Work, methods: Sequence[Method], jobs: int) -> Iterator[Outcome]:
    processes = min(jobs, len(methods))
    if processes < 2:
        yield from map(work.run, methods)
        return
    threads = max(1, torch.get_num_threads() // processes)
    try:
        with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
            # Tensors come back in shared memory, each with an open file: a copy lets go of them.
            yield from map(copy.deepcopy, pool.map(work.run, methods))
    except BrokenProcessPool as error:
        raise TemperanceError(
            "a process that fitted a method was ended from outside, as happens when memory runs out; try jobs=1"
        ) from error


def _rows(outcome: Outcome, test: Predictions) -> Iterator[Row]:
    for name, found in outcome.measured.items():
        yield Row(
            source=test.source,
            split=test.split or "",
            group="",
            method=outcome.label,
            params=outcome.fitted.get_params() if outcome.fitted else {},
            metric=name,
            value=found.value,
            low=found.low,
            high=found.high,
            n=test.n,
            seconds=outcome.seconds,
        )


def _verdict(found: Comparison) -> str:
    best, none = found.recommended, found.baseline
    if not found.any_fitted:
        return "Nothing to recommend: no calibrator could be fitted."
    lower = list(takewhile(lambda outcome: outcome is not best, found.ranked))
    if best is none:
        text = ["Leave it as it is: no calibrator is significantly better than none."]
        if not lower:
            text.append("None has a lower NLL on these samples.")
    else:
        text = [f"Use {best.label}: significantly better than no calibration.", _change(none, best)]
    text += _passed_over(lower, none)
    equals = [o for o in found.ranked if o is not best and o.improves_on(none) and not o.differs(best)]
    if equals:
        simplest = min(equals, key=lambda outcome: outcome.n_parameters)
        simpler = " (simpler)" if simplest.n_parameters < best.n_parameters else ""
        text.append(f"As good: {simplest.label}{simpler}{_and_others(len(equals) - 1)}.")
    return " ".join(text)


def _change(before: Outcome, after: Outcome) -> str:
    """NLL goes from 1.02 to 0.91, ECE from 8.66 % to 1.25 %, accuracy stays at 75.57 %."""
    names = ("nll", "ece", "accuracy")
    moves = {name: (before.measured[name].value, after.measured[name].value) for name in names}
    return told(moves, {name: after.minus(before, name) for name in names}) + "."


def told(moves: Mapping[str, tuple[float, float]], by: Mapping[str, Difference]) -> str:
    """How metrics moved from one value to another: accuracy goes from 96.11 % to 78.33 %, NLL from 0.1195 to 0.6068."""
    said: list[str] = []
    verb = "goes from"
    for name, values in moves.items():
        metric = METRICS[name]
        was, now = (shown(value, percent=metric.percent) for value in values)
        chance = " (which could be chance)" if by[name].p_value >= SIGNIFICANT else ""
        said.append(f"{metric.title} stays at {now}" if was == now else f"{metric.title} {verb} {was} to {now}{chance}")
        verb = "goes from" if was == now else "from"
    return ", ".join(said)


def _passed_over(lower: Sequence[Outcome], none: Outcome) -> list[str]:
    """Why methods with a lower NLL than the recommended one are not recommended."""
    text = []
    by_reason: dict[str, list[str]] = {}
    for outcome in lower:
        worse = outcome.worse_than(none)
        reason = f"but {' and '.join(worse)} significantly worse than none" if worse else "which could be chance"
        by_reason.setdefault(reason, []).append(outcome.label)
    for reason, (first, *others) in by_reason.items():
        text.append(f"{first}{_and_others(len(others))} {'have' if others else 'has'} a lower NLL, {reason}.")
    return text


def _and_others(count: int) -> str:
    return f" and {count} other{'s' * (count > 1)}" if count else ""
