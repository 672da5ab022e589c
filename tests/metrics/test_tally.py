"""Tallies add, and their test is that of a Poisson-binomial number, from one sample on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from temperance.metrics import accuracy, ece
from temperance.metrics.batch import Batch, batches
from temperance.metrics.tally import (
    Tally,
    accuracy_bounds,
    calibration_error,
    class_tally,
    confidence_tally,
    error_by_chance,
    p_values,
    positive_tally,
    samples_needed,
    significant,
    tallied,
)


def tally_of(confidence: Tensor, hits: Tensor) -> Tally:
    """One entry for each number of hits, all of the same confidences. (m,)"""
    sums = torch.tensor(len(confidence)), confidence.sum(), confidence.square().sum()
    count, says, squares = (each.expand(len(hits)) for each in sums)
    return Tally(count, says, squares, hits)


def exact(chances: Tensor) -> Tensor:
    """Twice the smaller tail for every number of events with these chances. (n + 1,)"""
    mass = np.ones(1)
    for each in chances.tolist():
        mass = np.convolve(mass, [1 - each, each])
    tails = np.minimum(mass.cumsum(), mass[::-1].cumsum()[::-1])
    return torch.from_numpy(np.minimum(2 * tails, 1))


def test_by_class_and_by_confidence() -> None:
    logits, labels = random_predictions(700, 4)
    probs = logits.softmax(1)
    batch = Batch(probs, labels, from_logits=False)
    by_confidence, by_class = confidence_tally(batch), class_tally(batch)
    for j in range(4):
        mine = probs.argmax(1) == j
        assert int(by_class.count[j]) == int(mine.sum())
        assert float(by_class.mean_confidence[j]) == pytest.approx(float(probs[mine].amax(1).mean()))
        assert float(by_class.accuracy[j]) == pytest.approx(float((labels[mine] == j).double().mean()))
        assert float(by_class.squares[j]) == pytest.approx(float(probs[mine].amax(1).square().sum()))
    for tally in (by_confidence, by_class):
        assert float(tally.total().accuracy) == pytest.approx(accuracy(probs, labels))
    assert calibration_error(by_confidence) == pytest.approx(ece(probs, labels))


def test_tallies_add_as_batches_go_by() -> None:
    logits, labels = random_predictions(700, 4)
    into: list[Tally] = []
    parts = [
        part for i in range(0, 700, 90) for part in batches(logits[i : i + 90], labels[i : i + 90], from_logits=True)
    ]
    assert list(tallied(parts, into)) == parts
    whole = Batch(logits, labels, from_logits=True)
    for found, expected in zip(into, (confidence_tally(whole), class_tally(whole)), strict=True):
        for name, tensor in expected.tensors().items():
            torch.testing.assert_close(found.tensors()[name], tensor)


def test_the_second_of_two_classes() -> None:
    logits, labels = random_predictions(300, 2)
    probs = logits.softmax(1)
    found = positive_tally(class_tally(Batch(probs, labels, from_logits=False)))
    assert int(found.count) == 300 and int(found.hits) == int(labels.sum())
    assert float(found.confidence) == pytest.approx(float(probs[:, 1].sum()))
    assert float(found.squares) == pytest.approx(float(probs[:, 1].square().sum()))


@given(
    st.integers(1, 120),
    st.floats(-3, 2),
    st.floats(-3, 2),
    st.sampled_from([None, 0.001, 0.3, 0.999]),
    st.integers(0, 2**31),
)
def test_the_p_value_is_never_too_small(n: int, a: float, b: float, other: float | None, seed: int) -> None:
    """Beside the exact one, for confidences of any kind: sure, unsure, or some of both."""
    draw = np.random.default_rng(seed)
    chances = draw.beta(math.exp(a), math.exp(b), n)
    if other is not None:
        chances = np.where(draw.random(n) < 0.5, chances, other)
    given = torch.from_numpy(chances.clip(1e-9, 1 - 1e-9))
    found, expected = p_values(tally_of(given, torch.arange(n + 1))), exact(given)
    tail = (expected <= 0.1) & (expected > 1e-12)
    assert bool((found[tail] >= expected[tail] * (1 - 1e-3)).all())


@pytest.mark.parametrize("n", [50, 400, 2000])
def test_the_p_value_is_not_much_too_large(n: int) -> None:
    """So that what is there is found."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.randn(n, 10, generator=generator, dtype=torch.float64).mul(3).softmax(1).amax(1)
    found, expected = p_values(tally_of(confidence, torch.arange(n + 1))), exact(confidence)
    tail = (expected <= 0.05) & (expected > 1e-4)
    assert bool((found[tail] <= 2 * expected[tail]).all())


def test_certainty() -> None:
    """A model that is never in doubt is wrong once it is wrong; with no predictions nothing is known."""
    sure = tally_of(torch.ones(5, dtype=torch.float64), torch.tensor([5, 4, 0]))
    assert p_values(sure).tolist() == [1, 0, 0]
    assert p_values(Tally(*(torch.zeros(1, dtype=torch.float64) for _ in range(4)))).tolist() == [1]
    # Rows may sum to a little more than 1.
    assert p_values(tally_of(torch.full((5,), 1 + 1e-7, dtype=torch.float64), torch.tensor([5]))).tolist() == [1]


def test_empty_entries_are_no_tests() -> None:
    # Entries without predictions are not counted as tests.
    alone = tally_of(torch.full((40,), 0.9, dtype=torch.float64), torch.tensor([30]))
    empty = Tally(*(torch.zeros(99, dtype=each.dtype) for each in alone.tensors().values()))
    level = 1.5 * float(p_values(alone))
    assert significant(alone.beside(empty), level).tolist() == [True] + 99 * [False]
    both = alone.beside(alone)
    assert not significant(both, level).any() and significant(both, 2 * level).all()


def test_an_error_by_chance() -> None:
    """Of calibrated models the error exceeds it as often as said."""
    generator = torch.Generator().manual_seed(1)
    probs = torch.randn(200, 4, generator=generator, dtype=torch.float64).mul(2).softmax(1)
    limit = error_by_chance(confidence_tally(Batch(probs, torch.zeros(200).long(), from_logits=False)), 0.05)
    labels = torch.multinomial(probs, 1000, replacement=True, generator=generator)
    above = sum(ece(probs, labels[:, i]) > limit for i in range(1000)) / 1000
    assert 0.02 < above < 0.07


def test_the_interval_of_the_accuracy() -> None:
    """Textbook values of Clopper and Pearson."""
    none = tally_of(torch.full((10,), 0.5, dtype=torch.float64), torch.tensor([0])).total()
    assert accuracy_bounds(none, 0.95) == pytest.approx((0.0, 0.3085), abs=1e-4)
    some = tally_of(torch.full((20,), 0.5, dtype=torch.float64), torch.tensor([5])).total()
    assert accuracy_bounds(some, 0.95) == pytest.approx((0.0866, 0.4910), abs=1e-4)


@pytest.mark.parametrize("says", [0.7, 0.9, 1.0])
def test_so_many_samples_show_the_error(says: float) -> None:
    """As many as it says show an error of three points four times in five; half as many do not."""
    generator = torch.Generator().manual_seed(0)
    one = tally_of(torch.full((1,), says, dtype=torch.float64), torch.tensor([1]))
    needed = samples_needed(one, 0.03, 0.05)
    shares = []
    for n in (needed // 2, needed):
        hits = torch.binomial(torch.full((2000,), float(n)), torch.tensor(says - 0.03), generator=generator).long()
        found = p_values(tally_of(torch.full((n,), says, dtype=torch.float64), hits)) <= 0.05
        shares.append(float(found.double().mean()))
    assert shares[1] > 0.72 and (says == 1 or shares[0] < 0.65)
