"""temperance makes a classifier's confidence mean what it says.

`evaluate` measures a set of predictions, `compare` fits and ranks calibrators, `apply` uses one; `metrics`,
`calibrators` and `losses` hold the methods one by one.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"

from temperance import calibrators, metrics
from temperance.jobs.application import apply
from temperance.jobs.comparison import Comparison, compare
from temperance.jobs.evaluation import Evaluation, evaluate
from temperance.metrics.significance import difference, interval
from temperance.metrics.stream import Stream
from temperance.predictions import Predictions, read_predictions, write_predictions

__all__ = [
    "Comparison",
    "Evaluation",
    "Predictions",
    "Stream",
    "apply",
    "calibrators",
    "compare",
    "difference",
    "evaluate",
    "interval",
    "losses",
    "metrics",
    "read_predictions",
    "write_predictions",
]


def __getattr__(name: str) -> Any:
    """`temperance.losses`, imported when it is first asked for: measuring and repairing need none of it."""
    if name == "losses":
        return import_module("temperance.losses")
    raise AttributeError(f"module 'temperance' has no attribute {name!r}")
