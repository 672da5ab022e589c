"""temperance in scikit-learn: its own checks, and what a user gets on small data."""

import pickle
from typing import Any

import numpy as np
import pytest

from interop.small_tables import Split, few, split
from temperance.calibrators import CALIBRATORS, Auto, Platt, Temperature
from temperance.errors import InputError, TemperanceWarning
from temperance.metrics import ece, nll

pytest.importorskip("sklearn.frozen", reason="scikit-learn 1.6 or newer is not installed")

from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from temperance.interop.sklearn import (
    CalibratedClassifier,
    ReliabilityDisplay,
    ece_scorer,
    nll_scorer,
    scorer,
)


@pytest.fixture(scope="module")
def cancer() -> Split:
    return split(load_breast_cancer)


@pytest.fixture(scope="module")
def wine() -> Split:
    return split(load_wine)


@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings of scikit-learn and NumPy on purpose
@pytest.mark.parametrize("estimator", [LogisticRegression(), GaussianNB()], ids=lambda e: type(e).__name__)
def test_it_passes_the_checks_of_scikit_learn(estimator: Any) -> None:
    check_estimator(CalibratedClassifier(estimator, method="temperature"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_default_passes_the_checks_of_scikit_learn() -> None:
    """With fewer folds and members, whose number makes no difference to the checks."""
    # Auto deals the rows to folds, and stops within a tolerance that is wider than these checks allow.
    reason = "auto cross-validates, so a weight of 2 is not quite two rows"
    unequal = {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in ("dense", "sparse")}
    made = CalibratedClassifier(GaussianNB(), method=Auto(members=["structured-vector"], folds=2), cv=2)
    check_estimator(made, expected_failed_checks=unequal)


def test_sample_weights_reach_the_estimator_the_calibrator_and_the_scorer() -> None:
    X, y = load_iris(return_X_y=True)
    weights = np.where(np.arange(150) % 2, 1.0, 1e-3) * np.linspace(0.5, 1, 150)
    plain, weighted = (
        CalibratedClassifier(GaussianNB(), method="vector").fit(X, y, sample_weight=each) for each in (None, weights)
    )
    assert not np.allclose(plain.estimator_.theta_, weighted.estimator_.theta_, atol=1e-4)
    before, after = (np.asarray(found.calibrator_.learnt["bias"]) for found in (plain, weighted))
    assert not np.allclose(before, after, atol=1e-4)
    alone = CalibratedClassifier(weighted.estimator_, method="vector", cv="prefit").fit(X, y, sample_weight=weights)
    assert alone.estimator_ is weighted.estimator_
    value = nll(plain.predict_proba(X), y, weights=weights)
    assert nll_scorer(plain, X, y, sample_weight=weights) == pytest.approx(-value)
    shown = ReliabilityDisplay.from_estimator(plain, X, y, sample_weight=weights)
    assert float(shown.bins.n) == pytest.approx(weights.sum())


def test_an_estimator_without_weights_is_refused_with_them() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InputError, match="KNeighborsClassifier takes no sample_weight"):
        CalibratedClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=np.ones(150))


class Noting(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Notes what `fit` was given, and then counts classes."""

    def fit(self, X: Any, y: Any, weights_of_rows: Any = None, note: str = "") -> Any:
        self.noted_, self.note_ = np.asarray(weights_of_rows) - X[:, 0], note
        self.inner_ = GaussianNB().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X: Any) -> Any:
        assert not self.noted_.any() and self.note_ == "as it is"  # its own rows of the parameter
        return self.inner_.predict_proba(X)


def test_other_parameters_reach_the_estimator(cancer: Split) -> None:
    """Those with a value for each sample are divided among the folds."""
    X, X_test, y, _ = cancer
    made = CalibratedClassifier(Noting(), method="temperature").fit(X, y, weights_of_rows=X[:, 0], note="as it is")
    plain = CalibratedClassifier(GaussianNB(), method="temperature").fit(X, y)
    np.testing.assert_array_equal(made.predict_proba(X_test), plain.predict_proba(X_test))
    with pytest.raises(InputError, match='with cv="prefit" the estimator is not fitted again: leave out note'):
        CalibratedClassifier(made.estimator_, cv="prefit").fit(X, y, note="as it is")


# ---------------------------------------------------------------------------------------------------- what it promises


CLASSIFIERS = {
    "logits": make_pipeline(StandardScaler(), LogisticRegression()),
    "margins": make_pipeline(StandardScaler(), SVC()),
    "probabilities": GaussianNB(),
    "votes": KNeighborsClassifier(),
}


# Where it is nearest to sigmoid, and every classifier and table.
PAIRS = [*((name, load_breast_cancer) for name in CLASSIFIERS), ("votes", load_wine), ("votes", load_iris)]


@few
@pytest.mark.parametrize(("classifier", "load"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_the_default_is_no_worse_than_sigmoid_on_small_data(classifier: str, load: Any) -> None:
    """Over a few splits, with a margin for their noise."""
    ours: list[float] = []
    theirs: list[float] = []
    for seed in range(3):
        X, X_test, y, y_test = split(load, seed)
        for losses, made in ((ours, CalibratedClassifier), (theirs, CalibratedClassifierCV)):
            losses.append(log_loss(y_test, made(clone(CLASSIFIERS[classifier])).fit(X, y).predict_proba(X_test)))
    assert np.mean(ours) < np.mean(theirs) + 0.03


def test_one_calibrator_is_fitted_to_out_of_fold_scores(wine: Split) -> None:
    X, X_test, y, _ = wine
    folds = StratifiedKFold(4)
    found = CalibratedClassifier(GaussianNB(), method="vector", cv=folds).fit(X, y)
    scores = np.empty((len(y), 3))
    for train, test in folds.split(X, y):
        scores[test] = GaussianNB().fit(X[train], y[train]).predict_proba(X[test])
    expected = CALIBRATORS["vector"]().fit(np.log(scores.clip(1e-12)), y)
    whole = np.log(GaussianNB().fit(X, y).predict_proba(X_test).clip(1e-12))
    np.testing.assert_allclose(found.predict_proba(X_test), expected.predict_proba(whole), atol=1e-6)


def test_it_is_what_scikit_learn_gives_without_an_ensemble(wine: Split) -> None:
    """Both fit one map to the scores of all folds; with the same map, from the same scores, little differs."""
    X, X_test, y, _ = wine
    options: dict[str, Any] = {"cv": StratifiedKFold(4), "ensemble": False, "method": "isotonic"}
    theirs = CalibratedClassifierCV(GaussianNB(), **options).fit(X, y)
    ours = CalibratedClassifier(GaussianNB(), **options).fit(X, y)
    assert clone(ours).ensemble is False and len(theirs.calibrated_classifiers_) == 1
    assert (ours.predict(X_test) == theirs.predict(X_test)).mean() > 0.95


def test_a_fitted_estimator_stays_as_it_is(cancer: Split) -> None:
    X, X_test, y, y_test = cancer
    fitted = GaussianNB().fit(X[:140], y[:140])
    found = CalibratedClassifier(fitted, method="beta", cv="prefit").fit(X[140:], y[140:])
    frozen = CalibratedClassifier(FrozenEstimator(fitted), method="beta", cv=StratifiedKFold(3)).fit(X[140:], y[140:])
    assert found.estimator_ is fitted
    np.testing.assert_allclose(found.predict_proba(X_test), frozen.predict_proba(X_test), atol=1e-9)
    assert log_loss(y_test, found.predict_proba(X_test)) < log_loss(y_test, fitted.predict_proba(X_test))


@pytest.mark.parametrize("method", ["temperature:objective=class-scaled", Temperature(objective="class-scaled")])
def test_a_method_is_a_name_or_an_object(method: Any, cancer: Split) -> None:
    X, X_test, y, _ = cancer
    plain = CalibratedClassifier(GaussianNB(), method="temperature").fit(X, y).predict_proba(X_test)
    found = CalibratedClassifier(GaussianNB(), method=method).fit(X, y)
    assert found.calibrator_.objective == "class-scaled" and found.calibrator_ is not method
    assert np.abs(found.predict_proba(X_test) - plain).max() > 1e-4


def test_string_labels(cancer: Split) -> None:
    X, X_test, y, _ = cancer
    named = np.array(["benign", "malignant"])[y]
    found = CalibratedClassifier(LinearSVC(), method="platt").fit(X, named)
    numbered = CalibratedClassifier(LinearSVC(), method="platt").fit(X, y)
    assert found.classes_.tolist() == ["benign", "malignant"]
    np.testing.assert_allclose(found.predict_proba(X_test), numbered.predict_proba(X_test))
    assert set(found.predict(X_test)) <= {"benign", "malignant"}


class OneColumn(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier that gives the probability of the second class alone."""

    def fit(self, X: Any, y: Any) -> Any:
        self.inner_ = GaussianNB().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def predict_proba(self, X: Any) -> Any:
        return self.inner_.predict_proba(X)[:, 1:]


def test_one_column_of_probabilities(cancer: Split) -> None:
    X, X_test, y, y_test = cancer
    one, two = (CalibratedClassifier(made, method="temperature").fit(X, y) for made in (OneColumn(), GaussianNB()))
    np.testing.assert_allclose(one.predict_proba(X_test), two.predict_proba(X_test), atol=1e-6)
    assert ece_scorer(OneColumn().fit(X, y), X_test, y_test) == pytest.approx(
        ece_scorer(GaussianNB().fit(X, y), X_test, y_test)
    )


def test_no_vote_is_not_impossible(cancer: Split) -> None:
    """Five neighbours give multiples of a fifth: none of them counts as a tenth."""
    X, _, y, _ = cancer
    found = CalibratedClassifier(KNeighborsClassifier(5), method="temperature").fit(X, y)
    assert np.exp(found.log_floor_) == pytest.approx(0.1)
    assert found.predict_proba(X).min() > 0.001
    continuous = CalibratedClassifier(make_pipeline(StandardScaler(), LogisticRegression()), method="temperature").fit(
        X, y
    )
    assert continuous.log_floor_ == -np.inf


def test_it_is_pickled(wine: Split) -> None:
    X, X_test, y, _ = wine
    found = CalibratedClassifier(GaussianNB(), method="vector").fit(X, y)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.predict_proba(X_test), found.predict_proba(X_test))


def test_it_shows_itself(wine: Split) -> None:
    made = CalibratedClassifier(GaussianNB(), method=Platt(reduction="pooled"))
    assert "Platt" in repr(made) and "GaussianNB" in made._repr_html_()


# ------------------------------------------------------------------------------------------------------------- display


def test_display(cancer: Split) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X, X_test, y, y_test = cancer
    found = GaussianNB().fit(X, y)
    probs = found.predict_proba(X_test)
    display = ReliabilityDisplay.from_estimator(found, X_test, y_test, n_bins=10)
    table = display.frame()
    assert table["count"].sum() == len(y_test)
    error = (table["count"] * (table["accuracy"] - table["confidence"]).abs()).sum() / len(y_test)
    assert error == pytest.approx(ece(probs, y_test, n_bins=10))
    for other in (
        ReliabilityDisplay.from_predictions(y_test, probs, n_bins=10),
        ReliabilityDisplay.from_predictions(y_test, probs[:, 1], n_bins=10),
        ReliabilityDisplay.from_predictions(np.array(["a", "b"])[y_test], probs, labels=["a", "b"], n_bins=10),
    ):
        pandas.testing.assert_frame_equal(other.frame(), table, rtol=1e-12)  # 1 − p may round
    pytest.importorskip("matplotlib")
    assert display.plot() is display and display.ax_.get_title(loc="left").startswith("GaussianNB")
    assert display.figure_.axes[0] is display.ax_


def test_display_of_answers() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.beta(2, 2, 400)
    correct = generator.random(400) < confidence
    display = ReliabilityDisplay.from_predictions(correct, confidence, answers=True)
    assert display.bins.confidence.sum() == pytest.approx(confidence.sum())  # also below one half
    assert display.bins.hits.sum() == correct.sum()
    with pytest.raises(InputError, match="answers have no classes"):
        ReliabilityDisplay.from_predictions(correct, confidence, answers=True, labels=[0, 1])


# --------------------------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            CalibratedClassifier(GaussianNB(), method="temprature"),
            "no calibrator named 'temprature'; did you mean temp",
        ),
        (CalibratedClassifier(GaussianNB(), method="sigmoid"), "sigmoid is Platt scaling: pass method='platt'"),
        (CalibratedClassifier(GaussianNB(), ensemble=True), "ensemble must be False: .* keeps one .*; got True"),
        (
            CalibratedClassifier(GaussianNB()).set_params(ensemble="auto"),
            "ensemble must be False: .* keeps one .*; got 'auto'",
        ),
        (
            CalibratedClassifier(GaussianNB()).set_params(method=3),
            "method must be the name of a calibrator, or a calibrator; got",
        ),
        (CalibratedClassifier(GaussianNB(), method="temperature:objective=nil"), "no objective named 'nil'; did you"),
        (CalibratedClassifier(GaussianNB(), cv="prefix"), 'cv must be a number of folds, a splitter or "prefit"; got'),
        (CalibratedClassifier(LinearRegression()), "decision_function or predict_proba; LinearRegression has neither"),
        (CalibratedClassifier(GaussianNB(), cv=KFold(2)), "fold 0 leaves no sample of class 0 to fit the estimator on"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_wrong_settings_are_refused(made: Any, sentence: str) -> None:
    X, y = load_iris(return_X_y=True)
    order = np.argsort(y[:100], kind="stable")
    with pytest.raises(InputError, match=sentence):
        made.fit(X[order], y[order])


def test_margins_of_pairs_of_classes_are_refused() -> None:
    """Also with three classes, which have as many pairs."""
    X, y = load_iris(return_X_y=True)
    pairs = make_pipeline(StandardScaler(), SVC(decision_function_shape="ovo"))
    for labels in (y, np.where(X[:, 0] > 6.5, 3, y)):
        with pytest.raises(InputError, match='for each pair of classes; set decision_function_shape="ovr"'):
            CalibratedClassifier(pairs, method="temperature").fit(X, labels)
    two = CalibratedClassifier(pairs, method="temperature").fit(X, y == 2)
    assert two.score(X, y == 2) > 0.9


@few
def test_few_samples_of_a_class() -> None:
    X, y = load_iris(return_X_y=True)
    for cv in (5, np.int64(5)):
        with pytest.warns(TemperanceWarning, match="class 2 has 3 samples: there are 3 folds instead of cv=5"):
            CalibratedClassifier(GaussianNB(), method="temperature", cv=cv).fit(X[:103], y[:103])
    with pytest.raises(InputError, match=r"each class needs two samples.*class 2 has one"):
        CalibratedClassifier(GaussianNB()).fit(X[:101], y[:101])
    with pytest.raises(InputError, match="y must have at least two classes; all 50 samples are of class 0"):
        CalibratedClassifier(GaussianNB()).fit(X[:50], y[:50])
    with pytest.raises(InputError, match="y must have samples of at least two classes; it has none"):
        CalibratedClassifier(GaussianNB()).fit(X[:0], y[:0])


def test_prefit_needs_a_fitted_estimator(cancer: Split) -> None:
    X, _, y, _ = cancer
    with pytest.raises(NotFittedError):
        CalibratedClassifier(GaussianNB(), cv="prefit").fit(X, y)
    with pytest.raises(InputError, match=r"labels must be among the classes \[0, 1\]; got 2"):
        CalibratedClassifier(GaussianNB().fit(X, y), cv="prefit").fit(X, y + 1)


def test_wrong_scorers_are_refused(cancer: Split) -> None:
    X, _, y, _ = cancer
    with pytest.raises(InputError, match="ks-p-value cannot be a score"):
        scorer("ks-p-value")
    with pytest.raises(InputError, match="no setting of ece named 'bins'"):
        scorer("ece", bins=3)
    with pytest.raises(InputError, match=r"LinearSVC has no predict_proba: wrap it in CalibratedClassifier\(LinearSVC"):
        ece_scorer(LinearSVC().fit(X, y), X, y)


def test_a_display_needs_a_class_for_each_column() -> None:
    with pytest.raises(InputError, match=r"y_prob has shape \(2, 3\) and there are 2 classes; pass labels"):
        ReliabilityDisplay.from_predictions([0, 1], [[0.2, 0.3, 0.5]] * 2)


def test_forests_too(wine: Split) -> None:
    X, X_test, y, y_test = wine
    found = CalibratedClassifier(RandomForestClassifier(20, random_state=0), method="temperature", n_jobs=1).fit(X, y)
    assert found.score(X_test, y_test) > 0.9 and found.n_features_in_ == 13
