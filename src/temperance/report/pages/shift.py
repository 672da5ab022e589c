"""The page of a network under corruption."""

from __future__ import annotations

from temperance.data.corruptions import CORRUPTIONS
from temperance.diagnose.shift import MEAN, MEASURED, Shift
from temperance.markup import Markup, join, tag
from temperance.metrics import METRICS
from temperance.report.formats import PERCENT, percent
from temperance.report.page import answer, folded, grouped_table, heading, moved, noted, page, pair, prose, section
from temperance.report.pages.evaluation import provenance_section
from temperance.report.svg.lines import Line, line_chart, line_legend

RANGE = " The line is the mean over the corruptions; the shaded area reaches from the least to the most harmful one."
TITLES = {"ece": "Calibration error", "accuracy": "Accuracy", "nll": "NLL"}


def shift_page(found: Shift) -> str:
    """The page: the answer, error against severity, each family, every number."""
    strongest, method = found.severities[-1], found.methods[-1]
    figures = []
    for metric in MEASURED:
        clean, worse = (_written(metric, found.value(metric, severity=s, method=method)) for s in (0, strongest))
        figures.append((TITLES[metric], moved(clean, worse), f"clean, and at severity {strongest}"))
    settings = found.provenance.settings
    return page(
        f"{settings['name']} – calibration under corruption",
        heading("Calibration under corruption", settings["name"], [*found.counts, method]),
        answer(found.verdict, figures),
        severity_section(found),
        family_section(found),
        numbers_section(found),
        provenance_section(found.provenance),
    )


def _written(metric: str, value: float) -> str:
    return percent(value) if METRICS[metric].percent else f"{value:.3f}"


def severity_section(found: Shift) -> Markup:
    """Mean and range over corruptions against severity, before and after calibration."""
    figures = []
    for metric in MEASURED:
        lines = [severity_line(found, metric, method, i) for i, method in enumerate(found.methods)]
        # A calibrator that keeps every prediction has the accuracy of no calibration.
        lines = lines[:1] + [line for line in lines[1:] if line.points != lines[0].points]
        drawn = line_chart(
            lines,
            y_title=TITLES[metric],
            x_title="severity",
            percent=METRICS[metric].percent,
            from_zero=True,
            x_ticks=[0, *found.severities],
            dots=True,
        )
        figures.append((tag("b", TITLES[metric]), drawn))
    keys = [Line(method, [], i) for i, method in enumerate(found.methods)]
    return section(
        "How does it hold up?",
        f"Severity 0 is the clean images.{RANGE * (len(found.corruptions) > 1)}",
        line_legend(keys) if len(keys) > 1 else Markup(),
        pair(*figures),
    )


def severity_line(found: Shift, metric: str, method: str, colour: int) -> Line:
    """The mean over corruptions at each severity, with the range over them."""
    clean = found.value(metric, method=method)
    mean, low, high = [(0.0, clean)], [(0.0, clean)], [(0.0, clean)]
    for severity in found.severities:
        values = found.values(metric, severity, method)
        mean.append((severity, found.value(metric, MEAN, severity, method)))
        low.append((severity, min(values)))
        high.append((severity, max(values)))
    return Line(method, mean, colour, band=(low, high))


def family_section(found: Shift) -> Markup:
    """The calibration error under every corruption, a picture for each family on one scale."""
    method, first = found.methods[-1], found.methods[0]
    highest = max(
        found.value("ece", name, s, m) for name in found.corruptions for s in found.severities for m in found.methods
    )
    figures = []
    for family, names in found.families().items():
        lines = []
        for i, name in enumerate(names):
            if method != first:
                lines.append(Line(f"{name}, {first}", _against(found, name, first), i, "faint"))
            lines.append(Line(name, _against(found, name, method), i))
        drawn = line_chart(
            lines,
            y_title=f"Calibration error under {family}",
            x_title="severity",
            percent=True,
            from_zero=True,
            highest=highest,
            x_ticks=[0, *found.severities],
        )
        solid = [line for line in lines if not line.kind]
        figures.append((join([tag("b", family.capitalize()), line_legend(solid)]), drawn))
    faint = f" Faint: {first}." if method != first else ""
    return section(
        "Which corruptions do the most harm?",
        f"The calibration error under every corruption, on the same scale for all families.{faint}",
        pair(*figures),
    )


def _against(found: Shift, name: str, method: str) -> list[tuple[float, float]]:
    clean = (0.0, found.value("ece", method=method))
    return [clean, *((float(s), found.value("ece", name, s, method)) for s in found.severities)]


def numbers_section(found: Shift) -> Markup:
    """The calibration error as a table for each method; the other metrics are folded away."""
    tables = []
    for metric in MEASURED:
        for method in reversed(found.methods):
            name = f"{TITLES[metric]}{' in percent' if METRICS[metric].percent else ''}, {method}"
            drawn = number_table(found, metric, method)
            first = metric == MEASURED[0] and method == found.methods[-1]
            tables.append(join([tag("p", tag("b", name)), drawn]) if first else folded(name, drawn))
    return section("Every number", *tables)


def number_table(found: Shift, metric: str, method: str) -> Markup:
    """A row for each corruption, a column for each severity."""

    def cell(name: str, severity: int) -> str:
        return _written(metric, found.value(metric, name, severity, method)).removesuffix(PERCENT)

    severities = [0, *found.severities]
    groups = []
    for title, names in found.groups().items():
        rows = []
        for name in names:
            note = prose(CORRUPTIONS[name].summary) if name in CORRUPTIONS else "over the corruptions"
            rows.append((noted(name, note), *(cell(name, severity) for severity in severities)))
        groups.append((title.capitalize(), rows))
    return grouped_table(("Corruption, by severity", *map(str, severities)), groups, "severities")
