"""Calibrators turn logits into probabilities that mean what they say."""

from temperance.calibrators.base import CALIBRATORS, Calibrator, load_calibrator, make_calibrator
from temperance.calibrators.greedy import ClassTemperatureGreedy
from temperance.calibrators.identity import Identity

__all__ = ["CALIBRATORS", "Calibrator", "ClassTemperatureGreedy", "Identity", "load_calibrator", "make_calibrator"]
