"""What scikit-learn expects of an estimator; scikit-learn itself is imported only where it is used."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_array, as_labels, as_scores, as_weights, flatten, no_weight
from temperance.calibrators.groups import UNKNOWN, places_among
from temperance.calibrators.weights import either
from temperance.compiled import first_places
from temperance.errors import InputError

# scikit-learn's metadata request: whether the metadata is wanted, and under which name; None means undecided.
Request = bool | str | None


class Estimator:
    """A classifier in scikit-learn's sense, fitted once `_k`, the number of classes, is known."""

    name: ClassVar[str]
    class_names: tuple[str, ...] | None = None  # if the labels were text or had names
    _k: int | None
    _metadata_request: Any  # only once set; scikit-learn's `clone` copies the attribute of this name

    def predict_proba(self, logits: ArrayLike) -> Any:
        raise NotImplementedError

    def predict(self, logits: ArrayLike) -> Any:
        """The most probable class of each sample, the first of equal ones; after a fit to text labels, as text."""
        found = self._predicted(logits)
        if self.class_names is not None:
            return self.classes_[found.cpu().numpy()]
        return found if isinstance(logits, Tensor) else found.numpy()

    def _predicted(self, logits: ArrayLike) -> Tensor:
        """The number of the most probable class of each sample."""
        probs = self.predict_proba(logits)
        rows = flatten(torch.as_tensor(probs))
        return first_places(rows, rows.amax(1)).reshape(probs.shape[:1] + probs.shape[2:])

    def score(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """The accuracy, weighted if there are weights; `sample_weight` is scikit-learn's name for them."""
        found = self._predicted(logits)
        truth = as_labels(numbered(labels, self.class_names), as_scores(logits, "logits"))
        right = (found == truth).double()
        weights = either(weights, sample_weight)
        if weights is None:
            return float(right.mean())
        counts = as_weights(weights, tuple(right.shape)).to(right.device)
        if not bool(counts.any()):
            raise no_weight()
        return float((right * counts).sum() / counts.sum())

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The class of each column: its number, or its name after a fit to text labels."""
        if self._k is None:
            raise AttributeError("classes_ is known once the calibrator is fitted")
        return np.arange(self._k) if self.class_names is None else np.array(self.class_names)

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
        """Whether `fit` and `score` want `sample_weight`, for scikit-learn's metadata routing."""
        if hasattr(self, "_metadata_request"):
            return self._metadata_request
        return weights_request(self.name, fit=None, score=None)

    def set_fit_request(self, *, sample_weight: Request = None) -> Self:
        """Say whether `fit` wants `sample_weight`, for scikit-learn's metadata routing."""
        return self._ask("fit", sample_weight)

    def set_score_request(self, *, sample_weight: Request = None) -> Self:
        """Say whether `score` wants `sample_weight`, for scikit-learn's metadata routing."""
        return self._ask("score", sample_weight)

    def _ask(self, method: str, wanted: Request) -> Self:
        self._metadata_request = self.get_metadata_routing()
        getattr(self._metadata_request, method).add_request(param="sample_weight", alias=wanted)
        return self


def names_of(labels: ArrayLike, k: int) -> tuple[str, ...] | None:
    """The names of the k columns if labels are text: the sorted labels, as in scikit-learn. None for numbers."""
    text = _text(labels)
    if text is None:
        return None
    names = tuple(np.unique(text).tolist())
    if len(names) != k:
        raise InputError(
            f"text labels must name every class, one for each of the {k} columns of the logits; these name "
            f"{len(names)}. Pass numbers instead: the column of each label's class"
        )
    if all(name.isdecimal() for name in names) and list(names) != sorted(names, key=int):
        some = ", ".join(map(repr, names[:3]))
        raise InputError(f"labels are numbers as text, which sort as {some}, …: pass them as integers")
    return names


def numbered(labels: ArrayLike, names: tuple[str, ...] | None) -> ArrayLike:
    """Text labels as class numbers; other labels unchanged."""
    text = _text(labels)
    if text is None:
        return labels
    if names is None:
        raise InputError("labels are text, but the calibrator was fitted to class numbers: pass class numbers")
    places = places_among(names, text)
    if len(unknown := text[places == UNKNOWN]):
        known = ", ".join(map(repr, names[:8]))
        raise InputError(f"labels must be among the classes {known}; got {unknown[0].item()!r}")
    return places


def _text(labels: ArrayLike) -> npt.NDArray[np.str_] | None:
    """Labels as an array of text, or None if they are not text."""
    if isinstance(labels, Tensor):
        return None
    given = as_array(labels, "labels")
    return given if given.dtype.kind == "U" else None


def weights_request(owner: str, **methods: Request) -> Any:
    """What scikit-learn's routing reads: for each method, whether it wants `sample_weight`."""
    from sklearn.utils.metadata_routing import MetadataRequest

    found = MetadataRequest(owner=owner)
    for method, wanted in methods.items():
        getattr(found, method).add_request(param="sample_weight", alias=wanted)
    return found
