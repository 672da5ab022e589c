"""What a reader of an evaluation should know besides the verdict: one sentence or two for each reason."""

from __future__ import annotations

from collections.abc import Sequence

from temperance.arrays import NO_NAME
from temperance.errors import plural
from temperance.jobs.labels import ENOUGH_ROWS
from temperance.jobs.macro import MEAN_OF_LABELS, TITLES, most_labels
from temperance.jobs.results import Row
from temperance.jobs.statistics import Statistics
from temperance.jobs.verdict import Findings, about_groups, as_class
from temperance.metrics import METRICS
from temperance.metrics.evidence import ENOUGH
from temperance.metrics.statistic import RankedSamples
from temperance.metrics.tally import MOST_BINS
from temperance.predictions.checks import excerpt
from temperance.showing import listed, percent

# A note says so if the order of equal confidences changes a value by this much.
DECIDED_BY_ORDER = 0.001

LOGIT_1 = 0.7311  # the probability of a class with the logit 1, where the other has 0

ALL_RIGHT = (
    "Every prediction is right. If you expected mistakes, check that the labels are not the model's own predictions, "
    "and that it was not trained on these samples."
)


def notes(found: Statistics, rows: Sequence[Row], names: Sequence[str], *, intervals: bool) -> tuple[str, ...]:
    """All notes, the most important first; `names` are those of the classes."""
    measuring, n = found.measuring, found.n
    nll = next((row.value for row in rows if row.metric == "nll"), None)
    row_name = "label" if measuring.multilabel else measuring.row_name
    said = [found.floored.note(nll, n, row_name)] if found.floored.n and nll is not None else []
    evidence = found.groups[None].evidence
    missing = evidence.missing
    if measuring.multilabel:
        return (*filter(None, [*said, *_of_labels(found, rows, intervals=intervals)]), *measuring.notes)
    if not measuring.has_weights:
        said += found.labels.notes(found.tallies[1], names, answers=measuring.answers)
        said.append("" if measuring.answers else found.labels.absent(found.tallies[1], names))
        said.append(_probs_as_logits(found, names))
    if intervals and missing:
        said.append(f"There are no intervals: they need {missing}.")
    if n >= ENOUGH_ROWS and not float(evidence.count[0]) and not measuring.answers:
        said.append(ALL_RIGHT)
    if not measuring.has_weights:
        said.append(_groups_off(found))
    if intervals and not missing:
        said.append(_small_groups(found))
    if not measuring.has_weights:
        said.append(_other_classes(found, rows))
    if not missing:
        said.append(_ties(found, rows))
    if measuring.n_bins > MOST_BINS and not measuring.has_weights:
        said.append(_many_bins(measuring.n_bins))
    return (*filter(None, said), *measuring.notes)


def _of_labels(found: Statistics, rows: Sequence[Row], *, intervals: bool) -> list[str]:
    """What a reader should know about several labels."""
    shares = {name: float(group.tally.accuracy) for name, group in found.groups.items() if name and group.tally}
    never, always = (sorted(name for name, share in shares.items() if share == end) for end in (0, 1))
    said = [
        f"{plural(len(names), 'label')} {word} {'applies' if len(names) == 1 else 'apply'}: {excerpt(names)}. AUROC "
        "leaves such labels out, and nothing shows whether their scores tell samples apart."
        for names, word in ((never, "never"), (always, "always"))
        if names
    ]
    few = sum(not found.groups[name].evidence.enough for name in shares)
    if few:
        said.append(
            f"{few:,} of {len(shares):,} labels {'applies' if few == 1 else 'apply'} to fewer than {ENOUGH} samples, "
            f"or to all but fewer than {ENOUGH}{', so they have no intervals of their own' * intervals}. A calibration "
            "error of so few can be high by chance alone."
        )
    if intervals and not found.groups[None].evidence.enough:
        said.append(
            f"There are no intervals: they need {ENOUGH} pairs of sample and label in which the label applies, and "
            f"{ENOUGH} in which it does not."
        )
        return said
    means = [row for row in rows if row.group == MEAN_OF_LABELS]
    slow = [
        TITLES.get(row.metric, METRICS[row.metric].title)
        for row, parts in zip(means, found.groups[None].parts, strict=False)
        if METRICS[row.metric].interval != "none" and row.n > most_labels(parts.stats)
    ]
    if intervals and slow:
        said.append(
            f"The means of labels have no intervals of {listed(slow)}: with {len(shares):,} labels, these would take "
            "too long."
        )
    return said


def _probs_as_logits(found: Statistics, names: Sequence[str]) -> str:
    """Scores of one class that are probabilities, read as logits: then that class is always predicted, and never with
    much confidence. Nothing else shows it, as the rows of two columns do by their sum.
    """
    measuring, (by_confidence, by_class) = found.measuring, found.tallies
    if not measuring.from_logits or measuring.k != 2 or measuring.made_by is not None or found.n < ENOUGH_ROWS:
        return ""
    n_bins, last = len(by_confidence.count), int(by_confidence.count.nonzero().max())
    tied = float(by_class.confidence[0]) <= 0.5 * float(by_class.count[0])  # the first class is predicted at 0 alone
    if last / n_bins >= LOGIT_1 or (last + 1) / n_bins > 0.8 or not tied:
        return ""
    return (
        f"Every prediction is {as_class(names[1])}, and none is more than {percent((last + 1) / n_bins, 1)} sure, as "
        "when probabilities are read as logits. If they are probabilities, read them as probs."
    )


def _groups_off(found: Statistics) -> str:
    """Which groups are over- or under-confident."""
    tallies = {name: each.tally for name, each in found.groups.items() if each.tally is not None}
    calibrated, rounding = found.measuring.made_by is not None, found.measuring.rounding
    names = [group_name(name) for name in tallies]
    return about_groups(names, list(tallies.values()), calibrated=calibrated, rounding=rounding)


def _small_groups(found: Statistics) -> str:
    """Which groups have no intervals, so that none is called worse than another by chance."""
    groups = [group for name, group in found.groups.items() if name is not None]
    few = sum(not group.evidence.enough for group in groups)
    if not few:
        return ""
    weight = " of equal weight" * found.measuring.has_weights
    return (
        f"{few:,} of {len(groups):,} groups {'has' if few == 1 else 'have'} no intervals, which need {ENOUGH} right "
        f"and {ENOUGH} wrong predictions{weight}. With fewer, a calibration error can be high by chance alone."
    )


def _other_classes(found: Statistics, rows: Sequence[Row]) -> str:
    """What the verdict does not see: probabilities that are off although those of predicted classes are not."""
    row = next((row for row in rows if row.metric == "classwise-ece"), None)
    findings = Findings.of(*found.tallies, found.measuring.rounding)
    if row is None or not row.low > 0 or found.measuring.k == 2 or findings.anything:
        return ""
    return (
        "The verdict is about predicted classes alone. The probabilities of other classes seem to be off: classwise "
        f"ECE, which is about all classes, is {percent(row.value)}, and its interval begins at {percent(row.low)}."
    )


def _ties(found: Statistics, rows: Sequence[Row]) -> str:
    """Adaptive ECE and AURC without the influence of the row order, where equal confidences make it matter."""
    names: list[str] = []
    level: list[str] = []
    for (metric, options), parts in zip(found.measuring.requests, found.groups[None].parts, strict=False):
        if metric.name in ("adaptive-ece", "aurc") and isinstance(parts.whole, RankedSamples) and parts.whole.has_ties:
            value = metric.value(parts.whole.level(), **options)
            if abs(value - next(row.value for row in rows if row.metric == metric.name)) >= DECIDED_BY_ORDER:
                names += ["AURC", "E-AURC"] if metric.name == "aurc" else [metric.title]
                level.append(f"{metric.title} {'is ' * (not level)}{percent(value)}")
    if not names:
        return ""
    return (
        f"Some confidences are equal, so {listed(names)} depend{'s' * (len(names) == 1)} on the order of the rows. If "
        f"tied {found.measuring.row_name}s share their mistakes equally, {' and '.join(level)}."
    )


def _many_bins(n_bins: int) -> str:
    return (
        f"The metrics use {n_bins:,} bins. The verdict and the calibration error in it use {MOST_BINS}: with "
        "more, few bins would have enough samples for a test."
    )


def group_name(group: str | None) -> str:
    """The group of a row: empty for all samples, and a readable word for a group whose name is empty."""
    return "" if group is None else group or NO_NAME
