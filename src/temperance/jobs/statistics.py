"""What an evaluation needs to know about some rows. It adds, so rows can be measured wherever they are.

Everything in it is a count, a sum or rows that are kept. Counts of several blocks add up exactly. Sums are float64, so
how the rows were split changes them only by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from temperance.errors import InputError
from temperance.jobs.floor import Floored
from temperance.jobs.labels import LabelCounts
from temperance.metrics import METRICS, Metric
from temperance.metrics.evidence import Evidence
from temperance.metrics.gather import KEPT_BYTES, ROW_BYTES, Parts, Request, statistic_key
from temperance.metrics.statistic import RankedSamples, Running, Samples, in_bytes
from temperance.metrics.tally import Tally
from temperance.predictions.rounding import half_unit
from temperance.registry import plain_name

# What a reader should know where rows are pixels.
OF_PIXELS = (
    "Every pixel counts as a sample. Pixels of one image are alike, so intervals are too narrow and tests too "
    "confident: trust only differences that show on several sets of images."
)

# Errors that are at least as large as the gap between mean confidence and accuracy, because their bins or kernels count
# every sample once. So the ends of their intervals are not below those of the gap's.
NOT_BELOW_GAP = frozenset(("ece", "rms-ce", "adaptive-ece", "ece-sweep", "conditional-ece", "smooth-ece", "ks"))


def not_below_gap(metric: Metric) -> bool:
    """Is the metric at least as large as the gap, with the settings that its name carries?"""
    every_sample = metric.chosen.get("rule", "sorted") == "sorted"  # other rules leave some samples out
    return every_sample and plain_name(metric.__name__) in NOT_BELOW_GAP


# Fingerprints of blocks from one source are added as 256-bit numbers.
FINGERPRINTS = 1 << 256


@dataclass(frozen=True)
class Measuring:
    """What is measured, and how. Blocks add only if these are equal."""

    metrics: tuple[str, ...]
    n_bins: int
    intervals: bool
    method: str
    params: dict[str, Any]  # of the calibrator
    k: int
    from_logits: bool
    class_names: tuple[str, ...] | None
    split: str | None
    decimals: int | None  # of rounded probabilities
    has_weights: bool
    left_out: tuple[str, ...]  # metrics that need whole weights
    calibrated_by: str | None  # before they were read
    row_name: str  # what a row is, in a sentence
    answers: bool  # a confidence in each answer, in place of classes
    multilabel: bool  # rows are the labels of samples
    by_group: bool

    @property
    def requests(self) -> list[Request]:
        """The metrics with their settings, followed by the gap where intervals need it."""
        found = [METRICS[name] for name in self.metrics]
        if self.intervals and any(map(not_below_gap, found)):
            found.append(METRICS["confidence-gap"])
        return [(metric, metric.binned(self.n_bins)) for metric in found]

    @property
    def made_by(self) -> str | None:
        """The calibrator whose probabilities are measured: applied here, or before the predictions were read."""
        return self.method if self.params else self.calibrated_by

    @property
    def rounding(self) -> float:
        """By how much each confidence may be off because it was rounded; those of a calibrator were not."""
        return 0.0 if self.decimals is None or self.params else half_unit(self.decimals)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about it."""
        why = "Weights that are not whole numbers do not give the number of samples, so these metrics are left out"
        left_out = f"{why}: {', '.join(self.left_out)}." if self.left_out else ""
        calibrated = f"These predictions were calibrated by {self.made_by}." if self.made_by else ""
        return tuple(filter(None, (calibrated, left_out, OF_PIXELS if self.row_name == "pixel" else "")))


@dataclass(frozen=True)
class Group:
    """The number of rows that count, their statistic for each metric, and a tally of them if they are a group.

    evidence  how many of the rows are right and wrong, or with weights how many these are worth
    """

    n: int
    parts: tuple[Parts, ...]
    evidence: Evidence
    tally: Tally | None = None


@dataclass(frozen=True)
class Statistics:
    """What `evaluate` needs to know about a block of rows. Statistics of several blocks add: a + b, or `combine`.

    groups   of all rows (None), and of each group if asked for
    tallies  by confidence and by predicted class, for the verdict
    inputs   where the rows came from, with their fingerprints
    """

    measuring: Measuring
    groups: dict[str | None, Group]
    tallies: tuple[Tally, Tally]
    floored: Floored
    labels: LabelCounts
    inputs: dict[str, str]
    label_tally: Tally | None = None  # of several labels, by label and score, for the verdict. (L, n_bins)
    n_samples: int = 0  # that the labels are of

    @property
    def n(self) -> int:
        """The number of rows; with weights, of those whose weight is above 0."""
        return self.groups[None].n

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, or of several labels; numbers where they have none."""
        known = self.measuring.class_names
        n = self.measuring.k if self.label_tally is None else len(self.label_tally.count)
        return known or tuple(map(str, range(n)))

    def __add__(self, other: Statistics) -> Statistics:
        return total([self, other])

    def __repr__(self) -> str:
        return f"Statistics({', '.join(self.measuring.metrics)} of {self.n:,} rows, {self.measuring.k} classes)"


def total(several: Iterable[Statistics]) -> Statistics:
    """The statistics of all blocks together. They are added up as they come, so that only a few are held at a time."""
    first: Statistics | None = None
    sums: dict[str | None, RunningGroup] = {}
    for each in several:
        if first is None:
            first = each
            keys = [statistic_key(*request) for request in first.measuring.requests]
            tallies, inputs, floored = each.tallies, dict(each.inputs), replace(each.floored)
            labels = each.labels
        else:
            _check_adds(first.measuring, each.measuring)
            tallies = (tallies[0] + each.tallies[0], tallies[1] + each.tallies[1])
            floored, labels = floored + each.floored, labels + each.labels
            for source, fingerprint in each.inputs.items():
                inputs[source] = _both(inputs[source], fingerprint) if source in inputs else fingerprint
        for name, group in each.groups.items():
            sums.setdefault(name, RunningGroup()).add(group, keys)
    if first is None:
        raise InputError("there are no statistics to combine")
    groups = {name: sums[name].group(keys, first.measuring) for name in sorted(sums, key=lambda name: name or "")}
    return Statistics(first.measuring, {None: groups.pop(None), **groups}, tallies, floored, labels, inputs)


class RunningGroup:
    """The statistics of one group of rows, added up as they come; metrics of the same statistic share it."""

    def __init__(self) -> None:
        self._n = 0
        self._tally: Tally | None = None
        self._evidence = Running()
        self._n_parts: dict[Any, int] = {}
        self._running: dict[Any, Running] = {}

    def add(self, group: Group, keys: list[Any]) -> None:
        """Add the statistics of more rows."""
        self._n += group.n
        self._evidence.add(group.evidence)
        self._tally = group.tally if self._tally is None or group.tally is None else self._tally + group.tally
        for key, parts in dict(zip(keys, group.parts, strict=True)).items():
            self._n_parts[key] = parts.n_parts
            self._running.setdefault(key, Running()).add(parts.stats)

    def group(self, keys: list[Any], measuring: Measuring) -> Group:
        """The statistics of everything so far."""
        found = {}
        for (metric, _), key in zip(measuring.requests, keys, strict=True):
            running = self._running[key]
            if isinstance(next(iter(running)), Samples) and running.nbytes > KEPT_BYTES + ROW_BYTES * self._n:
                raise InputError(
                    f"{metric.name} keeps its rows, which would take {in_bytes(running.nbytes)} for {self._n:,} rows; "
                    "leave it out, or measure fewer rows"
                )
            if key not in found:
                stats = running.total
                found[key] = Parts(stats.ordered if isinstance(stats, RankedSamples) else stats, self._n_parts[key])
        evidence = cast(Evidence, self._evidence.total)
        return Group(self._n, tuple(found[key] for key in keys), evidence, self._tally)


def _both(one: str, other: str) -> str:
    return f"{(int(one, 16) + int(other, 16)) % FINGERPRINTS:064x}"


def _check_adds(one: Measuring, other: Measuring) -> None:
    """Refuse to add statistics that were not measured in the same way."""
    words: dict[str, Callable[[Measuring], str]] = {
        "metrics": lambda each: f"metrics {', '.join(each.metrics)}",
        "n_bins": lambda each: f"n_bins {each.n_bins}",
        "intervals": lambda each: "parts for intervals" if each.intervals else "no parts for intervals",
        "method": lambda each: f"predictions of {each.method}",
        "params": lambda each: f"settings {each.params}",
        "k": lambda each: f"{each.k} classes",
        "from_logits": lambda each: "logits" if each.from_logits else "probabilities",
        "class_names": lambda each: f"the classes {', '.join(each.class_names or ('without names',))}",
        "split": lambda each: f"a {each.split} set" if each.split else "one set",
        "has_weights": lambda each: "weights" if each.has_weights else "no weights",
        "calibrated_by": lambda each: f"predictions calibrated by {each.calibrated_by or 'nothing'}",
        "row_name": lambda each: f"{each.row_name}s",
        "by_group": lambda each: "groups" if each.by_group else "no groups",
        "decimals": lambda each: "no rounding" if each.decimals is None else f"{each.decimals} decimals",
    }
    for name, says in words.items():
        if getattr(one, name) != getattr(other, name):
            raise InputError(
                f"statistics add only if they were measured in the same way; one has {says(one)}, another {says(other)}"
            )
