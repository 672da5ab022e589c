"""Tell unfamiliar data from a model's own: every confidence score on files of predictions, with intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, plural
from temperance.jobs.measuring import check_classes, refuse_calibrated
from temperance.jobs.results import Provenance, Results, Row, how_read, shown
from temperance.jobs.several import sets_by_name
from temperance.metrics.batch import batches
from temperance.metrics.detection import MEASURES, Detection, detection, detection_draws, detection_interval
from temperance.metrics.familiarity import FEATURE_SCORES, FeatureScore, Reference, as_features
from temperance.metrics.scores import SCORES, Score
from temperance.predictions import Predictions, read_predictions
from temperance.predictions.disk import extras_of
from temperance.predictions.given import Set
from temperance.progress import Progress, no_progress
from temperance.registry import as_names
from temperance.settings import Resamples, Seed, of_kind
from temperance.showing import listed, number_table, paragraphs, percent, percents

TITLES = {"auroc": "AUROC", "fpr95": "FPR95", "aupr-in": "AUPR in", "aupr-out": "AUPR out"}
JUDGED = ("auroc", "fpr95")  # what the verdict rests on; AUPR depends on how many samples either side has
HISTOGRAM_BINS = 40

FEWEST = 50  # samples on either side, for a verdict


@dataclass(frozen=True)
class ScoreHistogram:
    """The distribution of a score on the model's own data and on each other set.

    The first and last bins include values beyond the edges. 95 % of the model's own data reach the score `limit`.
    """

    score: str
    edges: Tensor  # (bins + 1,)
    inside: Tensor  # (bins,) shares
    outside: dict[str, Tensor]  # by name of the set
    limit: float


@dataclass(frozen=True, repr=False)
class OODComparison(Results):
    """AUROC, FPR95 and AUPR of each score, which is the `method` of a row.

    The `group` of a row is the name of the unfamiliar set; an empty one stands for the mean over all of them, or
    for the only one.
    """

    histograms: tuple[ScoreHistogram, ...]
    sizes: dict[str, int]  # samples of each unfamiliar set

    @property
    def title(self) -> str:
        """The model's own data, and the other sets."""
        settings = self.provenance.settings
        others = listed([f"{name} ({n:,})" for name, n in self.sizes.items()])
        return f"{settings['inside']} ({plural(settings['n'], 'sample')}) against {others}"

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the scores."""
        return tuple(histogram.score for histogram in self.histograms)

    @property
    def best(self) -> str:
        """The score with the highest AUROC; the first if several tie."""
        return max(self.scores, key=lambda name: self.row("auroc", method=name).value)

    @property
    def verdict(self) -> str:
        """In plain words: does confidence tell unfamiliar data apart, and by which score best?"""
        if self._too_few:
            return self._too_few
        first = self.scores[0]
        area, share = (self.row(metric, method=first) for metric in JUDGED)
        higher, accepted = percents((area.value,), (share.value,))
        text = [
            self._word(),
            f"By {first}, a sample of the model's own data scores higher than an unfamiliar one {higher} of the time "
            "(ties count half). A threshold that accepts at least 95 % of its own data also accepts "
            f"{accepted} of the unfamiliar data.",
        ]
        if len(self.sizes) > 1:
            areas = sorted((self.row("auroc", group=name, method=first).value, name) for name in self.sizes)
            (lowest, hardest), (highest, easiest) = areas[0], areas[-1]
            low, high = percent(lowest, 1), percent(highest, 1)
            ends = "" if low == high else f"; the hardest is {hardest} ({low}), the easiest {easiest} ({high})"
            text.append(f"These are means over {len(areas)} sets{ends}.")
        best = self.row("auroc", method=self.best)
        if best.low > area.high:
            (better,) = percents((best.value,))
            text.append(f"The score {best.method} does better: {better} of the time.")
        elif len(self.scores) > 1:
            text.append("No other score does clearly better.")
        return " ".join(filter(None, [*text, self._same]))

    @property
    def _too_few(self) -> str:
        """A sentence that names the smallest set, if it is too small."""
        sizes = {self.provenance.settings["inside"]: self.provenance.settings["n"], **self.sizes}
        smallest = min(sizes, key=sizes.__getitem__)
        if sizes[smallest] >= FEWEST:
            return ""
        return f"Too few samples to tell: each set needs at least {FEWEST}, and {smallest} has {sizes[smallest]}."

    @property
    def _same(self) -> str:
        """A sentence about sets that are the model's own data once more."""
        own, *others = self.provenance.inputs.values()
        same = [name for name, other in zip(self.sizes, others, strict=True) if other == own]
        which = f"of {listed(same)}" if len(self.sizes) > 1 else "on both sides"
        said = f"The predictions {which} are the model's own, so they are not unfamiliar: check the files."
        return said if same else ""

    def _word(self) -> str:
        """What the intervals say about every set."""
        groups = list(self.sizes) if len(self.sizes) > 1 else [""]
        rows = ((self.row(metric, group=group, method=self.scores[0]) for metric in JUDGED) for group in groups)
        words = {told_apart(*pair) for pair in rows}
        return words.pop() if len(words) == 1 else "Some unfamiliar sets stand out more than others."

    def to_json(self, **extra: Any) -> str:
        return super().to_json(verdict=self.verdict, **extra)

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        interval = f"{100 * self.provenance.settings['level']:g} % interval"
        columns = ((title, *[interval] * (metric in JUDGED)) for metric, title in TITLES.items())
        table = number_table("score", *chain(*columns), title=Text(self.title, style="bold"))
        for group in ("", *(self.sizes if len(self.sizes) > 1 else ())):
            if len(self.sizes) > 1:
                table.add_row(Text(group or "mean over the sets", style="bold"))
            for name in self.scores:
                cells = []
                for metric in MEASURES:
                    row = self.row(metric, group=group, method=name)
                    cells.append(shown(row.value, percent=True))
                    bounds = f"{100 * row.low:.2f} … {100 * row.high:.2f}"
                    cells += [bounds] if metric in JUDGED else []
                table.add_row(name, *cells, end_section=name == self.scores[-1])
        yield table
        yield from paragraphs(self.verdict)


def told_apart(area: Row, share: Row) -> str:
    """What AUROC and FPR95 say with their intervals. Without any skill they are 50 % and 95 %."""
    if area.high < 0.5:
        return "Confidence misleads: unfamiliar data tends to score higher than the model's own."
    if share.high < 0.1:
        return "Nearly all unfamiliar data stands out."
    if share.high < 0.5:
        return "Most unfamiliar data stands out."
    if share.high < 0.95:
        return (
            "Most unfamiliar data does not stand out." if share.low > 0.5 else "Part of the unfamiliar data stands out."
        )
    if area.low > 0.5:
        much = (
            "but not low enough to stand out"
            if share.low > 0.5
            else "but these samples cannot tell how much stands out"
        )
        return f"Unfamiliar data tends to score lower, {much}."
    return "Confidence does not tell unfamiliar data apart, as far as these samples show."


def compare_ood(
    inside: Set,
    outside: Set | Sequence[Set] | Mapping[str, Set],
    *,
    scores: Sequence[str] = (),
    reference: Reference | None = None,
    calibrator: Calibrator | None = None,
    bootstrap: int = 500,
    level: float = 0.95,
    seed: int = 0,
    progress: Progress = no_progress,
) -> OODComparison:
    """How well a model's confidence tells its own data from other data: AUROC, FPR95 and AUPR of each score.

    inside      predictions of one model on data like its training data: a file or a `Predictions`
    outside     its predictions on other data, or several sets of them, perhaps by name
    scores      names of confidence or feature scores; by default every one that can be computed
    reference   features of the training data, for the scores mahalanobis, knn and vim; the files of both sides then
                have `features` next to their predictions
    calibrator  a fitted calibrator, applied to both sides; it makes probabilities, so scores of logits are left out

    Neither side needs labels, and those that a file has are not read.

    >>> own = Predictions.of([[0.9, 0.1], [0.2, 0.8]] * 20)
    >>> other = Predictions.of([[0.5, 0.5], [0.4, 0.6]] * 20)
    >>> compare_ood(own, other, scores=["msp"]).row("auroc").value
    1.0

    Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution examples, ICLR 2017.
    """
    of_kind("bootstrap", bootstrap, Resamples)
    of_kind("seed", seed, Seed)
    of_kind("calibrator", calibrator, Calibrator | None)
    (own,) = _read([inside]).values()
    others = _read(outside)
    for name, other in others.items():
        if other.k != own.k:
            got = f"{own.k} classes in {own.source} and {other.k} in {name}"
            raise InputError(f"both sides must be predictions of one model; got {got}")
    entries, of_features = _entries(scores, [own, *others.values()], calibrator, reference)
    progress(0, len(entries) + len(of_features) + 1, "reading")
    inner, *outer = (_scores(data, entries, calibrator) for data in (own, *others.values()))
    if reference is not None and of_features:
        fitted = {entry.name: entry.fit(reference) for entry in of_features}
        for data, scored in zip((own, *others.values()), (inner, *outer), strict=True):
            rows_of = _features(data, reference)
            scored |= {name: familiarity(rows_of) for name, familiarity in fitted.items()}

    rows, histograms = [], []
    names = [*(entry.name for entry in entries), *(entry.name for entry in of_features)]
    for done, name in enumerate(names):
        progress(done + 1, len(names) + 1, name)
        start = time.perf_counter()
        params: dict[str, Any] = {"calibrator": calibrator.get_params(deep=False)} if calibrator else {}
        found = [detection(inner[name], scored[name]) for scored in outer]
        values = [{metric: measure(each) for metric, measure in MEASURES.items()} for each in found]
        # The same seeds for every score and set: the model's own data have the same weights throughout.
        draws = [_draws(each, bootstrap, seed) for each in found]
        seconds = time.perf_counter() - start
        for metric in MEASURES:
            each = [(value[metric], drawn[metric]) for value, drawn in zip(values, draws, strict=True)]
            for group, source, n, value, drawn in _with_mean(others, each):
                span = detection_interval(drawn, value, level)
                rows.append(Row(source, "", group, name, params, metric, value, span.low, span.high, n, seconds))
        histograms.append(_histogram(name, inner[name], dict(zip(others, outer, strict=True))))
    progress(len(names) + 1, len(names) + 1, "done")
    made_by = calibrator.name if calibrator else own.calibrated_by
    settings = {
        "inside": PurePath(own.source).name,
        "n": own.n,
        "k": own.k,
        "bootstrap": bootstrap,
        "level": level,
    }
    inputs = {f"inside: {own.source}": own.fingerprint}
    inputs |= {f"outside: {name}": other.fingerprint for name, other in others.items()}
    sizes = {name: other.n for name, other in others.items()}
    return OODComparison(
        tuple(rows), Provenance.of(inputs, settings | how_read(own, made_by), seed), tuple(histograms), sizes
    )


def _read(sets: Set | Sequence[Set] | Mapping[str, Set]) -> dict[str, Predictions]:
    """One or several sets by name; their labels may be anything."""
    found = {}
    for name, given in sets_by_name([sets] if isinstance(sets, Set) else sets).items():
        found[str(name)] = given if isinstance(given, Predictions) else read_predictions(given, labels="ignored")
        found[str(name)].need_classes()
    if not found:
        raise InputError("there must be at least one set of predictions on other data")
    return found


def _entries(
    names: Sequence[str], sides: Sequence[Predictions], calibrator: Calibrator | None, reference: Reference | None
) -> tuple[list[Score], list[FeatureScore]]:
    """The scores of predictions and of features to measure; by default all whose inputs are there."""
    if wanted := as_names(names):
        of_features = [FEATURE_SCORES[name] for name in wanted if name in FEATURE_SCORES]
        if of_features and reference is None:
            raise InputError(
                f"the score {of_features[0].name} needs features of the training data: give reference=",
                flags={"reference=": "--features FILE"},
            )
        chosen = [SCORES[name] for name in wanted if name not in FEATURE_SCORES]
        for entry in chosen:
            if entry.needs_logits and calibrator is not None:
                raise InputError(f"a calibrator makes probabilities, and the score {entry.name} needs logits")
        return chosen, of_features
    have_logits = calibrator is None and all(data.from_logits for data in sides)
    has_classifier = reference is not None and reference.classifier is not None
    return (
        [entry for entry in SCORES if have_logits or not entry.needs_logits],
        [entry for entry in FEATURE_SCORES if reference and (has_classifier or not entry.needs_classifier)],
    )


def _features(data: Predictions, reference: Reference) -> Tensor:
    """The features that are in the file of predictions. (n, d)"""
    beside = extras_of(data)
    if "features" not in beside:
        raise InputError(
            f"{data.subject} have no features: store them in the same file under the name features, one row for each "
            "sample, or leave out the features of the training data"
        )
    with data.located():
        found = as_features(beside["features"], d=reference.features.shape[1])
        if len(found) != data.n:
            raise InputError(f"features must have a row for each of the {data.n} samples; got {len(found)}")
    return found


def _scores(data: Predictions, entries: Sequence[Score], calibrator: Calibrator | None) -> dict[str, Tensor]:
    """Every score of every sample. Labels are ignored: other data may have other classes."""
    found: dict[str, list[Tensor]] = {entry.name: [] for entry in entries}
    first_row = 0
    if calibrator is not None:
        refuse_calibrated(data)
        check_classes(calibrator, data)
    with data.located():
        if data.has_weights:
            raise InputError(
                "a comparison with unfamiliar data counts all samples equally, but there are weights here: rename or "
                "remove them"
            )
        scored = data if calibrator is None else data.calibrated(calibrator.probs_of, by=calibrator.name)
        for chunk in scored.chunks():
            no_labels = torch.zeros_like(chunk.labels)
            for batch in batches(chunk.scores, no_labels, from_logits=scored.from_logits, first_row=first_row):
                for entry in entries:
                    found[entry.name].append(entry.of_batch(batch).cpu())
            first_row += len(chunk.labels)
    return {name: torch.cat(parts) for name, parts in found.items()}


def _draws(found: Detection, bootstrap: int, seed: int) -> dict[str, Tensor]:
    inner, outer = torch.Generator().manual_seed(2 * seed), torch.Generator().manual_seed(2 * seed + 1)
    return detection_draws(found, bootstrap, (inner, outer))


def _with_mean(
    others: Mapping[str, Predictions], each: Sequence[tuple[float, Tensor]]
) -> Iterator[tuple[str, str, int, float, Tensor]]:
    """Group, source, size, value and draws: the mean over the sets, then each of them if there are several."""
    values, draws = zip(*each, strict=True)
    mean = torch.stack(draws).mean(0)
    total = sum(data.n for data in others.values())
    yield "", ", ".join(data.source for data in others.values()), total, sum(values) / len(values), mean
    if len(others) > 1:
        for (name, data), value, drawn in zip(others.items(), values, draws, strict=True):
            yield name, data.source, data.n, value, drawn


def _histogram(name: str, inner: Tensor, outer: Mapping[str, dict[str, Tensor]]) -> ScoreHistogram:
    """Shares in bins of equal width, over all values but a thousandth at either end."""
    together = torch.cat([inner, *(scored[name] for scored in outer.values())]).sort().values
    cut = len(together) // 1000
    low, high = float(together[cut]), float(together[-1 - cut])
    high = high if high > low else low + 1
    edges = torch.linspace(low, high, HISTOGRAM_BINS + 1, dtype=torch.float64)

    def shares(values: Tensor) -> Tensor:
        index = torch.bucketize(values, edges[1:-1])
        return index.bincount(minlength=HISTOGRAM_BINS).double() / len(values)

    ranked = inner.sort(descending=True).values
    limit = float(ranked[max(0, -(-95 * len(ranked) // 100) - 1)])
    return ScoreHistogram(
        name, edges, shares(inner), {other: shares(scored[name]) for other, scored in outer.items()}, limit
    )
