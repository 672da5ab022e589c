"""Intervals cover the truth as often as they say, and the paired test finds what is there and nothing else."""

import math
from typing import Any

import pytest
import torch

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import (
    METRICS,
    Metric,
    accuracy,
    adaptive_ece,
    classwise_adaptive_ece,
    classwise_ece,
    ece,
    nll,
    tace,
)
from temperance.metrics.batch import batches
from temperance.metrics.bins import Bins
from temperance.metrics.evidence import ENOUGH
from temperance.metrics.gather import N_PARTS
from temperance.metrics.significance import (
    LINEAR_ROWS,
    POWERS,
    Draws,
    deal,
    difference,
    interval,
    resample,
)


def overconfident(n: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Two classes; says 0.70 or 0.90, is right 60 % and 80 % of the time: the true ECE is 0.10."""
    says = torch.where(torch.rand(n, generator=generator) < 0.5, 0.7, 0.9).double()
    right = torch.rand(n, generator=generator) < says - 0.1
    return torch.stack([says, 1 - says], 1), (~right).long()


@pytest.mark.parametrize("metric", [ece, accuracy, nll, adaptive_ece], ids=lambda m: m.name)
def test_intervals_cover_the_truth(metric: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    truth = metric(*overconfident(400_000, generator))
    options: dict[str, Any] = {"n_bins": 10} if "n_bins" in metric.options else {}
    covered = 0
    for _ in range(100):
        found = interval(metric, *overconfident(1000, generator), n_resamples=120, **options)
        covered += found.low <= truth <= found.high
    assert covered >= 86  # 95 expected; fewer than 86 has a chance below 0.001 even if 93 % were true


def test_a_calibrated_model_s_interval_reaches_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    says = torch.rand(3000, generator=generator).double() / 2 + 0.5
    right = torch.rand(3000, generator=generator) < says
    found = interval(ece, torch.stack([says, 1 - says], 1), (~right).long())
    assert found.low < 0.004 and found.value <= found.high


@pytest.mark.parametrize("metric", [adaptive_ece, classwise_adaptive_ece, tace], ids=lambda m: m.name)
def test_intervals_hold_zero_where_many_confidences_are_equal(metric: Any) -> None:
    """Runs of equal confidences are cut in the order of the data, which is part of their noise."""
    generator = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(60):
        says = torch.tensor([0.6, 0.75, 0.9])[torch.randint(3, (200,), generator=generator)].double()
        wrong = torch.rand(200, generator=generator) >= says
        held += interval(metric, torch.stack([says, 1 - says], 1), wrong.long(), n_resamples=60).low < 1e-9
    assert held >= 51  # 57 expected; in a random order 34 to 38 did


@pytest.mark.parametrize("name", METRICS.names)
def test_an_interval_holds_the_value_if_the_metric_can_have_one(name: str) -> None:
    logits, labels = random_predictions(900, 3)
    metric = METRICS[name]
    options = {"top": 2} if name == "top-k-accuracy" else {}
    found = interval(metric, logits, labels, from_logits=True, n_resamples=20, **options)
    low, high = metric.range
    assert math.isnan(found.low) == math.isnan(found.high) == (metric.interval == "none")
    assert metric.interval == "none" or low <= found.low <= found.value <= found.high <= high
    assert found.value == pytest.approx(metric(logits, labels, from_logits=True, **options), abs=1e-12)


# Kernels, whose cost is quadratic, smooth what happens: their error of a calibrated model does not tend to 0.
ERRORS = [metric for metric in METRICS if metric.interval in POWERS and not metric.quadratic]


@pytest.mark.parametrize("metric", ERRORS, ids=[metric.name for metric in ERRORS])
def test_the_interval_of_an_error_reaches_zero_for_calibrated_models(metric: Metric) -> None:
    generator = torch.Generator().manual_seed(2)
    reached = 0
    for _ in range(20):
        probs = (2 * torch.randn(400, 3, generator=generator, dtype=torch.float64)).softmax(1)
        labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
        reached += interval(metric, probs, labels, n_resamples=40).low == 0
    assert reached >= 15  # 95 % are 19; fewer than 15 of 20 then have a chance below 0.001


@pytest.mark.parametrize("weight", [None, 0.3, 100])
@pytest.mark.parametrize("k", [10, 40])  # with many classes, only occupied bins are stored
def test_bins_of_a_few_samples_have_no_interval(k: int, weight: float | None) -> None:
    """In every resample they are as far off as in the data, so that the error would look certain."""
    logits, labels = random_predictions(300, k)
    weights = None if weight is None else torch.full((300,), weight)
    for metric, n_bins, shown in ((ece, 15, True), (ece, 1000, False), (classwise_ece, 15, False)):
        found = interval(metric, logits, labels, from_logits=True, weights=weights, n_resamples=20, n_bins=n_bins)
        assert math.isnan(found.low) != shown


def test_a_bin_whose_weight_is_of_a_few_samples_has_no_interval() -> None:
    logits, labels = random_predictions(1000, 3)
    for heavy, shown in ((0, True), (20, False)):
        weights = torch.where(torch.arange(1000) < heavy, 1e4, 1.0)
        found = interval(ece, logits, labels, from_logits=True, weights=weights, n_resamples=20)
        assert math.isnan(found.low) != shown


def test_resamples_that_agree_have_no_interval() -> None:
    for metric in (accuracy, ece, nll):
        found = interval(metric, [[0.9, 0.1]], [0], n_resamples=20)
        assert math.isnan(found.low) and math.isnan(found.high)
    always_right = interval(accuracy, [[0.9, 0.1]] * 50, [0] * 50, n_resamples=20)
    assert always_right.value == 1 and math.isnan(always_right.low)


def test_smaller_resamples_of_a_distance_give_about_the_same_interval() -> None:
    """A resample of a quarter of the rows has four times the noise in its square."""
    generator = torch.Generator().manual_seed(0)
    truth, noise = 0.03, 0.004

    def drawn(share: float) -> Draws:
        around = torch.randn(4000, 2, generator=generator, dtype=torch.float64) * noise / share**0.5
        return Draws((around + torch.tensor([truth, 0.0])).norm(dim=1), share)

    whole, quarter = (drawn(share).interval(truth, (0, 1), 0.95, power=2) for share in (1.0, 0.25))
    assert (quarter.low, quarter.high) == pytest.approx((whole.low, whole.high), rel=0.05)


def test_dealt_parts_are_all_of_the_data() -> None:
    logits, labels = random_predictions(3000, 4)
    found = list(batches(logits, labels, from_logits=True))
    for metric in (ece, nll, adaptive_ece):
        (parts,) = deal(found, 3000, [(metric, {})], torch.Generator().manual_seed(0))
        assert metric.value(parts.whole) == pytest.approx(metric(logits, labels, from_logits=True), abs=1e-12)
        assert parts.n_parts == (0 if metric is adaptive_ece else N_PARTS)


def test_long_data_in_many_batches_is_dealt_evenly() -> None:
    logits, labels = random_predictions(6000, 4)
    found = [b for i in range(0, 6000, 60) for b in batches(logits[i : i + 60], labels[i : i + 60], from_logits=True)]
    (parts,) = deal(found, 6000, [(ece, {})], torch.Generator().manual_seed(0))
    assert isinstance(parts.stats, Bins)
    sizes = parts.stats.count.sum(1).tolist()
    assert sum(sizes) == 6000 and len(sizes) == N_PARTS and max(sizes) < 40


def test_large_resamples_are_smaller_than_the_data_and_scaled() -> None:
    says = torch.rand(4 * LINEAR_ROWS, generator=torch.Generator().manual_seed(0)).double() / 2 + 0.5
    probs, labels = torch.stack([says, 1 - says], 1), torch.zeros(len(says), dtype=torch.int64)
    found = list(batches(probs, labels))
    (parts,) = deal(found, len(says), [(adaptive_ece, {})])
    draws = resample(adaptive_ece, parts, 5, torch.Generator().manual_seed(0))
    assert draws.share == 0.25
    wide = draws.interval(0.25, (0, 1), 0.95)
    assert wide.high - wide.low < 0.01


def test_the_paired_test_sees_a_small_difference_that_intervals_hide() -> None:
    logits, labels = random_predictions(2000, 5, sharpness=2.0)
    better = logits / 1.25
    found = difference(nll, logits, better, labels, from_logits=True)
    own = interval(nll, logits, labels, from_logits=True)
    assert found.value > 0 and found.p_value < 0.01 and found.low > 0
    assert found.high - found.low < own.high - own.low


def test_no_difference_is_not_significant() -> None:
    logits, labels = random_predictions(500, 5)
    same = difference(ece, logits, logits.clone(), labels, from_logits=True)
    assert same.value == 0 and same.p_value == 1
    generator = torch.Generator().manual_seed(0)
    rejected = 0
    for seed in range(60):
        noise = torch.randn(2, 400, 4, generator=generator, dtype=torch.float64)
        base, truth = random_predictions(400, 4, seed)
        rejected += (
            difference(nll, base + noise[0], base + noise[1], truth, from_logits=True, n_resamples=200).p_value < 0.05
        )
    assert rejected <= 9


def test_few_mistakes_are_no_proof_of_a_difference() -> None:
    """Resampling favours the more certain of two predictions, because it never draws a mistake that the data lack."""
    logits = torch.tensor([[3.0, 0.0]], dtype=torch.float64).repeat(200, 1)
    for wrong, is_tested in ((6, False), (ENOUGH - 1, False), (ENOUGH, True), (200 - ENOUGH, True), (190, False)):
        labels = (torch.arange(200) < wrong).long()
        found = difference(nll, logits, logits / 30, labels, from_logits=True)
        values = [nll(each, labels, from_logits=True) for each in (logits, logits / 30)]
        assert found.value == pytest.approx(values[0] - values[1])
        assert (found.p_value < 0.01) == is_tested and (found.p_value == 1) == (not is_tested)
        assert math.isnan(found.low) == math.isnan(found.high) == (not is_tested)


@pytest.mark.parametrize("n_resamples", [20, 99, 500, 501])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_difference_is_significant_where_its_interval_leaves_out_zero(n_resamples: int, share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for value in torch.linspace(-4, 4, 81).tolist():
        drawn = Draws(value + torch.randn(n_resamples, generator=generator).double().exp() - 1, share)
        found = drawn.difference(value, 0.95)
        assert found.low <= found.value <= found.high
        assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0)


def test_settings_are_checked() -> None:
    probs, labels = [[0.9, 0.1], [0.2, 0.8]], [0, 1]
    for level in (95, "high"):
        with pytest.raises(InputError, match="level must be a number above 0 and below 1"):
            interval(ece, probs, labels, level=level)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="n_resamples"):
        interval(ece, probs, labels, n_resamples=1)
    with pytest.raises(InputError, match=r"metric must be one of temperance\.metrics, such as metrics\.ece; got 'ece'"):
        interval("ece", probs, labels)  # type: ignore[arg-type]
    usual: dict[str, Any] = {"metric": ece, "probs_a": probs, "probs_b": probs, "labels": labels}
    for name, value in {"metric": "ece", "level": 95, "n_resamples": 1, "seed": "a"}.items():
        with pytest.raises(InputError, match=f"{name} must be"):
            difference(**{**usual, name: value})


def test_seeded_results_repeat() -> None:
    logits, labels = random_predictions(300, 4)
    first, second, other = (interval(ece, logits, labels, from_logits=True, seed=seed) for seed in (3, 3, 4))
    assert first == second != other


def test_rows_that_are_too_long_to_resample_have_no_interval() -> None:
    """50 resamples of the probabilities of thousands of classes would take minutes."""
    for k, bounded in ((2000, True), (5000, False)):
        logits, labels = random_predictions(60, k, sharpness=0.1)
        labels[:30] = logits[:30].argmax(1)
        found = interval(tace, logits, labels, from_logits=True, n_resamples=3, threshold=1e-4)
        assert math.isnan(found.low) != bounded and found.value > 0
