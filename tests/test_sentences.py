"""The sentences of ood, shift, training, retraining and fit are true: their numbers are computed again, by other means.

Those of `evaluate` and `compare` have tests of their own.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from temperance import Predictions, difference
from temperance.cli import main
from temperance.data import Images, Part
from temperance.diagnose.shift import Corrupted, under_shift
from temperance.heads.change import JUDGED, differences, judgement
from temperance.jobs.ood import compare_ood, told_apart
from temperance.jobs.results import Row
from temperance.metrics import accuracy, debiased_ece, ece
from temperance.metrics.gain import holm
from temperance.training.prediction import predict
from temperance.training.run import hardly_learnt
from verdicts import PERCENT, same

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
        r"^Most unfamiliar data does not stand out\.",
        ["stands out"],
    ),
    "hardly": ([torch.cat([LOW[:40], MIDDLE[:960]])], r"^Unfamiliar data tends to score lower, but not low enough", []),
    "none": ([OWN], r"^Confidence does not tell unfamiliar data apart", ["stands"]),
    "the other way round": ([HIGH + 0.02], r"^Confidence misleads: unfamiliar data tends to score higher", ["apart"]),
    "one easy, one hard": ([LOW, OWN], r"^Some unfamiliar sets stand out more than others\.", ["Most", "Nearly"]),
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
        r"unfamiliar one ([\d.]+) % of the time .* also accepts ([\d.]+) % of the unfamiliar data\.", found.verdict
    )
    assert numbers
    same(numbers[1], float(np.mean(areas)))
    same(numbers[2], float(np.mean(shares)))
    if len(others) > 1 and f"{min(areas):.3f}" == f"{max(areas):.3f}":
        assert "These are means over 2 sets." in found.verdict
    elif len(others) > 1:
        ends = re.search(
            r"means over 2 sets; the hardest is set \d \(([\d.]+) %\), the easiest set \d \(([\d.]+) %\)", found.verdict
        )
        assert ends
        same(ends[1], min(areas))
        same(ends[2], max(areas))


@pytest.mark.parametrize(("own", "other", "smallest"), [(1000, 20, "set 0 has 20"), (30, 1000, "arrays has 30")])
def test_ood_claims_nothing_of_few_samples(own: int, other: int, smallest: str) -> None:
    found = compare_ood(scored(OWN[:own]), {"set 0": scored(LOW[:other]), "set 1": scored(LOW)}, bootstrap=20)
    assert found.verdict == f"Too few samples to tell: each set needs at least 50, and {smallest}."


@pytest.mark.parametrize(
    ("area", "share", "said"),
    [
        ((0.79, 0.81), (0.83, 0.87), "Most unfamiliar data does not stand out."),
        ((0.97, 0.99), (0.02, 0.12), "Most unfamiliar data stands out."),
        ((0.85, 0.95), (0.30, 0.60), "Part of the unfamiliar data stands out."),
        ((0.52, 0.60), (0.90, 0.97), "Unfamiliar data tends to score lower, but not low enough to stand out."),
        ((0.45, 0.55), (0.90, 0.97), "Confidence does not tell unfamiliar data apart, as far as these samples show."),
        (
            (0.40, 0.48),
            (0.95, 0.99),
            "Confidence misleads: unfamiliar data tends to score higher than the model's own.",
        ),
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
    sure_ones = [p_value <= 0.05 for p_value in holm([each.p_value for each in tests])]
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
        rf"It is (hardly|no) better than guessing\. On 1,000 test samples it is right {PERCENT} % of the time; always "
        rf"predicting the most frequent class would be right {PERCENT} % of the time\. Its NLL is ([\d.]+); predicting "
        r"the class frequencies for every sample would give ([\d.]+)\. Look at the loss, train longer or change the "
        r"learning rate\. What follows is about its confidence alone\.",
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


def test_fit_warns_once_of_samples_without_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logits = 9 * np.eye(4)[np.arange(40) % 4]
    for method, mistakes, warned in (("temperature", 0, True), ("vector", 0, True), ("temperature", 4, False)):
        labels = (np.arange(40) + (np.arange(40) < mistakes)) % 4
        np.savez(tmp_path / "p.npz", logits=logits, labels=labels)
        assert main(["fit", method, str(tmp_path / "p.npz"), "-o", str(tmp_path / "c.safetensors")]) == 0
        said = capsys.readouterr()
        assert ("temperance: warning: in 40 samples there is no mistake" in said.err) == warned
        assert "no mistake" not in said.out and "temperature" not in said.err
