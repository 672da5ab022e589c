"""The test of a gain finds what is there, and with few samples nothing that is not."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from temperance.metrics.gain import FEWEST_SAMPLES, SCEPTICAL, Gains, chance_of_harm, holm


def gains(values: list[float] | Tensor, worst: float) -> Gains:
    return Gains(torch.as_tensor(values, dtype=torch.float64), -worst, 30.0)


@pytest.mark.parametrize(("n", "hits"), [(10, 4), (20, 3), (50, 12), (400, 40)])
@pytest.mark.parametrize("odds", [0.02, 0.1])
def test_of_two_values_it_is_the_binomial_test(n: int, hits: int, odds: float) -> None:
    """A sample gains 1 or loses `odds`; without a gain on average it gains with a chance of odds / (1 + odds)."""
    found = gains([1.0] * hits + [-odds] * (n - hits), odds).p_value()
    expected = binom.sf(hits - 1, n, odds / (1 + odds))
    assert found == pytest.approx(expected, rel=0.1) or expected > 0.3


def test_it_is_the_chance_that_a_randomly_weighted_mean_is_negative() -> None:
    generator = np.random.default_rng(0)
    for n in (10, 30, 100):
        values = generator.normal(0.15, 0.4, n).clip(-1)
        weights = generator.exponential(size=(40_000, n + 1))
        drawn = float((weights @ np.append(values, -1.0) < 0).mean())
        assert gains(torch.from_numpy(values), 1.0).p_value() == pytest.approx(drawn, abs=0.01, rel=0.1)


def test_harm_is_the_chance_of_a_randomly_weighted_loss_with_some_imagined_samples() -> None:
    generator = np.random.default_rng(0)
    for n in (3, 30, 300):
        values, if_right = generator.normal(0.15, 0.6, n), -0.2
        weights = np.hstack([generator.exponential(size=(20_000, n)), generator.gamma(SCEPTICAL, size=(20_000, 1))])
        drawn = float((weights @ np.append(values, if_right) < 0).mean())
        assert chance_of_harm(torch.from_numpy(values), if_right) == pytest.approx(drawn, abs=0.02, rel=0.1)


def test_harm_is_likelier_with_fewer_samples_and_smaller_gains() -> None:
    each = torch.tensor([0.5, -0.1, 0.3, -0.2], dtype=torch.float64)
    few, many, smaller = (chance_of_harm(values, -0.02) for values in (each, each.repeat(20), each.repeat(20) - 0.1))
    assert many < 0.001 < few < 0.5
    assert many < smaller < 0.5 < chance_of_harm(-each, -0.02)


def test_what_gains_little_and_could_lose_much_takes_many_samples() -> None:
    """All samples are right and a surer method gains 0.01 on each; one mistake would cost it 5."""
    for n in (20, 100, 400):
        assert gains([0.01] * n, 5.0).p_value() > 0.4
    assert gains([0.01] * 2000, 5.0).p_value() < 0.05
    # The other way round a few mistakes are enough.
    assert gains([-0.05] * 20 + [4.0] * 4, 0.1).p_value() < 0.05


@pytest.mark.parametrize("rate", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("n", [10, 40, 160])
def test_where_there_is_no_gain_it_seldom_finds_one(n: int, rate: float) -> None:
    """Mostly a small gain, with a chance of `rate` a loss that makes up for it; and the other way round."""
    generator = torch.Generator().manual_seed(0)
    for small, large in ((rate, -(1 - rate)), (-rate, 1 - rate)):
        for_sure = 0
        for _ in range(200):
            values = torch.where(torch.rand(n, generator=generator) < rate, large, small).double()
            for_sure += gains(values, max(-small, -large)).p_value() < 0.05
        assert for_sure <= 19  # 10 expected at most; more than 19 has a chance below 0.003


def test_few_samples_and_equal_predictions_find_nothing() -> None:
    assert gains([20.0] * (FEWEST_SAMPLES - 1), 0.1).p_value() == 1
    assert gains([20.0] * FEWEST_SAMPLES, 0.1).p_value() < 1e-6
    assert gains([1e-12] * 100, 1e-12).p_value() == 1
    assert gains([0.0] * 100, 0.0).p_value() == 1
    assert gains([-0.1] * 100, 0.5).p_value() == 1


def test_the_other_predictions_lose_what_these_gain() -> None:
    found = Gains(torch.tensor([0.1, -0.2]), -0.5, 3.0)
    assert (-found).least == -3.0 and (-found).most == 0.5 and (-found).mean == pytest.approx(0.05)


def test_as_many_samples_as_are_needed_are_enough() -> None:
    values = [-0.05] * 28 + [1.0] * 2
    found = gains(values, 0.1)
    assert found.p_value() > 0.01
    needed = found.samples_needed(0.01)
    assert 30 < needed < 3000
    assert gains(values * math.ceil(needed / 30), 0.1).p_value() <= 0.01
    assert gains(values * math.floor(0.9 * needed / 30), 0.1).p_value() > 0.01
    assert gains([-0.1] * 30, 0.5).samples_needed(0.05) == math.inf
    assert gains([1e-9] * 30, 25.0).samples_needed(0.05) == math.inf


def test_many_samples_underflow_to_zero() -> None:
    assert gains([1.0] * 5000, 0.1).p_value() == 0


def test_corrected_p_values() -> None:
    assert holm([0.01, 0.04, 0.03], [1 / 3] * 3) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, 0.02], [0.5, 0.5]) == pytest.approx([0.04, 0.04])
    # Half of the errors belong to the first; it leaves them to the others once it is rejected.
    assert holm([0.02, 0.01, 0.2], [0.5, 0.25, 0.25]) == pytest.approx([0.04, 0.04, 0.2])
    assert holm([0.9, 0.9], [0.5, 0.5]) == [1.0, 1.0]
    assert holm([], []) == []
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
