"""One method in a comparison: it is fitted on some samples and measured on others."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR
from temperance.calibrators.base import CALIBRATORS, Calibrator, make_calibrator
from temperance.errors import TemperanceError, TemperanceWarning
from temperance.metrics import METRICS, Metric
from temperance.metrics.batch import Batch, batches
from temperance.metrics.evidence import Evidence
from temperance.metrics.gain import ROUNDING, Gains, chance_of_harm
from temperance.metrics.gather import Parts
from temperance.metrics.resamples import Resamples
from temperance.metrics.significance import Difference, Draws, Interval, bounded
from temperance.predictions import Predictions
from temperance.predictions.checks import Text
from temperance.registry import as_entry, parse_entry
from temperance.threads import one_thread

BASELINE = "identity"
MEASURED = ("nll", "ece", "accuracy", "brier", "classwise-ece")
HIGHER_ECE = "a higher ECE"
SIGNIFICANT = 0.05
LEVEL = 0.95

# Why a method can fail: too few samples, a number beyond float64, a singular matrix, too little memory.
SINGULAR = torch.linalg.LinAlgError  # type: ignore[attr-defined]
CANNOT_BE_FITTED = (TemperanceError, ArithmeticError, SINGULAR, MemoryError)


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

    @property
    def kind(self) -> type[Calibrator]:
        """Its class, which has its claims."""
        return CALIBRATORS[self.name]

    def make(self) -> Calibrator:
        """A new calibrator, not fitted yet."""
        return make_calibrator(self.name, **self.settings)

    @property
    def label(self) -> str:
        return as_entry(self.name, self.settings)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of one method: its measurements on the test part, or why there are none.

    measured   every metric; NLL, ECE and accuracy, which decide, with an interval. Several labels have no accuracy
    draws      these on resamples that all methods share
    gains      what each test sample gains over no calibration, times its weight where samples have weights
    harm       the probability that its NLL on other samples of the same kind is higher than without calibration
    mistakes   how many of its predictions are wrong
    evidence   how much its right and wrong predictions tell
    """

    method: Method
    fitted: Calibrator | None
    failure: str
    seconds: float
    measured: dict[str, Interval]
    draws: dict[str, Draws]
    gains: Gains | None
    harm: float
    mistakes: int
    evidence: Evidence

    @property
    def label(self) -> str:
        return self.method.label

    @property
    def n_parameters(self) -> int:
        """How many numbers it learnt."""
        return self.fitted.n_parameters if self.fitted else 0

    def minus(self, other: Outcome, metric: str) -> Difference:
        """The difference of a metric between this method and another, on the same samples.

        If the two cannot be told apart, whatever resampling finds could be chance: the p-value is 1, and there is no
        interval.
        """
        value = self.measured[metric].value - other.measured[metric].value
        found = self.draws[metric].minus(other.draws[metric]).difference(value, LEVEL)
        return found if self.can_be_told_from(other) else found.untested()

    def can_be_told_from(self, other: Outcome) -> bool:
        """Does either have enough mistakes, and enough right predictions? Resampling learns too little from few."""
        return self.evidence.enough_with(other.evidence)

    def same_as(self, other: Outcome) -> bool:
        """Are their numbers the same but for rounding?"""
        return all(abs(found.value - other.measured[name].value) < ROUNDING for name, found in self.measured.items())

    @property
    def n(self) -> int:
        """How many samples it was measured on."""
        return len(self.gains.values) if self.gains else 0

    def drawbacks(self, other: Outcome) -> tuple[str, ...]:
        """Its drawbacks against another, whatever its NLL: an ECE or an accuracy that is worse by more than noise."""
        found = []
        if self._rises("ece", other) > 0:
            found.append(HIGHER_ECE)
        if self._rises("accuracy", other) < 0:
            found.append("a lower accuracy")
        return tuple(found)

    def more_accurate(self, other: Outcome) -> bool:
        """Is its accuracy higher than another's by more than noise?"""
        return self._rises("accuracy", other) > 0

    def _rises(self, metric: str, other: Outcome) -> float:
        """How far a metric is above another's, or 0 where noise explains it or there is no such metric."""
        if metric not in self.measured:
            return 0.0
        by = self.minus(other, metric)
        return by.value if by.p_value < SIGNIFICANT else 0.0


@dataclass(frozen=True)
class Work:
    """The data and settings that every method gets."""

    fit_logits: Tensor
    fit_labels: Tensor
    test_logits: Tensor
    test_labels: Tensor
    n_bins: int
    bootstrap: int
    seed: int
    fit_weights: Tensor | None = None
    test_weights: Tensor | None = None
    test_probs: Tensor | None = None  # where the test part was given as probabilities
    one_score: bool = False
    test_samples: Tensor | None = None  # of several labels, the sample of each row
    fit_groups: Text | None = None
    test_groups: Text | None = None

    @classmethod
    def of(cls, fit: Predictions, test: Predictions, **settings: int) -> Work:
        """The work on these two sets; the settings are `n_bins`, `bootstrap` and `seed`."""
        return cls(
            fit_logits=fit.logits(),
            fit_labels=fit.labels,
            test_logits=test.logits(),
            test_labels=test.labels,
            fit_weights=fit.weights,
            test_weights=test.weights,
            test_probs=None if test.from_logits else test.scores,
            one_score=test.one_score,
            test_samples=test.samples_of_rows() if test.multilabel else None,
            fit_groups=fit.whole.group_columns,
            test_groups=test.whole.group_columns,
            **settings,
        )

    def run(self, method: Method) -> Outcome:
        """Fit and measure one method. One that cannot be fitted to these data is an outcome, too."""
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # The comparison itself shows whether a method can be trusted.
                warnings.simplefilter("ignore", TemperanceWarning)
                made = method.make()
                groups = self.fit_groups if made.takes_groups else None
                found = made.fit(self.fit_logits, self.fit_labels, groups=groups, weights=self.fit_weights)
            seconds = time.perf_counter() - start
            with one_thread():
                return Outcome(method, found, "", seconds, *self._measure(self._rows(found)))
        except CANNOT_BE_FITTED as error:
            failure = " ".join(str(error).split())
            if not isinstance(error, TemperanceError):
                failure = f"{type(error).__name__.lstrip('_')}: {failure[:200]}"
            seconds, nothing = time.perf_counter() - start, Evidence.counted(0, 0)
            return Outcome(method, None, failure, seconds, {}, {}, None, math.nan, 0, nothing)

    def run_all(self, methods: Sequence[Method], jobs: int) -> Iterator[Outcome]:
        """The outcomes in the order of the methods, `jobs` of which are fitted at a time."""
        processes = min(jobs, len(methods))
        if processes < 2:
            yield from map(self.run, methods)
            return
        threads = max(1, torch.get_num_threads() // processes)
        try:
            with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
                # Tensors come back in shared memory, each with an open file, which copying closes.
                yield from map(copy.deepcopy, pool.map(self.run, methods))
        except BrokenProcessPool as error:
            raise TemperanceError(
                "a process that was fitting a method was killed, as happens when memory runs out; try jobs=1",
                flags={"jobs=1": "--jobs 1"},
            ) from error

    def _rows(self, found: Calibrator) -> Iterator[Batch]:
        """The calibrated test part, always as probabilities, so that NLL has the same floor for all methods.

        Given probabilities are measured as they are: taking their logarithm and going back would move some of them over
        the edge of a bin.
        """
        given = self.test_probs if found.name == BASELINE else None
        probs = found.probs_of(self.test_logits, self.test_groups) if given is None else given
        return batches(probs, self.test_labels, weights=self._counts, one_score=self.one_score)

    def _measure(
        self, blocks: Iterable[Batch]
    ) -> tuple[dict[str, Interval], dict[str, Draws], Gains, float, int, Evidence]:
        """All metrics, in one pass over the test part; gains, the chance of harm, mistakes and evidence."""
        several = self.test_samples is not None
        metrics = [METRICS[name] for name in MEASURED]
        requests = {
            metric: metric.binned(self.n_bins)
            for metric in metrics
            if not (self.one_score and metric.of_classes) and not (several and metric.of_decisions)
        }
        totals: dict[Metric, Any] = {}
        columns: list[tuple[Tensor, ...]] = []
        gained = Gained()
        start = 0
        for block in blocks:
            for metric, options in requests.items():
                statistic = metric.stats_of([block], **options)
                totals[metric] = totals[metric] + statistic if metric in totals else statistic
            columns.append((block.nll, block.correct, block.confidence))
            gained.add(block, self._uncalibrated(slice(start, start + len(block))))
            start += len(block)
        nll, correct, confidence = (torch.cat(column).cpu() for column in zip(*columns, strict=True))
        draws = {
            "nll": self._resamples.means(nll),
            "ece": self._resamples.calibration_errors(confidence, correct, self.n_bins),
        }
        if not several:
            draws["accuracy"] = self._resamples.means(correct)
        evidence = Evidence.of(correct, self._counts)
        measured = {}
        for metric, options in requests.items():
            value = metric.value(totals[metric], **options)
            if metric.name in draws and evidence.enough:
                measured[metric.name] = bounded(metric, Parts(totals[metric], 0), value, draws[metric.name], LEVEL)
            else:
                measured[metric.name] = Interval(value, math.nan, math.nan, LEVEL)
        gains = gained.of_samples(self.test_samples)
        harm = chance_of_harm(gains.values, gained.if_right)
        # Of several labels, as many as if a sample had one.
        wrong = int((~correct).sum()) * gains.n // len(correct)
        evidence = evidence.mapped(lambda tensor: tensor * gains.n / len(correct))
        return measured, draws, gains, harm, wrong, evidence

    def _uncalibrated(self, rows: slice) -> Tensor:
        """Log-probabilities without calibration, with the floor that the NLL of probabilities has. (rows, k)"""
        return self.test_logits[rows].double().log_softmax(1).clamp_min(math.log(LOG_FLOOR))

    @cached_property
    def _resamples(self) -> Resamples:
        return Resamples.draw(len(self.test_labels), self.bootstrap, self.seed, self._counts, self.test_samples)

    @cached_property
    def _counts(self) -> Tensor | None:
        """The weights of the test samples, scaled to a mean of 1, so that gains are in nats."""
        return None if self.test_weights is None else self.test_weights / self.test_weights.mean()


class Gained:
    """Gathers what each row gains in NLL over no calibration, and what any label of it would gain.

    A weight multiplies what a sample gains or loses, but it is still one sample, so the test of the gains holds for
    any weights.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, ...]] = []
        self._n, self._if_right = 0, 0.0

    def add(self, block: Batch, before: Tensor) -> None:
        """Add rows, whose log-probabilities without calibration are `before` (rows, k)."""
        change = block.probs.clamp_min(LOG_FLOOR).log() - before
        if block.weights is not None:
            change = change * block.weights[:, None]
        self._rows.append((change.gather(1, block.labels[:, None]).squeeze(1), *change.aminmax(dim=1)))
        self._n += len(block)
        self._if_right += float((before.exp() * change).sum())

    @property
    def if_right(self) -> float:
        """The mean gain to expect if the probabilities without calibration are right."""
        return self._if_right / self._n

    def of_samples(self, sample: Tensor | None) -> Gains:
        """The gain of each sample; `sample` (n,) is that of each row, where samples have several labels.

        The labels of a sample go together, so what counts is the gain of a sample: the sum of its labels' gains, in
        units that leave the mean as it was.
        """
        gain, least, most = (torch.cat(column).cpu() for column in zip(*self._rows, strict=True))
        if sample is not None:
            sums = [torch.bincount(sample, values.double()) for values in (gain, least, most)]
            gain, least, most = (values * (len(values) / self._n) for values in sums)
        return Gains(gain, min(0.0, float(least.min())), max(0.0, float(most.max())))
