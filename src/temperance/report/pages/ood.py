"""The page of a comparison with unfamiliar data."""

from __future__ import annotations

from temperance.errors import plural
from temperance.jobs.ood import TITLES, OODComparison, ScoreHistogram
from temperance.jobs.results import Row
from temperance.markup import Markup, join, tag
from temperance.metrics.familiarity import FEATURE_SCORES
from temperance.metrics.scores import SCORES
from temperance.report.formats import percent, percent_range
from temperance.report.page import answer, grouped_table, heading, legend, noted, page, pair, prose, section, stroke
from temperance.report.pages.evaluation import provenance_section
from temperance.report.svg.drawing import (
    LEFT,
    RIGHT,
    Plot,
    RootScale,
    Scale,
    label,
    number_text,
    picture,
    root_ticks,
    ticks_between,
)
from temperance.report.svg.lines import series
from temperance.showing import listed


def ood_page(found: OODComparison) -> str:
    """The page: the answer, the scores on both sides as pictures, every number."""
    settings, first = found.provenance.settings, found.scores[0]
    name = settings["inside"]
    against = listed([f"{other} ({plural(n, 'sample')})" for other, n in found.sizes.items()])
    about = [plural(settings["n"], "sample"), f"{settings['k']:,} classes", settings.get("calibrated_by", "")]
    figures = [
        _figure(f"AUROC by {first}", found.row("auroc", method=first)),
        _figure(f"FPR95 by {first}", found.row("fpr95", method=first)),
        _figure(f"Best AUROC, by {found.best}", found.row("auroc", method=found.best)),
    ]
    return page(
        f"{name} – unfamiliar data",
        heading("Telling unfamiliar data apart", name, [*about, f"against {against}"]),
        answer(found.verdict, figures),
        histograms_section(found),
        numbers_section(found),
        provenance_section(found.provenance),
    )


def _figure(title: str, row: Row) -> tuple[str, str, str]:
    bounds = percent_range(row.low, row.high, 2).replace("–", "and")
    return title, percent(row.value), f"between {bounds}"


def histograms_section(found: OODComparison) -> Markup:
    """Every score on both sides."""
    figures = []
    for histogram in found.histograms:
        row = found.row("auroc", method=histogram.score)
        caption = [tag("b", histogram.score), f" AUROC\u00a0{percent(row.value)}"]
        figures.append((join(caption), score_histogram(histogram)))
    keys = [("bar", found.provenance.settings["inside"])]
    keys += [(stroke(f"line {series(i)}"), name) for i, name in enumerate(found.sizes)]
    return section(
        "How sure is the model of each?",
        "The share of samples at each value of a score. The less the two overlap, the better the score tells them "
        "apart. The vertical line is the threshold that accepts at least 95\u00a0% of the model's own data; "
        "unfamiliar samples to its right are mistaken for its own.",
        legend(*keys, (stroke("mark"), "accepts at least 95\u00a0% of its own data")),
        pair(*figures),
    )


def score_histogram(histogram: ScoreHistogram) -> Markup:
    """Shares of the model's own data as bars, those of other sets as steps, and the threshold that accepts 95 %."""
    edges = histogram.edges.tolist()
    highest = max(float(shares.max()) for shares in (histogram.inside, *histogram.outside.values()))
    y = RootScale(0, highest, 236, 28)
    plot = Plot(Scale(edges[0], edges[-1], LEFT, RIGHT), y)
    ticks, across = root_ticks(y), ticks_between(edges[0], edges[-1], 5)
    lines = []
    for i, shares in enumerate(histogram.outside.values()):
        steps = [(edges[0], 0.0)]
        for left, right, share in zip(edges[:-1], edges[1:], shares.tolist(), strict=True):
            steps += [(left, share), (right, share)]
        lines.append(plot.line([*steps, (edges[-1], 0.0)], f"line {series(i)}"))
    limit = min(max(histogram.limit, edges[0]), edges[-1])
    return picture(
        280,
        f"Histograms of {histogram.score} on the model's own data and on {', '.join(histogram.outside)}.",
        label(0, 12, "share of samples (square-root scale)"),
        plot.y_axis(ticks),
        plot.bars(edges, histogram.inside.tolist()),
        join(lines),
        plot.line([(limit, 0), (limit, highest)], "mark"),
        plot.x_axis(across, histogram.score, number_text),
    )


def numbers_section(found: OODComparison) -> Markup:
    """Every score on every set, with its interval."""
    sets = [("Mean over the sets", ""), *((name, name) for name in found.sizes)] if len(found.sizes) > 1 else [("", "")]
    groups = []
    for title, group in sets:
        rows = []
        for name in found.scores:
            entry = FEATURE_SCORES[name] if name in FEATURE_SCORES else SCORES[name]
            cells = [noted(name, prose(entry.summary.partition(" (n")[0]))]
            for metric in TITLES:
                row = found.row(metric, group=group, method=name)
                cells.append(noted(percent(row.value), percent_range(row.low, row.high, 2)))
            rows.append(cells)
        groups.append((title, rows))
    level = found.provenance.settings["level"]
    return section(
        "Every number",
        "AUROC: how often a sample of the model's own data scores higher than an unfamiliar one; 50\u00a0% is "
        "chance. FPR95: the share of unfamiliar samples that are accepted when 95\u00a0% of its own are; lower is "
        "better. AUPR: the mean precision in finding its own data (in) or the other data (out); chance is the share "
        "of that side. "
        f"In small print: {100 * level:g}\u00a0% intervals.",
        grouped_table(("Score", *TITLES.values()), groups, "standings"),
    )
