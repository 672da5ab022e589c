"""The pages of several sets: their measurements side by side, and how methods rank over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable

from temperance.errors import plural
from temperance.jobs.outcomes import BASELINE
from temperance.jobs.results import Row
from temperance.jobs.several import Comparisons, Evaluations, SeveralSets, gist
from temperance.jobs.standings import FEWEST_SETS, Standing
from temperance.markup import Markup, join, tag
from temperance.metrics.significance import Interval
from temperance.report.formats import percent, percent_range, value_of
from temperance.report.numbers import bars
from temperance.report.page import (
    SHOWN_ROWS,
    answer,
    heading,
    moved,
    noted,
    page,
    pair,
    section,
    split,
    table,
)
from temperance.report.pages.evaluation import provenance_section, reliability_legend
from temperance.report.svg import charts
from temperance.report.svg.standings import standings_chart
from temperance.report.words import words_of
from temperance.showing import listed

HEADLINE = ("accuracy", "nll", "ece")
MEANS: dict[str, Callable[[float], str]] = {
    "nll": "{:.4f}".format,
    "ece": percent,
    "accuracy": percent,
    "seconds": "{:.2f}".format,
}
TITLES = {"nll": "NLL", "ece": "ECE", "accuracy": "Accuracy", "seconds": "Seconds"}

# ---------------------------------------------------------------------------------------------------------- evaluations


def evaluations_page(found: Evaluations) -> str:
    """The page: the best sets, every set's numbers with its rank, every set's reliability."""
    name = plural(len(found.names), "set")
    return page(
        f"{name} – calibration report",
        heading("Calibration report", name, [", ".join(found.names) if len(found.names) <= 5 else ""]),
        best_section(found),
        ranks_section(found),
        reliabilities_section(found),
        failures_section(found),
        provenance_section(found.provenance),
    )


def best_section(found: Evaluations) -> Markup:
    """The sets that are best by the metrics that matter most."""
    figures, best = [], dict[str, list[str]]()
    candidates = dict.fromkeys((*HEADLINE, *found.metrics))
    ranked = [metric for metric in candidates if metric in found.metrics and found.ranks(metric)]
    for metric in ranked[:3]:
        names = [name for name, rank in found.ranks(metric).items() if rank == 1]
        figures.append(
            (f"Best {found.metric_title(metric)}", value_of(found.each[names[0]].row(metric)), listed(names))
        )
        best.setdefault(listed(names), []).append(found.metric_title(metric))
    said = "; ".join(f"{name} by {listed(titles)}" for name, titles in best.items())
    first = f"The best of {plural(len(found.names), 'set')}: {said}" if said else found.title
    return answer(f"{first}. Sets with other samples can be easier or harder, whatever the model.", figures)


def ranks_section(found: Evaluations) -> Markup:
    """Every metric of every set, with its rank among the sets."""
    ranks = {metric: found.ranks(metric) for metric in found.metrics}
    rows = []
    for name, each in list(found.each.items())[:SHOWN_ROWS]:
        samples = noted(name, plural(each.n_counted, each.row_name))
        rows.append([samples, *(_with_rank(each.row(metric), ranks[metric].get(name)) for metric in found.metrics)])
    return section(
        "How do they compare?",
        f"In small print: the rank among the sets, 1 is the best.{_more(found)}",
        table(("Set", *map(found.metric_title, found.metrics)), rows, "standings"),
    )


def _with_rank(row: Row, rank: int | None) -> Markup:
    return noted(value_of(row), "" if rank is None else f"{rank}.")


def reliabilities_section(found: Evaluations) -> Markup:
    """The reliability diagram of every set, with the first sentence of its verdict."""
    most = max(bar.count for each in found.each.values() for bar in bars(each.reliability))
    figures = []
    for name, each in list(found.each.items())[:SHOWN_ROWS]:
        caption = join([tag("b", name), tag("small", gist(each))])
        figures.append((caption, charts.reliability(each.reliability, most, words=words_of(each))))
    first = next(iter(found.each.values()))
    words = words_of(first)
    return section(words.question, reliability_legend(first.reliability, words), pair(*figures))


# ---------------------------------------------------------------------------------------------------------- comparisons


def comparisons_page(found: Comparisons) -> str:
    """The page: the answer, where methods stand, what to use for each set."""
    name = plural(len(found.names), "set")
    first = found.standings[0]
    figures = [
        ("Lowest mean rank", f"{first.rank.value:.1f}", f"{first.method} {_rank_bounds(first.rank)}".strip()),
        ("Wins", percent(first.wins.value, 1), "of its comparisons with another method"),
        ("Harm", percent(first.harm.value, 1), "of the sets: a higher NLL than without calibration"),
    ]
    return page(
        f"{name} – comparison of calibrators",
        heading("Comparison of calibrators", name, [f"{len(found.standings)} methods"]),
        answer(found.verdict, figures),
        standings_section(found),
        sets_section(found),
        failures_section(found),
        provenance_section(found.provenance),
    )


def standings_section(found: Comparisons) -> Markup:
    """Every method over all sets: the picture and the numbers."""
    measured = [TITLES[name] for name in MEANS if name in found.standings[0].means]
    columns = ("Method", "Mean rank", "Wins", "Harm", *measured)
    return section(
        "Where do the methods stand?",
        split(
            standings_chart(found.standings),
            "Methods are ranked by NLL on each set, and the lowest mean rank comes first. Wins: of all comparisons "
            "with another method on a set, the share with the lower NLL. Harm: the share of sets with a higher NLL "
            "than without calibration.",
            "The lines are 95\u00a0% intervals: what other sets like these might have given. Values that are the same "
            "on every set have none."
            if len(found.names) >= FEWEST_SETS
            else "There are too few sets for intervals.",
        ),
        table(columns, map(_standing_row, found.standings), "standings"),
    )


def _standing_row(standing: Standing) -> list[Markup | str]:
    means = standing.means
    failed = f"could not be fitted to {plural(standing.failures, 'set')}" if standing.failures else ""
    return [
        noted(standing.method, failed),
        noted(f"{standing.rank.value:.1f}", _rank_bounds(standing.rank)),
        noted(percent(standing.wins.value, 0), _bounds(standing.wins)),
        noted(percent(standing.harm.value, 0), _bounds(standing.harm)),
        *("–" if math.isnan(means[name]) else text(means[name]) for name, text in MEANS.items() if name in means),
    ]


def _bounds(found: Interval) -> str:
    return "" if math.isnan(found.low) else percent_range(found.low, found.high, 0)


def _rank_bounds(found: Interval) -> str:
    return "" if math.isnan(found.low) else f"{found.low:.1f}\u00a0–\u00a0{found.high:.1f}"


def sets_section(found: Comparisons) -> Markup:
    """What to use for each set, and what it changes."""
    rows = []
    for name, finding in list(found.findings.items())[:SHOWN_ROWS]:
        before, after = (finding.measured[method] for method in (BASELINE, finding.recommended))
        classes = "" if finding.one_score else f"{finding.k:,} classes, "
        rows.append(
            (
                noted(name, f"{classes}{finding.split}"),
                moved(f"{before['nll']:.4f}", f"{after['nll']:.4f}"),
                moved(percent(before["ece"]), percent(after["ece"])),
                finding.recommended,
            )
        )
    return section(
        "What should be used for each set?",
        f"Each recommendation rests on the tests of that set alone.{_more(found)}",
        table(("Set", "NLL", "ECE", "Recommended"), rows, "standings sets"),
    )


# ----------------------------------------------------------------------------------------------------------------- both


def failures_section(found: SeveralSets) -> Markup:
    """The sets that could not be measured, and why; empty if there are none."""
    if not found.failures:
        return Markup()
    return section(
        "What could not be measured?",
        table(("Set", "Why"), [(name, str(why)) for name, why in found.failures.items()], "failures"),
    )


def _more(found: SeveralSets) -> str:
    n = len(found.names)
    return f" The first {SHOWN_ROWS} of {n:,} sets are shown." if n > SHOWN_ROWS else ""
