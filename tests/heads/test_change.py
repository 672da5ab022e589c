"""A change is judged by accuracy, NLL and ECE together, as far as their differences are no chance."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from conftest import random_predictions
from temperance.heads.change import JUDGED, differences, is_worse, judgement, moved_by, unproven
from temperance.jobs.advice import told
from temperance.metrics import accuracy, nll
from temperance.metrics.significance import Difference, difference
from temperance.predictions import Predictions

CLEAR, CHANCE = 0.01, 0.5


def found(moves: str) -> dict[str, Difference]:
    """Accuracy, NLL and ECE as + (significantly better), - (significantly worse) or 0 (it moved, but by chance)."""
    up = {"accuracy": {"+": 0.01, "-": -0.01, "0": -0.01}}
    by = {}
    for name, sign in zip(JUDGED, moves, strict=True):
        value = up.get(name, {"+": -0.1, "-": 0.1, "0": 0.1})[sign]
        by[name] = Difference(value, value - 1, value + 1, 0.95, CHANCE if sign == "0" else CLEAR)
    return by


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        # accuracy, NLL, ECE
        ("000", "No clear change."),
        ("+++", "Better in accuracy, NLL and ECE."),
        ("++0", "Better in accuracy and NLL."),
        ("0++", "Better in NLL and ECE."),
        ("00+", "Better in ECE."),
        ("0+0", "Better in NLL."),
        ("+00", "Better in accuracy."),
        ("---", "Worse in accuracy, NLL and ECE."),
        ("--0", "Worse in accuracy and NLL."),
        ("-00", "Worse in accuracy."),
        ("0-0", "Worse in NLL."),
        ("00-", "Worse in ECE."),
        ("--+", "Worse in accuracy and NLL, though better in ECE."),
        ("0-+", "Worse in NLL, though better in ECE."),
        ("-0+", "Mixed: better in ECE, worse in accuracy."),
        ("-++", "Mixed: better in NLL and ECE, worse in accuracy."),
        ("-+0", "Mixed: better in NLL, worse in accuracy."),
        ("+-0", "Mixed: better in accuracy, worse in NLL."),
        ("+-+", "Mixed: better in accuracy and ECE, worse in NLL."),
        ("+0-", "Mixed: better in accuracy, worse in ECE."),
        ("0+-", "Mixed: better in NLL, worse in ECE."),
        ("++-", "Mixed: better in accuracy and NLL, worse in ECE."),
    ],
)
def test_a_table_of_cases(moves: str, said: str) -> None:
    assert judgement(found(moves)) == said


@pytest.mark.parametrize("moves", ["".join(signs) for signs in itertools.product("+0-", repeat=3)])
def test_nothing_is_called_better_that_is_worse_in_something(moves: str) -> None:
    said = judgement(found(moves))
    assert said.startswith("Better") == ("+" in moves and "-" not in moves)
    assert said.startswith(("Worse", "Mixed")) == ("-" in moves)
    for sign, name in zip(moves, ("accuracy", "NLL", "ECE"), strict=True):
        assert (name in said) == (sign != "0")
    other = judgement(found(moves.translate(str.maketrans("+-", "-+"))))
    assert not (said.startswith("Better") and not other.startswith("Worse"))


def test_nothing_makes_up_for_much_accuracy_lost() -> None:
    moved = found("-++")
    assert not is_worse(moved)
    moved["accuracy"] = replace(moved["accuracy"], value=-0.021)
    assert is_worse(moved) and judgement(moved) == "Worse in accuracy, though better in NLL and ECE."


def test_without_intervals_there_is_no_judgement() -> None:
    by = {name: Difference(-0.5, math.nan, math.nan, 0.95, math.nan) for name in JUDGED}
    assert judgement(by) == "No verdict without at least 60 resamples."


def test_the_sentences_of_a_judgement() -> None:
    moves = {"accuracy": (0.9611, 0.7833), "nll": (0.1195, 0.6068), "ece": (0.0415, 0.0441)}
    assert told(moves, found("--0")) == (
        "accuracy goes from 96.11 % to 78.33 %, NLL from 0.1195 to 0.6068, "
        "ECE from 4.15 % to 4.41 % (which could be chance)"
    )
    same = {"accuracy": (0.9, 0.9), "nll": (0.1, 0.2), "ece": (0.1, 0.1)}
    assert told(same, found("0-0")) == "accuracy stays at 90.00 %, NLL goes from 0.1000 to 0.2000, ECE stays at 10.00 %"
    assert [moved_by("ece", 0.0123), moved_by("nll", -0.5)] == ["+1.23", "-0.5000"]


def test_an_interval_without_0_that_is_no_proof_is_explained() -> None:
    by = {name: Difference(-0.02, -0.03, 0.01, 0.95, 0.4) for name in JUDGED}
    assert unproven(by) == ""
    by["accuracy"] = Difference(-0.02, -0.04, -0.003, 0.95, 0.06)
    assert unproven(by) == (
        "The interval of accuracy excludes 0, but three metrics are judged, so that alone is no proof."
    )
    by["nll"] = Difference(0.02, 0.01, 0.04, 0.95, 0.06)
    assert unproven(by).startswith("Each interval of accuracy and NLL excludes 0")
    by["nll"] = Difference(0.02, 0.01, 0.04, 0.95, CLEAR)
    assert unproven(by).startswith("The interval of accuracy excludes")
    assert unproven({name: replace(by["accuracy"], p_value=1.0) for name in JUDGED}) == ""  # too few samples
    assert unproven({name: Difference(-0.5, math.nan, math.nan, 0.95, math.nan) for name in JUDGED}) == ""


def test_differences_are_paired() -> None:
    logits, labels = random_predictions(300, 4, 1, sharpness=4.0)
    worse = logits.clone()
    worse[:60] = worse[:60].roll(1, 1)
    before, after = (Predictions.of(scores, labels, from_logits=True) for scores in (logits, worse))
    by = differences(before, after, bootstrap=100, seed=3)
    for metric in (accuracy, nll):
        expected = difference(metric, worse, logits, labels, from_logits=True, n_resamples=100, seed=3)
        assert replace(by[metric.name], p_value=1) == replace(expected, p_value=1)
        # All three are at the smallest p-value of 100 resamples, so the correction is by their number.
        assert by[metric.name].p_value == pytest.approx(3 * expected.p_value) == pytest.approx(3 / 101)
    assert by["accuracy"].value < 0 < by["nll"].value
    assert judgement(by) == "Worse in accuracy, NLL and ECE."
    few = differences(before, after, bootstrap=59, seed=3)
    assert few["nll"].value == pytest.approx(by["nll"].value) and math.isnan(few["nll"].low)
    still = differences(before, before, bootstrap=100, seed=0)
    assert judgement(still) == "No clear change." and torch.tensor([d.value for d in still.values()]).eq(0).all()


@pytest.mark.parametrize(("n", "right"), [(19, 10), (300, 281), (300, 19)])
def test_few_right_or_wrong_predictions_give_no_verdict(n: int, right: int) -> None:
    labels = torch.arange(n) % 3
    logits = 2 * torch.eye(3)[torch.where(torch.arange(n) < right, labels, (labels + 1) % 3)]
    before, after = (Predictions.of(scores, labels, from_logits=True) for scores in (logits, 5 * logits))
    said = judgement(differences(before, after, bootstrap=100, seed=0))
    assert said == "No verdict without at least 20 right and 20 wrong predictions, before or after."
