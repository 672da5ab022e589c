"""A report as one HTML page that needs nothing else: no network, no other file, no script to be read."""

from __future__ import annotations

from temperance.compare import Comparison
from temperance.evaluate import Evaluation
from temperance.files import PathLike, atomic_write
from temperance.ood import OODComparison
from temperance.report.comparison import comparison_page
from temperance.report.evaluation import evaluation_page
from temperance.report.ood import ood_page


def write_report(found: Evaluation | Comparison | OODComparison, path: PathLike) -> None:
    """Write what was measured as one HTML file that opens anywhere: pictures, numbers, what they mean."""
    with atomic_write(path) as temporary:
        temporary.write_text(_page(found), encoding="utf-8")


def _page(found: Evaluation | Comparison | OODComparison) -> str:
    if isinstance(found, Comparison):
        return comparison_page(found)
    if isinstance(found, OODComparison):
        return ood_page(found)
    return evaluation_page(found)
