"""What scikit-learn asks of an estimator. It is not imported unless it asks."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_labels, as_scores, as_weights, flatten, no_weight
from temperance.calibrators.weights import one_of
from temperance.numerics import first_places

# What scikit-learn calls a request for metadata: whether it is wanted, and by which name; None is undecided.
Request = bool | str | None


class Estimator:
    """A classifier as scikit-learn knows it, once `_k`, the number of its classes, is known."""

    name: str
    _k: int | None
    _metadata_request: Any  # once it is set; scikit-learn's `clone` copies it by this name

    def predict_proba(self, logits: ArrayLike) -> Any:
        raise NotImplementedError

    def predict(self, logits: ArrayLike) -> Any:
        """The most probable class of each sample; the lowest number, if several are."""
        probs = self.predict_proba(logits)
        rows = flatten(torch.as_tensor(probs))
        found = first_places(rows, rows.amax(1)).reshape(probs.shape[:1] + probs.shape[2:])
        return found if isinstance(logits, Tensor) else found.numpy()

    def score(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """The accuracy, weighted if there are weights; `sample_weight` is scikit-learn's name for them."""
        truth = as_labels(labels, as_scores(logits, "logits"))
        right = (torch.as_tensor(self.predict(logits)) == truth).double()
        weights = one_of(weights, sample_weight)
        if weights is None:
            return float(right.mean())
        counts = as_weights(weights, tuple(right.shape)).to(right.device)
        if not bool(counts.any()):
            raise no_weight()
        return float((right * counts).sum() / counts.sum())

    @property
    def classes_(self) -> npt.NDArray[np.int64]:
        """The class numbers, once it is fitted."""
        if self._k is None:
            raise AttributeError("classes_ is known once the calibrator is fitted")
        return np.arange(self._k)

    def __sklearn_is_fitted__(self) -> bool:
        return self._k is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True, one_d_labels=True),
            classifier_tags=ClassifierTags(),
        )

    def get_metadata_routing(self) -> Any:
        """Whether `fit` and `score` want `sample_weight`, where scikit-learn routes metadata."""
        if hasattr(self, "_metadata_request"):
            return self._metadata_request
        return weights_request(self.name, fit=None, score=None)

    def set_fit_request(self, *, sample_weight: Request = None) -> Self:
        """Say whether `fit` wants `sample_weight`, where scikit-learn routes metadata."""
        return self._ask("fit", sample_weight)

    def set_score_request(self, *, sample_weight: Request = None) -> Self:
        """Say whether `score` wants `sample_weight`, where scikit-learn routes metadata."""
        return self._ask("score", sample_weight)

    def _ask(self, method: str, wanted: Request) -> Self:
        self._metadata_request = self.get_metadata_routing()
        getattr(self._metadata_request, method).add_request(param="sample_weight", alias=wanted)
        return self


def weights_request(owner: str, **methods: Request) -> Any:
    """What scikit-learn's routing reads: for each method, whether it wants `sample_weight`."""
    from sklearn.utils.metadata_routing import MetadataRequest

    found = MetadataRequest(owner=owner)
    for method, wanted in methods.items():
        getattr(found, method).add_request(param="sample_weight", alias=wanted)
    return found
