"""Fit every calibrator, rank them honestly on other data, recommend one and say why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from temperance.arrays import log_probs
from temperance.calibrators import CALIBRATORS
from temperance.calibrators.base import Calibrator, make_calibrator
from temperance.errors import InputError, TemperanceError, at_least
from temperance.evaluate import Evaluation, Progress, evaluate, no_progress
from temperance.metrics import METRICS
from temperance.metrics.batch import batches
from temperance.metrics.significance import Difference, Draws, Interval, Request, combine, deal, resample
from temperance.predictions import Predictions, read_pair, read_predictions
from temperance.results import Provenance, Results, Row, shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

BASELINE = "identity"
MEASURED = ("nll", "ece", "accuracy", "brier", "classwise-ece")
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Method:
    """A calibrator by name, with settings: `vector`, or `temperature:objective=class-scaled`."""

    name: str
    settings: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Method:
        name, *pairs = text.strip().split(":")
        settings = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise InputError(f"a method's setting is written key=value; got {pair!r} in {text!r}")
            settings[key.strip().replace("-", "_")] = setting_value(value.strip())
        method = cls(name, settings)
        method.make()  # refuses an unknown name or setting
        return method

    def make(self) -> Calibrator:
        """A new calibrator, not fitted yet."""
        return make_calibrator(self.name, **self.settings)

    @property
    def label(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


def setting_value(text: str) -> bool | int | float | str | None:
    """A setting as written on the command line."""
    named = {"true": True, "false": False, "none": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
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

    def level_with_best(self, outcome: Outcome) -> bool:
        """Is its NLL not significantly above the lowest?"""
        best = self.ranked[0]
        return outcome is best or outcome.minus(best, "nll").p_value >= SIGNIFICANT

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

        title = f"{self.before.title}\n[not bold]{self.split}"
        table = Table(title=title, title_justify="left", title_style="bold")
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
                outcome.label,
                f"{m['nll'].value:.4f}",
                shown(m["ece"].value, percent=True),
                f"{shown(m['accuracy'].value, percent=True)}{moved}",
                *cost,
                self._remark(outcome),
                style="bold green" if outcome is self.recommended else "",
            )
        for outcome in self.outcomes:
            if outcome.failure:
                table.add_row(outcome.label, *["–"] * (5 if detailed else 3), outcome.failure, style="dim")
        yield table
        yield ""
        yield self.verdict

    def _remark(self, outcome: Outcome) -> str:
        if outcome is self.recommended:
            return "recommended"
        if outcome is self.baseline:
            return "no calibration"
        if self.level_with_best(outcome):
            return "level with the best"
        worse = outcome.minus(self.baseline, "nll")
        return "worse than none" if worse.value > 0 and worse.p_value < SIGNIFICANT else ""


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
    at_least("bootstrap", bootstrap, 2)
    fit_part, test_part, split = fit_and_test(fit, test, seed)
    chosen = [Method.parse(text) for text in methods] or [Method(name, {}) for name in CALIBRATORS.names]
    if BASELINE not in [method.name for method in chosen]:
        chosen.insert(0, Method(BASELINE, {}))
    work = Work(logits_of(fit_part), fit_part.labels, logits_of(test_part), test_part.labels, n_bins, bootstrap, seed)
    outcomes = []
    for done, outcome in enumerate(_run(work, chosen, jobs)):
        outcomes.append(outcome)
        progress(done + 1, len(chosen) + 2, outcome.label)
    outcomes.sort(key=lambda o: o.measured["nll"].value if o.measured else float("inf"))
    recommended = _recommended(outcomes)
    options: dict[str, Any] = {"n_bins": n_bins, "bootstrap": bootstrap, "seed": seed}
    progress(len(chosen) + 1, len(chosen) + 2, "measuring before and after")
    return Comparison(
        rows=tuple(row for outcome in outcomes for row in _rows(outcome, test_part)),
        provenance=Provenance.of(
            {fit_part.source: fit_part.fingerprint, test_part.source: test_part.fingerprint},
            {**options, "methods": [method.label for method in chosen], "n_fit": fit_part.n, "n_test": test_part.n},
            seed,
        ),
        outcomes=tuple(outcomes),
        recommended=recommended,
        before=evaluate(test_part, **options),
        after=evaluate(test_part, calibrator=recommended.fitted, **options),
        split=split,
    )


def fit_and_test(
    fit: Predictions | str | Path, test: Predictions | str | Path | None, seed: int
) -> tuple[Predictions, Predictions, str]:
    """The part to fit on, the part to measure on, and a sentence that says how they came about."""
    if test is not None:
        fit_part = fit if isinstance(fit, Predictions) else read_predictions(fit)
        test_part = test if isinstance(test, Predictions) else read_predictions(test)
        if fit_part.k != test_part.k:
            raise InputError(f"the two sets must have the same classes; got {fit_part.k} and {test_part.k}")
        return fit_part, test_part, f"fitted on {fit_part.n:,} samples, measured on {test_part.n:,} others"
    whole = fit if isinstance(fit, Predictions) else read_predictions(fit)
    if not isinstance(fit, Predictions) and whole.split is not None:
        val, test = read_pair(fit)
        return val, test, f"fitted on its {val.n:,} val samples, measured on its {test.n:,} test samples"
    first, second = whole.halves(seed)
    return first, second, f"split at random: fitted on {first.n:,} samples, measured on the other {second.n:,}"


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
        except TemperanceError as error:
            return Outcome(method, None, str(error), time.perf_counter() - start, {}, {})
        except (ArithmeticError, RuntimeError, ValueError) as error:
            failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
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
    if jobs == 1:
        yield from map(work.run, methods)
        return
    with ProcessPoolExecutor(min(jobs, len(methods)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(work.run, methods)


def _recommended(outcomes: Sequence[Outcome]) -> Outcome:
    """The lowest NLL among the methods that are not significantly worse than none in ECE or accuracy."""
    baseline = next(outcome for outcome in outcomes if outcome.method.name == BASELINE)
    for outcome in outcomes:
        if outcome is baseline:
            return baseline
        if outcome.failure:
            continue
        ece, accuracy = outcome.minus(baseline, "ece"), outcome.minus(baseline, "accuracy")
        if not (ece.value > 0 and ece.p_value < SIGNIFICANT) and not (
            accuracy.value < 0 and accuracy.p_value < SIGNIFICANT
        ):
            return outcome
    return baseline


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
    if best is none:
        return "Leave it as it is: no calibrator lowers the NLL without making something else significantly worse."
    nll, ece = best.minus(none, "nll"), best.minus(none, "ece")
    sure = "significantly" if nll.p_value < SIGNIFICANT else "though not significantly"
    text = [
        f"Use {best.label}: {sure} better than no calibration "
        f"(NLL {none.measured['nll'].value:.4f} → {best.measured['nll'].value:.4f}, "
        f"ECE {shown(none.measured['ece'].value, percent=True)} → {shown(best.measured['ece'].value, percent=True)})."
    ]
    accuracy = best.minus(none, "accuracy")
    if abs(accuracy.value) < 5e-5:
        text.append("Accuracy is unchanged.")
    else:
        text.append(f"Accuracy changes by {100 * accuracy.value:+.2f} points (p = {accuracy.p_value:.2g}).")
    level = [o for o in found.ranked if o is not best and found.level_with_best(o)]
    if level:
        simplest = min(level, key=lambda outcome: outcome.n_parameters)
        text.append(
            f"{len(level)} other{'s are' if len(level) > 1 else ' is'} not significantly different; "
            f"the simplest of them is {simplest.label}."
        )
    if ece.value > 0:
        text.append("Its ECE is higher, but not significantly.")
    return " ".join(text)
