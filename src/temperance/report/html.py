"""A report as one HTML page that needs nothing else: no network, no other file, no script to be read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from temperance.errors import InputError
from temperance.files import PathLike, atomic_write

if TYPE_CHECKING:
    from temperance.compare import Comparison
    from temperance.evaluate import Evaluation
    from temperance.ood import OODComparison
    from temperance.training.analysis import Analysis
    from temperance.training.retrain import Retrained
    from temperance.training.run import Run
    from temperance.training.shift import Shift

    Reported = Evaluation | Comparison | OODComparison | Shift | Run | Retrained | Analysis

# What makes the page of each kind. It is imported when it is needed: a page of predictions needs nothing of training.
PAGES = {
    "Evaluation": ("evaluation", "evaluation_page"),
    "Comparison": ("comparison", "comparison_page"),
    "OODComparison": ("ood", "ood_page"),
    "Shift": ("shift", "shift_page"),
    "Run": ("training", "run_page"),
    "Retrained": ("training", "retraining_page"),
    "Analysis": ("analysis", "analysis_page"),
}


def write_report(found: Reported, path: PathLike, **more: Any) -> None:
    """Write what was measured as one HTML file that opens anywhere: pictures, numbers, what they mean.

    more  what its page can be given besides, such as an evaluation of a run that was made already, `measured`
    """
    kind = type(found).__name__
    if kind not in PAGES:
        raise InputError(f"there is no page for a {kind}; known: {', '.join(PAGES)}")
    module, function = PAGES[kind]
    text: str = getattr(import_module(f"temperance.report.{module}"), function)(found, **more)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
