"""Metrics turn probabilities into numbers; each is a plain call over statistics that add."""

from temperance.metrics.base import METRICS, Metric
from temperance.metrics.binned import conditional_ece, debiased_ece, debiased_l2, ece, mce, rms_ce
from temperance.metrics.classwise import classwise_ece, classwise_over, classwise_under
from temperance.metrics.proper import accuracy, brier, class_loss_spread, nll

__all__ = [
    "METRICS",
    "Metric",
    "accuracy",
    "brier",
    "class_loss_spread",
    "classwise_ece",
    "classwise_over",
    "classwise_under",
    "conditional_ece",
    "debiased_ece",
    "debiased_l2",
    "ece",
    "mce",
    "nll",
    "rms_ce",
]
