"""Venn–Abers predictors against isotonic regression fitted anew, twice, for every prediction."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from temperance.calibrators import VennAbers
from temperance.calibrators._fit.curve import look_up
from temperance.calibrators.venn_abers import with_one_more_hit

samples = st.lists(st.tuples(st.integers(0, 12).map(lambda i: i / 12), st.booleans()), min_size=1, max_size=30)


def isotonic_value(pairs: Any, at: float) -> float:
    """The isotonic fit to (probability, happened) pairs, at one of the probabilities."""
    probs, happened = np.array(pairs).T
    places, group = np.unique(probs, return_inverse=True)
    count, hits = np.bincount(group), np.bincount(group, happened)
    return float(isotonic_regression(hits / count, weights=count).x[places == at][0])


def direct(pairs: Any, at: float) -> float:
    low, high = isotonic_value([*pairs, (at, False)], at), isotonic_value([*pairs, (at, True)], at)
    return high / (1 - low + high)


@given(samples, st.lists(st.integers(0, 24).map(lambda i: i / 24), min_size=1, max_size=10))
def test_it_is_two_isotonic_fits(pairs: list[tuple[float, bool]], x: list[float]) -> None:
    """At the samples' own probabilities, between them, and beyond them; to the resolution of the curve."""
    probs, happened = torch.tensor(sorted(pairs), dtype=torch.float64).T
    knots, values = VennAbers()._fit_curve(probs.contiguous(), happened > 0, torch.ones_like(probs))
    x += [p for p, _ in pairs]
    found = look_up(torch.tensor([x], dtype=torch.float64), knots[None], values[None])[0]
    expected = torch.tensor([direct(pairs, at) for at in x], dtype=torch.float64)
    assert float((found.logit() - expected.logit()).abs().max()) < 1.1e-3


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_a_hit_more_in_each_group(groups: list[tuple[int, int]]) -> None:
    count = [float(n) for n, _ in groups]
    hits = [float(min(n, h)) for n, h in groups]
    expected = []
    for i in range(len(groups)):
        more, weight = np.array(hits), np.array(count)
        more[i], weight[i] = more[i] + 1, weight[i] + 1
        expected.append(isotonic_regression(more / weight, weights=weight).x[i])
    found = with_one_more_hit(*(torch.tensor(each, dtype=torch.float64) for each in (hits, count)))
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_samples_that_were_all_hits() -> None:
    probs = torch.tensor([0.5] * 8, dtype=torch.float64)
    knots, values = VennAbers()._fit_curve(probs, torch.ones(8, dtype=torch.bool), torch.ones_like(probs))
    found = look_up(torch.tensor([[0.5]], dtype=torch.float64), knots[None], values[None])
    assert float(found) == pytest.approx(9 / 10)


def test_the_curve_is_never_certain_and_rises() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(2000, generator=generator, dtype=torch.float64).sort().values
    happened = torch.rand(2000, generator=generator, dtype=torch.float64) < probs
    knots, values = VennAbers()._fit_curve(probs, happened, torch.ones_like(probs))
    assert float(values.min()) > 0 and float(values.max()) < 1
    assert bool((values.diff() >= 0).all()) and bool((knots.diff() >= 0).all())
