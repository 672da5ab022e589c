"""What the numbers of a set of predictions mean, in plain words that the data support.

Nothing is called miscalibrated unless a test says so. There are four: of the average confidence, of every bin of
confidence, of every predicted class (of two classes also of the probability that the second gets), and of the
calibration error as a whole. Each has a quarter of `ERROR_RATE`, and those of bins and classes are corrected for their
number. So at most one in twenty calibrated models is called miscalibrated, whatever n and k. Where no test finds
anything, a model is not called calibrated either: the samples may be too few to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from temperance.errors import plural
from temperance.metrics.evidence import ENOUGH, Evidence
from temperance.metrics.tally import (
    Tally,
    accuracy_bounds,
    calibration_error,
    error_by_chance,
    p_values,
    positive_tally,
    samples_needed,
    significant,
)
from temperance.showing import percent, percents

ERROR_RATE = 0.05  # of all tests together
SHARE = ERROR_RATE / 4  # of each test

MUCH = 0.05  # an average error that must be ruled out; otherwise the samples are too few to tell
NOTICEABLE = 0.02  # one that enough samples would show
RULED_OUT = 0.99  # level of the accuracy's interval, which holds every confidence that the tests accept
LITTLE = 0.005  # an error that is small, if it is also small relative to the share of mistakes
NAMED = 3  # classes
NEARLY_ALL = 0.99  # of the samples

CORRECT_IT = "To correct it without retraining, run `temperance compare` on held-out predictions."
COLLECT_FIRST = (
    f"Before you correct it, collect samples: with fewer than {ENOUGH} right and {ENOUGH} wrong predictions, "
    "`temperance compare` may not be able to tell whether a calibrator helps."
)
CORRECT_GROUPS = "`temperance compare --by group` also tries a correction of its own for each group."
CORRECT_AGAIN = (
    "A calibrator has been applied and leaves this error: to do better, fit one to the model's own predictions on "
    "samples like these."
)
LEAVE_IT = "An error this small seldom needs correcting."
MAY_HELP = (
    "This verdict tests averages; `temperance compare` tests each prediction, so it may still find that a calibrator "
    "helps."
)


def verdict(
    by_confidence: Tally,
    by_class: Tally,
    class_names: Sequence[str],
    rows: str = "samples",
    *,
    calibrated: bool = False,
    unrelated: bool = False,
    rounding: float = 0.0,
) -> str:
    """One paragraph: over- or under-confident, by how much, where, which classes, and what to do.

    calibrated  the predictions are a calibrator's, so the advice is not to calibrate them
    unrelated   the labels look wrong, so the advice is to check them
    rounding    by how much each confidence may be off because it was rounded
    """
    found = replace(Findings.of(by_confidence, by_class, rounding), rows=rows)
    if found.n == 1:
        return _one_sample(found)
    if not found.anything:
        certain = found.mean_confidence == 1  # and always right, so nothing can be gained
        may_help = found.enough_of_both and not (calibrated or unrelated or certain)
        return " ".join([_nothing_found(found), *[MAY_HELP] * may_help])
    names = [as_class(name) for name in class_names]
    sure_and_right = found.mean_confidence, found.accuracy
    averages = [sure_and_right] if found.average else [(each,) for each in sure_and_right]
    sure, right, error = percents(*averages, (found.error,))
    parts = [
        _head(found),
        f"On {found.n:,} {rows} the model is {sure} sure on average and right {right} of the time, with an "
        f"expected calibration error of {error} in {plural(len(found.bins), 'bin')}.",
        *_places(found),
        _classes(found, names),
        _positive(found, names),
        _advice(found, calibrated=calibrated, unrelated=unrelated),
    ]
    return " ".join(filter(None, parts))


def _advice(found: Findings, *, calibrated: bool, unrelated: bool) -> str:
    """What to do about an error that was found."""
    if unrelated:
        what = "how the answers were marked" if found.rows == "answers" else "the labels"
        return f"Check {what} before you correct anything."
    if found.little:
        return LEAVE_IT
    if calibrated:
        return CORRECT_AGAIN
    return CORRECT_IT if found.enough_of_both else COLLECT_FIRST


def about_groups(
    names: Sequence[str], tallies: Sequence[Tally], *, calibrated: bool = False, rounding: float = 0.0
) -> str:
    """Which groups are off on average by more than chance, corrected for their number; empty for a single group."""
    if len(names) < 2:
        return ""
    each = reduce(Tally.beside, tallies)
    signs = signs_of(each, significant(each.closer(rounding), ERROR_RATE))
    over, under = (int((signs == sign).sum()) for sign in (1, -1))
    if not over + under:
        return f"None of {len(names):,} groups is over- or under-confident on average by more than chance."
    worst = int(torch.where(signs != 0, each.gap.abs(), -1).argmax())
    sure, right = percents((float(each.mean_confidence[worst]), float(each.accuracy[worst])))
    told = [
        f"{n:,} of {len(names):,} groups {'is' if n == 1 else 'are'} {word}-confident"
        for n, word in ((over, "over"), (under, "under"))
        if n
    ]
    return (
        f"{' and '.join(told)} on average by more than chance. The group {names[worst]} is off the most: {sure} sure "
        f"on average and right {right} of the time.{f' {CORRECT_GROUPS}' * (not calibrated)}"
    )


@dataclass(frozen=True)
class Findings:
    """What the tests say. Signs are 1 for over-confident, -1 for under-confident, 0 where nothing was found."""

    by_confidence: Tally
    by_class: Tally
    average: int
    bins: Tensor  # (n_bins,)
    classes: Tensor  # (k,)
    positive: int  # 1 if the second of two classes gets too much probability
    error: float
    error_by_chance: float  # and by rounding
    rounding: float = 0.0
    rows: str = "samples"

    @classmethod
    def of(cls, by_confidence: Tally, by_class: Tally, rounding: float = 0.0) -> Findings:
        """Run every test. What rounding explains is no finding."""
        whole, k = by_confidence.total(), len(by_class.count)
        average = signs_of(whole, p_values(whole.closer(rounding)) <= SHARE)
        bins = signs_of(by_confidence, significant(by_confidence.closer(rounding), SHARE))
        tested = by_class.beside(positive_tally(by_class)) if k == 2 else by_class
        signs = signs_of(tested, significant(tested.closer(rounding), SHARE))
        errors = calibration_error(by_confidence), error_by_chance(by_confidence, SHARE) + rounding
        positive = int(signs[k:].sum())
        return cls(by_confidence, by_class, int(average), bins, signs[:k], positive, *errors, rounding=rounding)

    @property
    def anything(self) -> bool:
        """Did any test find something?"""
        places = bool(self.bins.any() or self.classes.any())
        return bool(self.average or self.positive) or places or self.error > self.error_by_chance

    @property
    def n(self) -> int:
        """Samples."""
        return int(self.by_confidence.count.sum())

    @property
    def mean_confidence(self) -> float:
        """Mean confidence."""
        return float(self.by_confidence.total().mean_confidence)

    @property
    def accuracy(self) -> float:
        """Accuracy."""
        return float(self.by_confidence.total().accuracy)

    @property
    def enough_of_both(self) -> bool:
        """Are there enough right and wrong predictions to compare calibrators?"""
        return Evidence.counted(float(self.by_confidence.hits.sum()), self.n).enough

    @property
    def needed(self) -> int:
        """How many samples would show a noticeable average error."""
        return samples_needed(self.by_confidence, NOTICEABLE, SHARE)

    @property
    def little(self) -> bool:
        """Is the largest error that was found small, also relative to the share of mistakes?"""
        most: float = max(self.error, *self.by_class.gap[self.classes != 0].abs().tolist(), 0.0)
        return most < LITTLE and most < (1 - self.accuracy) / 10


def as_class(name: str, what: str = "class") -> str:
    """A class in a sentence: class 3, class -1, or its own name; or something else that has a name or a number."""
    return f"{what} {name}" if name.removeprefix("-").isdigit() else name


def signs_of(tally: Tally, found: Tensor) -> Tensor:
    """1 where something was found that is too confident, -1 where it is not confident enough, else 0."""
    return torch.where(found, tally.gap.sign(), 0).int()


# ---------------------------------------------------------------------------------------------------- nothing was found


def _one_sample(found: Findings) -> str:
    outcome = "right" if found.accuracy == 1 else "wrong"
    (sure,) = percents((found.mean_confidence,))
    return f"One {found.rows.removesuffix('s')} cannot tell. The model is {sure} sure, and {outcome}. {_takes(found)}"


def _nothing_found(found: Findings) -> str:
    low, high = accuracy_bounds(found.by_confidence, RULED_OUT)
    hidden = max(found.mean_confidence - low, high - found.mean_confidence)
    more = _takes(found) if found.n < found.needed and hidden > NOTICEABLE else ""
    if hidden > MUCH:
        sure, right, least, most = percents((found.mean_confidence,), (found.accuracy,), (low, high))
        return (
            f"{found.n:,} {found.rows} are too few to tell whether the average confidence is off. The model is {sure} "
            f"sure on average and right {right} of the time; its true accuracy may lie anywhere from {least} to {most} "
            f"({percent(RULED_OUT, 0)} interval). {more}"
        ).strip()
    sure, right, error, by_chance = percents(
        (found.mean_confidence,), (found.accuracy,), (found.error, found.error_by_chance)
    )
    causes = "Chance and rounding give" if found.rounding else "Chance alone gives"
    by_luck = f"{causes} up to {by_chance}, so a true error below that may not show. "
    if not float(by_chance.split()[0]):
        by_luck = ""
    points = math.ceil(1000 * hidden) / 10
    return (
        f"No miscalibration found in {found.n:,} {found.rows}. The model is {sure} sure on average and right {right} "
        f"of the time; its true accuracy is within {points:.1f} points of that mean confidence "
        f"({percent(RULED_OUT, 0)} interval). Its expected calibration error in {plural(len(found.bins), 'bin')} is "
        f"{error}. {by_luck}{more}"
    ).strip()


def _takes(found: Findings) -> str:
    return f"It takes about {found.needed:,} {found.rows} to see an average error of {100 * NOTICEABLE:.0f} points."


# -------------------------------------------------------------------------------------------------- something was found


def _head(found: Findings) -> str:
    over, under = (bool((found.bins == sign).any()) for sign in (1, -1))
    if found.average:
        word = "Over-confident" if found.average > 0 else "Under-confident"
        if over and under:
            return f"{word} on average, but not everywhere."
        if bool((found.classes == -found.average).any()):
            return f"{word} on average, but not for every class."
        return f"{word}, but only by a little." if found.little else f"{word}."
    if over and under:
        return "Over-confident in some places and under-confident in others."
    if over or under:
        return f"{'Over' if over else 'Under'}-confident in some places."
    if found.classes.any() or found.positive:
        return "Not calibrated for every class."
    return f"Not calibrated, though these {found.rows} do not show where."


def _places(found: Findings) -> list[str]:
    """For each direction, the run of neighbouring bins off in that direction that carries the most error."""
    bins = found.by_confidence
    share = (bins.confidence - bins.hits).abs() / (bins.confidence - bins.hits).abs().sum()
    told = []
    for sign in (1, -1):
        stretches = _stretches((found.bins == sign).tolist())
        if stretches:
            carried, low, high = max((float(share[low:high].sum()), low, high) for low, high in stretches)
            part = bins.of(slice(low, high)).total()
            if found.average and int(part.count) > NEARLY_ALL * found.n:  # the averages already say so
                continue
            told.append((carried, _place(part, (low / len(share), high / len(share)), carried)))
    return [text for _, text in sorted(told, reverse=True)]


def _place(part: Tally, edges: tuple[float, float], carried: float) -> str:
    """Predictions between two confidences, and the share of the error that they carry."""
    numbers = (float(part.mean_confidence), float(part.accuracy)), () if carried > 0.9995 else (carried,)
    start, end, sure, right, *share = percents(edges, *numbers)
    much = share[0] if share else "all" if carried > 1 - 1e-9 else "nearly all"
    return (
        f"Predictions with a confidence of {start} to {end} account for {much} of this error: they are {sure} sure on "
        f"average and right {right} of the time."
    )


def _stretches(flags: list[bool]) -> list[tuple[int, int]]:
    """The runs of true values: the start and the end of each."""
    ends = [i for i, (old, new) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if old != new]
    return list(zip(ends[::2], ends[1::2], strict=True))


def _classes(found: Findings, names: Sequence[str]) -> str:
    """The predicted classes that are off, the furthest first."""
    off = found.classes.nonzero().squeeze(1)
    if len(off) == 0 or int((found.by_class.count > 0).sum()) == 1:  # with a single class, everything has been said
        return ""
    first = off[found.by_class.gap[off].abs().argsort(descending=True, stable=True)][:NAMED].tolist()
    numbers = percents(*((float(found.by_class.mean_confidence[j]), float(found.by_class.accuracy[j])) for j in first))
    (sure, right), *rest = zip(numbers[::2], numbers[1::2], strict=True)
    counts = (int(found.by_class.count[j]) for j in first)
    few, *too_few = (plural(n, found.rows.removesuffix("s")) if n < ENOUGH else "" for n in counts)
    others = "; ".join(
        f"{names[j]}{n and f', {n}'}: {' and '.join(pair)}" for j, n, pair in zip(first[1:], too_few, rest, strict=True)
    )
    k = len(names)
    all_of_them = "Both" if k == 2 else f"All {k:,}"
    some = all_of_them if len(off) == k else f"{len(off):,} of {k:,}"
    many = "One class is" if len(off) == 1 else f"{some} classes are"
    return (
        f"{many} off by more than chance{', these three the most' if len(off) > NAMED else ''}: when it predicts "
        f"{names[first[0]]}{few and f' ({few})'}, it is {sure} sure on average and right {right} of the time"
        f"{f' ({others})' if others else ''}."
    )


def _positive(found: Findings, names: Sequence[str]) -> str:
    """The probability that the second of two classes gets, and how often it is the label."""
    if not found.positive or not found.by_class.count[0]:  # where all predict the second class, it has been said
        return ""
    given = positive_tally(found.by_class)
    says, is_label = percents((float(given.mean_confidence), float(given.accuracy)), digits=2)
    less, more = ("", "only ") if found.positive > 0 else ("only ", "")
    return f"The mean probability of {names[1]} is {less}{says}, but {more}{is_label} of the {found.rows} belong to it."
