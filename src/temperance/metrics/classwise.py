"""Calibration error of every class's probability, not only of the predicted one."""

import math
from typing import Literal

import torch
from torch import Tensor

from temperance.metrics.base import MetricClaims, metric
from temperance.metrics.bins import Bins
from temperance.metrics.stats import class_bins
from temperance.settings import of_kind

Norm = Literal["samples", "labels"]
Classes = Literal["all", "present"]

CLAIMS: MetricClaims = {"range": (0, math.inf), "percent": True, "interval": "distance", "of_classes": True}
HEADLINE: MetricClaims = {**CLAIMS, "headline": 9}


def class_errors(bins: Bins, *, norm: Norm = "samples") -> Tensor:
    """Each class's calibration error, from `class_bins`. (k,)

    norm="samples" divides by the number of samples n (Kull et al. 2019; Nixon et al. 2019, who call the mean SCE);
    norm="labels" divides by the number n_j of samples with label j, another reading of CTS eq. 2. That is n / n_j times
    as large, and NaN for a class without samples.
    """
    return _per_class(bins, bins.gap.abs(), norm)


def class_under(bins: Bins, *, norm: Norm = "samples") -> Tensor:
    """The part of each class's error from bins where it happens more often than predicted (CTS eq. 3). (k,)"""
    return _per_class(bins, bins.gap.clamp_min(0), norm)


def class_over(bins: Bins, *, norm: Norm = "samples") -> Tensor:
    """The part of each class's error from bins where it happens less often than predicted (CTS eq. 4). (k,)"""
    return _per_class(bins, -bins.gap.clamp_max(0), norm)


def _per_class(bins: Bins, gap: Tensor, norm: Norm) -> Tensor:
    of_kind("norm", norm, Norm)
    error = bins.by_class(bins.count * gap)
    if norm == "samples":
        return error / bins.by_class(bins.count)
    n_label = bins.by_class(bins.hits)
    return torch.where(n_label > 0, error / n_label, math.nan)


def _mean_over_classes(bins: Bins, errors: Tensor, classes: Classes) -> float:
    if classes == "present":
        errors = errors[bins.by_class(bins.hits) > 0]
    return float(errors.nanmean())


@metric(class_bins, title="classwise ECE", **HEADLINE)
def classwise_ece(bins: Bins, *, norm: Norm = "samples", classes: Classes = "all") -> float:
    """Classwise expected calibration error: ECE of each class's probability, averaged over classes.

    (1/k) Σ_j Σ_b n_jb / n · |frequency − mean probability|, every sample binned by its probability of class j. With
    many classes most probabilities are near 0 and so is this mean: compare it only at equal k. `classes="present"`
    leaves out classes without a label; so does `norm="labels"`, which divides by n_j (see `class_errors`).

    norm     "samples" divides by n, "labels" by the number of samples with that label
    classes  "all", or "present": only those that occur as a label

    >>> round(classwise_ece([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=5), 6)
    0.366667
    """
    return _mean_over_classes(bins, class_errors(bins, norm=norm), classes)


@metric(class_bins, title="classwise under-confidence", **CLAIMS)
def classwise_under(bins: Bins, *, norm: Norm = "samples", classes: Classes = "all") -> float:
    """The under-confident part of classwise ECE: bins where a class happens more often than predicted.

    norm     "samples" divides by n, "labels" by the number of samples with that label
    classes  "all", or "present": only those that occur as a label
    """
    return _mean_over_classes(bins, class_under(bins, norm=norm), classes)


@metric(class_bins, title="classwise over-confidence", **CLAIMS)
def classwise_over(bins: Bins, *, norm: Norm = "samples", classes: Classes = "all") -> float:
    """The over-confident part of classwise ECE: bins where a class happens less often than predicted.

    norm     "samples" divides by n, "labels" by the number of samples with that label
    classes  "all", or "present": only those that occur as a label
    """
    return _mean_over_classes(bins, class_over(bins, norm=norm), classes)
