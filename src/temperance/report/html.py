"""A report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from temperance.errors import InputError
from temperance.files import PathLike, write_text
from temperance.jobs.evaluation import evaluate
from temperance.jobs.results import Provenance

if TYPE_CHECKING:
    from temperance.diagnose.analysis import Analysis
    from temperance.diagnose.shift import Shift
    from temperance.heads.retraining import Retrained
    from temperance.jobs.abstention import Abstention
    from temperance.jobs.comparison import Comparison
    from temperance.jobs.decisions import Decisions
    from temperance.jobs.evaluation import Evaluation
    from temperance.jobs.ood import OODComparison
    from temperance.jobs.several import Comparisons, Evaluations
    from temperance.training.run import Run

    Measured = Abstention | Evaluation | Evaluations | Comparison | Comparisons | Decisions | OODComparison | Shift
    Reported = Measured | Run | Retrained | Analysis

# The function that makes the page of each kind of result. It is imported when it is needed: a page of predictions does
# not need the training package.
PAGES = {
    "Evaluation": ("pages.evaluation", "evaluation_page"),
    "Evaluations": ("pages.several", "evaluations_page"),
    "Comparison": ("pages.comparison", "comparison_page"),
    "Comparisons": ("pages.several", "comparisons_page"),
    "Abstention": ("pages.abstention", "abstention_page"),
    "Decisions": ("pages.decisions", "decisions_page"),
    "OODComparison": ("pages.ood", "ood_page"),
    "Shift": ("pages.shift", "shift_page"),
    "Run": ("pages.training", "run_page"),
    "Retrained": ("pages.training", "retraining_page"),
    "Analysis": ("pages.analysis", "analysis_page"),
}


def write_report(found: Reported, path: PathLike, *, measured: Evaluation | None = None) -> None:
    """Write a result as one HTML file that opens anywhere: pictures, numbers, what they mean.

    measured  the evaluation of a run's test part, if there is one already
    """
    kind = type(found).__name__
    if kind not in PAGES:
        raise InputError(f"there is no page for a {kind}; known: {', '.join(PAGES)}")
    module, function = PAGES[kind]
    make_page = getattr(import_module(f"temperance.report.{module}"), function)
    text: str = make_page(found, *_evaluated(cast("Run", found), measured)) if kind == "Run" else make_page(found)
    write_text(path, text)


def _evaluated(run: Run, measured: Evaluation | None) -> tuple[Evaluation, Provenance]:
    """The evaluation of a run's test part, and the provenance of the training if its folder has it."""
    from temperance.training.run import read_about

    found = measured or evaluate(run.predictions["test"])
    if run.folder is None or not (run.folder / "run.json").exists():
        return found, found.provenance
    return found, Provenance(**{**read_about(run.folder)["provenance"], "settings": {}})
