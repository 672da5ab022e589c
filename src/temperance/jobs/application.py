"""Fit a calibrator to predictions, and calibrate others with it, once."""

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, checked_logits
from temperance.calibrators._fit.streaming import MOST_VALUES, StreamCalibrator
from temperance.calibrators.base import Calibrator
from temperance.calibrators.groups import in_columns
from temperance.calibrators.priors import SAME, UNIFORM, as_prior
from temperance.errors import FileError, InputError, TemperanceWarning, plural
from temperance.files import reading
from temperance.jobs.labels import LabelCounts, need_both_classes
from temperance.jobs.measuring import check_classes, checked_batches, refuse_calibrated
from temperance.jobs.notes import group_name
from temperance.metrics.tally import Tally, tallied
from temperance.predictions import Predictions, read_predictions
from temperance.predictions.checks import Positive, Text, excerpt
from temperance.predictions.core import ARRAYS
from temperance.predictions.given import as_predictions
from temperance.settings import of_kind
from temperance.threads import one_thread

# Files of more values than this are fitted in several passes.
LARGE = 1 << 24

# As many batches show whether labels belong to predictions.
FIRST_BATCHES = 4

DIGITS = 16  # of a fingerprint, which tell any two sets apart

ADAPT = "adapt"
FLAG = {"prior": "--prior"}


def fit(calibrator: Calibrator, data: Predictions) -> Calibrator:
    """Fit a calibrator to predictions: in memory, or from a large file in several passes if the method allows it.

    Samples with weights are fitted in memory. The calibrator keeps the names of the classes. If the labels have nothing
    to do with the predictions, the warning names this cause, and not what the method made of it.
    """
    need_both_classes(data)
    warn_calibrated(data)
    if calibrator.takes_groups:
        data.need_groups(f"{calibrator.name} learns how groups of samples differ, and ")
    # One of torch's threads while reading, too: its blocks are too small to share.
    with one_thread(), warnings.catch_warnings():
        wrong = "" if data.has_weights else _wrong_labels(data)
        if wrong:
            warnings.simplefilter("ignore", TemperanceWarning)
        if isinstance(calibrator, StreamCalibrator) and data.n * data.k > LARGE and not data.has_weights:
            with data.located():
                calibrator.fit_stream(LogitBlocks(data), most_values=MOST_VALUES)
        else:
            logits, labels = data.logits(), data.labels
            with data.located():
                calibrator.fit(logits, labels, groups=_groups(calibrator, data), weights=data.weights)
    if wrong:
        calibrator.info["caution"] = wrong
        warnings.warn(wrong, TemperanceWarning, stacklevel=2)
    calibrator.class_names = data.classes
    keep_samples(calibrator, [data])
    return calibrator


def keep_samples(calibrator: Calibrator, parts: Sequence[Predictions]) -> None:
    """Keep in a calibrator what it was fitted on: in words, and the number of samples of each set, by fingerprint."""
    calibrator.info["fitted_on"] = _described(parts)
    if len(calibrator.group_columns) > 1:
        calibrator.info["grouped_by"] = list(parts[0].grouped_by)
    samples: Counter[str] = Counter()
    for part in parts:
        for fingerprint in filter(None, (part.fingerprint, part.half_of)):
            samples[fingerprint[:DIGITS]] += part.n_counted
    calibrator.info["samples"] = dict(samples)


def fitted_on_these(calibrator: Calibrator | None, data: Predictions) -> str:
    """A clause about a calibrator that was fitted on these samples, or on some of them; empty if none is known."""
    n = calibrator.info.get("samples", {}).get(data.fingerprint[:DIGITS]) if calibrator else None
    if not n:
        return ""
    these = "these" if n == data.n_counted else f"{n:,} of these {data.n_counted:,}"
    return f"the calibrator was fitted on {these} {data.row_name}s"


def _described(parts: Sequence[Predictions]) -> str:
    """The number of samples, and where they come from: 5,000 samples (a random half of predictions.npz)."""
    names = dict.fromkeys("the arrays" if part.source == ARRAYS else Path(part.source).name for part in parts)
    where = " and ".join(names) if len(parts) == 1 or len(names) > 1 else f"all of {next(iter(names))}"
    if len(parts) == 1 and parts[0].split:
        where = f"{parts[0].split} of {where}"
    return f"{plural(sum(part.n_counted for part in parts), parts[0].row_name)} ({where})"


def _groups(calibrator: Calibrator, data: Predictions) -> Text | None:
    """The groups of samples, for a calibrator that tells them apart."""
    return data.whole.group_columns if calibrator.takes_groups else None


def _wrong_labels(data: Predictions) -> str:
    """A sentence about labels that look wrong beside the predictions, if they do, as `evaluate` notes it.

    Usually the first rows show that it is not so, and the others are not read.
    """
    for most in (FIRST_BATCHES, None):
        labels = LabelCounts.none(data.k)
        tallies: list[Tally] = []
        with data.located():
            for _ in tallied(labels.seen(islice(checked_batches(data), most)), tallies):
                pass
        if labels.related(tallies[1]):
            break
    return labels.wrong(tallies[1], data.class_names or tuple(map(str, range(data.k))))


class LogitBlocks:
    """Logits or log-probabilities for calibrators, read again in each pass."""

    def __init__(self, data: Predictions) -> None:
        data.need_labels()
        self._data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        first = 0
        for chunk in self._data.hashed(self._data.chunks()):
            yield checked_logits(chunk.scores, from_logits=self._data.from_logits, first_row=first), chunk.labels
            first += len(chunk.labels)


def apply(
    calibrator: Calibrator,
    predictions: Predictions | str | Path,
    *,
    prior: str | ArrayLike | None = None,
    again: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    columns: Mapping[str, str] | None = None,
    answers: bool = False,
    multilabel: bool = False,
) -> Predictions:
    """The probabilities that a fitted calibrator makes from predictions, with their labels and groups.

    The rows of a file or a folder are calibrated when they are read or written, some at a time. `write_predictions`
    marks the new file as calibrated, and carries over whatever else was in the file that they were read from.
    Predictions that are calibrated already are refused, because correcting them twice is a new mistake; `again=True`
    allows it.

    prior  how common the classes are: "uniform", a number for each class, "same" as in the fit part, or "adapt" to
           estimate it from these predictions; by default the calibrator's own. The calibrator itself is not changed

    `positive`, `normalise`, `columns`, `answers` and `multilabel` say how a file is read, as in `read_predictions`.

    >>> from temperance.calibrators import Temperature
    >>> fitted = Temperature().fit([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]] * 20, [0, 1, 1] * 20)
    >>> found = apply(fitted, Predictions.of([[2.0, 0.0]], from_logits=True))
    >>> found.calibrated_by
    'temperature'
    """
    of_kind("calibrator", calibrator, Calibrator)
    how: dict[str, Any] = {"positive": positive, "normalise": normalise, "columns": columns}
    how |= {"answers": answers, "multilabel": multilabel}
    if isinstance(predictions, Predictions):
        data = as_predictions(predictions, **how)
    else:
        data = read_predictions(predictions, labels="optional", **how)
    if not again:
        refuse_calibrated(data, "to do it a second time, pass again=True")
    check_classes(calibrator, data)
    _warn_unknown_groups(calibrator, data)
    if prior is not None:
        calibrator = with_prior(calibrator, prior, data)
    found = data.calibrated(calibrator.probs_of, by=calibrator.name)
    next(found.chunks(1))  # one row shows whether the calibrator is for these classes
    return found


def with_prior(calibrator: Calibrator, prior: str | ArrayLike, data: Predictions) -> Calibrator:
    """A copy of a fitted calibrator, corrected for how common the classes are: as given, or as in these data."""
    corrected = copy.deepcopy(calibrator)
    if isinstance(prior, str) and prior == ADAPT:
        if data.has_weights:
            raise InputError(
                f"{data.subject} have weights, but class frequencies can only be estimated from samples that count "
                "equally: rename or remove the weights, or give the prior in numbers"
            )
        found = corrected.adapt(data.logits(), groups=_groups(calibrator, data))
        corrected.info["adapted"] = found.about_classes
        if found.applied is not None:
            corrected.info["prior"] = found.applied.tolist()
    else:
        corrected.set_prior(prior)
    return corrected


def _warn_unknown_groups(calibrator: Calibrator, data: Predictions) -> None:
    """Warn about groups of samples that a calibrator was not fitted on."""
    if not calibrator.group_names:
        return
    unknown, n = set[str](), 0
    for chunk in data.chunks():
        with data.located():
            columns = in_columns(cast(Text, chunk.group_columns), calibrator.group_columns).T
        is_new = np.stack([~np.isin(*each) for each in zip(columns, calibrator.group_columns, strict=True)])
        unknown |= set(columns[is_new].tolist())
        n += int(is_new.any(0).sum())
    if unknown:
        what, row = ("label", "score") if data.multilabel else ("group", data.row_name)
        instead = f"the correction that all {what}s share"
        if len(calibrator.group_columns) > 1:
            instead = "only the corrections of their other columns"
        warnings.warn(
            f"the calibrator was not fitted on {plural(len(unknown), what)} of these "
            f"({excerpt([group_name(name) for name in sorted(unknown)])}): {plural(n, row)} "
            f"{'gets' if n == 1 else 'get'} {instead}",
            TemperanceWarning,
            stacklevel=3,
        )


def read_prior(given: str, k: int, words: Sequence[str] = (UNIFORM, SAME)) -> str | list[float]:
    """A prior as given on the command line: one of the words, or a file with a number for each of k classes."""
    if given in words:
        return given
    if not given or not Path(given).exists():
        raise InputError(f"prior must be {', '.join(words)} or a file of numbers; got {given!r}", flags=FLAG)
    with reading(given):
        try:
            found = [float(word) for word in Path(given).read_text().replace(",", " ").split()]
        except ValueError:
            raise FileError(
                f"{given} must have a number for each class, separated by commas, spaces or new lines"
            ) from None
        if len(found) != k:
            numbers = plural(len(found), "number")
            raise FileError(f"{given} must have a number for each of the {k} classes; it has {numbers}")
        as_prior(found, torch.ones(k))  # in this block, so that errors name the file
        return found


def warn_calibrated(data: Predictions) -> None:
    """Warn that another calibrator corrects these predictions a second time."""
    if data.calibrated_by is not None:
        said = (
            f"{data.subject} were calibrated by {data.calibrated_by}, so another calibrator corrects them a second "
            "time. To replace the first one, use the predictions as the model gave them"
        )
        warnings.warn(said, TemperanceWarning, stacklevel=3)
