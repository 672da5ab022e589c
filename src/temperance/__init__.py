"""temperance makes a classifier's confidence mean what it says.

`evaluate` measures a set of predictions, `compare` fits and ranks calibrators, `apply` uses one; `metrics`,
`calibrators` and `losses` hold the methods one by one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Evaluation",
    "Predictions",
    "Stream",
    "abstain",
    "apply",
    "calibration_gap",
    "calibrators",
    "combine",
    "compare",
    "compare_each",
    "decide",
    "difference",
    "evaluate",
    "evaluate_each",
    "interval",
    "losses",
    "metrics",
    "read_predictions",
    "statistics",
    "write_predictions",
]

if TYPE_CHECKING:
    from temperance import calibrators, losses, metrics
    from temperance.jobs.abstention import abstain
    from temperance.jobs.application import apply
    from temperance.jobs.blocks import combine, statistics
    from temperance.jobs.comparison import Comparison, compare
    from temperance.jobs.decisions import decide
    from temperance.jobs.evaluation import Evaluation, evaluate
    from temperance.jobs.gap import calibration_gap
    from temperance.jobs.several import compare_each, evaluate_each
    from temperance.metrics.significance import difference, interval
    from temperance.metrics.stream import Stream
    from temperance.predictions import Predictions, read_predictions, write_predictions
else:
    # The module of each name. It is imported when the name is first used: most of them import torch, which takes
    # seconds, and `temperance --help` needs none of them.
    HOMES = {
        "Comparison": "jobs.comparison",
        "Evaluation": "jobs.evaluation",
        "Predictions": "predictions",
        "Stream": "metrics.stream",
        "abstain": "jobs.abstention",
        "apply": "jobs.application",
        "calibration_gap": "jobs.gap",
        "combine": "jobs.blocks",
        "compare": "jobs.comparison",
        "compare_each": "jobs.several",
        "decide": "jobs.decisions",
        "difference": "metrics.significance",
        "evaluate": "jobs.evaluation",
        "evaluate_each": "jobs.several",
        "interval": "metrics.significance",
        "read_predictions": "predictions",
        "statistics": "jobs.blocks",
        "write_predictions": "predictions",
    }

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'temperance' has no attribute {name!r}")
        home = import_module(f"temperance.{HOMES.get(name, name)}")
        found = globals()[name] = getattr(home, name) if name in HOMES else home
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
