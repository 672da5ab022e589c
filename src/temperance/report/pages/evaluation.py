"""The page of an evaluation, in sections that other pages also use, for predictions alone or before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath

from temperance.errors import amount, plural
from temperance.jobs.evaluation import Evaluation
from temperance.jobs.macro import MEAN_OF_LABELS
from temperance.jobs.results import Provenance, Row, shown
from temperance.markup import Markup, join, tag
from temperance.metrics import METRICS
from temperance.metrics.binned import ece
from temperance.metrics.bins import Bins
from temperance.metrics.selective import RiskCoverage
from temperance.report.formats import interval_of, percent, percent_down, percent_range, value_of
from temperance.report.numbers import bars, merged_bins
from temperance.report.page import (
    SHOWN_ROWS,
    Cell,
    answer,
    definitions,
    folded,
    heading,
    legend,
    mark,
    noted,
    page,
    pair,
    prose,
    section,
    split,
    strip,
    strip_axis,
    stroke,
    table,
)
from temperance.report.pages.classes import classwise_section
from temperance.report.svg import charts
from temperance.report.svg.drawing import Scale
from temperance.report.words import OF_LABELS, Words, words_of

COVERAGES = (1.0, 0.9, 0.8, 0.7, 0.5, 0.3)
TOGETHER = "The labels of a sample go together, which these intervals do not know: they may be too narrow."
IF_ABSTAINING = "If the model may abstain, what error remains?"
RISK_KEYS = (
    (stroke("best"), "if every error were among the least confident"),
    (stroke("guide"), "if confidence said nothing"),
)
ANSWERED = "Answering only the most confident predictions leaves fewer errors if confidence ranks them well."
GROUP_METRICS = ("ece", "accuracy", "confidence-gap", "nll")  # the first of them ranks the groups


def evaluation_page(evaluation: Evaluation) -> str:
    """The page: the answer first, then the pictures, then every number, then how it was made."""
    row = evaluation.rows[0]
    name = PurePath(row.source).name
    classes = "" if evaluation.one_score else f"{len(evaluation.class_names):,} classes"
    parts = [
        heading("Calibration report", name, [row.split, evaluation.counted, classes, row.method]),
        verdict_section(evaluation),
        reliability_section(evaluation),
        Markup() if evaluation.multilabel else histogram_section(evaluation),
        Markup() if evaluation.answers else classwise_section(evaluation),
        Markup() if evaluation.multilabel else risk_coverage_section(evaluation),
        groups_section(evaluation),
        metrics_section(evaluation),
        provenance_section(evaluation.provenance),
    ]
    return page(f"{name} – calibration report", *parts)


def verdict_section(evaluation: Evaluation, warning: str = "") -> Markup:
    """The verdict and the three numbers behind it, after a warning if there is one."""
    bins = evaluation.reliability
    n = float(bins.n)
    confidence, accuracy = float(bins.confidence.sum()) / n, float(bins.hits.sum()) / n
    points = f"{100 * abs(confidence - accuracy):.2f}"
    sure, right = (
        ("Mean probability", "Labels that apply") if evaluation.multilabel else ("Mean confidence", "Accuracy")
    )
    other = "the share that applies" if evaluation.multilabel else "accuracy"
    gap = f"{points} points {'above' if confidence > accuracy else 'below'} {other}"
    return answer(
        f"{warning} {evaluation.verdict}".strip(),
        [
            (right, percent(accuracy), _bounds(evaluation, "accuracy")),
            (sure, percent(confidence), f"the same as {other}" if points == "0.00" else gap),
            ("Calibration error", percent(ece.value(bins)), _in_bins(evaluation)),
        ],
        evaluation.notes,
    )


def _in_bins(evaluation: Evaluation) -> Markup:
    """The interval of the calibration error and the number of bins, on which the error depends."""
    notes = (_bounds(evaluation, "ece"), f"in {plural(len(evaluation.reliability.count), 'bin')}")
    return join(tag("span", note) for note in notes if note)


def _bounds(evaluation: Evaluation, metric: str) -> str:
    """The interval of a metric, where it was measured."""
    for row in evaluation.rows:
        if row.metric == metric and not row.group and not math.isnan(row.low):
            return f"between {interval_of(row, 'and')}"
    return ""


def reliability_section(evaluation: Evaluation) -> Markup:
    words = words_of(evaluation)
    return section(
        words.question,
        split(
            charts.reliability(evaluation.reliability, words=words),
            reliability_explained(evaluation.reliability, words),
        ),
        folded("The numbers in this picture", reliability_table(evaluation.reliability, words)),
    )


def reliability_explained(bins: Bins, words: Words) -> Markup:
    """How to read a reliability diagram."""
    merged = merged_bins(bins)
    joined = f" A bar stands for {merged:,} of the {len(bins.count):,} bins." if merged > 1 else ""
    return join(
        [
            tag(
                "p",
                f"A grey bar shows how often {words.explained}, the coloured part the gap to the mean {words.said}. If "
                f"the {words.said} meant what it says, every dot would lie on the dashed line.{joined}",
            ),
            reliability_legend(bins, words),
            tag("p", TOGETHER) if words is OF_LABELS and not bins.is_weighted else Markup(),
            tag("p", f"The strip below counts the {words.rows}. A gap in a bin with many {words.row}s weighs more."),
        ]
    )


def reliability_legend(bins: Bins, words: Words) -> Markup:
    """The colours and lines of a reliability diagram."""
    of_intervals = [
        ("chance", "pale: the gap could be chance"),
        ("whisker", f"exact 95\u00a0% interval of the {words.happened} (Clopper–Pearson)"),
    ]
    return legend(
        ("bar", f"{words.happened} in the bin"),
        ("over", words.over),
        ("under", words.under),
        *([] if bins.is_weighted else of_intervals),
        (stroke("guide"), "perfect calibration"),
    )


def reliability_table(bins: Bins, words: Words) -> Markup:
    """The numbers in a reliability diagram."""
    digits = 0 if len(bins.count) <= 50 else 1
    rows = [
        (
            percent_range(bar.left, bar.right, digits),
            amount(bar.count),
            percent(bar.confidence),
            noted(percent(bar.accuracy), "" if bins.is_weighted else percent_range(bar.low, bar.high, 1)),
        )
        for bar in bars(bins)
    ]
    interval = "" if bins.is_weighted else ", 95\u00a0% interval"
    columns = (words.said, words.rows, f"mean {words.said}", f"{words.happened}{interval}")
    return table(tuple(name[0].upper() + name[1:] for name in columns), rows, "bins")


def histogram_section(evaluation: Evaluation) -> Markup:
    curve = evaluation.risk_coverage
    half, most = (float(curve.threshold[fewest(curve, share) - 1]) for share in (0.5, 0.9))
    return section(
        "How sure is the model?",
        split(
            charts.histogram(evaluation.reliability),
            "The share of predictions at each confidence. In a calibrated model the two vertical lines meet.",
            f"Half of the predictions are at least {percent_down(half)} sure, "
            f"nine in ten at least {percent_down(most)}.",
        ),
    )


def risk_coverage_section(evaluation: Evaluation) -> Markup:
    curve = evaluation.risk_coverage
    if not float(curve.risk[-1]):
        return section(IF_ABSTAINING, f"None: every {'answer' if evaluation.answers else 'prediction'} is right.")
    # A threshold cannot tell equal confidences apart, so all of them are answered.
    thresholds = sorted({float(curve.threshold[m - 1]) for m in answered(curve)})
    rows = [
        (percent(curve.coverage_at(least), 0), percent(curve.selective_risk(least)), percent_down(least))
        for least in thresholds
    ]
    return section(
        IF_ABSTAINING,
        split(
            charts.risk_coverage(curve),
            ANSWERED,
            legend((stroke("curve"), "this model"), *RISK_KEYS),
            table(("Answered", "Error among them", "Confidence at least"), rows),
        ),
    )


def answered(curve: RiskCoverage) -> list[int]:
    """How many of the most confident samples are answered at each coverage in the table, all of them first."""
    return sorted({fewest(curve, share) for share in COVERAGES}, reverse=True)


def fewest(curve: RiskCoverage, share: float) -> int:
    """The fewest of the most confident samples that make up this share, of the weight where there are weights."""
    return int((curve.coverage < share - 1e-9).sum()) + 1


def groups_section(evaluation: Evaluation) -> Markup:
    """Each group with its interval beside the whole, the worst first; empty without groups."""
    grouped = [row for row in evaluation.rows if row.group and row.group != MEAN_OF_LABELS]
    if not grouped:
        return Markup()
    measured = {(row.group, row.metric): row for row in evaluation.rows}
    names = [name for name in GROUP_METRICS if (grouped[0].group, name) in measured] or [grouped[0].metric]
    ranked = METRICS[names[0]]
    rows = [row for row in grouped if row.metric == ranked.name and not math.isnan(row.value)]
    rows.sort(key=lambda row: row.value, reverse=ranked.lower_is_better is not False)
    whole = measured["", ranked.name]
    ends = [end for row in (*rows, whole) for end in (row.low, row.value, row.high) if not math.isnan(end)]
    scale = Scale(min(0.0, *ends), max(ends) or 1.0, 0, 100)
    cells = [
        (
            noted(row.group, plural(row.n, evaluation.row_name)),
            _dot_strip(row, whole, scale),
            *(value_of(measured[row.group, name]) for name in names),
        )
        for row in rows[:SHOWN_ROWS]
    ]
    what = "label" if evaluation.multilabel else "group"
    more = f" The first {SHOWN_ROWS} of {len(rows):,} {what}s are shown." if len(rows) > SHOWN_ROWS else ""
    without = evaluation.provenance.settings["bootstrap"] and any(math.isnan(row.low) for row in rows)
    more += f" Where there is no interval, the samples cannot say how the {what} compares." * without
    axis = strip_axis(*(shown(end, percent=ranked.percent) for end in (scale.low, scale.high)))
    columns = (what.capitalize(), axis, *(evaluation.metric_title(name) for name in names))
    return section(
        f"By {what}",
        f"{ranked.title} of each {what} as a dot with its interval, the worst first. The dashed line is all {what}s "
        f"together ({value_of(whole)}).{more}",
        table(columns, cells, "groups"),
    )


def _dot_strip(row: Row, whole: Row, scale: Scale) -> Markup:
    """A dot with its interval, and the line of all samples together."""
    words, marks = value_of(row), [mark("line", scale(whole.value))]
    if not math.isnan(row.low):
        words += f" ({interval_of(row)})"
        marks.append(mark("range", scale(row.low), scale(row.high)))
    return strip(words, *marks, mark("point", scale(row.value)))


def metrics_section(evaluation: Evaluation) -> Markup:
    settings = evaluation.provenance.settings
    columns = ("Metric", "Value", f"{100 * settings['level']:g}\u00a0% interval")
    shown_groups = ("", MEAN_OF_LABELS)
    rows = [
        (named_metric(evaluation, row), value_of(row), interval_of(row))
        for row in evaluation.rows
        if row.group in shown_groups[: 1 + evaluation.multilabel]
    ]
    shown = len(columns) if settings["bootstrap"] else 2
    return section("Every number", table(columns[:shown], [row[:shown] for row in rows], "metrics"))


def named_metric(evaluation: Evaluation, row: Row) -> Markup:
    """A metric with what it is in plain words."""
    title = evaluation.metric_title(row.metric)
    if row.group == MEAN_OF_LABELS:
        return noted(f"{title}, {MEAN_OF_LABELS}", "")
    return noted(title, prose(evaluation.metric_summary(row.metric)))


def provenance_section(provenance: Provenance) -> Markup:
    """Everything that is needed to measure it again."""
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


# ---------------------------------------------------------------------------------------------------- before and after


def reliability_pair(before: Evaluation, after: Evaluation, method: str) -> Markup:
    """Two reliability diagrams, before and after `method`."""
    sides, words = [("before", before), (f"after {method}", after)], words_of(before)
    most = max(bar.count for _, side in sides for bar in bars(side.reliability))
    figures = []
    for name, side in sides:
        caption = [tag("b", name[0].upper() + name[1:]), f" ECE\u00a0{value_of(side.row('ece'))}"]
        chart = charts.reliability(side.reliability, most, words=words)
        figures.append((join(caption), chart))
    return section(
        words.question,
        pair(*figures),
        reliability_explained(before.reliability, words),
        *(folded(f"The numbers {name}", reliability_table(side.reliability, words)) for name, side in sides),
    )


def risk_coverage_pair(before: Evaluation, after: Evaluation, method: str, remark: str = "") -> Markup:
    """Two risk-coverage curves in one picture; `remark` is added to the explanation."""
    old, new = before.risk_coverage, after.risk_coverage
    rows = []
    for m in answered(new):
        share = float(new.coverage[m - 1])
        risks = (float(old.risk[fewest(old, share) - 1]), float(new.risk[m - 1]))
        rows.append((percent(share, 0), *map(percent, risks)))
    return section(
        IF_ABSTAINING,
        split(
            charts.risk_coverage(new, old),
            f"{ANSWERED} {remark}",
            legend((stroke("curve was"), "before"), (stroke("curve"), f"after {method}"), *RISK_KEYS),
            table(("Answered", "Error before", "After"), rows),
        ),
    )


def metrics_pair(before: Evaluation, after: Evaluation) -> Markup:
    """Every metric before and after."""
    settings = before.provenance.settings

    def cell(row: Row) -> Cell:
        return value_of(row) if math.isnan(row.low) else noted(value_of(row), interval_of(row))

    rows = [(named_metric(before, old), cell(old), cell(new)) for old, new in zip(before.rows, after.rows, strict=True)]
    explained = tag("p", f"In small print: {100 * settings['level']:g}\u00a0% intervals.")
    return section(
        "Every number",
        explained if settings["bootstrap"] else Markup(),
        table(("Metric", "Before", "After"), rows, "metrics both"),
    )
