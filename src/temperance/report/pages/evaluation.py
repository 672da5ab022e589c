"""The page of an evaluation, in sections that the page of a comparison uses too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath

from temperance.jobs.evaluation import Evaluation
from temperance.jobs.results import Provenance, Row
from temperance.metrics import METRICS
from temperance.metrics.binned import ece
from temperance.metrics.bins import Bins
from temperance.report.formats import digits_for, interval_of, percent, percent_down, percent_range, value_of
from temperance.report.markup import Markup, join, tag
from temperance.report.numbers import ClassError, bars, worst_classes
from temperance.report.page import (
    SHOWN_ROWS,
    Cell,
    Stack,
    answer,
    definitions,
    folded,
    heading,
    legend,
    mark,
    page,
    prose,
    searchable,
    section,
    split,
    strip,
    table,
)
from temperance.report.svg import charts

WORST = 15  # classes shown without unfolding the table
COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.5, 0.3)
GROUP_METRICS = ("ece", "accuracy", "confidence-gap", "nll")  # the first of them ranks the groups


def evaluation_page(evaluation: Evaluation) -> str:
    """The page: the answer first, then the pictures, then every number, then how it was made."""
    name = PurePath(evaluation.rows[0].source).name
    parts = [
        opening(evaluation),
        reliability_section(evaluation),
        histogram_section(evaluation),
        classwise_section(evaluation),
        risk_coverage_section(evaluation),
        groups_section(evaluation),
        metrics_section(evaluation),
        provenance_section(evaluation.provenance),
    ]
    return page(f"{name} – calibration report", *parts)


def opening(evaluation: Evaluation) -> Markup:
    """What was measured, the verdict, and the three numbers it rests on."""
    row = evaluation.rows[0]
    about = [
        row.split,
        f"{int(evaluation.reliability.n):,} samples",
        f"{len(evaluation.class_names):,} classes",
        row.method,
    ]
    return join([heading("Calibration report", PurePath(row.source).name, about), verdict_section(evaluation)])


def verdict_section(evaluation: Evaluation, warning: str = "") -> Markup:
    """The verdict and the three numbers it rests on; a warning comes before it."""
    bins = evaluation.reliability
    n = int(bins.n)
    confidence, accuracy = float(bins.confidence.sum()) / n, int(bins.hits.sum()) / n
    points = f"{100 * abs(confidence - accuracy):.2f}"
    gap = f"{points} points {'above' if confidence > accuracy else 'below'} accuracy"
    return answer(
        f"{warning} {evaluation.verdict}".strip(),
        [
            ("Accuracy", percent(accuracy), _bounds(evaluation, "accuracy")),
            ("Mean confidence", percent(confidence), "the same as accuracy" if points == "0.00" else gap),
            ("Calibration error", percent(ece.value(bins)), _bounds(evaluation, "ece")),
        ],
    )


def _bounds(evaluation: Evaluation, metric: str) -> str:
    """The interval of a metric, where it was measured."""
    for row in evaluation.rows:
        if row.metric == metric and not row.group and not math.isnan(row.low):
            return f"between {interval_of(row, 'and')}"
    return ""


def reliability_section(evaluation: Evaluation) -> Markup:
    return section(
        "Is the confidence right?",
        split(
            charts.reliability(evaluation.reliability),
            reliability_explained(),
            folded("The numbers in this picture", reliability_table(evaluation.reliability)),
        ),
    )


def reliability_explained() -> Markup:
    """How to read a reliability diagram."""
    return join(
        [
            tag(
                "p",
                "Each bar is how often predictions of about that confidence were right. If confidence meant what it "
                "says, every dot would lie on the dashed line.",
            ),
            legend(
                [
                    ("bar", "accuracy in the bin"),
                    ("over", "over-confident: right less often than it says"),
                    ("under", "under-confident: right more often than it says"),
                    ("over chance", "pale: could be chance"),
                    ("whisker", "95 % interval of the accuracy"),
                    ("guide", "perfect calibration"),
                ]
            ),
            tag("p", "The strip underneath counts the samples: a gap matters as much as the samples it has."),
        ]
    )


def reliability_table(bins: Bins) -> Markup:
    """The numbers in a reliability diagram."""
    digits = 0 if len(bins.count) <= 50 else 1
    rows = [
        (
            percent_range(bar.left, bar.right, digits),
            f"{bar.count:,}",
            percent(bar.confidence),
            percent(bar.accuracy),
            percent_range(bar.low, bar.high, 1),
        )
        for bar in bars(bins)
    ]
    return table(("Confidence", "Samples", "Mean", "Accuracy", "95\u00a0% interval"), rows)


def histogram_section(evaluation: Evaluation) -> Markup:
    surest_first = evaluation.risk_coverage.threshold
    n = len(surest_first)
    half, most = (float(surest_first[_at_least(share, n) - 1]) for share in (0.5, 0.9))
    return section(
        "How sure is the model?",
        split(
            charts.histogram(evaluation.reliability),
            tag("p", "The share of predictions at each confidence. In a calibrated model the two upright lines meet."),
            tag(
                "p",
                f"Half of the predictions are at least {percent_down(half)} sure, "
                f"nine in ten at least {percent_down(most)}.",
            ),
        ),
    )


def classwise_section(evaluation: Evaluation) -> Markup:
    """The worst classes as bars, and every class in a table that can be searched."""
    worst = worst_classes(evaluation.classwise, evaluation.class_names)
    columns = ("Class", "Labels", "Expected", "", "Error")
    largest = worst[0].error
    # A full bar is the worst class, but no less than a quarter of a class's average share: small errors look small.
    scale = 100 / max(largest, 0.25 / len(worst))
    digits = digits_for(largest)
    rows: list[list[Cell]] = [
        [
            entry.name,
            f"{entry.labels:,}",
            f"{entry.predicted:,.1f}",
            Stack(round(scale * entry.over, 1), round(scale * entry.under, 1), _told(entry, digits)),
            percent(entry.error, digits),
        ]
        for entry in worst
    ]
    more = (
        folded(f"All {len(rows):,} classes", searchable("classes", columns, rows, "classes"))
        if len(rows) > WORST
        else Markup()
    )
    return section(
        "Which classes are off?",
        tag(
            "p",
            "How far each class's probability is from how often it is the label, worst first. The sum of its "
            "probabilities is the number of labels that the model expects.",
        ),
        legend([("over", "probability too high"), ("under", "probability too low")]),
        table(columns, rows[:WORST], "classes"),
        more,
    )


def _told(entry: ClassError, digits: int) -> str:
    return f"{percent(entry.over, digits)} too high, {percent(entry.under, digits)} too low"


def risk_coverage_section(evaluation: Evaluation) -> Markup:
    curve = evaluation.risk_coverage
    n = len(curve.coverage)
    rows = [
        (percent(m / n, 0), percent(float(curve.risk[m - 1])), percent_down(float(curve.threshold[m - 1])))
        for m in answered(n)
    ]
    return section(
        "If the model may decline, what error remains?",
        split(
            charts.risk_coverage(curve),
            tag("p", "Answering only the surest predictions leaves fewer errors, if confidence ranks them well."),
            legend(
                [
                    ("curve", "this model"),
                    ("best", "if every error were among the least sure"),
                    ("guide", "if confidence said nothing"),
                ]
            ),
            table(("Answered", "Error among them", "Confidence at least"), rows),
        ),
    )


def answered(n: int) -> list[int]:
    """How many of n samples are answered at each of the coverages that are told in numbers, all of them first."""
    return sorted({_at_least(share, n) for share in COVERAGES}, reverse=True)


def groups_section(evaluation: Evaluation) -> Markup:
    """Each group with its interval beside the whole, the worst first; nothing where there are no groups."""
    grouped = [row for row in evaluation.rows if row.group]
    if not grouped:
        return Markup()
    measured = {(row.group, row.metric): row for row in evaluation.rows}
    names = [name for name in GROUP_METRICS if (grouped[0].group, name) in measured] or [grouped[0].metric]
    ranked = METRICS[names[0]]
    rows = [row for row in grouped if row.metric == ranked.name and not math.isnan(row.value)]
    rows.sort(key=lambda row: row.value, reverse=ranked.lower_is_better is not False)
    whole = measured["", ranked.name]
    ends = [end for row in (*rows, whole) for end in (row.low, row.value, row.high) if not math.isnan(end)]
    low, high = min(0.0, *ends), max(ends)
    cells = [
        (
            row.group,
            _dot_strip(row, whole, low, high or 1.0),
            *(value_of(measured[row.group, name]) for name in names),
            f"{row.n:,}",
        )
        for row in rows[:SHOWN_ROWS]
    ]
    more = f" The first {SHOWN_ROWS} of {len(rows):,} groups are shown." if len(rows) > SHOWN_ROWS else ""
    return section(
        "By group",
        tag(
            "p",
            f"{ranked.title} of each group as a dot with its interval, the worst first; the upright line is all "
            f"samples together ({value_of(whole)}).{more}",
        ),
        table(("Group", "", *(METRICS[name].title for name in names), "Samples"), cells, "groups"),
    )


def _dot_strip(row: Row, whole: Row, low: float, high: float) -> Markup:
    """A dot with its interval, and the line of all samples together."""

    def place(value: float) -> float:
        return 100 * (value - low) / (high - low)

    marks = [mark("line", place(whole.value))]
    if not math.isnan(row.low):
        marks.append(mark("range", place(row.low), place(row.high)))
    return strip(interval_of(row), *marks, mark("point", place(row.value)))


def metrics_section(evaluation: Evaluation) -> Markup:
    settings = evaluation.provenance.settings
    columns = ("Metric", "Value", f"{100 * settings['level']:g}\u00a0% interval")
    rows = [(named_metric(row), value_of(row), interval_of(row)) for row in evaluation.rows if not row.group]
    shown = len(columns) if settings["bootstrap"] else 2
    return section("Every number", table(columns[:shown], [row[:shown] for row in rows], "metrics"))


def named_metric(row: Row) -> Markup:
    """A metric with what it is in plain words."""
    metric = METRICS[row.metric]
    return join([tag("span", metric.title), tag("small", prose(metric.summary))])


def provenance_section(provenance: Provenance) -> Markup:
    """Enough to measure it again, for those who ask."""
    entries = [
        ("Measured", provenance.created),
        ("Command", provenance.command),
        *(("Input", f"{name}, SHA-256 {digest}") for name, digest in provenance.inputs.items()),
        ("Settings", _listed({name: value for name, value in provenance.settings.items() if name != "methods"})),
        ("Methods", ", ".join(provenance.settings.get("methods", ()))),
        ("Seed", str(provenance.seed)),
        ("Device", provenance.device),
        ("Versions", _listed(provenance.versions)),
        ("Commit", provenance.commit),
    ]
    return tag("footer", folded("How this was measured", definitions(entry for entry in entries if entry[1])))


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _at_least(share: float, n: int) -> int:
    """The fewest of n samples that are that share of them."""
    return math.ceil(share * n - 1e-9)
