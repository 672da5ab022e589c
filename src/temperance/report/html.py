"""A report as one HTML page that needs nothing else: no network, no other file, no script to be read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from temperance.errors import InputError
from temperance.files import PathLike, atomic_write

if TYPE_CHECKING:
    from temperance.diagnose.analysis import Analysis
    from temperance.diagnose.shift import Shift
    from temperance.heads.retraining import Retrained
    from temperance.jobs.comparison import Comparison
    from temperance.jobs.evaluation import Evaluation
    from temperance.jobs.ood import OODComparison
    from temperance.training.run import Run

    Reported = Evaluation | Comparison | OODComparison | Shift | Run | Retrained | Analysis

# What makes the page of each kind. It is imported when it is needed: a page of predictions needs nothing of training.
PAGES = {
    "Evaluation": ("pages.evaluation", "evaluation_page"),
    "Comparison": ("pages.comparison", "comparison_page"),
    "OODComparison": ("pages.ood", "ood_page"),
    "Shift": ("pages.shift", "shift_page"),
    "Run": ("pages.training", "run_page"),
    "Retrained": ("pages.training", "retraining_page"),
    "Analysis": ("pages.analysis", "analysis_page"),
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
