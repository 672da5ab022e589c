"""What every registered metric does with weights: a whole number counts as that many equal rows."""

import math
from typing import Any

import pytest
import torch

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import METRICS, Metric, ece, mce, risk_coverage_curve, stats
from temperance.metrics.batch import batches
from temperance.metrics.bins import Bins
from temperance.metrics.significance import difference, interval
from temperance.metrics.statistic import Additive, Samples
from temperance.metrics.stream import Stream

each_metric = pytest.mark.parametrize("metric", list(METRICS), ids=METRICS.names)
shares = [metric for metric in METRICS if not metric.whole_weights]
counts = [metric for metric in METRICS if metric.whole_weights]
each_of_shares = pytest.mark.parametrize("metric", shares, ids=[metric.name for metric in shares])
each_of_counts = pytest.mark.parametrize("metric", counts, ids=[metric.name for metric in counts])

# Settings of which each leads through other lines.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adaptive-ece": [{"rule": "interp"}, {"rule": "quantile-left"}, {"n_bins": 400}],
    "classwise-adaptive-ece": [{"rule": "interp"}, {"classes": "present"}],
    "tace": [{"rule": "interp"}, {"threshold": 0.1}],
    "top-k-accuracy": [{"top": 2}],
    "mce": [{"min_count": 5}],
    "aurc": [{"ties": "mean"}, {"area": "trapezoid"}, {"loss": "nll"}],
    "augrc": [{"ties": "mean"}],
    "eaurc": [{"optimum": "exact"}, {"optimum": "exact", "loss": "nll"}],
    "class-loss-spread": [{"reduce": "sum", "ddof": 1}],
    "classwise-ece": [{"norm": "labels", "classes": "present"}],
    "kde-ece": [{"bandwidth": "loo"}],
}


# Of four classes the default would be all of them, and of 180 rows some are below the threshold.
OF_FOUR_CLASSES: dict[str, dict[str, Any]] = {"top-k-accuracy": {"top": 2}, "tace": {"threshold": 0.0}}


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True)


def weighted(n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities with equal ones among them, labels, and whole weights of which some are 0."""
    logits, labels = random_predictions(n, k, seed)
    probs = logits.softmax(1)
    probs[n // 2 :: 3] = probs[0]
    weights = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(seed))
    weights[-1] = 1
    return probs, labels, weights


@each_metric
def test_whole_weights_are_repeated_rows(metric: Metric) -> None:
    for n, k, seed in ((5, 2, 0), (90, 3, 1), (91, 17, 2)):
        probs, labels, weights = weighted(n, k, seed)
        rows = torch.repeat_interleave(weights)
        for settings in ({}, *SETTINGS.get(metric.name, [])):
            repeated = metric(probs[rows], labels[rows], **settings)
            assert metric(probs, labels, weights=weights, **settings) == close(repeated)
            found = metric(probs.log(), labels, weights=weights.float(), from_logits=True, **settings)
            assert found == pytest.approx(repeated, abs=1e-9, nan_ok=True)


@each_metric
def test_weights_of_one_change_nothing(metric: Metric) -> None:
    probs, labels, _ = weighted(80, 4, 3)
    assert metric(probs, labels, weights=torch.ones(80)) == close(metric(probs, labels))


@each_of_shares
def test_only_the_proportions_of_other_weights_matter(metric: Metric) -> None:
    probs, labels, _ = weighted(80, 4, 4)
    weights = torch.rand(80, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    settings = OF_FOUR_CLASSES.get(metric.name, {})
    value = metric(probs, labels, weights=weights, **settings)
    assert value != metric(probs, labels, **settings)
    for scale in (1e-3, 0.37, 1e6):
        assert metric(probs, labels, weights=scale * weights, **settings) == close(value)
    low, high = metric.range
    assert low <= value <= high


@each_of_shares
def test_equal_shares_change_nothing(metric: Metric) -> None:
    # Twelve rows for each of fifteen bins of equal weight, so that no edge falls upon a row.
    probs, labels, _ = weighted(180, 4, 4)
    settings = OF_FOUR_CLASSES.get(metric.name, {})
    found = metric(probs, labels, weights=torch.full((180,), 0.3), **settings)
    assert found == close(metric(probs, labels, **settings))


@each_metric
def test_weight_zero_leaves_the_row_out(metric: Metric) -> None:
    probs, labels, _ = weighted(80, 4, 5)
    kept = torch.arange(80) % 3 > 0
    weights = kept * (1.0 if metric.whole_weights else 0.7) * (1 + labels)
    alone = metric(probs[kept], labels[kept], weights=weights[kept])
    assert metric(probs, labels, weights=weights) == close(alone)


@each_of_counts
def test_metrics_that_count_samples_refuse_other_weights(metric: Metric) -> None:
    probs, labels, _ = weighted(80, 4, 6)
    for weights in (torch.full((80,), 0.5), torch.linspace(0, 2, 80)):
        with pytest.raises(InputError, match=f"{metric.name} depends on the number of samples"):
            metric(probs, labels, weights=weights)


@each_of_counts
def test_metrics_that_count_samples_depend_on_their_number(metric: Metric) -> None:
    changed = []
    for seed in range(4):
        probs, labels, _ = weighted(79, 4, seed)
        thrice = metric(probs, labels, weights=torch.full((79,), 3))
        changed.append(thrice != pytest.approx(metric(probs, labels), rel=1e-9))
    assert any(changed)


@each_metric
def test_weighted_statistics_add(metric: Metric) -> None:
    probs, labels, weights = weighted(90, 3, 7)
    whole = metric(probs, labels, weights=weights)
    stream = Stream(metric)
    for start in range(0, 90, 40):
        part = slice(start, start + 40)
        stream.update(probs[part], labels[part], weights=weights[part])
    assert stream.value == close(whole)
    if metric.name not in ("spiegelhalter-z", "spiegelhalter-p-value"):  # whose sums do not count rows
        with pytest.raises(InputError, match="some of these predictions have weights"):
            metric.stats(probs, labels) + metric.stats(probs, labels, weights=weights)


@each_metric
def test_resamples_of_weighted_rows(metric: Metric) -> None:
    probs, labels, weights = weighted(1000, 3, 8)
    found = interval(metric, probs, labels, weights=weights, n_resamples=30)
    assert found.value == close(metric(probs, labels, weights=weights))
    bounded = metric.interval != "none" and metric.name != "top-k-accuracy"  # of three classes five are all right
    assert found.low <= found.value <= found.high if bounded else math.isnan(found.low)
    (batch,) = batches(probs, labels, weights=weights)
    statistic = metric.of_batch(batch)
    part = torch.arange(len(batch)) % 5
    if isinstance(statistic, Samples):
        chosen = (part == 2).nonzero().squeeze(1)
        drawn = metric.value(statistic.select(chosen))
    else:
        batch.deal(part, 5)
        dealt = metric.of_batch(batch)
        assert isinstance(dealt, Additive)
        (resample,) = dealt.resampled(torch.eye(5, dtype=torch.float64)[2:3])
        drawn = metric.value(resample)
    kept = weights > 0
    mine = part == 2
    assert drawn == close(metric(probs[kept][mine], labels[kept][mine], weights=weights[kept][mine]))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("metric", [m for m in METRICS if isinstance(m.stats([[0.9, 0.1]], [0]), Bins)])
def test_sparse_bins_of_weights(metric: Metric, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels, weights = weighted(90, 3, 9)
    weights = weights if whole or metric.whole_weights else 0.1 * weights
    dense = metric(probs, labels, weights=weights)
    monkeypatch.setattr(stats, "DENSE_BINS", 0)
    halves = [metric.stats(probs[i::2], labels[i::2], weights=weights[i::2]) for i in range(2)]
    assert metric.value(halves[0] + halves[1]) == close(dense)


def test_intervals_of_shares_are_about_as_wide_as_those_of_their_effective_number() -> None:
    probs, labels, _ = weighted(4000, 3, 10)
    weights = torch.rand(4000, generator=torch.Generator().manual_seed(0)).pow(4) + 0.001
    effective = int(weights.sum() ** 2 / weights.square().sum())
    assert effective < 2000
    found = interval(METRICS["accuracy"], probs, labels, weights=weights)
    alone = interval(METRICS["accuracy"], probs[:effective], labels[:effective])
    assert (found.high - found.low) / (alone.high - alone.low) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(("heavy", "equal"), [(1.0, True), (7.0, True), (100.0, False)])
def test_a_few_heavy_mistakes_are_too_few_for_an_interval(heavy: float, equal: bool) -> None:
    """Most of the weight of 40 mistakes is that of two, so resampling learns as much of mistakes as from two."""
    probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64).repeat(1000, 1)
    wrong = torch.arange(1000) < 40
    weights = torch.ones(1000, dtype=torch.float64)
    weights[: 1000 if equal else 2] = heavy
    other = (2 * probs.log()).softmax(1)
    for labels in (wrong.long(), (~wrong).long()):
        found = interval(METRICS["nll"], probs, labels, weights=weights)
        assert math.isnan(found.low) == (not equal)
        by = difference(METRICS["nll"], probs, other, labels, weights=weights)
        assert math.isnan(by.low) == (by.p_value == 1) == (not equal)


def test_differences_of_weighted_predictions() -> None:
    probs, labels, weights = weighted(300, 3, 11)
    other = (2 * probs.log()).softmax(1)
    found = difference(METRICS["nll"], probs, other, labels, weights=weights)
    expected = METRICS["nll"](probs, labels, weights=weights) - METRICS["nll"](other, labels, weights=weights)
    assert found.value == close(expected)


def test_dense_predictions_have_a_weight_for_each_label() -> None:
    probs, labels, weights = weighted(60, 4, 12)
    dense, truth = probs.reshape(2, 5, 6, 4).movedim(-1, 1), labels.reshape(2, 5, 6).clone()
    truth[0, 0] = 255
    kept = truth.reshape(-1) != 255
    found = ece(dense, truth, weights=weights.reshape(2, 5, 6), ignore_index=255)
    assert found == close(ece(probs[kept], labels[kept], weights=weights[kept]))


def test_risk_coverage_curve_with_weights() -> None:
    probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]
    counted = risk_coverage_curve(probs, labels, weights=[1, 2, 1])
    assert counted.risk.tolist() == pytest.approx([0, 1 / 2, 2 / 3, 1 / 2])
    assert counted.coverage_at(0.75) == 0.75
    parts = risk_coverage_curve(probs, labels, weights=[0.5, 1.0, 0.5])
    assert parts.coverage.tolist() == [0.25, 0.75, 1.0] and parts.risk.tolist() == pytest.approx([0, 2 / 3, 1 / 2])
    assert parts.coverage_at(0.99) == 0


def test_bins_with_little_weight_are_not_empty() -> None:
    probs, labels, weights = weighted(50, 3, 13)
    assert mce(probs, labels, weights=1e-6 * weights.double()) == close(mce(probs, labels, weights=weights))


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_wrong_weights_are_refused_with_their_row(wrong: float) -> None:
    with pytest.raises(InputError, match="weights must be finite numbers of at least 0; row 1 has") as caught:
        ece([[0.9, 0.1], [0.8, 0.2]], [0, 1], weights=[1.0, wrong])
    assert caught.value.row == 1


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"weights must have shape \(2,\), one for each label; got \(3,\)"):
        ece([[0.9, 0.1], [0.8, 0.2]], [0, 1], weights=[1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="every weight is 0"):
        ece([[0.9, 0.1], [0.8, 0.2]], [0, 1], weights=[0, 0])
    with pytest.raises(InputError, match=r"counts samples one by one, and these weights stand for 1e\+09 of them"):
        METRICS["aurc"]([[0.9, 0.1], [0.8, 0.2]], [0, 1], weights=[10**9, 1])


def test_predictions_of_weight_zero_are_checked_all_the_same() -> None:
    with pytest.raises(InputError, match="row 1 sums to"):
        ece([[0.9, 0.1], [0.8, 0.8]], [0, 1], weights=[1, 0])
