"""Pictures and pages of what was measured."""

from temperance.report.html import write_report
from temperance.report.plots import (
    draw_classwise,
    draw_confidence_histogram,
    draw_reliability,
    draw_reliability_pair,
    draw_risk_coverage,
)

__all__ = [
    "draw_classwise",
    "draw_confidence_histogram",
    "draw_reliability",
    "draw_reliability_pair",
    "draw_risk_coverage",
    "write_report",
]
