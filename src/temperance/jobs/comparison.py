"""Fit every calibrator, rank them honestly on other data, recommend one and say why."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from temperance.arrays import ArrayLike
from temperance.calibrators import CALIBRATORS
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, plural
from temperance.jobs import advice, comparison_notes
from temperance.jobs.application import keep_samples, warn_calibrated
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.jobs.labels import need_both_classes
from temperance.jobs.outcomes import BASELINE, SIGNIFICANT, Method, Outcome, Work
from temperance.jobs.results import Provenance, Results, Row, how_read, shown
from temperance.jobs.sides import counted, fit_and_test
from temperance.metrics.stats import NBins
from temperance.predictions import Predictions
from temperance.predictions.checks import Positive
from temperance.predictions.given import Set, as_sides
from temperance.predictions.rows import Chunk
from temperance.progress import Progress, listening, no_progress
from temperance.registry import as_names
from temperance.settings import MOST_RESAMPLES, Bounds, Count, Seed, of_kind
from temperance.showing import number_table, paragraphs

RunAll = Callable[[Work, Sequence[Method]], Iterator[Outcome]]

EnoughResamples = Annotated[int, Bounds(20, MOST_RESAMPLES)]  # with fewer no p-value can be below 0.05


@dataclass(frozen=True, repr=False)
class Comparison(Results):
    """Every method on the same test data, best first, and the one to use.

    fit, test   what the methods were fitted to, and what they were measured on
    split       how the two were chosen, in words
    left_out    methods that are slow with so many classes and were not named
    """

    outcomes: tuple[Outcome, ...]
    recommended: Outcome
    fit: Predictions
    test: Predictions
    split: str
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The test file's name and size."""
        rows = counted(self.test.n_counted, self.test.row_name, weights=self.test.has_weights)
        classes = "" if self.test.one_score else f" · {self.test.k:,} classes"
        classes = f" · {plural(len(self.test.label_names), 'label')}" if self.test.multilabel else classes
        return f"{Path(self.test.source).name} · {rows}{classes}"

    @property
    def baseline(self) -> Outcome:
        """No calibration."""
        return next(outcome for outcome in self.outcomes if outcome.method.name == BASELINE)

    @property
    def ranked(self) -> tuple[Outcome, ...]:
        """Those that could be fitted, lowest NLL first."""
        return tuple(outcome for outcome in self.outcomes if not outcome.failure)

    @property
    def recommends(self) -> bool:
        """Is a calibrator recommended, rather than none?"""
        return self.recommended is not self.baseline

    @property
    def any_fitted(self) -> bool:
        """Could any calibrator be fitted?"""
        return len(self.ranked) > 1

    @cached_property
    def chance(self) -> dict[str, float]:
        """The p-value of each method's gain over no calibration, corrected for the number of methods."""
        return advice.chance_of_gain(self.outcomes)

    @cached_property
    def chance_worse(self) -> dict[str, float]:
        """The p-value of each method being worse than no calibration, corrected likewise."""
        return advice.chance_of_loss(self.outcomes)

    def level_with_best(self, outcome: Outcome) -> bool:
        """Is its NLL not clearly above the lowest? That of no calibration is, if any method is significantly better."""
        is_worse = self.chance_worse.get(outcome.label, 1.0) < SIGNIFICANT
        is_improved = outcome is self.baseline and min(self.chance.values(), default=1.0) < SIGNIFICANT
        return not (is_worse or is_improved or advice.clearly_behind(outcome, self.ranked[0]))

    @property
    def tells_apart(self) -> bool:
        """Are there enough right and wrong predictions to say which methods are level with the best?"""
        return self.baseline.can_be_told_from(self.ranked[0])

    @cached_property
    def before(self) -> Evaluation:
        """The test part without calibration, measured when it is first asked for."""
        return self._evaluated(self.baseline)

    @cached_property
    def after(self) -> Evaluation:
        """The test part after the recommended method, measured when it is first asked for."""
        return self._evaluated(self.recommended)

    def _evaluated(self, outcome: Outcome) -> Evaluation:
        options = {name: self.provenance.settings[name] for name in ("n_bins", "bootstrap")}
        calibrator = None if outcome is self.baseline else outcome.fitted
        # To calibrate what is calibrated already was the caller's wish, and `compare` has warned.
        test = self.test if calibrator is None else replace(self.test, calibrated_by=None)
        found = evaluate(test, calibrator=calibrator, seed=self.provenance.seed, **options)
        # Numbers of the ranking are the same here, with their intervals.
        ranked = {name: each for name, each in outcome.measured.items() if name in outcome.draws}
        rows = (
            replace(row, value=each.value, low=each.low, high=each.high) if (each := ranked.get(row.metric)) else row
            for row in found.rows
        )
        return replace(found, rows=tuple(rows))

    def calibrator(self, *, refit: bool = False) -> Calibrator:
        """The recommended calibrator, or with `refit` a new one of its kind, fitted on both parts, as its `info` says.

        If none is recommended, it is `identity`, which leaves predictions as they are. The measurements are of the
        calibrator without `refit`; with it, no samples are left to measure on.
        """
        if not self.any_fitted or self.recommended.fitted is None:
            raise InputError("no calibrator could be fitted, so there is none to keep")
        found, parts = copy.deepcopy(self.recommended.fitted), [self.fit]
        if refit:
            parts = [self.fit, self.test]
            groups = [part.whole.group_columns if found.takes_groups else None for part in parts]
            both = Chunk.join(
                [Chunk(part.logits(), part.labels, own, part.weights) for part, own in zip(parts, groups, strict=True)]
            )
            found.fit(both.scores, both.labels, groups=both.group_columns, weights=both.weights)
        keep_samples(found, parts)
        found.class_names = self.fit.classes
        return found

    @cached_property
    def verdict(self) -> str:
        """What to use and why, in plain words."""
        return advice.verdict(self)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know: labels of one class or with a probability of zero, too few mistakes, pixels …"""
        return comparison_notes.notes(self)

    def remark(self, outcome: Outcome) -> str:
        """Where one method stands, in a few words."""
        return advice.remark(self, outcome)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Methods that could not be fitted, and why; those with the same reason are one entry."""
        return advice.by_reason({each.label: each.failure for each in self.outcomes if each.failure})

    def to_json(self, **extra: Any) -> str:
        failures = {outcome.label: outcome.failure for outcome in self.outcomes if outcome.failure}
        return super().to_json(
            verdict=self.verdict,
            notes=self.notes,
            recommended=self.recommended.label,
            split=self.split,
            p_values=self.chance,
            harm={outcome.label: outcome.harm for outcome in self.ranked if outcome is not self.baseline},
            failures=failures,
            **extra,
        )

    def _accuracy(self, outcome: Outcome) -> str:
        """The accuracy of a method, and its change in points if it shows."""
        value = outcome.measured["accuracy"].value
        change = value - self.baseline.measured["accuracy"].value
        moved = "" if outcome is self.baseline or abs(change) < 5e-5 else f" ({100 * change:+.2f})"
        return f"{shown(value, percent=True)}{moved}"

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        title = Text.assemble((self.title, "bold"), f"\n{self.split}")
        detailed = width >= 110
        cost = ("parameters", "seconds") if detailed else ()
        accuracy = () if self.test.multilabel else ("accuracy",)
        table = number_table("method", "NLL", "ECE", *accuracy, *cost, title=title)
        table.add_column("", style="dim")
        for outcome in self.ranked:
            m = outcome.measured
            costs = [f"{outcome.n_parameters:,}", f"{outcome.seconds:.2f}"] if detailed else []
            table.add_row(
                Text(outcome.label),
                f"{m['nll'].value:.4f}",
                shown(m["ece"].value, percent=True),
                *(self._accuracy(outcome) for _ in accuracy),
                *costs,
                self.remark(outcome),
                style="bold green" if outcome is self.recommended else "",
            )
        for label, failure in self.failures:
            table.add_row(Text(label), *["–"] * (2 + len(accuracy) + len(cost)), Text(failure), style="dim")
        yield table
        yield from paragraphs(self.verdict, *self.notes)


def compare(
    fit: Set | ArrayLike,
    labels: Set | ArrayLike | None = None,
    *,
    test: Set | tuple[ArrayLike, ...] | None = None,
    weights: ArrayLike | None = None,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    columns: Mapping[str, str] | None = None,
    ignore_index: int | None = None,
    answers: bool = False,
    multilabel: bool = False,
    by_group: bool = False,
    methods: Sequence[str] = (),
    n_bins: int = 15,
    bootstrap: int = 500,
    jobs: int = 1,
    seed: int = 0,
    run_all: RunAll | None = None,
    progress: Progress = no_progress,
) -> Comparison:
    """Fit calibrators on one set of predictions, measure them on another, and recommend one.

    A set is a file, a `Predictions`, or probabilities (with `from_logits=True` logits) and labels:

        compare("val.npz", "test.npz")                                  compare(val, test)
        compare(probs, labels, test=(test_probs, test_labels))          compare(probs, labels)

    Without a second set, a file with val and test parts is fitted on the first and measured on the second; any other
    set is halved at random. No method is ever measured on samples it was fitted on. Among the methods whose gain over
    no calibration is more than chance would give, however few the samples, and which make nothing worse, the one with
    the lowest NLL is recommended; if there is none, one that is more accurate at the price of a higher ECE, or no
    calibration. `verdict` says why, and how many samples would be needed to tell.

    weights   for arrays: how much each label counts; a test set has its weights as the third array
    methods   names, with settings as in `temperature:objective=class-scaled`; by default every one
    by_group  also fit `grouped`, whose correction differs between groups of samples; several labels are such groups
    jobs      methods fitted at the same time, each in a process of its own
    run_all   fits and measures the methods elsewhere; see `temperance.interop.ray`

    `positive`, `normalise`, `columns`, `ignore_index`, `answers` and `multilabel` are those of `evaluate`.
    """
    of_kind("jobs", jobs, Count)
    of_kind("bootstrap", bootstrap, EnoughResamples)
    of_kind("n_bins", n_bins, NBins)
    chosen = chosen_methods(methods, by_group=by_group)
    of_kind("seed", seed, Seed)
    how: dict[str, Any] = {
        "positive": positive,
        "normalise": normalise,
        "columns": columns,
        "ignore_index": ignore_index,
        "answers": answers,
        "multilabel": multilabel,
    }
    first, second = as_sides(fit, labels, test, weights=weights, from_logits=from_logits, **how)
    fit_part, test_part, split = fit_and_test(first, second, seed, **how)
    if fit_part.multilabel:
        chosen = chosen_methods(methods, by_group=True)
    for part in (fit_part, test_part):
        warn_calibrated(part)
        if by_group or any(each.kind.takes_groups for each in chosen):
            part.need_groups()
    need_both_classes(fit_part)
    slow = () if as_names(methods) else tuple(each.label for each in chosen if each.kind.most_classes < fit_part.k)
    chosen = [each for each in chosen if each.label not in slow]
    split += ", by their weights" * fit_part.has_weights
    settings = {"n_bins": n_bins, "bootstrap": bootstrap, "seed": seed}
    work = Work.of(fit_part, test_part, **settings)
    baseline = work.run(Method(BASELINE, {}))
    if baseline.failure:
        raise InputError(f"there is nothing to compare: {baseline.failure}")
    outcomes = [baseline]
    with listening(lambda _done, _steps, what: progress(len(outcomes) - 1, len(chosen), what)):
        for outcome in run_all(work, chosen) if run_all else work.run_all(chosen, jobs):
            outcomes.append(outcome)
            progress(len(outcomes) - 1, len(chosen), outcome.label)
    outcomes.sort(key=lambda o: o.measured["nll"].value if o.measured else math.inf)
    about = {"methods": [method.label for method in chosen], "n_fit": fit_part.n, "n_test": test_part.n}
    return Comparison(
        rows=tuple(row for outcome in outcomes for row in _rows(outcome, test_part)),
        provenance=Provenance.of(
            {f"fit: {fit_part.source}": fit_part.fingerprint, f"test: {test_part.source}": test_part.fingerprint},
            settings | about | how_read(test_part, test_part.calibrated_by),
            seed,
        ),
        outcomes=tuple(outcomes),
        recommended=advice.recommended(outcomes, baseline),
        fit=fit_part,
        test=test_part,
        split=split,
        left_out=slow,
    )


def chosen_methods(methods: Sequence[str], *, by_group: bool = False) -> list[Method]:
    """The methods to fit, without duplicates and without the baseline, which is always fitted.

    By default these are all, but those that tell groups of samples apart only if asked.
    """
    usual = [Method(each.name, {}) for each in CALIBRATORS if by_group or not each.takes_groups]
    named = [Method.parse(text) for text in as_names(methods)] or usual
    return list({method.label: method for method in named if method.name != BASELINE}.values())


def _rows(outcome: Outcome, test: Predictions) -> Iterator[Row]:
    for name, found in outcome.measured.items():
        yield Row(
            source=test.source,
            split=test.split or "",
            group="",
            method=outcome.label,
            params=outcome.fitted.get_params(deep=False) if outcome.fitted else {},
            metric=name,
            value=found.value,
            low=found.low,
            high=found.high,
            n=test.n,
            seconds=outcome.seconds,
        )
