"""Pages and pictures of what was measured."""

from temperance.report.figures import (
    draw_classwise,
    draw_confidence_histogram,
    draw_reliability,
    draw_reliability_pair,
    draw_risk_coverage,
)
from temperance.report.html import write_report

__all__ = [
    "draw_classwise",
    "draw_confidence_histogram",
    "draw_reliability",
    "draw_reliability_pair",
    "draw_risk_coverage",
    "write_report",
]
