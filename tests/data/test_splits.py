"""Held-out samples and long-tailed subsets."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.small_sets import random_labels
from temperance.data import hold_out, long_tail_counts, long_tailed
from temperance.data.splits import SPLITS
from temperance.errors import InputError

each_split = pytest.mark.parametrize("split", SPLITS)


@each_split
@pytest.mark.parametrize("amount", [0.1, 0.5, 7, 1])
def test_every_sample_is_on_one_side(split: str, amount: float) -> None:
    labels = random_labels(103, 4)
    kept, held = hold_out(labels, amount, split=split)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(103))
    assert len(held) == {0.1: 10, 0.5: 52, 7: 7, 1: 1}[amount]
    assert kept.dtype == held.dtype == torch.int64


@each_split
def test_seeds(split: str) -> None:
    labels = random_labels(60, 3)
    by_default, again = (hold_out(labels, 0.25, split=split)[1] for _ in range(2))
    published = hold_out(labels, 0.25, split=split, seed=SPLITS[split][1])[1]
    other = hold_out(labels, 0.25, split=split, seed=7)[1]
    assert torch.equal(by_default, again)
    assert torch.equal(by_default, published)
    assert not torch.equal(by_default, other)


def test_random_is_the_last_part_of_a_permutation() -> None:
    kept, held = hold_out(np.zeros(50, int), 0.1, seed=3)
    order = np.random.default_rng(3).permutation(50)
    assert kept.tolist() == order[:45].tolist()
    assert held.tolist() == order[45:].tolist()


def test_published_splits_are_those_of_their_programs() -> None:
    """Both use NumPy's global generator; here it is a copy of it, so that other tests do not notice."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(1)  # noqa: NPY002
        indices = list(range(500))
        np.random.shuffle(indices)  # noqa: NPY002
        np.random.seed(101)  # noqa: NPY002
        order = np.random.permutation(500)  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    kept, held = hold_out(np.zeros(500, int), 0.1, split="focal-calibration")
    assert (held.tolist(), kept.tolist()) == (indices[:50], indices[50:])
    kept, held = hold_out(np.zeros(500, int), 50, split="plp")
    assert (kept.tolist(), held.tolist()) == (order[:450].tolist(), order[450:].tolist())


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 100),
)
def test_stratified_holds_out_every_class_in_proportion(counts: list[int], fraction: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    n = len(labels)
    number = min(max(1, round(fraction * n)), n - 1)
    held = hold_out(labels, number, split="stratified", seed=seed)[1]
    found = np.bincount(labels[held.numpy()], minlength=len(counts))
    assert found.sum() == number
    assert (np.abs(found - np.array(counts) * number / n) < 1).all()


def test_stratified_samples_are_drawn_not_taken_in_order() -> None:
    held = hold_out(np.repeat([0, 1], 100), 20, split="stratified")[1]
    assert sorted(held.tolist()) != sorted([*range(10), *range(100, 110)])
    assert sorted(held.tolist()) != sorted([*range(90, 100), *range(190, 200)])


@pytest.mark.parametrize("amount", [0, 1.0, 1.5, 5.0, -0.1, 10, 11, True, float("nan"), "half"])
def test_impossible_amounts_are_refused(amount: Any) -> None:
    with pytest.raises(
        InputError, match="the part held out must be a fraction between 0 and 1, or a whole number below the 10"
    ):
        hold_out(np.zeros(10, int), amount)


def test_a_fraction_that_leaves_a_side_empty_is_refused() -> None:
    with pytest.raises(InputError, match=r"holding out 0.01 of 10 samples leaves one side empty"):
        hold_out(np.zeros(10, int), 0.01)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="split must be one of random, stratified, focal-calibration, plp; got 'half'"):
        hold_out(np.zeros(10, int), 0.5, split="half")
    with pytest.raises(InputError, match="split_seed must be a whole number of at least 0; got -1"):
        hold_out(np.zeros(10, int), 0.5, seed=-1)
    with pytest.raises(InputError, match=r"labels must be class numbers of shape \(n,\); got torch.float64"):
        hold_out(np.zeros(10), 0.5)


# ---------------------------------------------------------------------------------------------------------- long tails


def test_counts_are_those_of_the_paper(vectors: Any) -> None:
    golden = vectors["long_tail"]
    assert long_tail_counts(5000, 10, 0.1) == golden["cifar10"]
    c100 = long_tail_counts(500, 100, 0.1)
    assert (c100[:5], c100[-3:], sum(c100)) == (
        golden["cifar100_first5"],
        golden["cifar100_last3"],
        golden["total100"],
    )
    assert sum(long_tail_counts(5000, 10, 0.01)) == golden["total10_rho_0p01"]
    assert long_tail_counts(7, 3, 1) == [7, 7, 7]


def test_a_subset_has_the_counts() -> None:
    labels = random_labels(400, 4)
    index = long_tailed(labels, 0.1)
    assert np.bincount(labels[index]).tolist() == long_tail_counts(100, 4, 0.1)
    assert index.tolist() == sorted(set(index.tolist()))


def test_the_papers_halves() -> None:
    for k, per_class, halves in ((10, 5000, (10215, 10216)), (100, 500, (9786, 9787))):
        index = long_tailed(np.repeat(np.arange(k), per_class), 0.1)
        kept, held = hold_out(np.repeat(np.arange(k), per_class)[index], 0.5)
        assert (len(kept), len(held)) == halves


def test_subsets_are_drawn_by_seed() -> None:
    labels = torch.from_numpy(random_labels(400, 4))
    first, again, other = (long_tailed(labels, 0.1, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@given(counts=st.lists(st.integers(10, 60), min_size=2, max_size=6), ratio=st.floats(0.1, 1))
def test_classes_of_any_size(counts: list[int], ratio: float) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    found = np.bincount(labels[long_tailed(labels, ratio)], minlength=len(counts))
    assert found.tolist() == long_tail_counts(int(found[0]), len(counts), ratio)
    assert (found <= counts).all()


@pytest.mark.parametrize(
    ("labels", "ratio", "sentence"),
    [
        ([0, 0, 1, 1], 0.0, "long_tail must be a number above 0 and up to 1; got 0.0"),
        ([0, 0, 1, 1], 0.1, "leaves nothing of the last class, which would have 0.2 samples; .* at least 0.5"),
        ([0, 2, 2], 0.5, "needs samples of every class; class 1 has none"),
        ([0, 0], 0.5, "number of classes of a long tail must be a whole number of at least 2; got 1"),
        ([-1, 0], 0.5, "labels must be class numbers from 0; got -1"),
        ([], 0.5, r"labels must be class numbers of shape \(n,\)"),
    ],
)
def test_labels_without_a_long_tail_are_refused(labels: list[int], ratio: float, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        long_tailed(labels, ratio)
