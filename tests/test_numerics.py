"""Sorting and sums against the plainest way to do them."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from temperance.numerics import prefix_sums, stable_order

# Of few values, so that they tie, with both zeros and both signs.
few = st.lists(st.sampled_from([-1.5, -1e-30, -0.0, 0.0, 1e-30, 0.1, 0.25, 1.0, 3e38]), min_size=1, max_size=40)
any_finite = st.lists(st.floats(allow_nan=False), min_size=1, max_size=40)


def plain_order(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


@given(few)
def test_order_of_float32_values_is_stable(values: list[float]) -> None:
    single = torch.tensor(values, dtype=torch.float32)
    expected = plain_order(single.tolist())
    assert stable_order(single).tolist() == expected
    assert stable_order(single.double()).tolist() == expected


@given(few | any_finite)
def test_order_of_float64_values_is_stable(values: list[float]) -> None:
    assert stable_order(torch.tensor(values, dtype=torch.float64)).tolist() == plain_order(values)


@given(few | any_finite, st.lists(st.integers(0, 40), max_size=6))
def test_cuts_part_the_stable_order(values: list[float], inner: list[int]) -> None:
    cuts = sorted({0, len(values), *(c for c in inner if c < len(values))})
    found = stable_order(torch.tensor(values, dtype=torch.float64), cuts).tolist()
    expected = plain_order(values)
    for low, high in itertools.pairwise(cuts):
        assert sorted(found[low:high]) == sorted(expected[low:high])


def test_many_equal_values_stay_in_order() -> None:
    assert stable_order(torch.ones(10_000)).tolist() == list(range(10_000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64])
def test_prefix_sums(dtype: torch.dtype) -> None:
    found = prefix_sums(torch.tensor([1, 0, 1, 1]).to(dtype))
    assert found.tolist() == [0, 1, 1, 2, 3]
    assert found.dtype == (torch.float64 if dtype.is_floating_point else torch.int64)
