"""The quantities that papers use to explain a calibrated classifier; `temperance.report` draws them.

The angles between class prototypes and a map of the logits are those of MaC-Cal's Figure 2; losses and calibration
error during a post-hoc training, SCTL's Figures 1, 3 and 4, come from `temperance.diagnose.traces`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_labels, as_logits, flatten, shape_of
from temperance.diagnose.traces import Trace, posthoc_trace
from temperance.errors import FileError, InputError, MissingExtraError, optional
from temperance.heads.features import read_features
from temperance.heads.masked import MaskedInference, masked_inference
from temperance.heads.splitting import USUAL_NAMES
from temperance.jobs.evaluation import evaluate
from temperance.metrics.bins import Bins
from temperance.metrics.familiarity import Reference, as_features
from temperance.predictions import Predictions, read_pair, read_predictions
from temperance.progress import Progress, no_progress
from temperance.registry import as_names
from temperance.settings import AtLeastTwo, Bounds, of_kind
from temperance.training.run import LOG, UNFINISHED, read_log, read_weights

# The objectives, steps and learning rates of the post-hoc trainings on an analysis page.
OBJECTIVES = ("nll", "label-smoothing", "focal", "class-scaled")
STEPS, RATE, TOY_RATE = 300, 0.01, 0.005
WORST = 3  # classes that the toy of SCTL is trained on
TRACE_VALUES = 1 << 20  # at most this many logits in a trace


# ----------------------------------------------------------------------------------------------------- class prototypes


def angles_between(prototypes: ArrayLike, *, centre: bool = True) -> Tensor:
    """The angle between any two rows, in degrees; 0 on the diagonal. (k, d) → (k, k)

    The mean of the rows of a linear classifier changes no probability; `centre` subtracts it first. Classes that are as
    far apart as possible are then all at the angle `simplex_angle(k)`.

    >>> angles_between([[1.0, 0.0], [0.0, 1.0]], centre=False)[0, 1]
    tensor(90., dtype=torch.float64)
    """
    rows = as_features(prototypes, "prototypes")
    if len(rows) < 2:
        raise InputError(f"prototypes must be (k, d), one row per class, with k ≥ 2; got {shape_of(rows)}")
    if centre:
        rows = rows - rows.mean(0)
    unit = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    # The arc cosine is inaccurate near 0° and 180°; half-angles from sums and differences are not.
    difference, total = (
        torch.cdist(unit, other, compute_mode="donot_use_mm_for_euclid_dist") for other in (unit, -unit)
    )
    return torch.rad2deg(2 * torch.atan2(difference, total))


def simplex_angle(k: int) -> float:
    """The largest angle at which k directions can all be from each other, in degrees: arccos(−1 / (k − 1)).

    >>> round(simplex_angle(3), 6)
    120.0
    """
    of_kind("k", k, AtLeastTwo)
    return math.degrees(math.acos(-1 / (k - 1)))


def class_means(features: ArrayLike, labels: ArrayLike, *, k: int | None = None) -> Tensor:
    """The mean feature of each class, in float64; every class must occur. (n, d) → (k, d)"""
    known = Reference.of(features, labels)
    count = torch.bincount(known.labels, minlength=k or 0)
    if bool((count == 0).any()):
        raise InputError(f"class {int((count == 0).nonzero()[0])} has no samples, so it has no mean")
    sums = known.features.new_zeros(len(count), known.features.shape[1])
    return sums.index_add_(0, known.labels, known.features) / count[:, None]


# ------------------------------------------------------------------------------------------------------ a map of logits


@dataclass(frozen=True, eq=False)
class Embedding:
    """Samples as points in a plane, close together if their logits are."""

    points: Tensor  # (m, 2)
    labels: Tensor  # (m,)
    entropy: Tensor  # (m,), from 0 (certain) to 1 (uniform)
    rows: Tensor  # (m,): the indices of the samples


def tsne(logits: ArrayLike, labels: ArrayLike, *, n: int = 1500, perplexity: float = 30.0, seed: int = 0) -> Embedding:
    """A t-SNE map of the logits of at most n samples, drawn by the seed.

    Distances between groups mean little on such a map; which groups touch, and where the entropy is, means more. It
    needs scikit-learn, the extra `analysis`.

    van der Maaten and Hinton, Visualizing data using t-SNE, JMLR 2008.
    """
    with optional("scikit-learn", "analysis", "t-SNE"):
        from sklearn.manifold import TSNE

    of_kind("n", n, Annotated[int, Bounds(4)])
    given = as_logits(logits)
    rows, truth = flatten(given), as_labels(labels, given).reshape(-1)
    if len(rows) < 4:
        raise InputError(f"a map needs at least 4 samples; got {len(rows)}")
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:n].sort().values
    some = rows[chosen.to(rows.device)].double().cpu()
    if bool((some == some[0]).all()):
        raise InputError("all rows of logits are equal: there is nothing to map")
    found = TSNE(perplexity=min(perplexity, (len(some) - 1) / 3), init="pca", random_state=seed).fit_transform(
        some.numpy()
    )
    log_probs = some.log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1) / math.log(rows.shape[1])
    return Embedding(
        torch.from_numpy(found).double(), truth[chosen.to(truth.device)].cpu(), entropy.clamp(0, 1), chosen
    )


# ---------------------------------------------------------------------------------------------------------- all of it


@dataclass(frozen=True, eq=False)
class Subject:
    """A run, a retrained classifier or a file of predictions that is analysed."""

    name: str
    fit: Predictions | None  # to train a calibrator on
    test: Predictions
    history: list[dict[str, Any]] = field(default_factory=list)
    weights: Tensor | None = None  # of the classifier (k, d)
    masked: tuple[MaskedInference, ...] = ()  # if the run's folder has its features


@dataclass(frozen=True, eq=False)
class Analysis:
    """The analysis of one or several subjects, by name; `write_report` draws it.

    confidence  top-label bins of the test part
    angles      between class prototypes, by subject and kind of prototype
    maps        t-SNE of the logits, if scikit-learn is installed
    traces      a post-hoc training of the first subject with each objective; `toy`: on the worst classes only
    """

    subjects: tuple[Subject, ...]
    confidence: dict[str, Bins]
    angles: dict[str, Tensor]
    maps: dict[str, Embedding]
    traces: tuple[Trace, ...]
    toy: Trace | None
    notes: tuple[str, ...]  # what could not be done, and why
    seed: int

    @property
    def class_names(self) -> tuple[str, ...]:
        test = self.subjects[0].test
        return test.class_names or tuple(map(str, range(test.k)))


def analyse(
    *sources: str | Path | Predictions,
    layer: str = "vector",
    objectives: Sequence[str] = OBJECTIVES,
    steps: int = STEPS,
    points: int = 1500,
    seed: int = 0,
    progress: Progress = no_progress,
    **how: Any,
) -> Analysis:
    """Analyse runs, retrained classifiers or predictions side by side, in every way that applies.

    sources     folders that `temperance train` or `temperance retrain` made, files of predictions, or `Predictions`
    layer       the layer that is trained post hoc with each of the objectives: see `posthoc_trace`
    points      samples on a map
    how         passed on to `read_predictions`, for files of predictions
    """
    if not sources:
        raise InputError("there is nothing to analyse: name a run or a file of predictions")
    of_kind("points", points, Annotated[int, Bounds(4)])
    subjects = _distinct([_subject(source, seed, how) for source in sources])
    for subject in subjects:
        subject.test.need_classes()
        if subject.test.has_weights:
            raise InputError(
                f"an analysis counts all samples equally, but {subject.name} has weights: rename or remove them"
            )
        if subject.test.k != subjects[0].test.k:
            raise InputError(
                f"only networks with the same classes can be drawn side by side; {subjects[0].name} has "
                f"{subjects[0].test.k} and {subject.name} {subject.test.k}"
            )
    named = as_names(objectives)
    jobs = len(subjects) + len(named) + 1
    confidence: dict[str, Bins] = {}
    angles: dict[str, Tensor] = {}
    maps: dict[str, Embedding] = {}
    notes: list[str] = []
    for done, subject in enumerate(subjects):
        progress(done, jobs, subject.name)
        confidence[subject.name] = evaluate(subject.test, metrics=["ece"], bootstrap=0).reliability
        angles |= _angles(subject)
        try:
            maps[subject.name] = tsne(subject.test.logits(), subject.test.labels, n=points, seed=seed)
        except (MissingExtraError, InputError) as error:
            notes.append(f"{subject.name}: no map of the logits, because {error}.")
    first = subjects[0]
    traces: list[Trace] = []
    toy = None
    if first.fit is not None:
        fit, test = (_some(data, seed) for data in (first.fit, first.test))
        for objective in named:
            progress(len(subjects) + len(traces), jobs, f"post-hoc training, {objective}")
            traces.append(
                posthoc_trace(*fit, layer=layer, objective=objective, held_out=test, lr=RATE, steps=steps, every=3)
            )
        progress(jobs - 1, jobs, "post-hoc training, worst classes")
        toy = posthoc_trace(*fit, layer=layer, worst_classes=WORST, lr=TOY_RATE, steps=steps)
    progress(jobs, jobs, "done")
    return Analysis(tuple(subjects), confidence, angles, maps, tuple(traces), toy, tuple(notes), seed)


def _subject(source: str | Path | Predictions, seed: int, how: Mapping[str, Any]) -> Subject:
    if isinstance(source, Predictions):
        return Subject(source.source, *_parts(source, seed))
    place = Path(source)
    if not place.is_dir():
        found = read_predictions(place, **how)
        parts = read_pair(place, **how) if found.split is not None else _parts(found, seed)
        return Subject(place.name, *parts)
    if not (place / "predictions.npz").exists():
        what = UNFINISHED if (place / "checkpoint.safetensors").exists() else "is not a run: it has no predictions.npz"
        raise FileError(f"{place} {what}")
    fit, test = read_pair(place / "predictions.npz")
    history = read_log(place / LOG)
    weights = None
    if (place / "network.safetensors").exists():
        weights = _classifier_in(read_weights(place / "network.safetensors"), test.k)
    masked: tuple[MaskedInference, ...] = ()
    if (place / "features.safetensors").exists():
        features = read_features(place / "features.safetensors")
        masked = tuple(masked_inference(features, seed=seed)) if features.classifier and features.test else ()
    return Subject(place.resolve().name, fit, test, history, weights, masked)


def _classifier_in(weights: Mapping[str, Tensor], k: int) -> Tensor | None:
    """The weights of the classifier, if it has a usual name or is the only matrix with a row for each class."""
    found = {name.split(".")[-2]: t for name, t in weights.items() if "." in name and t.ndim == 2 and len(t) == k}
    usual = [found[name] for name in USUAL_NAMES if name in found]
    if usual or len(found) != 1:
        return usual[0] if usual else None
    return next(iter(found.values()))


def _parts(data: Predictions, seed: int) -> tuple[Predictions | None, Predictions]:
    """Two halves; a set that is too small to be halved is not trained on."""
    return data.halves(seed) if data.n >= 2 * data.k else (None, data)


def _distinct(subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects, with a number after a repeated name."""
    found: dict[str, Subject] = {}
    for subject in subjects:
        name = subject.name
        while name in found:
            name = f"{subject.name} ({len(found) + 1})"
        found[name] = replace(subject, name=name)
    return list(found.values())


def _angles(subject: Subject) -> dict[str, Tensor]:
    """The angles between the classifier's weights, if known, and between the mean logits of the classes."""
    found = {}
    if subject.weights is not None:
        found[f"{subject.name}: classifier weights"] = angles_between(subject.weights)
    labels = subject.test.labels
    if bool((torch.bincount(labels, minlength=subject.test.k) > 0).all()):
        found[f"{subject.name}: mean logits"] = angles_between(class_means(subject.test.logits(), labels))
    return found


def _some(data: Predictions, seed: int) -> tuple[Tensor, Tensor]:
    """Logits and labels, of a random sample if there are too many."""
    most = max(1000, TRACE_VALUES // data.k)
    logits, labels = data.logits(), data.labels
    if data.n <= most:
        return logits, labels
    chosen = torch.randperm(data.n, generator=torch.Generator().manual_seed(seed))[:most]
    return logits[chosen], labels[chosen]
