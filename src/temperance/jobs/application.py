"""Calibrate predictions with a fitted calibrator, once."""

from pathlib import Path

from torch import Tensor

from temperance.calibrators.base import Calibrator
from temperance.errors import InputError
from temperance.predictions import Predictions, read_predictions


def apply(calibrator: Calibrator, predictions: Predictions | str | Path, *, again: bool = False) -> Predictions:
    """The probabilities that a fitted calibrator makes of predictions, with their labels and groups.

    `write_predictions` marks the new file as calibrated, and carries over whatever else was in the file that they were
    read from. Predictions that are calibrated already are refused, since the same correction twice is a new mistake;
    `again=True` allows it.

    >>> from temperance.calibrators import Temperature
    >>> fitted = Temperature().fit([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]] * 20, [0, 1, 1] * 20)
    >>> found = apply(fitted, Predictions.of([[2.0, 0.0]], from_logits=True))
    >>> found.calibrated_by
    'temperature'
    """
    data = predictions if isinstance(predictions, Predictions) else read_predictions(predictions, labels="optional")
    if not again:
        refuse_calibrated(data, "to do it a second time, pass again=True")
    logits = data.logits()
    with data.located():
        probs: Tensor = calibrator.predict_proba(logits)
    return data.calibrated(probs, by=calibrator.name)


def refuse_calibrated(data: Predictions, remedy: str) -> None:
    """Refuse to calibrate what is calibrated already."""
    if data.calibrated_by is not None:
        raise InputError(
            f"{data.source} is calibrated already, by {data.calibrated_by}; {remedy}",
            flags={"pass again=True": "add --again"},
        )
