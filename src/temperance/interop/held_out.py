"""Shared by callbacks of training libraries: metrics of held-out predictions, a calibrator and a report at the end."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from temperance.calibrators import Calibrator, make_calibrator
from temperance.errors import InputError, TemperanceWarning
from temperance.files import make_folder
from temperance.jobs.comparison import compare
from temperance.jobs.measuring import chosen_metrics
from temperance.predictions import Predictions
from temperance.report import write_report

CALIBRATOR = "calibrator.safetensors"
REPORT = "calibration.html"

# What is measured after every epoch, unless the caller says otherwise.
MEASURED = ("ece", "nll", "brier", "confidence-gap")


class HeldOut:
    """Predictions on held-out data, the latest and the best, their metrics, and the calibrator that is fitted to them.

    method   the calibrator that is fitted at the end, such as "temperature" or "auto"
    metrics  names of metrics
    """

    def __init__(self, method: str, metrics: Sequence[str]) -> None:
        make_calibrator(method)  # refused now, not after the training
        self.method, self.metrics = method, chosen_metrics(metrics)
        self._latest: Predictions | None = None
        self._best: Predictions | None = None

    @property
    def is_empty(self) -> bool:
        """Has nothing been predicted yet?"""
        return self._latest is None

    def measured(self, logits: Tensor, labels: Tensor, prefix: str = "") -> dict[str, float]:
        """The metrics of these predictions (n, k), by name; the predictions are kept until the next call."""
        self._latest = Predictions.of(logits, labels, from_logits=True)
        return {
            f"{prefix}{metric.name.replace('-', '_')}": metric(logits, labels, from_logits=True)
            for metric in self.metrics
        }

    def latest_is_best(self) -> None:
        """Keep the latest predictions: they are those of the best network so far."""
        self._best = self._latest

    def finish(self, folder: str | Path, *, best: bool = False) -> Calibrator | None:
        """Fit the calibrator to the latest or the best predictions and write it to a folder, with a report.

        The report fits it on one half and measures it on the other; the calibrator that is kept is fitted on all. If
        nothing was predicted there is a warning: an error would end a training that is otherwise complete.
        """
        found = self._best if best else self._latest
        if found is None:
            why = "ended before its first validation"
            if best:
                why = "was resumed after the best network was validated: fit one to the predictions of that network"
            warnings.warn(f"no calibrator was fitted: the training {why}", TemperanceWarning, stacklevel=2)
            return None
        make_folder(folder)
        fitted = make_calibrator(self.method).fit(found.logits(), found.labels)
        fitted.save(Path(folder) / CALIBRATOR)
        write_report(compare(found, methods=[self.method]), Path(folder) / REPORT)
        return fitted


def as_rows(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Logits (n, k, *space) and labels (n, *space) as rows, without those that are ignored."""
    if logits.ndim != labels.ndim + 1:
        raise InputError(
            f"logits must have one dimension more than labels; got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    truth = labels.flatten()
    rows = torch.movedim(logits, 1, -1).reshape(len(truth), logits.shape[1])
    kept = truth != ignore_index
    return rows[kept].detach(), truth[kept]
