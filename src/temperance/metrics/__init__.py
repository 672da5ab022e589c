"""Metrics turn probabilities into numbers; each is a plain call over statistics that add."""

from temperance.metrics.base import METRICS, Metric
from temperance.metrics.binned import conditional_ece, confidence_gap, debiased_ece, debiased_l2, ece, mce, rms_ce
from temperance.metrics.bounds import classwise_ece_sup, ece_sup, error_over_k, half_map, oracle_map
from temperance.metrics.classwise import classwise_ece, classwise_over, classwise_under
from temperance.metrics.ood import OODResult, auroc, fpr_at_tpr, ood
from temperance.metrics.proper import accuracy, brier, class_loss_spread, nll
from temperance.metrics.refinement import brier_calibration, brier_refinement, nll_calibration, nll_refinement
from temperance.metrics.scores import SCORES, score
from temperance.metrics.selective import (
    RiskCoverage,
    augrc,
    aurc,
    coverage_at_risk,
    eaurc,
    risk_at_coverage,
    risk_coverage_curve,
)

__all__ = [
    "METRICS",
    "SCORES",
    "Metric",
    "OODResult",
    "RiskCoverage",
    "accuracy",
    "augrc",
    "aurc",
    "auroc",
    "brier",
    "brier_calibration",
    "brier_refinement",
    "class_loss_spread",
    "classwise_ece",
    "classwise_ece_sup",
    "classwise_over",
    "classwise_under",
    "conditional_ece",
    "confidence_gap",
    "coverage_at_risk",
    "debiased_ece",
    "debiased_l2",
    "eaurc",
    "ece",
    "ece_sup",
    "error_over_k",
    "fpr_at_tpr",
    "half_map",
    "mce",
    "nll",
    "nll_calibration",
    "nll_refinement",
    "ood",
    "oracle_map",
    "risk_at_coverage",
    "risk_coverage_curve",
    "rms_ce",
    "score",
]
