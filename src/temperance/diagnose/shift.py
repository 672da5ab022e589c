"""How calibration holds up under corruption: a network on corrupted versions of its test images."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from temperance.calibrators.base import Calibrator
from temperance.data import ImageBatch, Moves, Part
from temperance.data.corruptions import CORRUPTIONS, corrupt
from temperance.data.files import pillow
from temperance.errors import InputError, plural
from temperance.jobs.outcomes import SIGNIFICANT
from temperance.jobs.results import Provenance, Results, Row, shown
from temperance.metrics import METRICS, debiased_ece
from temperance.metrics.gain import holm
from temperance.metrics.significance import Difference, difference
from temperance.progress import Progress, no_progress
from temperance.registry import as_names
from temperance.settings import Count, Seed, of_kind
from temperance.showing import number_table, percent
from temperance.training.prediction import device_of, predict

if TYPE_CHECKING:
    from rich.table import Table

    from temperance.data.images import Device

MEASURED = ("ece", "accuracy", "nll")
MEAN = "mean"  # over the corruptions
BEFORE = "uncalibrated"

RESAMPLES = 500
FEWEST = 50  # images that a bootstrap test needs

# If every interval lies within this, the change is reported as smaller than this.
NOTICEABLE = 0.02


@dataclass(frozen=True, eq=False)
class Corrupted:
    """A part whose images are corrupted when they are read; nothing is stored.

    The random numbers depend only on the seed and the batches, so severities differ in nothing else.
    """

    part: Part
    name: str
    severity: int
    seed: int = 0

    @property
    def labels(self) -> Tensor:
        return self.part.labels

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.part.shape

    def __len__(self) -> int:
        return len(self.part)

    def to(self, device: Device) -> Corrupted:
        return replace(self, part=self.part.to(device))

    def take(self, index: Tensor) -> Corrupted:
        return replace(self, part=self.part.take(index))

    def batches(self, order: Tensor, size: int, *, device: Device, moves: Moves | None = None) -> Iterator[ImageBatch]:
        generator = torch.Generator().manual_seed(self.seed)
        for batch in self.part.batches(order, size, device=device, moves=moves):
            yield batch._replace(pixels=corrupt(batch.pixels, self.name, self.severity, generator=generator))


@dataclass(frozen=True, repr=False)
class Shift(Results):
    """ECE, accuracy and NLL for each corruption and severity, before and after calibration if there is a calibrator.

    The `group` of a row is the corruption and its severity, such as "fog:3"; "mean:3" is the mean over several
    corruptions, and an empty group is the clean images.
    """

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    methods: tuple[str, ...]
    changes: dict[str, Difference]  # of the debiased ECE by each corruption at the highest severity, see `verdict`

    @cached_property
    def _values(self) -> dict[tuple[str, str, str], float]:
        return {(row.metric, row.group, row.method): row.value for row in self.rows}

    def value(self, metric: str, corruption: str = MEAN, severity: int = 0, method: str | None = None) -> float:
        """A metric under one corruption or the mean over all, by default before calibration; severity 0 is clean."""
        if corruption == MEAN and len(self.corruptions) == 1:
            (corruption,) = self.corruptions
        group = f"{corruption}:{severity}" if severity else ""
        return self._values[metric, group, method or self.methods[0]]

    def values(self, metric: str, severity: int, method: str | None = None) -> list[float]:
        """A metric under each corruption at one severity."""
        return [self.value(metric, name, severity, method) for name in self.corruptions]

    def families(self) -> dict[str, list[str]]:
        """The corruptions by family."""
        found: dict[str, list[str]] = {}
        for name in self.corruptions:
            found.setdefault(CORRUPTIONS[name].family, []).append(name)
        return found

    def groups(self) -> dict[str, list[str]]:
        """The rows of a table: the corruptions by family, and the mean over several."""
        return self.families() | ({"all": [MEAN]} if len(self.corruptions) > 1 else {})

    @property
    def worst(self) -> str:
        """The corruption with the largest ECE at the highest severity, after calibration if there is a calibrator."""
        errors = self.values("ece", self.severities[-1], self.methods[-1])
        return self.corruptions[errors.index(max(errors))]

    @property
    def title(self) -> str:
        """What was corrupted, and in how many ways."""
        return " · ".join([self.provenance.settings["name"], *self.counts])

    @property
    def counts(self) -> list[str]:
        """How many images, corruptions and severities, in words."""
        steps = len(self.severities)
        severities = f"{steps} {'severities' if steps > 1 else 'severity'}"
        return [plural(self.provenance.settings["n"], "image"), plural(len(self.corruptions), "corruption"), severities]

    @property
    def verdict(self) -> str:
        """In plain words: does calibration hold up, where is it worst, and does the calibrator help?

        A change is judged at the highest severity, separately for each corruption, after calibration if there is any.
        The paired bootstrap test uses the debiased ECE, because sampling noise alone grows as accuracy falls.
        """
        last, strongest = self.methods[-1], self.severities[-1]
        accuracy, error = (
            [percent(self.value(metric, severity=s, method=last), 1) for s in (0, strongest)]
            for metric in ("accuracy", "ece")
        )
        several = len(self.corruptions) > 1
        first, then = ("stays at" if pair[0] == pair[1] else "goes from" for pair in (accuracy, error))
        found = (
            f"At severity {strongest} accuracy {first} {' to '.join(dict.fromkeys(accuracy))}"
            f"{' on average' if several else ''} and the expected calibration error "
            f"{'from' if first == then == 'goes from' else then} {' to '.join(dict.fromkeys(error))}"
        )
        if several:
            found += f"; it is largest under {self.worst}, {percent(self.value('ece', self.worst, strongest, last), 1)}"
        text = [self._change(), f"{found}."]
        if len(self.methods) > 1:
            before, after = (percent(self._over_all("ece", method), 1) for method in self.methods)
            text.append(f"Over all corruptions and severities {last} takes it from {before} to {after}.")
        return " ".join(text)

    def _change(self) -> str:
        """Does the calibration error grow or shrink by more than chance, and under how many of the corruptions?"""
        n, changes = self.rows[0].n, list(self.changes.values())
        p_values = holm([change.p_value for change in changes])
        sure = [p_value < SIGNIFICANT and n >= FEWEST for p_value in p_values]
        grows, shrinks = (
            sum(found and (change.value > 0) is up for found, change in zip(sure, changes, strict=True))
            for up in (True, False)
        )
        of = f"{len(changes)} corruptions"
        if grows and shrinks:
            return (
                f"The calibration error grows under {grows} of {of} and shrinks under {shrinks}, by more than chance."
            )
        if grows or shrinks:
            under = f"under {grows or shrinks} of {of}" if len(changes) > 1 else "when images get worse"
            return f"The calibration error {'grows' if grows else 'shrinks'} {under}, by more than chance."
        clean, worse = (self.value("ece", severity=s, method=self.methods[-1]) for s in (0, self.severities[-1]))
        spans = [end for change in changes for end in (change.low, change.high)]
        if n >= FEWEST and all(abs(by) < NOTICEABLE for by in (*spans, worse - clean)):
            return f"The calibration error changes by less than {100 * NOTICEABLE:.0f} points when images get worse."
        return f"{n:,} images are too few to tell whether the calibration error changes when images get worse."

    def _over_all(self, metric: str, method: str) -> float:
        return sum(self.value(metric, severity=s, method=method) for s in self.severities) / len(self.severities)

    def to_json(self, **extra: Any) -> str:
        return super().to_json(verdict=self.verdict, **extra)

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        yield Text(self.title, style="bold")
        for method in self.methods:
            yield self._table(method)
        yield ""
        yield Text(self.verdict)

    def _table(self, method: str) -> Table:
        """ECE of one method: a row for each corruption, a column for each severity."""
        table = number_table("corruption", "none", *map(str, self.severities), title=f"ECE, {method}")
        clean = shown(self.value("ece", method=method), percent=True)
        for names in self.groups().values():
            for name in names:
                cells = (shown(self.value("ece", name, s, method), percent=True) for s in self.severities)
                table.add_row(name, clean, *cells, end_section=name == names[-1], style="bold" if name == MEAN else "")
        return table


def under_shift(
    network: nn.Module,
    part: Part,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    corruptions: Sequence[str] = (),
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    seed: int = 0,
    calibrator: Calibrator | None = None,
    n_bins: int = 15,
    name: str = "network",
    progress: Progress = no_progress,
) -> Shift:
    """Measure a network on corrupted images: ECE, accuracy and NLL for each corruption and severity, and their means.

    part         of a data set, such as `data.test`; `mean` and `std` are those the network was trained with
    corruptions  names; by default the fifteen of the benchmark, except those that do not change greyscale images
    calibrator   fitted on predictions for clean images; results are with and without it
    name         the name of the network in the results

    Images are corrupted on the network's device as they are predicted, a thousand at a time.

    Hendrycks and Dietterich, Benchmarking neural network robustness to common corruptions and perturbations, ICLR 2019;
    Ovadia et al., Can you trust your model's uncertainty?, NeurIPS 2019.
    """
    of_kind("seed", seed, Seed)
    chosen = tuple(CORRUPTIONS[each].name for each in as_names(corruptions)) or usual_corruptions(part)
    if not severities or any(isinstance(s, bool) or not isinstance(s, int) or not 1 <= s <= 5 for s in severities):
        raise InputError(
            f"severities must be whole numbers from 1 to 5; got {', '.join(map(str, severities)) or 'none'}",
            flags={"severities": "--severities"},
        )
    levels = tuple(sorted(set(severities)))
    if "jpeg-compression" in chosen:
        pillow("jpeg-compression")  # fails now, not after the other corruptions
    device = device_of(network)
    there = part.to(device)
    truth = part.labels.to(device)
    methods = (BEFORE, *([calibrator.name] if calibrator else []))
    # A copy, because the caller's calibrator stays on its device.
    mapped = copy.deepcopy(calibrator).to(device) if calibrator else None
    rows: list[Row] = []

    def measure(images: Part, group: str, params: dict[str, Any]) -> Tensor:
        """Logits, or the probabilities of the calibrator if there is one."""
        start = time.perf_counter()
        logits = predict(network, images, mean=mean, std=std)
        for method in methods:
            as_logits = method == BEFORE
            given = logits if mapped is None or as_logits else mapped.predict_proba(logits)
            for metric in (METRICS[each] for each in MEASURED):
                value = metric(given, truth, from_logits=as_logits, **metric.binned(n_bins))
                seconds = time.perf_counter() - start
                rows.append(_row(name, group, method, params, metric.name, value, len(truth), seconds))
        return given

    steps = len(chosen) * len(levels) + 1
    progress(0, steps, "clean images")
    clean = measure(there, "", {"severity": 0})
    changes = {}
    for i, corruption in enumerate(chosen):
        for j, severity in enumerate(levels):
            progress(1 + i * len(levels) + j, steps, f"{corruption} {severity}")
            params = {"corruption": corruption, "severity": severity}
            given = measure(Corrupted(there, corruption, severity, seed), f"{corruption}:{severity}", params)
        changes[corruption] = difference(
            debiased_ece,
            given,
            clean,
            truth,
            from_logits=mapped is None,
            n_resamples=RESAMPLES,
            seed=seed,
            n_bins=n_bins,
        )
    if len(chosen) > 1:
        rows += _means(rows, levels, methods)
    progress(steps, steps, "done")
    settings = {
        "name": name,
        "n": len(truth),
        "n_bins": n_bins,
        "calibrator": calibrator.get_params(deep=False) if calibrator else None,
    }
    return Shift(tuple(rows), Provenance.of({}, settings, seed, str(device)), chosen, levels, methods, changes)


def some_of(part: Part, n: int, *, seed: int = 0) -> Part:
    """At most n samples of a part, drawn by the seed, in their original order."""
    of_kind("n", n, Count)
    chosen = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[:n]
    return part if n >= len(part) else part.take(chosen.sort().values)


def usual_corruptions(part: Part) -> tuple[str, ...]:
    """The fifteen of the benchmark, except those that do not change greyscale images."""
    grey = part.shape[2] == 1
    return tuple(entry.name for entry in CORRUPTIONS if entry.in_benchmark and not (entry.needs_colour and grey))


def _row(
    source: str, group: str, method: str, params: dict[str, Any], metric: str, value: float, n: int, seconds: float
) -> Row:
    return Row(source, "test", group, method, params, metric, value, math.nan, math.nan, n, seconds)


def _means(rows: Sequence[Row], levels: Sequence[int], methods: Sequence[str]) -> list[Row]:
    """The mean over corruptions of every metric at every severity."""
    found = []
    for severity, method, metric in itertools.product(levels, methods, MEASURED):
        wanted = (severity, method, metric)
        values = [row.value for row in rows if (row.params["severity"], row.method, row.metric) == wanted]
        params = {"corruption": MEAN, "severity": severity}
        mean = sum(values) / len(values)
        found.append(_row(rows[0].source, f"{MEAN}:{severity}", method, params, metric, mean, rows[0].n, 0.0))
    return found
