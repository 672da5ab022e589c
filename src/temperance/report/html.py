"""A report as one HTML page that needs nothing else: no network, no other file, no script to be read."""

from __future__ import annotations

from temperance.compare import Comparison
from temperance.evaluate import Evaluation
from temperance.files import PathLike, atomic_write
from temperance.report.comparison import comparison_page
from temperance.report.evaluation import evaluation_page


def write_report(found: Evaluation | Comparison, path: PathLike) -> None:
    """Write an evaluation or a comparison as one HTML file that opens anywhere: pictures, numbers, what they mean."""
    text = comparison_page(found) if isinstance(found, Comparison) else evaluation_page(found)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
