"""Pictures and pages of what was measured."""

from temperance.report.analysis_plots import (
    draw_angles,
    draw_class_losses,
    draw_confidence_histograms,
    draw_correlation,
    draw_map,
    draw_scores,
    draw_traces,
)
from temperance.report.html import write_report
from temperance.report.plots import (
    draw_classwise,
    draw_confidence_histogram,
    draw_reliability,
    draw_reliability_pair,
    draw_risk_coverage,
)
from temperance.report.training_plots import draw_keep_rate, draw_masked_inference, draw_shift, draw_training

__all__ = [
    "draw_angles",
    "draw_class_losses",
    "draw_classwise",
    "draw_confidence_histogram",
    "draw_confidence_histograms",
    "draw_correlation",
    "draw_keep_rate",
    "draw_map",
    "draw_masked_inference",
    "draw_reliability",
    "draw_reliability_pair",
    "draw_risk_coverage",
    "draw_scores",
    "draw_shift",
    "draw_traces",
    "draw_training",
    "write_report",
]
