"""temperance makes a classifier's confidence mean what it says.

`evaluate` measures a set of predictions; `metrics`, `calibrators` and `losses` hold the methods one by one.
"""

__version__ = "0.1.0.dev0"

from temperance import calibrators, losses, metrics
from temperance.evaluate import Evaluation, evaluate
from temperance.metrics.significance import difference, interval
from temperance.metrics.stream import Stream
from temperance.predictions import Predictions, read_predictions, write_predictions

__all__ = [
    "Evaluation",
    "Predictions",
    "Stream",
    "calibrators",
    "difference",
    "evaluate",
    "interval",
    "losses",
    "metrics",
    "read_predictions",
    "write_predictions",
]
