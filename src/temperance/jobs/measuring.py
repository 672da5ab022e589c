"""The statistics of predictions, in one pass over their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import NO_NAME, checked_logits
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError
from temperance.jobs.floor import Floored
from temperance.jobs.labels import LabelCounts
from temperance.jobs.labelwise import gathered_by_label
from temperance.jobs.statistics import Group, Measuring, Statistics
from temperance.metrics import METRICS, Metric
from temperance.metrics.batch import Batch, batches
from temperance.metrics.gather import Gatherer
from temperance.metrics.statistic import Running
from temperance.metrics.stats import NBins
from temperance.metrics.tally import MOST_BINS, Tally, confidence_tally, tallied
from temperance.numerics import is_whole
from temperance.predictions import Predictions
from temperance.predictions.checks import ANSWER_CLASSES, LABEL_CLASSES, Text, excerpt
from temperance.predictions.rows import Chunk
from temperance.progress import Progress, no_progress
from temperance.registry import as_names
from temperance.settings import Seed, of_kind
from temperance.threads import one_thread

# What predictions of one score are of, by its two classes.
KINDS: dict[tuple[str, ...] | None, str] = {
    ANSWER_CLASSES: "answers with a confidence",
    LABEL_CLASSES: "several labels",
}

# What is measured on several labels unless metrics are named.
OF_LABELS = ("nll", "brier", "confidence-gap", "ece", "adaptive-ece", "failure-auroc")

# Values that are read at a time.
CHUNK_VALUES = 1 << 19
CHUNKS_BY_GROUP = 16  # at once, where rows are split into groups


def statistics_of(
    data: Predictions,
    metrics: Sequence[str],
    *,
    calibrator: Calibrator | None = None,
    n_bins: int = 15,
    intervals: bool = True,
    by_group: bool = False,
    of_block: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Statistics:
    """What an evaluation needs to know about these rows; with `of_block` they are one block of several."""
    of_kind("n_bins", n_bins, NBins)
    of_kind("seed", seed, Seed)
    of_kind("calibrator", calibrator, Calibrator | None)
    if calibrator is not None:
        refuse_calibrated(data)
    wanted, left_out = allowed_metrics(data, metrics, of_block=of_block)
    if data.multilabel and of_block:
        raise InputError("samples with several labels are measured as one set, not in blocks; use evaluate")
    measuring = Measuring(
        metrics=tuple(metric.name for metric in wanted),
        n_bins=n_bins,
        intervals=intervals,
        method=calibrator.name if calibrator else "uncalibrated",
        params={"calibrator": calibrator.get_params(deep=False)} if calibrator else {},
        k=data.k,
        from_logits=data.from_logits,
        class_names=data.class_names,
        split=data.split,
        decimals=data.decimals,
        has_weights=data.has_weights,
        left_out=tuple(metric.name for metric in left_out),
        calibrated_by=data.calibrated_by,
        row_name=data.row_name,
        answers=data.answers,
        multilabel=data.multilabel,
        by_group=by_group,
    )
    requests = measuring.requests
    sizes = group_sizes(data) if by_group and not data.multilabel else {}

    def generator() -> torch.Generator | None:
        return torch.Generator().manual_seed(seed) if intervals else None

    def gatherer(n: int, sets: int = 1) -> Gatherer:
        # Rows of a block are sorted when all blocks are there.
        return Gatherer(
            requests, n, in_parts=intervals, as_came=of_block, of_block=of_block, generator=generator(), sets=sets
        )

    of_groups = {name: GroupGatherer(gatherer(n, len(sizes))) for name, n in sizes.items()}
    tallies: list[Tally] = []
    floored = Floored.of(data, calibrated=calibrator is not None)
    labels = LabelCounts.none(measuring.k)
    found = _of_all(batches_by_group(data, by_group=bool(sizes), columns=True, calibrator=calibrator), of_groups)
    found = tallied(labels.seen(floored.counted(found)), tallies, n_bins)
    progress(0, 2, f"reading {data.source}")
    groups: dict[str | None, Group]
    label_tally, n_samples = None, 0
    with data.located(), one_thread(where=calibrator is None):  # a calibrator may use all threads
        if data.multilabel:
            of_labels = gathered_by_label(found, data, requests, generator(), min(n_bins, MOST_BINS))
            groups, label_tally, n_samples = of_labels.groups, of_labels.tally, of_labels.n_samples
        else:
            of_all = gatherer(data.n)
            for batch in found:
                of_all.add(batch)
            groups = {None: Group(of_all.n_seen, tuple(of_all.results()), of_all.evidence)}
            groups |= {name: each.group() for name, each in of_groups.items() if each.n}
    inputs = {data.source: data.fingerprint}
    return Statistics(measuring, groups, (tallies[0], tallies[1]), floored, labels, inputs, label_tally, n_samples)


class GroupGatherer:
    """Gathers each metric's statistic of one group of rows, and a tally of them, all in one entry."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer, self._tally = gatherer, Running()

    def add(self, batch: Batch) -> None:
        """Add rows of the group."""
        self._gatherer.add(batch)
        self._tally.add(confidence_tally(batch, 1))

    @property
    def n(self) -> int:
        """How many rows count so far: those whose weight is not 0."""
        return self._gatherer.n_seen

    def group(self) -> Group:
        """The statistics of everything so far."""
        gatherer, tally = self._gatherer, cast(Tally, self._tally.total)
        return Group(self.n, tuple(gatherer.results()), gatherer.evidence, tally)


def _of_all(found: Iterable[tuple[str | None, Batch]], of_groups: Mapping[str, GroupGatherer]) -> Iterator[Batch]:
    """Pass on the batches of all rows; those of a group are gathered here."""
    for name, batch in found:
        if name is None:
            yield batch
        else:
            of_groups[name].add(batch)


def group_sizes(data: Predictions) -> dict[str, int]:
    """How many samples each group has, in alphabetical order; with several columns, those of each column too."""
    data.need_groups()
    found: Counter[str] = Counter()
    for chunk in data.chunks():
        for names in _group_names(data, chunk, columns=True):
            found.update(names.tolist())
    return dict(sorted(found.items()))


def _group_names(data: Predictions, chunk: Chunk, *, columns: bool) -> Iterator[Text]:
    """The name of each row's group; of several columns, that of the combination, and of each column: "sex=Female"."""
    yield cast(Text, chunk.groups)
    groups = cast(Text, chunk.group_columns)
    if columns and groups.ndim == 2:
        for name, values in zip(data.grouped_by, groups.T, strict=True):
            yield np.char.add(f"{name}=", np.where(values == "", NO_NAME, values))


def chosen_metrics(names: Sequence[str]) -> list[Metric]:
    """The metrics with these names, each once: without any the headline ones, for "all" every one."""
    wanted = as_names(names)
    if not wanted:
        return sorted((metric for metric in METRICS if metric.headline), key=lambda metric: metric.headline)
    return list(METRICS) if "all" in wanted else list(dict.fromkeys(METRICS[name] for name in wanted))


def allowed_metrics(
    data: Predictions, names: Sequence[str], *, of_block: bool
) -> tuple[Sequence[Metric], Sequence[Metric]]:
    """The metrics of these names, and those of "all" that are left out because weights are not whole numbers.

    A block does not know the weights of others, so with any weights it leaves them out. Named metrics always stay.
    """
    metrics, given = chosen_metrics(names), as_names(names)
    named = bool(given) and "all" not in given
    if data.multilabel:
        metrics = _of_labels(metrics if given else [METRICS[name] for name in OF_LABELS], named=named)
    if data.one_score:
        metrics = _without_classes(metrics, named=named)
    if "all" not in given or not data.has_weights:
        return metrics, ()
    with data.located():
        whole = all(is_whole(chunk.weights) for chunk in data.chunks() if chunk.weights is not None)
    if whole and not of_block:
        return metrics, ()
    return [each for each in metrics if not each.whole_weights], [each for each in metrics if each.whole_weights]


def _without_classes(metrics: Sequence[Metric], *, named: bool) -> list[Metric]:
    """The metrics that can be measured on answers, whose classes are not known; others are refused if `named`."""
    found = [each for each in metrics if not each.of_classes and each.chosen.get("score", "msp") == "msp"]
    if named and len(found) < len(metrics):
        other = next(each for each in metrics if each not in found)
        raise InputError(
            f"{other.name} needs the probabilities of classes, and answers have only a confidence; leave it out"
        )
    return found


def _of_labels(metrics: Sequence[Metric], *, named: bool) -> list[Metric]:
    """The metrics that can be measured on several labels; others are refused if `named`.

    Not those of right and wrong predictions, because a label applies or not. Nor tests: their p-values are for samples,
    and the labels of a sample go together.
    """
    found = [each for each in metrics if not each.of_decisions and not each.is_test]
    if named and len(found) < len(metrics):
        other = next(each for each in metrics if each not in found)
        why = "tests independent samples" if other.is_test else "is about predictions that are right or wrong"
        raise InputError(f"{other.name} {why}, and these are the labels of samples; leave it out")
    return found


def refuse_calibrated(data: Predictions, remedy: str = "leave out the calibrator") -> None:
    """Refuse predictions that are already calibrated."""
    if data.calibrated_by is not None:
        raise InputError(
            f"{data.subject} are calibrated already, by {data.calibrated_by}; {remedy}",
            flags={"pass again=True": "add --again", "the calibrator": "--calibrator"},
        )


def check_classes(calibrator: Calibrator, data: Predictions) -> None:
    """Refuse predictions that a calibrator is not for.

    A class or a column of groups has another place, answers are in place of classes, or groups are missing.
    """
    fitted, given = (KINDS.get(names, "classes") for names in (calibrator.class_names, data.classes))
    if calibrator.class_names is not None and fitted != given:
        raise InputError(
            f"the calibrator was fitted on {fitted}, and {data.subject} are of {given}; fit another one on these"
        )
    if calibrator.group_names:
        data.need_groups("the calibrator corrects each group of samples, and ")
    columns, own = calibrator.info.get("grouped_by", []), list(data.grouped_by)
    if columns and columns != own and (len(columns) != len(own) or set(columns) == set(own)):
        remedy = f'columns={{"group": "{",".join(columns)}"}}'
        raise InputError(
            f"the calibrator was fitted with the columns of groups {', '.join(columns)}, in this order, and "
            f"{data.subject} have {', '.join(own)}; give the same: {remedy}",
            flags={remedy: f"--group {','.join(columns)}"},
        )
    places = {name: j for j, name in enumerate(calibrator.class_names or ())}
    for j, name in enumerate(data.classes or ()):
        if places.get(name, j) != j:
            raise InputError(
                f"{data.subject} have the classes in another order than the calibrator: {name} is class {j} here and "
                f"class {places[name]} there. Put them in its order: {excerpt(places)}"
            )


def checked_batches(data: Predictions, *, calibrator: Calibrator | None = None) -> Iterator[Batch]:
    """Predictions in checked blocks; if asked, calibrated."""
    return (batch for _, batch in batches_by_group(data, by_group=False, calibrator=calibrator))


def batches_by_group(
    data: Predictions, *, by_group: bool = True, columns: bool = False, calibrator: Calibrator | None = None
) -> Iterator[tuple[str | None, Batch]]:
    """Predictions in checked blocks: all rows as they come, under None, and by group once more under its name.

    The rows of a group are collected from many blocks, because there may be hundreds of groups. With `columns`, rows
    come again for their group in each of several columns.
    """
    data.need_labels()
    if calibrator is not None:
        check_classes(calibrator, data)
    first_row = 0
    step = max(1, CHUNK_VALUES // data.k)
    for chunk in data.hashed(data.chunks(step * CHUNKS_BY_GROUP if by_group else step)):
        scores, labels, groups, weights = chunk
        from_logits = data.from_logits
        if calibrator is not None:
            logits = checked_logits(scores, from_logits=from_logits, first_row=first_row)
            scores, from_logits = calibrator.probs_of(logits, groups), False
        names = _group_names(data, chunk, columns=columns) if by_group else ()
        for name, rows in _places(names, labels, step):
            start = first_row + (rows.start if isinstance(rows, slice) else 0)
            for batch in batches(
                scores[rows],
                labels[rows],
                from_logits=from_logits,
                first_row=start,
                weights=None if weights is None else weights[rows],
                one_score=data.one_score,
                first=start == 0 and name is None,
            ):
                yield name, batch
        first_row += len(labels)


def _places(groups: Iterable[Text], labels: Tensor, step: int) -> Iterator[tuple[str | None, slice | Tensor]]:
    """Where rows are: all of them, `step` at a time, under None; then those of each group under its name, in order."""
    for start in range(0, len(labels), step):
        yield None, slice(start, start + step)
    for each in groups:
        names, code, count = np.unique(each, return_inverse=True, return_counts=True)
        order = torch.from_numpy(code.reshape(-1).argsort(kind="stable")).to(labels.device)
        yield from zip(names.tolist(), torch.split(order, count.tolist()), strict=True)
