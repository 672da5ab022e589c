"""Sections about classes: which are off, and what changed for which. If there are many, the worst few are shown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from temperance.errors import amount
from temperance.jobs.evaluation import Evaluation
from temperance.markup import Markup, tag
from temperance.metrics.classwise import class_errors
from temperance.report.formats import digits_for, percent, points
from temperance.report.numbers import ClassChange, class_changes, worst_classes
from temperance.report.page import (
    LISTED_ROWS,
    Cell,
    Stack,
    folded,
    legend,
    mark,
    searchable,
    section,
    split,
    strip,
    strip_axis,
    table,
)
from temperance.report.svg import charts
from temperance.report.svg.drawing import Scale

WORST = 15  # classes shown without unfolding the table
MOST_CHANGED = 8  # classes shown on either side without unfolding the table
MANY = 50  # from here on classes are also shown as a distribution


def classwise_section(evaluation: Evaluation) -> Markup:
    """The worst classes as bars, a table of classes that can be searched, and the distribution of many."""
    errors = class_errors(evaluation.classwise)
    worst = worst_classes(evaluation.classwise, evaluation.class_names, LISTED_ROWS)
    name, names, truth = class_words(evaluation)
    columns = (name.capitalize(), truth, "Expected", "Too high, too low", "Error")
    k, largest = len(errors), worst[0].error
    # A full bar is the worst class, but no less than a quarter of a class's average share: small errors look small.
    scale = 100 / max(largest, 0.25 / k)
    digits = digits_for(largest)
    rows: list[list[Cell]] = []
    for entry in worst:
        over, under = (round(scale * part, 1) for part in (entry.over, entry.under))
        words = f"{percent(entry.over, digits)} too high, {percent(entry.under, digits)} too low"
        counts = (amount(entry.labels), f"{entry.predicted:,.1f}")
        rows.append([entry.name, *counts, Stack(over, under, words), percent(entry.error, digits)])
    every = folded(_title(k, "furthest off", names), searchable(names, columns, rows, "classes"))
    return section(
        f"Which {names} are off?",
        f"The error of a {name} is how far its probability is from how often it {_happens(name)}. The worst come "
        f"first. Expected is the sum of the {name}'s probabilities: {_expected(name)}.",
        legend(("over", "probability too high"), ("under", "probability too low")),
        table(columns, rows[:WORST], "classes"),
        every if k > WORST else Markup(),
        _error_distribution(errors, names) if k >= MANY else Markup(),
    )


def class_words(evaluation: Evaluation) -> tuple[str, str, str]:
    """What is off, one and several of them, and the title of the number of samples that it is true of."""
    return ("label", "labels", "Applies to") if evaluation.multilabel else ("class", "classes", "Labels")


def _happens(name: str) -> str:
    return "applies" if name == "label" else "is the label"


def _expected(name: str) -> str:
    return f"how many {'samples have it, as the model expects' if name == 'label' else 'labels the model expects'}"


def _title(k: int, which: str, names: str) -> str:
    """The title of a long table: of all classes, or of as many as may be listed."""
    return f"All {k:,} {names}" if k <= LISTED_ROWS else f"The {LISTED_ROWS:,} {names} {which}"


def _error_distribution(errors: Tensor, names: str) -> Markup:
    shares = errors.quantile(errors.new_tensor([0.5, 0.9, 0.99])).tolist()
    half, most, nearly_all = (percent(share, digits_for(share)) for share in shares)
    smaller = float(errors.min()) < charts.SMALLEST_SHARE * float(errors.max())
    return split(
        charts.error_distribution(errors),
        f"The errors of all {len(errors):,} {names}, on a logarithmic scale."
        f"{' The first bar also counts the smaller ones.' if smaller else ''}",
        f"Half of the {names} have an error of at most {half}, nine in ten of at most {most}, 99 in 100 of at most "
        f"{nearly_all}.",
    )


def class_changes_section(before: Evaluation, after: Evaluation) -> Markup:
    """The classes that gained and lost most, a table of classes that can be searched, and the distribution of many."""
    changes = class_changes(before.classwise, after.classwise, before.class_names)
    k = len(changes)
    better, worse = ([entry for entry in changes if sign * entry.change > 0] for sign in (-1, 1))
    lists = [("Most improved", better[:MOST_CHANGED]), ("Most worsened", worse[: -MOST_CHANGED - 1 : -1])]
    largest = max(max(entry.before, entry.after) for entry in changes)
    name, names, _ = words = class_words(before)
    few = "that few samples have" if before.multilabel else "with few labels"
    return section(
        f"What changed for which {name}?",
        f"The error of a {name} is how far its probability is from how often it {_happens(name)}. {len(better):,} of "
        f"{k:,} {names} got better, {len(worse):,} worse. A {name} {few} may change by chance.",
        legend(("point none", "before"), ("point", "after")),
        tag("div", *(_change_table(title, entries, largest) for title, entries in lists if entries), class_="pair"),
        _every_change(changes, largest, words) if sum(len(entries) for _, entries in lists) < k else Markup(),
        _change_distribution(torch.tensor([entry.change for entry in changes]), names) if k >= MANY else Markup(),
    )


def _change_table(title: str, entries: Sequence[ClassChange], largest: float) -> Markup:
    place = Scale(0, largest or 1.0, 0, 100)
    digits = digits_for(largest)
    rows = []
    for entry in entries:
        at = place(entry.before), place(entry.after)
        words = f"{percent(entry.before, digits)} before, {percent(entry.after, digits)} after"
        marks = (mark("range", *at), mark("point none", at[0]), mark("point", at[1]))
        rows.append((entry.name, strip(words, *marks), percent(entry.before, digits), percent(entry.after, digits)))
    return table((title, strip_axis("0", percent(largest, digits)), "Before", "After"), rows, "changes")


def _every_change(changes: Sequence[ClassChange], largest: float, words: tuple[str, str, str]) -> Markup:
    digits = digits_for(largest)
    most = sorted(changes, key=lambda entry: abs(entry.change), reverse=True)[:LISTED_ROWS]
    rows = []
    for entry in sorted(most, key=lambda entry: entry.change):
        sides = (percent(side, digits) for side in (entry.before, entry.after))
        rows.append((entry.name, amount(entry.labels), *sides, points(entry.change, digits)))
    name, names, truth = words
    columns = (name.capitalize(), truth, "Before", "After", "Points")
    return folded(_title(len(changes), "that changed most", names), searchable(names, columns, rows, "every-change"))


def _change_distribution(change: Tensor, names: str) -> Markup:
    return split(
        charts.change_distribution(change),
        f"The changes of all {len(change):,} {names}. Those left of 0 got better.",
    )
