"""A report as one HTML page that needs nothing else: no network, no other file, no script to be read."""

from __future__ import annotations

from temperance.compare import Comparison
from temperance.evaluate import Evaluation
from temperance.files import PathLike, atomic_write
from temperance.ood import OODComparison
from temperance.report.analysis import analysis_page
from temperance.report.comparison import comparison_page
from temperance.report.evaluation import evaluation_page
from temperance.report.ood import ood_page
from temperance.report.shift import shift_page
from temperance.report.training import retraining_page, run_page
from temperance.training.analysis import Analysis
from temperance.training.retrain import Retrained
from temperance.training.run import Run
from temperance.training.shift import Shift

Reported = Evaluation | Comparison | OODComparison | Run | Retrained | Analysis | Shift


def write_report(found: Reported, path: PathLike) -> None:
    """Write what was measured as one HTML file that opens anywhere: pictures, numbers, what they mean."""
    with atomic_write(path) as temporary:
        temporary.write_text(_page(found), encoding="utf-8")


def _page(found: Reported) -> str:
    match found:
        case Comparison():
            return comparison_page(found)
        case OODComparison():
            return ood_page(found)
        case Run():
            return run_page(found)
        case Retrained():
            return retraining_page(found)
        case Analysis():
            return analysis_page(found)
        case Shift():
            return shift_page(found)
        case _:
            return evaluation_page(found)
