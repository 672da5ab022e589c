"""Pictures and pages of what was measured."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from temperance.report.figures.predictions import (
    draw_classwise,
    draw_confidence_histogram,
    draw_reliability,
    draw_reliability_pair,
    draw_risk_coverage,
)
from temperance.report.html import write_report

if TYPE_CHECKING:
    from temperance.report.figures.analysis import (
        draw_angles,
        draw_class_losses,
        draw_confidence_histograms,
        draw_correlation,
        draw_map,
        draw_scores,
        draw_traces,
    )
    from temperance.report.figures.training import draw_keep_rate, draw_masked_inference, draw_shift, draw_training

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


def __getattr__(name: str) -> Any:
    """Figures of trainings and analyses, imported when first asked for: the others need nothing of training."""
    if name in __all__:
        for module in ("figures.training", "figures.analysis"):
            found = getattr(import_module(f"temperance.report.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module 'temperance.report' has no attribute {name!r}")
