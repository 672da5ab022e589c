"""No calibration: the baseline for every other method."""

from torch import Tensor

from temperance.calibrators.base import Calibrator, calibrator


@calibrator(family="baseline", preserves_argmax=True, takes_weights=True)
class Identity(Calibrator):
    """The network's own softmax, unchanged."""

    def _check_fit(self, logits: Tensor, labels: Tensor) -> None:
        """It learns nothing, so any samples will do."""

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        pass

    def _calibrate(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1)
