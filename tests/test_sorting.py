"""Stable sorting against the plainest way to do it."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from temperance.sorting import stable_order, stable_sort

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


# In [0, 2), where a number and a flag are sorted as one: those that float32 can hold, and those that it cannot.
small = st.lists(st.sampled_from([0.0, -0.0, 1e-300, 0.1, 0.25, 1 / 3, 1.0, 1 + 1e-9]), min_size=1, max_size=40)


@given(few | any_finite | small, st.randoms(use_true_random=False), st.booleans())
def test_values_are_sorted_with_their_flags(values: list[float], random: Any, last_first: bool) -> None:
    flags = [random.random() < 0.5 for _ in values]
    found, with_them = stable_sort(
        torch.tensor(values, dtype=torch.float64), torch.tensor(flags), last_first=last_first
    )
    last = len(values) - 1
    order = [last - i for i in plain_order(values[::-1])] if last_first else plain_order(values)
    assert found.tolist() == [values[i] for i in order] and with_them.tolist() == [flags[i] for i in order]


def test_many_equal_values_stay_in_order() -> None:
    assert stable_order(torch.ones(10_000)).tolist() == list(range(10_000))
