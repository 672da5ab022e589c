"""Predictions of every kind, and a reader of verdicts that computes every number again, by other means.

`checked` reads a verdict of `evaluate` clause by clause. A clause that it does not know is an error, so no sentence is
left unread.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import binom
from torch import Tensor

from temperance.jobs.verdict import SHARE

Floats = npt.NDArray[np.float64]

# ----------------------------------------------------------------------------------------------------- made predictions

Data = tuple[Tensor, Tensor]


def made(says: Any, right: Any, *, k: int = 5, predicted: Tensor | None = None) -> Data:
    """Probabilities with this confidence in these classes; in each of them right as often, and as evenly, as can be."""
    says, right = (torch.as_tensor(each, dtype=torch.float64) for each in (says, right))
    rows = torch.arange(len(says))
    named = rows % k if predicted is None else predicted
    probs = ((1 - says) / (k - 1))[:, None].repeat(1, k)
    probs[rows, named] = says
    correct = torch.zeros(len(says), dtype=torch.bool)
    for j in range(k):
        due = (right[named == j].clamp(0, 1).cumsum(0) + j / k + 1e-9).floor()
        correct[named == j] = due.diff(prepend=torch.zeros(1)) > 0
    return probs, torch.where(correct, named, (named + 1) % k)


def spread(n: int, low: float = 0.6, high: float = 0.99) -> Tensor:
    """Confidences between two, evenly."""
    return torch.linspace(low, high, n, dtype=torch.float64)


def off_by(n: int, gap: float, **options: Any) -> Data:
    """Right less often than it says, by as much everywhere."""
    return made(spread(n, 0.6, 0.9), spread(n, 0.6, 0.9) - gap, **options)


def always(n: int, says: float, right: float, k: int = 5) -> Data:
    """The same confidence in every sample."""
    return made(torch.full((n,), says), torch.full((n,), right), k=k)


def steep(n: int, share: float = 0.4, low: float = 0.25, high: float = 0.99) -> Data:
    """Too sure where it is sure, not sure enough where it is not, and right on average."""
    says = spread(n, low, high)
    return made(says, says - share * (says - (low + high) / 2))


def one_class_off(n: int) -> Data:
    """Only predictions of class 2 are off."""
    says, named = spread(n), torch.arange(n) % 5
    return made(says, says - 0.1 * (named == 2), predicted=named)


def mostly_over(n: int) -> Data:
    """Far too sure of class 2, and a little less sure of class 0 than it could be."""
    says, named = spread(n, 0.6, 0.9), torch.arange(n) % 5
    return made(says, says - 0.3 * (named == 2) + 0.06 * (named == 0), predicted=named)


def opposite(n: int) -> Data:
    """Two classes: too sure of the second and, by as much, not sure enough of the first."""
    says, named = spread(n, 0.6, 0.9), torch.arange(n) % 2
    return made(says, says + 0.06 * (1 - 2 * named), k=2, predicted=named)


def rare(n: int) -> Data:
    """Two classes: the second gets 1.67 % in every sample, and 0.39 % are of it."""
    probs = torch.tensor([[0.9833, 0.0167]], dtype=torch.float64).repeat(n, 1)
    return probs, (torch.arange(n) < 0.0039 * n).long()


# ------------------------------------------------------------------------------------------- the grammar of the verdict


@dataclass(frozen=True)
class Facts:
    """What can be said of predictions, computed slowly and plainly."""

    confidence: Floats
    correct: npt.NDArray[np.bool_]
    predicted: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    probs: Floats
    names: Sequence[str]
    n_bins: int

    @classmethod
    def of(cls, probs: Any, labels: Any, names: Sequence[str] | None = None, n_bins: int = 15) -> "Facts":
        given, truth = np.asarray(probs, dtype=np.float64), np.asarray(labels)
        predicted = given.argmax(1)
        called = names or [f"class {j}" for j in range(given.shape[1])]
        return cls(given.max(1), predicted == truth, predicted, truth, given, called, n_bins)

    def mean(self, where: Any = slice(None)) -> tuple[float, float]:
        return float(self.confidence[where].mean()), float(self.correct[where].mean())

    def gaps(self) -> Floats:
        """Σ (confidence − correct) in each bin of ECE."""
        m = self.n_bins
        bins = np.clip(np.ceil(self.confidence * m - 1e-9) - 1, 0, m - 1).astype(int)
        return np.bincount(bins, self.confidence - self.correct, minlength=m).astype(np.float64)


def same(said: str, value: float) -> None:
    """A number in a sentence is this one, to the digits that it has."""
    digits = len(said.partition(".")[2])
    assert abs(float(said) - 100 * value) <= 0.5 * 10**-digits + 1e-6, (said, 100 * value)


def averages(facts: Facts, sure: str, right: str) -> None:
    for said, value in zip((sure, right), facts.mean(), strict=True):
        same(said, value)


def with_error(facts: Facts, n: str, sure: str, right: str, error: str, n_bins: str) -> None:
    assert int(n_bins) == facts.n_bins
    assert int(n.replace(",", "")) == len(facts.labels)
    averages(facts, sure, right)
    same(error, float(np.abs(facts.gaps()).sum()) / len(facts.labels))


def place(facts: Facts, start: str, end: str, share: str | None, says: str, right: str) -> None:
    low, high = (round(float(edge) * facts.n_bins / 100) for edge in (start, end))
    assert low < high
    gaps = facts.gaps()
    same(share or "100.0", float(np.abs(gaps[low:high]).sum() / np.abs(gaps).sum()))
    assert (gaps[low:high] > 0).all() or (gaps[low:high] < 0).all()
    inside = (facts.confidence > low / facts.n_bins + 1e-9) & (facts.confidence <= high / facts.n_bins + 1e-9)
    assert not inside.all(), "the averages have said it"
    for said, value in zip((says, right), facts.mean(inside), strict=True):
        same(said, value)


def classes(facts: Facts, many: str, most: str | None, name: str, says: str, right: str, others: str | None) -> None:
    told = [
        (name.replace(" (", ", ").removesuffix(")"), says, right),
        *re.findall(r"(?:\(|; )(.+?): ([\d.]+) % and ([\d.]+) %", (others or "")[1:]),
    ]
    gaps = []
    for named, said, is_right in told:
        name, _, few = named.removesuffix(" samples").removesuffix(" sample").partition(", ")
        mine = facts.predicted == facts.names.index(name)
        assert few == (str(mine.sum()) if mine.sum() < 20 else "")
        for text, value in zip((said, is_right), facts.mean(mine), strict=True):
            same(text, value)
        gaps.append(abs(np.subtract(*facts.mean(mine))))
        assert plain_chance(facts.confidence[mine], int(facts.correct[mine].sum())) <= 1.05 * SHARE
    assert gaps == sorted(gaps, reverse=True)
    k = len(facts.names)
    everything = "Both" if k == 2 else f"All {k:,}"
    counted = {"One class is": 1, f"{everything} classes are": k}.get(many)
    if counted is None:
        counted = int(many.partition(" of ")[0].replace(",", ""))
        assert many == f"{counted:,} of {k:,} classes are" and 1 < counted < k
    assert len(told) == min(counted, 3) and (most is not None) == (counted > 3)


def positive(facts: Facts, name: str, low: str | None, says: str, high: str | None, is_label: str) -> None:
    assert name == facts.names[1] and len(facts.names) == 2
    given, frequency = float(facts.probs[:, 1].mean()), float((facts.labels == 1).mean())
    same(says, given)
    same(is_label, frequency)
    assert (given > frequency, given < frequency) == (high is not None, low is not None)
    assert plain_chance(facts.probs[:, 1], int(facts.labels.sum())) <= 1.05 * SHARE


def too_few(facts: Facts, n: str, sure: str, right: str, low: str, high: str) -> None:
    averages(facts, sure, right)
    size, hits = len(facts.labels), int(facts.correct.sum())
    assert int(n.replace(",", "")) == size
    # Just outside its ends an accuracy would make these hits too rare; the true one may be anywhere between.
    step = 10.0 ** -len(low.partition(".")[2]) / 100
    if hits:
        assert binom.sf(hits - 1, size, max(float(low) / 100 - step, 0)) <= 0.005
        assert binom.sf(hits - 1, size, float(low) / 100 + step) >= 0.005
    if hits < size:
        assert binom.cdf(hits, size, min(float(high) / 100 + step, 1)) <= 0.005
        assert binom.cdf(hits, size, float(high) / 100 - step) >= 0.005
    assert float(low) / 100 - step <= facts.mean()[0] <= float(high) / 100 + step


def nothing_found(
    facts: Facts, n: str, sure: str, right: str, within: str, n_bins: str, error: str, by_chance: str | None
) -> None:
    with_error(facts, n, sure, right, error, n_bins)
    assert float(error) <= float(by_chance) if by_chance else float(error) == 0
    size, hits, says = len(facts.labels), int(facts.correct.sum()), facts.mean()[0]
    far, near = float(within) / 100, float(within) / 100 - 0.001
    assert binom.sf(hits - 1, size, max(says - far, 0)) <= 0.005 + 1e-9
    assert binom.cdf(hits, size, min(says + far, 1)) <= 0.005 + 1e-9 or hits == size
    # A tenth of a point less would be too little on one side.
    assert binom.sf(hits - 1, size, says - near) > 0.005 or binom.cdf(hits, size, says + near) > 0.005 or near < 0


def one_sample(facts: Facts, sure: str, outcome: str) -> None:
    assert len(facts.labels) == 1 and (outcome == "right") == bool(facts.correct[0])
    same(sure, float(facts.confidence[0]))


def over_or_under(facts: Facts, word: str, rest: str) -> None:
    said, was = facts.mean()
    assert (said > was) == (word == "Over")
    assert plain_chance(facts.confidence, int(facts.correct.sum())) <= 1.05 * SHARE
    error = float(np.abs(facts.gaps()).sum()) / len(facts.labels)
    assert ("little" in rest) <= (error < 0.005 and error < (1 - was) / 10)
    if "class" in rest:
        of_class = [facts.predicted == j for j in set(facts.predicted.tolist())]
        others = [mine for mine in of_class if (np.subtract(*facts.mean(mine)) > 0) != (said > was)]
        assert any(plain_chance(facts.confidence[mine], int(facts.correct[mine].sum())) <= SHARE for mine in others)


def samples_it_takes(facts: Facts, needed: str) -> None:
    assert int(needed.replace(",", "")) > len(facts.labels)


def may_help(facts: Facts) -> None:
    assert outcomes(facts) >= 20, "compare could not tell"
    assert facts.mean()[0] < 1, "a model that is certain and always right cannot gain"


def outcomes(facts: Facts) -> int:
    """How many predictions are right, or wrong if these are fewer."""
    return int(min(facts.correct.sum(), (~facts.correct).sum()))


def enough(facts: Facts) -> None:
    assert outcomes(facts) >= 20


def not_enough(facts: Facts) -> None:
    assert outcomes(facts) < 20


def no_better_than_chance(facts: Facts) -> None:
    k = len(facts.names)
    shares = [np.bincount(each, minlength=k) / len(facts.labels) for each in (facts.labels, facts.predicted)]
    alone = min(int((share > 0).sum()) for share in shares) == 1
    assert alone or facts.correct.mean() < 0.1 + shares[0] @ shares[1]


def nothing(facts: Facts, *_: str) -> None:
    """A clause without numbers, or one whose numbers another clause has."""


PERCENT = r"(\d+(?:\.\d+)?)"
MEANS = rf"is {PERCENT} % sure on average and right {PERCENT} % of the time"
CLAUSES: dict[str, Callable[..., None]] = {
    rf"One sample cannot tell\. The model is {PERCENT} % sure, and (right|wrong)\.": one_sample,
    rf"([\d,]+) samples are too few to tell whether the average confidence is off\. The model {MEANS}; its true "
    rf"accuracy may lie anywhere from {PERCENT} % to {PERCENT} % \(99 % interval\)\.": too_few,
    r"It takes about ([\d,]+) samples to see an average error of 2 points\.": samples_it_takes,
    rf"No miscalibration found in ([\d,]+) samples\. The model {MEANS}; its true accuracy is within {PERCENT} points "
    rf"of that mean confidence \(99 % interval\)\. Its expected calibration error in (\d+) bins? is {PERCENT} %\."
    rf"(?: Chance alone gives up to {PERCENT} %, so a true error below that may not show\.)?": nothing_found,
    r"This verdict tests averages; `temperance compare` tests each prediction, so it may still find that a calibrator "
    r"helps\.": may_help,
    r"(Over|Under)-confident(| on average, but not (?:everywhere|for every class)|, but only by a "
    r"little)\.": over_or_under,
    r"Over-confident in some places and under-confident in others\.": nothing,
    r"(Over|Under)-confident in some places\.": nothing,
    r"Not calibrated for every class\.": nothing,
    r"Not calibrated, though these samples do not show where\.": nothing,
    rf"On ([\d,]+) samples the model {MEANS}, with an expected calibration error of {PERCENT} % in "
    r"(\d+) bins?\.": with_error,
    rf"Predictions with a confidence of {PERCENT} % to {PERCENT} % account for (?:{PERCENT} %|(?:nearly )?all) of this "
    rf"error: they are {PERCENT} % sure on average and right {PERCENT} % of the time\.": place,
    rf"(One class is|(?:Both|All [\d,]+|[\d,]+ of [\d,]+) classes are) off by more than chance(, these three the "
    rf"most)?: when it predicts (.+?), it {MEANS}( \(.+?\))?\.": classes,
    rf"The mean probability of (.+?) is (only )?{PERCENT} %, but (only )?{PERCENT} % of the samples belong "
    r"to it\.": positive,
    r"An error this small seldom needs correcting\.": nothing,
    r"A calibrator has been applied and leaves this error: to do better, fit one to the model's own predictions on "
    r"samples like these\.": nothing,
    r"To correct it without retraining, run `temperance compare` on held-out predictions\.": enough,
    r"Before you correct it, collect samples: with fewer than 20 right and 20 wrong predictions, `temperance compare` "
    r"may not be able to tell whether a calibrator helps\.": not_enough,
    r"Check the labels before you correct anything\.": no_better_than_chance,
}


def checked(verdict: str, facts: Facts) -> None:
    """Every clause of a verdict is known and true."""
    rest = verdict
    while rest:
        found = [(match, check) for pattern, check in CLAUSES.items() if (match := re.match(pattern, rest))]
        assert found, f"this clause is not known: {rest!r}"
        match, check = found[0]
        decimals = {len(number.partition(".")[2]) for number in re.findall(r"([\d.]+) %(?! interval)", match[0])}
        assert len(decimals) < 2, f"numbers of one sentence have different digits: {match[0]!r}"
        check(facts, *match.groups())
        rest = rest[match.end() :].lstrip()
    places = {
        says > right for says, right in pairs(r"they are ([\d.]+) % sure on average and right ([\d.]+) %", verdict)
    }
    for head, expected in HEADS.items():
        assert (head in verdict) <= (places == expected), verdict
    assert ("for every class." in verdict) <= ("by more than chance" in verdict or "mean probability" in verdict)
    assert ("do not show where" in verdict) <= ("account for" not in verdict and "by more than chance" not in verdict)


# What a head says of the places that follow it: is each of them over-confident?
HEADS = {
    "Over-confident in some places.": {True},
    "Under-confident in some places.": {False},
    "Over-confident in some places and under-confident in others.": {True, False},
    "on average, but not everywhere.": {True, False},
    "Not calibrated for every class.": set(),
}


def pairs(pattern: str, text: str) -> list[tuple[float, float]]:
    return [(float(first), float(second)) for first, second in re.findall(pattern, text)]


def plain_chance(chances: Floats, hits: int) -> float:
    """Twice the smaller tail of the number of events with these chances: exact for few, normal for many."""
    if len(chances) > 2000:
        deviation = math.sqrt(float((chances * (1 - chances)).sum()))
        return math.erfc(abs(hits - float(chances.sum())) / deviation / math.sqrt(2))
    mass = np.ones(1)
    for each in np.clip(chances, 0, 1):
        mass = np.convolve(mass, [1 - each, each])
    return min(1.0, 2 * min(float(mass[: hits + 1].sum()), float(mass[hits:].sum())))
