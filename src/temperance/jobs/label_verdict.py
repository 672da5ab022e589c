"""What the scores of several labels mean, in plain words that the data support.

The labels of a sample go together, so the rows of all labels are not independent, and no test is of all of them. Each
label has one row for each sample. Its average is tested, and every bin of its scores. Either kind of test has half of
the level and is corrected for the number of labels and bins. So at most one in twenty calibrated models is called
miscalibrated, however its labels depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from temperance.errors import plural
from temperance.jobs.verdict import CORRECT_AGAIN, CORRECT_IT, ERROR_RATE, NAMED, as_class, signs_of
from temperance.metrics.tally import Tally, significant
from temperance.showing import percents


def verdict_of_labels(
    tally: Tally, names: Sequence[str], n_samples: int, *, calibrated: bool = False, rounding: float = 0.0
) -> str:
    """One paragraph: too high or too low, for which labels, and what to do; `tally` is by label and score."""
    average = tally.mapped(lambda tensor: tensor.sum(1))
    signs = signs_of(average, significant(average.closer(rounding), ERROR_RATE / 2))
    flat = tally.mapped(lambda tensor: tensor.reshape(-1))
    in_places = (
        signs_of(flat, significant(flat.closer(rounding), ERROR_RATE / 2)).reshape(tally.count.shape).ne(0).any(1)
    )
    n_labels = int((average.count > 0).sum())
    whole = average.total()
    score, share = percents((float(whole.mean_confidence), float(whole.accuracy)))
    on = f"On {plural(n_samples, 'sample')} the mean probability of a label is {score}, and {share} apply."
    off = signs.nonzero().squeeze(1)
    only_places = int((in_places & (signs == 0)).sum())
    if not len(off) and not only_places:
        found = f"No miscalibration found in the scores of {plural(n_labels, 'label')}."
        return f"{found} {on} An error of a label that is smaller than chance explains may not show."
    parts = [
        _head(int((signs > 0).sum()), int((signs < 0).sum()), n_labels),
        on,
        _named(average, off[average.gap[off].abs().argsort(descending=True, stable=True)].tolist(), names, n_labels),
        _in_places(only_places, n_labels, others=len(off) > 0),
        CORRECT_AGAIN if calibrated else CORRECT_IT,
    ]
    return " ".join(filter(None, parts))


def _head(high: int, low: int, n_labels: int) -> str:
    if high and low:
        return "The scores of some labels are too high, and those of others too low."
    if high or low:
        word = "high" if high else "low"
        if n_labels == 1:
            return f"The scores of the label are too {word}."
        some = "all" if high + low == n_labels else f"{high + low:,} of"
        return f"The scores of {some} {n_labels:,} labels are too {word}."
    return "The scores of some labels are right on average, but not everywhere."


def _named(average: Tally, off: list[int], names: Sequence[str], n_labels: int) -> str:
    """The labels that are off on average, the furthest first."""
    if not off:
        return ""
    numbers = percents(*((float(average.mean_confidence[j]), float(average.accuracy[j])) for j in off[:NAMED]))
    pairs = zip(off, numbers[::2], numbers[1::2], strict=False)
    (first, score, share), *rest = [(as_class(names[j], "label"), score, share) for j, score, share in pairs]
    others = "; ".join(f"{name}: {score} and {share}" for name, score, share in rest)
    count = f"{len(off):,} of {n_labels:,} labels {'is' if len(off) == 1 else 'are'}" if n_labels > 1 else "It is"
    return (
        f"{count} off on average by more than chance{', these three the most' if len(off) > NAMED else ''}: {first} "
        f"has a mean probability of {score}, and applies to {share} of the samples{f' ({others})' if others else ''}."
    )


def _in_places(n: int, n_labels: int, *, others: bool) -> str:
    """The labels that are off at some scores only."""
    if not n:
        return ""
    more = " more" if others else f" of {n_labels:,}" if n_labels > 1 else ""
    label = "label is" if n == 1 and (others or n_labels == 1) else "labels is" if n == 1 else "labels are"
    return f"{n:,}{more} {label} off at some scores by more than chance, though not on average."
