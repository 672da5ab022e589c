"""Every generated sentence is true: its numbers are computed again, by other means, from data made for each case.

`checked` reads a verdict of `evaluate` clause by clause. A clause that it does not know is an error, so no sentence is
left unread. The sentences of `compare` have tests of their own.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from conftest import random_predictions
from temperance import Predictions, difference, evaluate, read_predictions
from temperance.cli import main
from temperance.data import Images, Part
from temperance.diagnose.shift import Corrupted, under_shift
from temperance.heads.change import JUDGED, differences, judgement
from temperance.jobs.ood import compare_ood, told_apart
from temperance.jobs.results import Row
from temperance.jobs.verdict import LEVEL, SHARE, Findings, percents
from temperance.metrics import accuracy, debiased_ece, ece
from temperance.metrics.batch import batches
from temperance.metrics.tally import Tally, holm, tallied
from temperance.training.prediction import predict
from temperance.training.run import hardly_learnt

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


def steep(n: int) -> Data:
    """Too sure where it is sure, not sure enough where it is not, and right on average."""
    says = spread(n, 0.25, 0.99)
    return made(says, says - 0.4 * (says - 0.62))


def one_class_off(n: int) -> Data:
    """Only predictions of class 2 are off."""
    says, named = spread(n), torch.arange(n) % 5
    return made(says, says - 0.1 * (named == 2), predicted=named)


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

    @classmethod
    def of(cls, probs: Any, labels: Any, names: Sequence[str] | None = None) -> "Facts":
        given, truth = np.asarray(probs, dtype=np.float64), np.asarray(labels)
        predicted = given.argmax(1)
        called = names or [f"class {j}" for j in range(given.shape[1])]
        return cls(given.max(1), predicted == truth, predicted, truth, given, called)

    def mean(self, where: Any = slice(None)) -> tuple[float, float]:
        return float(self.confidence[where].mean()), float(self.correct[where].mean())

    def gaps(self) -> Floats:
        """Σ (confidence − correct) in each of the 15 bins of ECE."""
        bins = np.clip(np.ceil(self.confidence * 15 - 1e-9) - 1, 0, 14).astype(int)
        return np.bincount(bins, self.confidence - self.correct, minlength=15).astype(np.float64)


def same(said: str, value: float) -> None:
    """A number in a sentence is this one, to the digits that it has."""
    digits = len(said.partition(".")[2])
    assert abs(float(said) - 100 * value) <= 0.5 * 10**-digits + 1e-6, (said, 100 * value)


def averages(facts: Facts, sure: str, right: str) -> None:
    for said, value in zip((sure, right), facts.mean(), strict=True):
        same(said, value)


def with_error(facts: Facts, n: str, sure: str, right: str, error: str) -> None:
    assert int(n.replace(",", "")) == len(facts.labels)
    averages(facts, sure, right)
    same(error, float(np.abs(facts.gaps()).sum()) / len(facts.labels))


def place(facts: Facts, start: str, end: str, share: str, says: str, right: str) -> None:
    low, high = (round(int(edge) * 15 / 100) for edge in (start, end))
    assert low < high
    gaps = facts.gaps()
    same(share, float(np.abs(gaps[low:high]).sum() / np.abs(gaps).sum()))
    assert (gaps[low:high] > 0).all() or (gaps[low:high] < 0).all()
    inside = (facts.confidence > low / 15 + 1e-9) & (facts.confidence <= high / 15 + 1e-9)
    for said, value in zip((says, right), facts.mean(inside), strict=True):
        same(said, value)


def classes(facts: Facts, many: str, most: str | None, name: str, says: str, right: str, others: str | None) -> None:
    told = [(name, says, right), *re.findall(r"(?:\(|; )(.+?): ([\d.]+) % and ([\d.]+) %", others or "")]
    gaps = []
    for name, said, is_right in told:
        mine = facts.predicted == facts.names.index(name)
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


def positive(facts: Facts, name: str, much: str, says: str, is_label: str) -> None:
    assert name == facts.names[1] and len(facts.names) == 2
    given, frequency = float(facts.probs[:, 1].mean()), float((facts.labels == 1).mean())
    same(says, given)
    same(is_label, frequency)
    assert (given > frequency) == (much == "much")
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


def calibrated(facts: Facts, within: str, n: str, sure: str, right: str, error: str, by_chance: str) -> None:
    with_error(facts, n, sure, right, error)
    assert float(error) <= float(by_chance)
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


def samples_it_takes(facts: Facts, needed: str) -> None:
    assert int(needed.replace(",", "")) > len(facts.labels)


def nothing(facts: Facts, *_: str) -> None:
    """A clause without numbers, or one whose numbers another clause has."""


PERCENT = r"(\d+(?:\.\d+)?)"
MEANS = rf"is {PERCENT} % sure on average and right {PERCENT} % of the time"
CLAUSES: dict[str, Callable[..., None]] = {
    rf"One sample cannot tell\. It is {PERCENT} % sure of it and (right|wrong)\.": one_sample,
    rf"([\d,]+) samples are too few to tell\. It {MEANS}; its true accuracy may lie anywhere from {PERCENT} % to "
    rf"{PERCENT} % \(99 % interval\)\.": too_few,
    r"To see an average error of 2 points takes about ([\d,]+) samples\.": samples_it_takes,
    rf"Calibrated to within {PERCENT} points on average, as far as ([\d,]+) samples can tell\. It {MEANS}, and its "
    rf"expected calibration error of {PERCENT} % is no more than chance gives \(up to {PERCENT} %\)\.": calibrated,
    r"(Over|Under)-confident(| on average, but not everywhere|, but only by a little)\.": over_or_under,
    r"Over-confident in some places and under-confident in others\.": nothing,
    r"(Over|Under)-confident in some places\.": nothing,
    r"Not right for every class\.": nothing,
    r"Not calibrated, though these samples do not show where\.": nothing,
    rf"On ([\d,]+) samples it {MEANS}, with an expected calibration error of {PERCENT} % in 15 bins\.": with_error,
    rf"Predictions with a confidence of {PERCENT} % to {PERCENT} % carry {PERCENT} % of it: they say {PERCENT} % and "
    rf"are right {PERCENT} % of the time\.": place,
    rf"(One class is|(?:Both|All [\d,]+|[\d,]+ of [\d,]+) classes are) off by more than chance(, these the most)?: "
    rf"when it predicts (.+?) it says {PERCENT} % and is right {PERCENT} % of the time( \(.+?\))?\.": classes,
    rf"It gives (.+?) too (much|little): {PERCENT} % on average, and {PERCENT} % of the samples are of it\.": positive,
    r"So small an error seldom needs repair\.": nothing,
    r"To repair it without retraining, run `temperance compare` on held-out predictions\.": nothing,
}


def checked(verdict: str, facts: Facts) -> None:
    """Every clause of a verdict is known and true."""
    rest = verdict
    while rest:
        found = [(match, check) for pattern, check in CLAUSES.items() if (match := re.match(pattern, rest))]
        assert found, f"this clause is not known: {rest!r}"
        match, check = found[0]
        check(facts, *match.groups())
        rest = rest[match.end() :].lstrip()
    places = {says > right for says, right in pairs(r"they say ([\d.]+) % and are right ([\d.]+) %", verdict)}
    for head, expected in HEADS.items():
        assert (head in verdict) <= (places == expected), verdict
    assert ("Not right for every class." in verdict) <= ("by more than chance" in verdict or "It gives" in verdict)
    assert ("do not show where" in verdict) <= ("carry" not in verdict and "by more than chance" not in verdict)


# What a head says of the places that follow it: is each of them over-confident?
HEADS = {
    "Over-confident in some places.": {True},
    "Under-confident in some places.": {False},
    "Over-confident in some places and under-confident in others.": {True, False},
    "on average, but not everywhere.": {True, False},
    "Not right for every class.": set(),
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


# ------------------------------------------------------------------------------------------------- evaluate: made cases

TOO_FEW = r"samples are too few to tell\."
CASES: dict[str, tuple[Data, list[str], list[str]]] = {
    # name: data, what must be said, what must not be said
    "over, many": (
        off_by(10_000, 0.1),
        [r"^Over-confident\. ", "All 5 classes are off", "`temperance compare`"],
        ["nder-c"],
    ),
    "over, some": (off_by(400, 0.15), [r"^Over-confident\. "], ["nder-c", "too few"]),
    "over, few": (off_by(40, 0.1), [f"^40 {TOO_FEW}"], ["confident", "class", "repair"]),
    "under, many": (off_by(10_000, -0.08), [r"^Under-confident\. ", "`temperance compare`"], ["ver-c"]),
    "under, few": (off_by(40, -0.05), [f"^40 {TOO_FEW}"], ["confident", "class", "repair"]),
    "over by a little": (
        off_by(400_000, 0.004),
        [r"^Over-confident, but only by a little\. ", "seldom needs repair"],
        ["temperance compare"],
    ),
    "over by little, but fifty times the mistakes": (
        always(100_000, 0.9999, 0.995),
        [r"^Over-confident\. .* is 99\.99 % sure on average and right 99\.50 % "],
        ["little"],
    ),
    "steep": (
        steep(10_000),
        [r"^Over-confident in some places and under-confident in others\. ", "to 100 % carry .* of 20 % to"],
        ["Calibrated"],
    ),
    "one class off": (
        one_class_off(20_000),
        [r"One class is off .*: when it predicts class 2 it says "],
        ["classes are"],
    ),
    "opposite classes": (
        opposite(6000),
        [r"^Not right for every class\. .* Both classes are off .* It gives class 1 too much: "],
        ["-confident"],
    ),
    "a rare class": (
        rare(20_000),
        [r"^Under-confident\. .* It gives class 1 too much: 1\.67 % on average, and 0\.39 % of the samples are"],
        ["when it predicts"],
    ),
    "calibrated, many": (
        off_by(20_000, 0.0),
        [r"^Calibrated to within 0\.9 points on average, as far as 20,000 samples can tell\. "],
        ["repair", "few"],
    ),
    "calibrated, a thousand": (off_by(1000, 0.0), [r"^Calibrated to within \d\.\d points", "takes about"], ["repair"]),
    "calibrated, some": (off_by(200, 0.0), [f"^200 {TOO_FEW}"], ["Calibrated", "repair", "-confident"]),
    "calibrated, two": (off_by(2, 0.0), [f"^2 {TOO_FEW}"], ["Calibrated", "repair", "-confident"]),
    "calibrated, two classes": (off_by(20_000, 0.0, k=2), [r"^Calibrated to within "], ["It gives"]),
    "calibrated, 200 classes": (off_by(20_000, 0.0, k=200), [r"^Calibrated to within "], ["class "]),
    "one sample, right": (
        always(1, 0.7, 1.0),
        [r"^One sample cannot tell\. It is 70\.0 % sure of it and right\. "],
        [],
    ),
    "one sample, wrong": (
        always(1, 0.7, 0.0),
        [r"^One sample cannot tell\. It is 70\.0 % sure of it and wrong\. "],
        [],
    ),
    "one sample, surely wrong": (always(1, 1.0, 0.0), [r"^One sample cannot tell\. .* and wrong\. "], ["confident"]),
    "sure and right, few": (always(40, 1.0, 1.0), [f"^40 {TOO_FEW}"], ["Calibrated"]),
    "sure and right, many": (
        always(5000, 1.0, 1.0),
        [r"^Calibrated to within 0\.2 points .* 100\.0 % sure .* right 100\.0 %"],
        ["repair"],
    ),
    "sure and wrong": (
        always(5, 1.0, 0.0),
        [r"^Over-confident\. .* right 0\.0 % of the time"],
        ["Calibrated", "nder-c"],
    ),
    "all right": (off_by(200, -1.0), [r"^Under-confident\. .* right 100\.0 % of the time"], ["ver-c"]),
    "all wrong": (off_by(200, 1.0), [r"^Over-confident\. .* right 0\.0 % of the time"], ["nder-c"]),
}
# What no one should be told of few samples.
ALWAYS_FORBIDDEN = ["Nothing needs repair", "furthest off", "nan", "1 samples"]


@pytest.mark.parametrize("name", CASES)
def test_what_evaluate_says(name: str) -> None:
    (probs, labels), required, forbidden = CASES[name]
    verdict = evaluate(probs, labels, bootstrap=0, metrics=["ece"]).verdict
    checked(verdict, Facts.of(probs, labels))
    assert [pattern for pattern in required if not re.search(pattern, verdict)] == [], verdict
    assert [text for text in (*forbidden, *ALWAYS_FORBIDDEN) if text in verdict] == [], verdict


def test_class_names_are_used() -> None:
    probs, labels = one_class_off(20_000)
    names = ["ant", "bee", "cat", "dog", "eel"]
    verdict = evaluate(Predictions.of(probs, labels, class_names=names), bootstrap=0, metrics=["ece"]).verdict
    assert "when it predicts cat it says " in verdict
    checked(verdict, Facts.of(probs, labels, names))


@given(
    st.integers(1, 300),
    st.integers(2, 6),
    st.floats(0.1, 20),
    st.floats(0, 4),
    st.floats(0.3, 1.5),
    st.integers(0, 2**31),
)
def test_whatever_evaluate_says_is_true(n: int, k: int, sharp: float, lean: float, skill: float, seed: int) -> None:
    """Random predictions: from guesses to certainty, from much too sure to not sure enough, with a rare class."""
    draw = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(n, k, generator=draw, dtype=torch.float64)
    logits[:, 0] += lean
    labels = torch.multinomial((skill * logits).softmax(1), 1, generator=draw).squeeze(1)
    probs = logits.softmax(1)
    checked(evaluate(probs, labels, bootstrap=0, metrics=["ece"]).verdict, Facts.of(probs, labels))


def test_calibrated_models_are_seldom_called_anything_else() -> None:
    """At most one in twenty, whatever n and k: more than 37 of 400 then have a chance below 1e-3."""
    draw = torch.Generator().manual_seed(0)
    found = 0
    for n, k, sharp in ((3, 2, 2.0), (30, 5, 6.0), (300, 3, 1.5), (1500, 10, 8.0)):
        for _ in range(100):
            probs = (sharp * torch.randn(n, k, generator=draw, dtype=torch.float64)).softmax(1)
            into: list[Tally] = []
            for _ in tallied(batches(probs, torch.multinomial(probs, 1, generator=draw).squeeze(1)), into):
                pass
            found += Findings.of(*into).anything
    assert found <= 37 and LEVEL == 0.05


@pytest.mark.parametrize(
    ("values", "digits", "said"),
    [
        ((0.5, 0.25), 1, ["50.0 %", "25.0 %"]),
        ((0.9999, 0.995), 1, ["99.99 %", "99.50 %"]),
        ((0.9242, 0.9238), 1, ["92.42 %", "92.38 %"]),
        ((1.0, 1.0), 1, ["100.0 %", "100.0 %"]),
        ((0.5, 0.5 + 1e-9), 1, ["50.0 %", "50.0 %"]),
        ((0.0167, 0.0039), 2, ["1.67 %", "0.39 %"]),
    ],
)
def test_shares_have_the_digits_that_tell_them_apart(values: tuple[float, ...], digits: int, said: list[str]) -> None:
    assert percents(*values, digits=digits) == said


@pytest.mark.shared
def test_a_real_network_by_class(shared_data: Path) -> None:
    """DenseNet-40 is over-confident where it predicts cat, and was called under-confident of it."""
    verdict = evaluate(shared_data / "logits" / "c10_densenet40.npz", bootstrap=0, metrics=["ece"]).verdict
    assert (
        "when it predicts class 3 it says 96.0 % and is right 86.7 % of the time "
        "(class 5: 96.9 % and 88.8 %; class 2: 96.9 % and 89.5 %)"
    ) in verdict
    assert "nder-confident" not in verdict


@pytest.mark.shared
@pytest.mark.parametrize(
    "pattern", ["logits/c10_*", "logits/c100_*", "llm/*", "more/binary/*", "more/longtail/*", "more/tabular/a*"]
)
def test_what_evaluate_says_of_real_predictions(pattern: str, shared_data: Path) -> None:
    files = sorted(shared_data.glob(f"{pattern}.npz"))[:8]
    assert files
    for path in files:
        data = read_predictions(path)
        probs = data.scores.double().softmax(1) if data.from_logits else data.scores
        names = [f"class {name}" if name.isdigit() else name for name in data.class_names or map(str, range(data.k))]
        checked(evaluate(data, bootstrap=0, metrics=["ece"]).verdict, Facts.of(probs, data.labels, names))


# ------------------------------------------------------------------------------------------------------------------ ood


def scored(scores: Any) -> Predictions:
    """Two classes, the larger probability as given."""
    top = torch.as_tensor(scores, dtype=torch.float64)
    return Predictions.of(torch.stack([top, 1 - top], 1))


LOW, RARE, MIDDLE, HIGH = (torch.linspace(low, low + 0.05, 1000, dtype=torch.float64) for low in (0.5, 0.6, 0.7, 0.9))
# Eight of a hundred of its own are rare, so that the threshold of 95 % lies among them.
OWN = torch.cat([RARE[:80], HIGH[:920]])
OOD_CASES: dict[str, tuple[list[Tensor], str, list[str]]] = {
    "all of it": ([LOW], r"^Nearly all unfamiliar data stands out\.", ["pass"]),
    "most of it": ([torch.cat([LOW[:700], HIGH[:300]])], r"^Most unfamiliar data stands out\.", ["Nearly"]),
    "half of it": ([torch.cat([LOW[:500], HIGH[:500]])], r"^Part of the unfamiliar data stands out\.", ["ost"]),
    "FPR95 of 85 %": (
        [torch.cat([LOW[:150], MIDDLE[:850]])],
        r"^Part of the unfamiliar data stands out, most of it does not\.",
        ["Most unfamiliar"],
    ),
    "hardly": ([torch.cat([LOW[:40], MIDDLE[:960]])], r"^Unfamiliar data tends to score lower, but not low enough", []),
    "none": ([OWN], r"^Confidence does not tell unfamiliar data apart", ["stands"]),
    "the other way round": ([HIGH + 0.02], r"^Confidence misleads: unfamiliar data tends to score higher", ["apart"]),
    "few": ([LOW[:20]], r"^Too few samples to tell", ["stands out", "does better"]),
    "one easy, one hard": ([LOW, OWN], r"^Some unfamiliar data stands out more than other\.", ["Most", "Nearly"]),
    "two easy": ([LOW, LOW[:500]], r"^Nearly all unfamiliar data stands out\.", []),
}


@pytest.mark.parametrize("name", OOD_CASES)
def test_what_ood_says(name: str) -> None:
    others, required, forbidden = OOD_CASES[name]
    found = compare_ood(scored(OWN), {f"set {i}": scored(other) for i, other in enumerate(others)}, bootstrap=100)
    assert re.search(required, found.verdict), found.verdict
    assert [text for text in forbidden if text in found.verdict] == []
    areas, shares = [], []
    for other in others:
        areas.append(float(((OWN[:, None] > other).double() + 0.5 * (OWN[:, None] == other)).mean()))
        limit = max(score for score in OWN.tolist() if float((score <= OWN).double().mean()) >= 0.95)
        shares.append(float((other >= limit).double().mean()))
    numbers = re.search(
        r"unfamiliar one ([\d.]+) % of the time .* also accepts ([\d.]+) % of the other\.", found.verdict
    )
    assert numbers
    same(numbers[1], float(np.mean(areas)))
    same(numbers[2], float(np.mean(shares)))
    if len(others) > 1:
        ends = re.search(r"means over 2 sets; the hardest is set \d \(([\d.]+) %\), the easiest set", found.verdict)
        assert ends
        same(ends[1], min(areas))


@pytest.mark.parametrize(
    ("area", "share", "said"),
    [
        ((0.79, 0.81), (0.83, 0.87), "Part of the unfamiliar data stands out, most of it does not."),
        ((0.97, 0.99), (0.02, 0.12), "Most unfamiliar data stands out."),
        ((0.85, 0.95), (0.30, 0.60), "Part of the unfamiliar data stands out."),
        ((0.52, 0.60), (0.90, 0.97), "Unfamiliar data tends to score lower, but not low enough to stand out."),
        ((0.45, 0.55), (0.90, 0.97), "Confidence does not tell unfamiliar data apart, as far as these samples show."),
        ((0.40, 0.48), (0.95, 0.99), "Confidence misleads: unfamiliar data tends to score higher than its own."),
    ],
)
def test_ood_is_judged_by_both_intervals(area: tuple[float, float], share: tuple[float, float], said: str) -> None:
    rows = (Row("", "", "", "msp", {}, "", sum(ends) / 2, *ends, 100, 0.0) for ends in (area, share))
    assert told_apart(*rows) == said


# ---------------------------------------------------------------------------------------------------------------- shift


class Colours(torch.nn.Module):
    """Sees which colour prevails, and is as sure as it is told to be."""

    def __init__(self, sure: float) -> None:
        super().__init__()
        self.sure = torch.nn.Parameter(torch.tensor(sure))

    def forward(self, images: Tensor) -> Tensor:
        return self.sure * images.mean((2, 3))


@pytest.mark.parametrize(("sure", "n"), [(4.0, 300), (1.0, 300), (0.1, 300), (4.0, 30)])
def test_what_shift_says(sure: float, n: int) -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (n,), generator=draw)
    pixels = torch.randint(0, 150, (n, 12, 12, 3), generator=draw, dtype=torch.uint8)
    pixels[torch.arange(n), :, :, labels] += torch.randint(0, 40, (n, 1, 1), generator=draw, dtype=torch.uint8)
    mean = std = (0.3, 0.3, 0.3)
    names = ("gaussian-noise", "brightness")
    part, network = Images(pixels, labels), Colours(sure)
    found = under_shift(network, part, mean=mean, std=std, corruptions=names, severities=(5,))
    images: list[Part] = [part, *(Corrupted(part, name, 5) for name in names)]
    clean, *worse = (predict(network, each, mean=mean, std=std) for each in images)
    head, numbers = found.verdict.split(". ", 1)
    said = re.fullmatch(
        rf"At severity 5 accuracy goes from {PERCENT} % to {PERCENT} % on average and the expected calibration error "
        rf"from {PERCENT} % to {PERCENT} %; it is largest under (.+), {PERCENT} %\.",
        numbers,
    )
    assert said
    for i, metric in ((1, accuracy), (3, ece)):
        values = [metric(logits, labels, from_logits=True) for logits in worse]
        same(said[i], metric(clean, labels, from_logits=True))
        same(said[i + 1], sum(values) / 2)
    assert said[5] == names[values.index(max(values))]
    same(said[6], max(values))
    tests = [difference(debiased_ece, logits, clean, labels, from_logits=True) for logits in worse]
    sure_ones = holm(torch.tensor([each.p_value for each in tests])) <= 0.05
    for word, sign in (("grows", 1), ("shrinks", -1)):
        count = sum(bool(passed) and sign * each.value > 0 for passed, each in zip(sure_ones, tests, strict=True))
        assert (word in head) == (count > 0 and n >= 50), head
        assert count == 0 or n < 50 or f"under {count}" in head
    assert ("too few" in head) >= (n < 50)
    assert ("changes by less" in head) <= all(abs(end) < 0.02 for each in tests for end in (each.low, each.high))


# ---------------------------------------------------------------------------------------------- training, retrain, fit


@pytest.mark.parametrize(
    ("k", "accuracy", "margin"), [(10, 0.12, 0.1), (10, 0.08, 0.1), (2, 0.52, 3.0), (100, 0.01, 0.0)]
)
def test_what_is_said_of_guesses(k: int, accuracy: float, margin: float) -> None:
    labels = torch.arange(1000) % k
    named = torch.where(torch.arange(1000) / 1000 < accuracy, labels, (labels + 1) % k)
    logits = margin * torch.nn.functional.one_hot(named, k).double()
    found = re.fullmatch(
        rf"It is (hardly|no) better than guessing\. On 1,000 test samples it is right {PERCENT} % of the time, and "
        rf"naming the most frequent class every time would be right {PERCENT} % of the time; its NLL is ([\d.]+), and "
        r"that of giving every sample the frequencies of the classes is ([\d.]+)\. Look at its loss, train longer or "
        r"change the learning rate\. What follows is about its confidence alone\.",
        hardly_learnt(Predictions.of(logits, labels, from_logits=True)),
    )
    assert found
    word, right, guess, loss, entropy = found.groups()
    is_right = float((logits.argmax(1) == labels).double().mean())
    nll = float(torch.nn.functional.cross_entropy(logits, labels))
    share = np.bincount(labels.numpy()) / 1000
    same(right, is_right)
    same(guess, float(share.max()))
    assert float(loss) == pytest.approx(nll, abs=6e-4)
    assert float(entropy) == pytest.approx(float(-(share * np.log(share)).sum()), abs=6e-4)
    assert (word == "no") == (is_right <= share.max() and nll >= float(-(share * np.log(share)).sum()) - 1e-12)


def test_a_retraining_is_called_better_only_where_it_is() -> None:
    logits, labels = random_predictions(800, 4, sharpness=4.0)
    sides = {
        name: Predictions.of(scale * logits, labels, from_logits=True) for name, scale in (("sure", 1), ("right", 0.4))
    }
    for before, after, word in (("sure", "right", "Better"), ("right", "sure", "Worse"), ("sure", "sure", "No clear")):
        by = differences(sides[before], sides[after], bootstrap=100, seed=0)
        said = judgement(by)
        assert said.startswith(word)
        for name, title in zip(JUDGED, ("accuracy", "NLL", "ECE"), strict=True):
            assert (title in said) <= (by[name].value != 0 and by[name].p_value < 0.05)


def test_fit_warns_of_a_temperature_without_a_best_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logits = 9 * np.eye(4)[np.arange(40) % 4]
    for mistakes, warned in ((0, True), (4, False)):
        labels = (np.arange(40) + (np.arange(40) < mistakes)) % 4
        np.savez(tmp_path / "p.npz", logits=logits, labels=labels)
        assert main(["fit", "temperature", str(tmp_path / "p.npz"), "-o", str(tmp_path / "c.safetensors")]) == 0
        assert ("temperance: warning: the 40 samples contain no mistake" in capsys.readouterr().err) == warned
