"""Metrics turn probabilities into numbers; each is a plain call over statistics that add."""

from temperance.metrics.adaptive import adaptive_ece, classwise_adaptive_ece, ece_sweep, tace
from temperance.metrics.base import METRICS, Metric
from temperance.metrics.binned import conditional_ece, confidence_gap, debiased_ece, debiased_l2, ece, mce, rms_ce
from temperance.metrics.bounds import classwise_ece_sup, ece_sup, error_over_k, half_map, oracle_map
from temperance.metrics.classwise import classwise_ece, classwise_over, classwise_under
from temperance.metrics.detection import OODResult, aupr, auroc, fpr_at_tpr, ood, ood_intervals
from temperance.metrics.goodness import ks, ks_p_value, kuiper, kuiper_p_value, spiegelhalter_p_value, spiegelhalter_z
from temperance.metrics.kernel import kde_ece, kde_ece_canonical, kde_ece_marginal
from temperance.metrics.proper import accuracy, brier, class_loss_spread, nll, top_k_accuracy
from temperance.metrics.refinement import brier_calibration, brier_refinement, nll_calibration, nll_refinement
from temperance.metrics.scores import SCORES, score
from temperance.metrics.selective import (
    RiskCoverage,
    augrc,
    aurc,
    coverage_at_risk,
    eaurc,
    failure_auroc,
    risk_at_coverage,
    risk_coverage_curve,
)
from temperance.metrics.smooth import mmce, smooth_ece

__all__ = [
    "METRICS",
    "SCORES",
    "Metric",
    "OODResult",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "brier_calibration",
    "brier_refinement",
    "class_loss_spread",
    "classwise_adaptive_ece",
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
    "ece_sweep",
    "error_over_k",
    "failure_auroc",
    "fpr_at_tpr",
    "half_map",
    "kde_ece",
    "kde_ece_canonical",
    "kde_ece_marginal",
    "ks",
    "ks_p_value",
    "kuiper",
    "kuiper_p_value",
    "mce",
    "mmce",
    "nll",
    "nll_calibration",
    "nll_refinement",
    "ood",
    "ood_intervals",
    "oracle_map",
    "risk_at_coverage",
    "risk_coverage_curve",
    "rms_ce",
    "score",
    "smooth_ece",
    "spiegelhalter_p_value",
    "spiegelhalter_z",
    "tace",
    "top_k_accuracy",
]
