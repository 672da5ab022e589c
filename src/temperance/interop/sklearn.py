"""Calibration in scikit-learn: a classifier that calibrates another, scorers, and a display of reliability.

    CalibratedClassifier(RandomForestClassifier()).fit(X, y).predict_proba(X_new)
    cross_val_score(classifier, X, y, scoring=ece_scorer)
    ReliabilityDisplay.from_estimator(classifier, X_test, y_test).plot()

It needs scikit-learn, which comes with the extra `sklearn`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from temperance.arrays import LOG_FLOOR, as_array, as_probs
from temperance.calibrators import Calibrator, make_calibrator
from temperance.calibrators.estimator import Request, weights_request
from temperance.errors import InputError, TemperanceWarning, optional
from temperance.jobs.measuring import checked_batches
from temperance.metrics import METRICS, Metric, ece
from temperance.metrics.bins import Bins
from temperance.predictions import Predictions
from temperance.registry import parse_entry
from temperance.report.figures import draw_reliability
from temperance.report.numbers import bars

with optional("scikit-learn, 1.6 or newer", "sklearn", "temperance.interop.sklearn"):
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.model_selection import check_cv
    from sklearn.utils import _safe_indexing, get_tags
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.parallel import Parallel, delayed
    from sklearn.utils.validation import (
        _check_method_params,
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
        indexable,
    )

Array = npt.NDArray[Any]

# What a classifier is asked for: the first of these that it has.
RESPONSES = ("decision_function", "predict_proba")


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are calibrated: a drop-in for scikit-learn's `CalibratedClassifierCV`.

    Copies of the estimator are fitted on all folds but one and score that one; one calibrator is fitted to all these
    scores, and the estimator to all samples. The result is one model with one map, not an ensemble of `cv` models.

    estimator  a classifier with `decision_function` or `predict_proba`
    method     a calibrator: its name, with settings as in `temperature:objective=class-scaled`, or an object
    cv         a number of folds, a splitter or splits as scikit-learn takes them, or "prefit" for an estimator that
               was fitted on other samples and stays as it is
    n_jobs     how many folds are fitted at a time
    ensemble   False, for code written for `CalibratedClassifierCV`; True is refused

    A fitted one has `estimator_`, `calibrator_` and `classes_`, the order of the columns. A probability of zero counts
    as half the smallest positive one, but at least 1e-12 (`log_floor_` is its logarithm): where trees or neighbours
    vote, a class without a vote is not impossible.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> CalibratedClassifier(GaussianNB(), method="temperature").fit(X, y).score(X, y)
    0.96
    """

    def __init__(
        self,
        estimator: Any,
        *,
        method: str | Calibrator = "auto",
        cv: Any = 5,
        n_jobs: int | None = None,
        ensemble: bool = False,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.n_jobs = n_jobs
        self.ensemble = ensemble

    def set_params(self, **params: Any) -> Self:
        method = params.get("method", self.method)
        inner = [name for name in params if name.startswith("method__")]
        if inner and isinstance(method, str):
            raise InputError(
                f"method={method!r} is a name, and {inner[0]} needs a calibrator: pass an object, such as "
                "method=Temperature()"
            )
        super().set_params(**params)
        return self

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> Self:
        """Fit the estimator and its calibrator; with cv="prefit" the calibrator alone.

        `sample_weight` is how much each sample counts, for both of them; other parameters are for the estimator's own
        `fit`. With scikit-learn's metadata routing, estimator and splitter get what they ask for.
        """
        if self.ensemble is not False:
            raise InputError(
                "ensemble must be False: CalibratedClassifier keeps one estimator and one calibrator, which is fitted "
                f"to the scores of all folds; got {self.ensemble!r}"
            )
        calibrator = _made(self.method)
        if calibrator.takes_groups:
            raise InputError(
                f"{calibrator.name} learns how groups of samples differ, and scikit-learn's predict_proba takes no "
                "groups; pass the calibrator that all groups share"
            )
        response = _response(self.estimator)
        X, y = indexable(X, y)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if isinstance(self.cv, str):
            if self.cv != "prefit":
                raise InputError(f'cv must be a number of folds, a splitter or "prefit"; got {self.cv!r}')
            check_is_fitted(self.estimator)
            if params:
                raise InputError(f'with cv="prefit" the estimator is not fitted again: leave out {next(iter(params))}')
            self.estimator_, self.classes_ = self.estimator, self.estimator.classes_
            scores, labels = _scores(self.estimator_, X, self.classes_), _numbers(y, self.classes_)
        else:
            self.classes_ = np.unique(y)
            to_fit, to_split = self._routed(weights, params)
            scores, labels, tested = self._out_of_fold(X, y, to_fit, to_split)
            self.estimator_ = clone(self.estimator).fit(X, y, **to_fit)
            weights = None if weights is None else weights[tested]
        self.log_floor_ = _log_floor(scores) if response == "predict_proba" else -np.inf
        self.calibrator_ = calibrator.fit(np.maximum(scores, self.log_floor_), labels, weights=weights)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities, a column for each of `classes_`."""
        check_is_fitted(self)
        scores = _scores(self.estimator_, X, self.classes_)
        found: Array = self.calibrator_.predict_proba(np.maximum(scores, self.log_floor_))
        return found

    def predict(self, X: Any) -> Array:
        """The most probable class of each sample."""
        best = self.predict_proba(X).argmax(1)
        found: Array = self.classes_[best]
        return found

    def get_metadata_routing(self) -> Any:
        """Where metadata goes, for scikit-learn's routing: to itself, to the estimator's `fit` and to the splitter."""
        return (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
            .add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        )

    def _routed(self, weights: Array | None, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the estimator's `fit` and the splitter get, besides samples and labels."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=weights, **params)
            return routed.estimator.fit, routed.splitter.split
        if weights is None:
            return params, {}
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise InputError(
                f"{type(self.estimator).__name__} takes no sample_weight: turn on scikit-learn's metadata routing if a "
                'part of it does, or fit it without on other samples and pass cv="prefit" to weight the calibrator'
            )
        return {**params, "sample_weight": weights}, {}

    def _out_of_fold(
        self, X: Any, y: Array, to_fit: dict[str, Any], to_split: dict[str, Any]
    ) -> tuple[Array, Array, Array]:
        """Scores of samples by copies that were not fitted on them, their class numbers and their indices in X."""
        splits = list(check_cv(self._folds(y), y, classifier=True).split(X, y, **to_split))
        for fold, (train, _) in enumerate(splits):
            missing = set(self.classes_.tolist()) - set(y[train].tolist())
            if missing:
                raise InputError(
                    f"fold {fold} leaves no sample of class {min(missing)!r} to fit the estimator on; "
                    "use a stratified splitter or fewer folds"
                )
        found = Parallel(n_jobs=self.n_jobs)(
            delayed(_scores_of_others)(clone(self.estimator), X, y, to_fit, train, test, self.classes_)
            for train, test in splits
        )
        tested = np.concatenate([test for _, test in splits])
        return np.concatenate(found), _numbers(y[tested], self.classes_), tested

    def _folds(self, y: Array) -> Any:
        """`cv`, or as many folds as the rarest class has samples if these are fewer."""
        if not len(y):
            raise InputError("y must have samples of at least two classes; it has none")
        counts = np.bincount(_numbers(y, self.classes_)).tolist()
        rarest = self.classes_.tolist()[int(np.argmin(counts))]
        if len(counts) < 2:
            raise InputError(f"y must have at least two classes; all {len(y)} samples are of class {rarest!r}")
        if not isinstance(self.cv, Integral) or min(counts) >= self.cv:
            return self.cv
        if min(counts) < 2:
            raise InputError(
                f"each class needs two samples, one to fit on and one to score; class {rarest!r} has one. Leave it "
                'out, or fit the estimator on other samples and pass cv="prefit"'
            )
        few = f"class {rarest!r} has {min(counts)} samples: there are {min(counts)} folds instead of cv={self.cv}"
        warnings.warn(few, TemperanceWarning, stacklevel=4)
        return min(counts)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def _made(method: object) -> Calibrator:
    """A new calibrator, not fitted yet."""
    if isinstance(method, str):
        name, settings = parse_entry(method)
        if name == "sigmoid":
            raise InputError("scikit-learn's sigmoid is Platt scaling: pass method='platt'")
        return make_calibrator(name, **settings)
    if isinstance(method, Calibrator):
        fresh: Calibrator = clone(method)
        return fresh
    raise InputError(f"method must be the name of a calibrator, or a calibrator; got {method!r}")


def _response(estimator: object) -> str:
    found = [name for name in RESPONSES if hasattr(estimator, name)]
    if not found:
        raise InputError(
            f"estimator must be a classifier with {' or '.join(RESPONSES)}; {type(estimator).__name__} has neither"
        )
    return found[0]


def _scores_of_others(
    estimator: Any, X: Any, y: Array, to_fit: dict[str, Any], train: Array, test: Array, classes: Array
) -> Array:
    estimator.fit(_safe_indexing(X, train), y[train], **_check_method_params(X, to_fit, indices=train))
    return _scores(estimator, _safe_indexing(X, test), classes)


def _scores(estimator: Any, X: Any, classes: Array) -> Array:
    """Logits (n, k) of a fitted classifier; if it has probabilities, their logarithms, which may be infinite."""
    response = _response(estimator)
    found = np.asarray(getattr(estimator, response)(X), dtype=np.float64)
    if response == "decision_function" and len(classes) > 2 and _of_pairs(estimator):
        raise InputError('decision_function has a column for each pair of classes; set decision_function_shape="ovr"')
    if response == "predict_proba":
        found = _both_columns(found, classes, response, lambda p: (1 - p, p))
        as_probs(found)
        with np.errstate(divide="ignore"):
            return np.log(found)
    return _both_columns(found, classes, response, lambda z: (np.zeros_like(z), z))


def _both_columns(found: Array, classes: Array, response: str, pair: Any) -> Array:
    """Scores with a column for each class, where a binary classifier may have one column alone."""
    if len(classes) == 2 and found.size == len(found):
        return np.stack(pair(found.reshape(-1)), axis=1)
    if found.ndim != 2 or found.shape[1] != len(classes):
        raise InputError(
            f"{response} must have a column for each of the {len(classes)} classes; its shape is {found.shape}"
        )
    return found


def _of_pairs(estimator: Any) -> bool:
    """Does a support vector machine, or one within a pipeline, score pairs of classes? Three classes have three."""
    settings = estimator.get_params() if hasattr(estimator, "get_params") else {}
    return any(name.endswith("decision_function_shape") and value == "ovo" for name, value in settings.items())


def _log_floor(log_probs: Array) -> float:
    """The logarithm that stands for a probability of zero."""
    positive = log_probs[np.isfinite(log_probs)]
    votes = positive.min() - np.log(2) if len(positive) < log_probs.size else -np.inf
    return float(max(votes, np.log(LOG_FLOOR)))


def _numbers(labels: Any, classes: Array) -> Array:
    """The index of each label among the classes."""
    given = as_array(labels, "labels")
    places = {value: place for place, value in enumerate(classes.tolist())}
    unknown = [value for value in given.tolist() if value not in places]
    if unknown:
        raise InputError(f"labels must be among the classes {list(places)}; got {unknown[0]!r}")
    return np.array([places[value] for value in given.tolist()], dtype=np.int64)


# ------------------------------------------------------------------------------------------------------------- scoring


@dataclass(frozen=True)
class Scorer:
    """A metric as scikit-learn's model selection expects it: `scorer(estimator, X, y)`, where higher is better.

    A metric where lower is better gets a minus sign, as in `neg_log_loss`.
    """

    metric: Metric
    options: dict[str, Any] = field(default_factory=dict)
    request: Request = None

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        probs, labels = _predicted(estimator, X, y)
        value = self.metric(probs, labels, weights=sample_weight, **self.options)
        return -value if self.metric.lower_is_better else value

    def set_score_request(self, *, sample_weight: Request = None) -> Scorer:
        """A scorer that says whether it wants `sample_weight`, where scikit-learn routes metadata."""
        return replace(self, request=sample_weight)

    def get_metadata_routing(self) -> Any:
        """Whether it wants `sample_weight`, for scikit-learn's routing."""
        return weights_request(repr(self), score=self.request)

    def __repr__(self) -> str:
        return f"scorer({', '.join([repr(self.metric.name), *(f'{k}={v!r}' for k, v in self.options.items())])})"


def scorer(name: str, **options: Any) -> Scorer:
    """Any metric where lower or higher is better, by its name, for `scoring=` of cross_val_score or GridSearchCV.

    >>> scorer("ece", n_bins=10)
    scorer('ece', n_bins=10)
    """
    metric = METRICS[name]
    metric.check(options)
    if metric.lower_is_better is None:
        raise InputError(f"{name} cannot be a score: neither lower nor higher is better")
    return Scorer(metric, options)


ece_scorer = scorer("ece")
adaptive_ece_scorer = scorer("adaptive-ece")
classwise_ece_scorer = scorer("classwise-ece")
smooth_ece_scorer = scorer("smooth-ece")
brier_scorer = scorer("brier")
nll_scorer = scorer("nll")


def _predicted(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """A fitted classifier's probabilities (n, k), and the class numbers of the labels."""
    if not hasattr(estimator, "predict_proba"):
        name = type(estimator).__name__
        raise InputError(f"{name} has no predict_proba: wrap it in CalibratedClassifier({name}(…))")
    return _labelled(y, estimator.predict_proba(X), estimator.classes_)


def _labelled(y: Any, probs: Any, classes: Array) -> tuple[Array, Array]:
    found = np.asarray(probs, dtype=np.float64)
    return _both_columns(found, classes, "predict_proba", lambda p: (1 - p, p)), _numbers(y, classes)


# ------------------------------------------------------------------------------------------------------------- display


@dataclass
class ReliabilityDisplay:
    """The reliability diagram of a classifier, as a picture and as a table, in the style of `CalibrationDisplay`.

    It shows the probability of the predicted class against how often it was right, with exact 95 % intervals (Clopper
    and Pearson), for any number of classes. Made by `from_estimator` or `from_predictions`; `plot` draws it and sets
    `ax_` and `figure_`, `frame` gives its numbers.
    """

    bins: Bins
    name: str | None = None

    ax_: Any = field(init=False, repr=False)
    figure_: Any = field(init=False, repr=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        n_bins: int = 15,
        name: str | None = None,
    ) -> Self:
        """The display of a fitted classifier, on samples it was not fitted on; with weights there are no intervals."""
        return cls._of(*_predicted(estimator, X, y), sample_weight, n_bins, name or type(estimator).__name__)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Iterable[Any] | None = None,
        sample_weight: Any = None,
        n_bins: int = 15,
        name: str | None = None,
        answers: bool = False,
    ) -> Self:
        """The display of probabilities (n, k), or (n,) of the second of two classes; `labels` names the columns.

        With `answers`, `y_prob` (n,) is the confidence in each answer, and `y_true` says which answers are right.
        """
        if answers:
            if labels is not None:
                raise InputError("answers have no classes; leave out labels")
            data = Predictions.of(y_prob, y_true, answers=True, weights=sample_weight)
            return cls(cast(Bins, ece.stats_of(checked_batches(data), n_bins=n_bins)), name)
        classes = np.unique(y_true) if labels is None else np.asarray(list(labels))
        shape = np.shape(y_prob)
        if len(classes) != (shape[1] if len(shape) == 2 and shape[1] > 1 else 2):
            raise InputError(
                f"y_prob has shape {shape} and there are {len(classes)} classes; pass labels, the class of each column"
            )
        return cls._of(*_labelled(y_true, y_prob, classes), sample_weight, n_bins, name)

    @classmethod
    def _of(cls, probs: Array, labels: Array, weights: Any, n_bins: int, name: str | None) -> Self:
        found = ece.stats(probs, labels, weights=weights, n_bins=n_bins)
        assert isinstance(found, Bins)
        return cls(found, name)

    def plot(self, ax: Any = None) -> Self:
        """Draw it with matplotlib, on a new figure if there is no `ax`."""
        self.ax_ = draw_reliability(self.bins, ax)
        self.figure_ = self.ax_.figure.figure  # the root figure; get_figure(root=True) needs matplotlib 3.10
        if self.name:
            self.ax_.set_title(f"{self.name}\n{self.ax_.get_title(loc='left')}", fontsize="medium", loc="left")
        return self

    def frame(self) -> Any:
        """A row for each bin that has samples: its edges, count, mean confidence, accuracy and interval."""
        with optional("pandas", "sklearn", "a table of the diagram"):
            from pandas import DataFrame
        return DataFrame([asdict(bar) for bar in bars(self.bins)])
