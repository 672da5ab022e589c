"""Calibrators turn logits into probabilities that mean what they say."""

from temperance.calibrators.auto import Auto
from temperance.calibrators.base import CALIBRATORS, Calibrator, make_calibrator
from temperance.calibrators.binning import Bbq, HistogramBinning, ScalingBinning
from temperance.calibrators.class_temperature import BiasCorrectedTemperature, ClassTemperature
from temperance.calibrators.ensemble import EnsembleTemperature
from temperance.calibrators.gaps import GapScaling
from temperance.calibrators.greedy import ClassTemperatureGreedy
from temperance.calibrators.grouped import Grouped
from temperance.calibrators.identity import Identity
from temperance.calibrators.isotonic import CentredIsotonic, Isotonic
from temperance.calibrators.kernel_logistic import KernelLogistic
from temperance.calibrators.linear import Dirichlet, Matrix, MatrixOdir, Vector
from temperance.calibrators.logistic import Beta, Platt, Quadratic
from temperance.calibrators.meta import MetaAcc, MetaMis
from temperance.calibrators.ordered import OrderPreserving
from temperance.calibrators.parameterised import ParameterisedTemperature
from temperance.calibrators.spline import Spline
from temperance.calibrators.stored import load_calibrator
from temperance.calibrators.structured import StructuredMatrix, StructuredVector
from temperance.calibrators.temperature import Temperature
from temperance.calibrators.temperature_ece import TemperatureEce
from temperance.calibrators.venn_abers import VennAbers

__all__ = [
    "CALIBRATORS",
    "Auto",
    "Bbq",
    "Beta",
    "BiasCorrectedTemperature",
    "Calibrator",
    "CentredIsotonic",
    "ClassTemperature",
    "ClassTemperatureGreedy",
    "Dirichlet",
    "EnsembleTemperature",
    "GapScaling",
    "Grouped",
    "HistogramBinning",
    "Identity",
    "Isotonic",
    "KernelLogistic",
    "Matrix",
    "MatrixOdir",
    "MetaAcc",
    "MetaMis",
    "OrderPreserving",
    "ParameterisedTemperature",
    "Platt",
    "Quadratic",
    "ScalingBinning",
    "Spline",
    "StructuredMatrix",
    "StructuredVector",
    "Temperature",
    "TemperatureEce",
    "Vector",
    "VennAbers",
    "load_calibrator",
    "make_calibrator",
]
