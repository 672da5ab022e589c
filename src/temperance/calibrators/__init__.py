"""Calibrators turn logits into probabilities that mean what they say."""

from temperance.calibrators.base import CALIBRATORS, Calibrator, load_calibrator, make_calibrator
from temperance.calibrators.class_temperature import BiasCorrectedTemperature, ClassTemperature
from temperance.calibrators.ensemble import EnsembleTemperature
from temperance.calibrators.greedy import ClassTemperatureGreedy
from temperance.calibrators.identity import Identity
from temperance.calibrators.parameterised import ParameterisedTemperature
from temperance.calibrators.temperature import Temperature, TemperatureEce

__all__ = [
    "CALIBRATORS",
    "BiasCorrectedTemperature",
    "Calibrator",
    "ClassTemperature",
    "ClassTemperatureGreedy",
    "EnsembleTemperature",
    "Identity",
    "ParameterisedTemperature",
    "Temperature",
    "TemperatureEce",
    "load_calibrator",
    "make_calibrator",
]
