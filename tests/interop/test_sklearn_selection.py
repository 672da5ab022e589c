"""temperance in scikit-learn's model selection: grids, scorers, weights and their routing."""

import pickle
from typing import Any

import numpy as np
import pytest

from interop.small_tables import Split, few, split
from temperance.calibrators import HistogramBinning, Temperature
from temperance.errors import InputError
from temperance.metrics import nll

pytest.importorskip("sklearn.frozen", reason="scikit-learn 1.6 or newer is not installed")

from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from temperance.interop.sklearn import (
    CalibratedClassifier,
    brier_scorer,
    classwise_ece_scorer,
    ece_scorer,
    nll_scorer,
    scorer,
)


@pytest.fixture(scope="module")
def cancer() -> Split:
    return split(load_breast_cancer)


@few
def test_model_selection_over_methods() -> None:
    X, X_test, y, y_test = split(load_wine)
    pipeline = make_pipeline(StandardScaler(), CalibratedClassifier(GaussianNB(), cv=3))
    grid = {
        "calibratedclassifier__method": ["temperature", "isotonic", Temperature(objective="brier")],
        "calibratedclassifier__estimator__var_smoothing": [1e-9, 1e-2],
    }
    found = GridSearchCV(pipeline, grid, scoring={"nll": nll_scorer, "ece": ece_scorer}, refit="nll", cv=3).fit(X, y)
    assert len(found.cv_results_["mean_test_ece"]) == 6
    assert found.best_score_ == found.cv_results_["mean_test_nll"].max() < 0
    assert found.score(X_test, y_test) < 0 and found.predict_proba(X_test).shape == (len(y_test), 3)


def test_settings_of_the_objective_in_a_grid(cancer: Split) -> None:
    X, _, y, _ = cancer
    made = CalibratedClassifier(GaussianNB(), method=Temperature(objective="focal"), cv=3)
    found = GridSearchCV(made, {"method__objective__gamma": [0.0, 5.0]}, scoring="neg_log_loss", cv=3).fit(X, y)
    assert found.best_params_ == {"method__objective__gamma": 0.0}


def test_a_name_has_no_settings_to_search_over() -> None:
    named = CalibratedClassifier(GaussianNB(), method="temperature:objective=focal")
    with pytest.raises(InputError, match="is a name, and method__objective__gamma needs a calibrator: pass an object"):
        named.set_params(method__objective__gamma=1.0)
    made = named.set_params(method=Temperature(objective="focal"), method__objective__gamma=1.0)
    assert clone(made).get_params()["method__objective__gamma"] == 1.0


def test_calibrators_alone_in_model_selection() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    logits = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[::2], y[::2]).decision_function(X[1::2])
    both = np.stack([0 * logits, logits], axis=1)
    scores = cross_val_score(Temperature(), both, y[1::2], scoring="neg_log_loss", cv=3)
    assert scores.shape == (3,) and (scores > -0.5).all()
    assert cross_val_score(Temperature(), both, y[1::2], cv=3).min() > 0.8  # accuracy


def test_numbers_of_numpy_in_a_grid() -> None:
    logits, labels, _ = scored()
    grid = {"n_bins": np.arange(2, 8, 5)}
    found = GridSearchCV(HistogramBinning(), grid, scoring=nll_scorer, cv=3).fit(logits, labels)
    assert type(found.best_estimator_.n_bins) is int and found.best_estimator_.n_bins == found.best_params_["n_bins"]


def scored(n: int = 200) -> tuple[Any, Any, Any]:
    """Logits of two classes, labels and weights that make a difference: errors are rare where weights are large."""
    rng = np.random.default_rng(0)
    margin = rng.normal(scale=3.0, size=n)
    labels = (margin + rng.normal(scale=2.0, size=n) > 0).astype(int)
    return np.stack([0 * margin, margin], axis=1), labels, np.where((margin > 0) == (labels == 1), 3.0, 1.0)


def test_calibrators_take_weights_by_scikit_learns_name() -> None:
    logits, labels, weights = scored()
    found = Temperature().fit(logits, labels, sample_weight=weights)
    assert float(found.temperature) == float(Temperature().fit(logits, labels, weights=weights).temperature)
    assert float(found.temperature) != float(Temperature().fit(logits, labels).temperature)
    expected = accuracy_score(labels, found.predict(logits), sample_weight=weights)
    assert found.score(logits, labels, sample_weight=weights) == pytest.approx(expected)
    assert found.score(logits, labels, weights=weights) == pytest.approx(expected)
    assert found.score(logits, labels) < expected
    for method in (found.fit, found.score):
        with pytest.raises(InputError, match="weights and sample_weight are two names for the same argument"):
            method(logits, labels, weights=weights, sample_weight=weights)
    with pytest.raises(InputError, match="every weight is 0"):
        found.score(logits, labels, sample_weight=0 * weights)


@pytest.mark.parametrize("routing", [False, True], ids=["all to fit", "routed"])
def test_weights_reach_a_calibrator_in_model_selection(routing: bool) -> None:
    logits, labels, weights = scored()
    folds = StratifiedKFold(3)
    expected = []
    for train, test in folds.split(logits, labels):
        found = Temperature().fit(logits[train], labels[train], weights=weights[train])
        expected.append(
            -nll(found.predict_proba(logits[test]), labels[test], weights=weights[test] if routing else None)
        )
    made, score = Temperature(), nll_scorer
    with config_context(enable_metadata_routing=routing):
        if routing:
            made, score = made.set_fit_request(sample_weight=True), score.set_score_request(sample_weight=True)
        given = {"sample_weight": weights}
        np.testing.assert_allclose(
            cross_val_score(made, logits, labels, scoring=score, cv=folds, params=given), expected
        )
        search = GridSearchCV(made, {"objective": ["nll", "brier"]}, scoring=score, cv=folds).fit(
            logits, labels, **given
        )
    if routing:  # otherwise whether the scorer gets weights depends on the version of scikit-learn
        assert search.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(expected))
    best = Temperature(objective=search.best_params_["objective"]).fit(logits, labels, weights=weights)
    assert float(search.best_estimator_.temperature) == float(best.temperature)


def test_text_labels_of_calibrators_in_model_selection() -> None:
    logits, labels, _ = scored()
    named = np.array(["no", "yes"])[labels]
    for scoring in ("neg_log_loss", "accuracy", nll_scorer, None):
        numbers, names = (cross_val_score(Temperature(), logits, y, scoring=scoring, cv=3) for y in (labels, named))
        np.testing.assert_allclose(names, numbers)


def test_routed_weights_reach_the_accuracy_of_a_calibrator_only_if_asked_for() -> None:
    logits, labels, weights = scored()
    with config_context(enable_metadata_routing=True):
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            cross_val_score(Temperature(), logits, labels, cv=3, params={"sample_weight": weights})
        fit_alone = Temperature().set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        both = clone(fit_alone).set_score_request(sample_weight="sample_weight")
        plain, weighted = (
            cross_val_score(made, logits, labels, cv=3, params={"sample_weight": weights}) for made in (fit_alone, both)
        )
    assert plain.mean() == pytest.approx(accuracy_score(labels, logits.argmax(1)), abs=0.01)
    assert weighted.mean() == pytest.approx(accuracy_score(labels, logits.argmax(1), sample_weight=weights), abs=0.01)
    assert weighted.mean() > plain.mean() + 0.05


def test_routed_weights_reach_a_pipeline_and_routed_groups_the_splitter(cancer: Split) -> None:
    X, X_test, y, _ = cancer
    weights, groups = np.where(y == 0, 3.0, 1.0), np.arange(len(y)) // 7
    with config_context(enable_metadata_routing=True):
        asked = LogisticRegression().set_fit_request(sample_weight=True)
        inner = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asked)
        made = CalibratedClassifier(inner, method="temperature", cv=GroupKFold(3))
        found = made.fit(X, y, sample_weight=weights, groups=groups)
        search = GridSearchCV(
            clone(made).set_fit_request(sample_weight=True),
            {"method": ["temperature"]},
            scoring=nll_scorer.set_score_request(sample_weight=False),
            cv=GroupKFold(3),
        ).fit(X, y, sample_weight=weights, groups=groups)
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            CalibratedClassifier(GaussianNB()).fit(X, y, sample_weight=weights)
        with pytest.raises(TypeError, match="groups"):
            CalibratedClassifier(inner).fit(X, y, groups=groups)
    fitted = clone(inner).fit(X, y, logisticregression__sample_weight=weights)
    np.testing.assert_allclose(found.estimator_.decision_function(X_test), fitted.decision_function(X_test))
    splits, scores = list(GroupKFold(3).split(X, y, groups)), np.empty(len(y))
    for train, test in splits:
        fold = clone(inner).fit(X[train], y[train], logisticregression__sample_weight=weights[train])
        scores[test] = fold.decision_function(X[test])
    expected = Temperature().fit(np.stack([0 * scores, scores], 1), y, weights=weights).learnt["temperature"]
    for calibrator in (found.calibrator_, search.best_estimator_.calibrator_):
        np.testing.assert_allclose(calibrator.learnt["temperature"], expected, rtol=1e-6)


@pytest.mark.parametrize("one", [ece_scorer, classwise_ece_scorer, brier_scorer, nll_scorer, scorer("ece", n_bins=5)])
def test_scorers(one: Any, cancer: Split) -> None:
    X, X_test, y, y_test = cancer
    named = np.array(["benign", "malignant"])
    found = GaussianNB().fit(X, named[y])
    expected = one.metric(found.predict_proba(X_test), y_test, **one.options)
    assert one(found, X_test, named[y_test]) == pytest.approx(-expected)
    assert one(found, X_test[y_test == 1], named[y_test[y_test == 1]]) < 0  # a part without one of the classes
    assert pickle.loads(pickle.dumps(one)) == one
    assert cross_val_score(GaussianNB(), X, named[y], scoring=one, cv=3).max() <= 0


def test_more_accuracy_is_better(cancer: Split) -> None:
    X, X_test, y, y_test = cancer
    found = GaussianNB().fit(X, y)
    assert scorer("accuracy")(found, X_test, y_test) == pytest.approx(found.score(X_test, y_test))
