"""Other libraries' calibrators, where they are installed, on the same predictions and with their default settings."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

Predict = Callable[[Tensor], Any]


class Peer(NamedTuple):
    """A calibrator of another package: `fit` takes logits and labels and gives a function from logits to probs."""

    package: str
    fit: Callable[[Tensor, Tensor], Predict]

    @property
    def version(self) -> str:
        """The installed version, or nothing where it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


def _probmetrics(name: str) -> Callable[[Tensor, Tensor], Predict]:
    """SVS and SMS as their authors publish them."""

    def fit(logits: Tensor, labels: Tensor) -> Predict:
        from probmetrics import calibrators
        from probmetrics.distributions import CategoricalLogits

        found = getattr(calibrators, name)(print_init_info=False).fit_torch(CategoricalLogits(logits), labels)
        return lambda new: found.predict_proba_torch(CategoricalLogits(new)).get_probs().double().numpy()

    return fit


def _scikit_learn(method: str) -> Callable[[Tensor, Tensor], Predict]:
    """CalibratedClassifierCV around a classifier whose decision function is the logits."""

    def fit(logits: Tensor, labels: Tensor) -> Predict:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
            def fit(self, rows: Any, labels: Any) -> Any:
                self.classes_ = np.arange(rows.shape[1])
                return self

            def decision_function(self, rows: Any) -> Any:
                return rows[:, 1] - rows[:, 0] if rows.shape[1] == 2 else rows

            def predict(self, rows: Any) -> Any:
                return rows.argmax(1)

        rows, truth = logits.numpy(), labels.numpy()
        everything = [(np.arange(len(rows)), np.arange(len(rows)))]  # there is nothing to train, so nothing to hold out
        frozen = FrozenEstimator(Given().fit(rows, truth))
        found = CalibratedClassifierCV(frozen, method=method, cv=everything, ensemble=False).fit(rows, truth)
        return lambda new: found.predict_proba(new.numpy())

    return fit


def _netcal_temperature(logits: Tensor, labels: Tensor) -> Predict:
    """netcal takes the probability of the second class for a binary classifier, and gives it back."""
    from netcal.scaling import TemperatureScaling

    def given(rows: Tensor) -> Any:
        probs = rows.softmax(1).numpy()
        return probs[:, 1] if probs.shape[1] == 2 else probs

    found = TemperatureScaling()
    found.fit(given(logits), labels.numpy())

    def predict(new: Tensor) -> Any:
        probs = found.transform(given(new))
        return np.stack([1 - probs, probs], 1) if probs.ndim == 1 else probs

    return predict


PEERS = {
    "probmetrics-svs": Peer("probmetrics", _probmetrics("SVSCalibrator")),
    "probmetrics-sms": Peer("probmetrics", _probmetrics("SMSCalibrator")),
    "scikit-learn-temperature": Peer("scikit-learn", _scikit_learn("temperature")),
    "scikit-learn-sigmoid": Peer("scikit-learn", _scikit_learn("sigmoid")),
    "scikit-learn-isotonic": Peer("scikit-learn", _scikit_learn("isotonic")),
    "netcal-temperature": Peer("netcal", _netcal_temperature),
}
