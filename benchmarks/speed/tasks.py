"""What is timed: for each task, the contenders by name. A peer that cannot be imported is left out, and said so.

Every contender starts from the same arrays in memory and ends with the number; conversions that it needs are part of
its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.speed.data import synthetic_logits, synthetic_probs
from temperance import calibrators, metrics

Run = Callable[[], Any]


@dataclass(frozen=True)
class Task:
    """Something to time, with a factory for each contender: imports and set-up are not part of the time."""

    name: str
    n_bytes: int  # that every contender has to read
    contenders: dict[str, Callable[[], Run]]


def top_label(probs: Any, labels: Any) -> tuple[Any, Any]:
    """Confidence and correctness as a user of a binary library gets them."""
    return probs.max(axis=1), probs.argmax(axis=1) == labels


def numpy_ece(probs: Any, labels: Any) -> float:
    """A NumPy program that takes care to read the probabilities once."""
    prediction = probs.argmax(1)
    confidence, correct = probs[np.arange(len(probs)), prediction], prediction == labels
    index = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    hits = np.bincount(index, correct, 15)
    sums = np.bincount(index, confidence, 15)
    return float(np.abs(hits - sums).sum() / len(labels))


def ece_task(name: str, n: int, k: int) -> Task:
    probs, labels = synthetic_probs(n, k)
    tensor, truth = torch.from_numpy(probs), torch.from_numpy(labels)

    def torchmetrics() -> Run:
        from torchmetrics.functional.classification import multiclass_calibration_error as measure

        return lambda: measure(tensor, truth, num_classes=k, n_bins=15)

    def netcal() -> Run:
        from netcal.metrics import ECE

        return lambda: ECE(15).measure(probs, labels)

    def scikit_learn() -> Run:
        from sklearn.calibration import calibration_curve

        return lambda: calibration_curve(*reversed(top_label(probs, labels)), n_bins=15)

    def uncertainty_calibration() -> Run:
        from calibration import get_ece

        return lambda: get_ece(probs, labels, num_bins=15)

    def relplot() -> Run:
        import relplot

        return lambda: relplot.metrics.binnedECE(*top_label(probs, labels), nbins=15)

    return Task(
        name,
        probs.nbytes + labels.nbytes,
        {
            "temperance": lambda: lambda: metrics.ece(probs, labels),
            "NumPy": lambda: lambda: numpy_ece(probs, labels),
            "torchmetrics": torchmetrics,
            "scikit-learn": scikit_learn,
            "relplot": relplot,
            "netcal": netcal,
            "uncertainty-calibration": uncertainty_calibration,
        },
    )


def classwise_task() -> Task:
    probs, labels = synthetic_probs(50_000, 1000)

    def by_column(measure: Callable[[Any, Any], float]) -> Run:
        return lambda: np.mean([measure(probs[:, j], labels == j) for j in range(probs.shape[1])])

    def numpy_columns() -> Run:
        def measure(p: Any, event: Any) -> float:
            index = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
            return float(np.abs(np.bincount(index, event, 15) - np.bincount(index, p, 15)).sum() / len(p))

        return by_column(measure)

    def netcal() -> Run:
        from netcal.metrics import ECE

        return by_column(lambda p, event: ECE(15).measure(p, event.astype(int)))

    return Task(
        "classwise ECE, 50k×1000",
        probs.nbytes + labels.nbytes,
        {
            "temperance": lambda: lambda: metrics.classwise_ece(probs, labels),
            "NumPy": numpy_columns,
            "netcal": netcal,
        },
    )


def adaptive_task() -> Task:
    probs, labels = synthetic_probs(1_000_000, 10)

    def netcal() -> Run:
        from netcal.metrics import ECE

        return lambda: ECE(15, equal_intervals=False).measure(probs, labels)

    return Task(
        "adaptive ECE, 1e6×10",
        probs.nbytes + labels.nbytes,
        {"temperance": lambda: lambda: metrics.adaptive_ece(probs, labels), "netcal": netcal},
    )


def smooth_task() -> Task:
    probs, labels = synthetic_probs(100_000, 10)

    def relplot() -> Run:
        from relplot import smECE

        return lambda: smECE(*top_label(probs, labels))

    return Task(
        "smooth ECE, 1e5×10",
        probs.nbytes + labels.nbytes,
        {"temperance": lambda: lambda: metrics.smooth_ece(probs, labels), "relplot": relplot},
    )


def kde_task() -> Task:
    probs, labels = synthetic_probs(10_000, 10)
    return Task(
        "KDE ECE, 1e4", probs.nbytes + labels.nbytes, {"temperance": lambda: lambda: metrics.kde_ece(probs, labels)}
    )


def temperature_task(name: str, n: int, k: int) -> Task:
    logits, labels = synthetic_logits(n, k)

    def netcal() -> Run:
        from netcal.scaling import TemperatureScaling

        probs = torch.from_numpy(logits).double().softmax(1).numpy()  # with float32 it silently returns 1
        return lambda: TemperatureScaling().fit(probs, labels)

    def scikit_learn() -> Run:
        from sklearn.calibration import _TemperatureScaling

        return lambda: _TemperatureScaling().fit(logits, labels)

    return Task(
        name,
        logits.nbytes + labels.nbytes,
        {
            "temperance": lambda: lambda: calibrators.Temperature().fit(logits, labels),
            "scikit-learn": scikit_learn,
            "netcal": netcal,
        },
    )


def all_tasks() -> dict[str, Callable[[], Task]]:
    """Every task by a short name; made when it is run, so that only one set of data is in memory."""
    return {
        "ece-1e6x10": lambda: ece_task("ECE, 1e6×10", 1_000_000, 10),
        "ece-50kx1000": lambda: ece_task("ECE, 50k×1000", 50_000, 1000),
        "classwise": classwise_task,
        "adaptive": adaptive_task,
        "smooth": smooth_task,
        "kde": kde_task,
        "temperature-5kx10": lambda: temperature_task("temperature, 5k×10", 5_000, 10),
        "temperature-25kx1000": lambda: temperature_task("temperature, 25k×1000", 25_000, 1000),
    }
