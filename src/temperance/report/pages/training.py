"""The pages of a training run and of a retrained head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from temperance.errors import plural
from temperance.heads.retraining import Retrained
from temperance.jobs.evaluation import Evaluation
from temperance.jobs.results import Provenance
from temperance.markup import Markup, join, tag
from temperance.metrics import METRICS
from temperance.report.formats import duration, points, signed, value_of
from temperance.report.page import answer, definitions, folded, heading, moved, page, pair, section
from temperance.report.pages.classes import class_changes_section, classwise_section
from temperance.report.pages.evaluation import (
    histogram_section,
    metrics_pair,
    metrics_section,
    provenance_section,
    reliability_pair,
    reliability_section,
    risk_coverage_pair,
    risk_coverage_section,
    verdict_section,
)
from temperance.report.svg.lines import Line, finite, line_chart, line_legend
from temperance.training.run import Run, hardly_learnt

History = Sequence[Mapping[str, Any]]


# ------------------------------------------------------------------------------------------------------------- a run


def run_page(run: Run, found: Evaluation, provenance: Provenance) -> str:
    """The page: what was trained, the verdict on the test part, how it got there, and the sections of an evaluation.

    found       the evaluation of the test part
    provenance  of the training, or of the evaluation where that of the training is not known
    """
    name = run.folder.name if run.folder else "A training"
    parts = [
        heading("Training report", name, about_run(run)),
        verdict_section(found, hardly_learnt(run.predictions["test"])),
        training_section(run.history),
        reliability_section(found),
        histogram_section(found),
        classwise_section(found),
        risk_coverage_section(found),
        metrics_section(found),
        settings_section(run),
        provenance_section(provenance),
    ]
    return page(f"{name} – training report", *parts)


def about_run(run: Run) -> list[str]:
    """Network, data, loss and length of a run, in a few words."""
    job = run.details.get("job", {})
    n = run.predictions["test"].n
    return [
        str(job.get("network", type(run.network).__name__)),
        str(job.get("data", "")),
        str(job.get("loss", "")),
        plural(len(run.history), "epoch"),
        f"measured on {n:,} test images",
    ]


def settings_section(run: Run) -> Markup:
    """Every setting, folded away."""
    job = run.details.get("job", {})
    if not job:
        return Markup()
    entries = ((name, "none" if value is None else str(value)) for name, value in job.items())
    return tag("footer", folded("How it was trained", definitions(entries)))


def training_section(history: History, name: str = "it") -> Markup:
    """Loss, accuracy, calibration error and learning rate, epoch by epoch; empty for an empty history."""
    if not history:
        return Markup()
    seconds = sum(row.get("seconds", 0.0) for row in history)
    took = f" It took {duration(seconds)}, {duration(seconds / len(history))} an epoch." if seconds else ""
    return section(
        f"How did {name} get there?",
        "The network on the images that it was trained on and on those held out, epoch by epoch. If the loss on "
        "held-out images rises while the accuracy stays, its calibration gets worse, usually because its confidence "
        f"grows.{took}",
        pair(
            *figure(history, "Loss", {"loss": "training", "val_loss": "held out"}),
            *figure(history, "Accuracy", {"accuracy": "training", "val_accuracy": "held out"}, percent=True),
            *figure(history, "Calibration error", {"val_ece": "held out"}, percent=True, from_zero=True, first=1),
            *figure(history, "Learning rate", {"lr": "as scheduled"}, from_zero=True),
        ),
    )


def figure(
    history: History,
    title: str,
    columns: Mapping[str, str],
    *,
    percent: bool = False,
    from_zero: bool = False,
    first: int = 0,
) -> list[tuple[Markup, Markup]]:
    """Columns of a history over its epochs, with a legend; nothing if no row has a finite value."""
    lines = []
    for i, (column, name) in enumerate(columns.items()):
        known = [(row["epoch"], row[column]) for row in history if row.get(column) is not None]
        if any(map(finite, known)):
            lines.append(Line(name, known, first + i))
    if not lines:
        return []
    dots = len(history) < 3
    drawn = line_chart(lines, y_title=title, x_title="epoch", percent=percent, from_zero=from_zero, dots=dots)
    return [(join([tag("b", title), line_legend(lines)]), drawn)]


# ------------------------------------------------------------------------------------------------------ a retraining


def retraining_page(found: Retrained) -> str:
    """The page: what changed, side by side, how the head got there, and every number."""
    before, after, name = found.before, found.after, found.head.name
    about = [
        plural(int(before.reliability.n), "test sample"),
        f"{len(before.class_names):,} classes",
        plural(len(found.head.history), "epoch"),
        f"before: {found.replaced}",
    ]
    titles = {"accuracy": "Accuracy", "nll": "NLL", "ece": "Calibration error"}
    parts = [
        heading("Retraining report", f"A new classifier: {name}", about),
        answer(found.verdict, [_moved(found, metric, title) for metric, title in titles.items()]),
        reliability_pair(before, after, name),
        head_section(found.head.history),
        class_changes_section(before, after),
        risk_coverage_pair(before, after, name),
        metrics_pair(before, after),
        provenance_section(found.provenance),
    ]
    return page(f"{name} – retraining report", *parts)


def _moved(found: Retrained, metric: str, title: str) -> tuple[str, str, Markup]:
    """A metric before and after, and the difference with its interval, if there is one."""
    old, new, by = found.before.row(metric), found.after.row(metric), found.differences[metric]

    def change(value: float) -> str:
        return points(value) if METRICS[metric].percent else signed(value, 4)

    notes = [change(by.value) + (" points" if METRICS[metric].percent else "")]
    if not math.isnan(by.low):
        notes = [f"{notes[0]},", f"between {change(by.low)} and {change(by.high)}"]
    return title, moved(value_of(old), value_of(new)), join(tag("span", note) for note in notes)


def head_section(history: History, name: str = "the new classifier") -> Markup:
    """Keep rate, confidence and accuracy, and the loss of a head, epoch by epoch; empty for an empty history."""
    if not history:
        return Markup()
    seen, held_out = ({f"{part}{name}": name for name in ("confidence", "accuracy")} for part in ("", "val_"))
    return section(
        f"How did {name} get there?",
        "The new classifier, epoch by epoch, on features that do not change. Where confidence and accuracy on held-out "
        "samples meet, it is as sure as it is right on average.",
        pair(
            *figure(history, "Keep rate", {"keep_rate": "share of weights in a step"}, percent=True),
            *figure(history, "Confidence and accuracy on training samples", seen, percent=True),
            *figure(history, "Confidence and accuracy on held-out samples", held_out, percent=True),
            *figure(history, "Loss", {"loss": "training", "val_nll": "held out (NLL)"}),
        ),
    )
