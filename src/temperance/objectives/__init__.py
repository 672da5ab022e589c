"""What a parametric calibrator minimises.

An objective is a weighted sum over rows, Σ_i c_i · loss_i, so it can be summed block by block; only a calibration error
needs all rows at once. Some objectives choose their weights from how well each row or class is fitted so far; they do
so in `reweigh`, between solutions, and the weights are constant while an optimiser runs.
"""

from temperance.objectives.base import OBJECTIVES, Objective, ObjectiveName, counting, make_objective
from temperance.objectives.likelihood import BrierScore, ClassBalancedNll, FocalNll, Nll, SmoothedNll
from temperance.objectives.scaled import ClassScaled, scale
from temperance.objectives.whole import HCalibration, SoftBinnedError

__all__ = [
    "OBJECTIVES",
    "BrierScore",
    "ClassBalancedNll",
    "ClassScaled",
    "FocalNll",
    "HCalibration",
    "Nll",
    "Objective",
    "ObjectiveName",
    "SmoothedNll",
    "SoftBinnedError",
    "counting",
    "make_objective",
    "scale",
]
