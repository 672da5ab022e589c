"""What scikit-learn asks of an estimator. It is not imported unless it asks."""

from typing import Any

import numpy as np
import numpy.typing as npt


class Estimator:
    """A classifier as scikit-learn knows it, once `_k`, the number of its classes, is known."""

    _k: int | None

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
