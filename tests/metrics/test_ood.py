"""Out-of-distribution detection: golden numbers, scikit-learn, brute force, limits."""

import math
from collections import Counter
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import random_predictions
from temperance.errors import InputError
from temperance.metrics import OODResult, aupr, auroc, fpr_at_tpr, ood, ood_intervals, score
from temperance.metrics.detection import Detection, auroc_of, detection, fpr_of, measures_of
from temperance.metrics.tally import clopper_pearson

# A coarse grid ties often.
some_scores = st.lists(st.sampled_from([i / 8 for i in range(-8, 9)]), min_size=1, max_size=30)


def test_golden(vectors: Any) -> None:
    v = vectors["ood"]
    assert auroc(v["id_conf"], v["ood_conf"]) == v["auroc"]
    assert fpr_at_tpr(v["id_conf"], v["ood_conf"]) == v["fpr95_step"]
    assert fpr_at_tpr(v["id_conf"], v["ood_conf"], threshold="percentile") == v["fpr95_percentile"]


@pytest.mark.parametrize("threshold, limit", [("step", 0.6), ("percentile", 0.64)])
def test_thresholds(vectors: Any, threshold: str, limit: float) -> None:
    inside = vectors["ood"]["id_conf"]
    assert limit == vectors["ood"][f"thr_{threshold}"]
    assert fpr_at_tpr(inside, [limit + 1e-9], threshold=threshold) == 1.0
    assert fpr_at_tpr(inside, [limit - 1e-9], threshold=threshold) == 0.0


@given(some_scores, some_scores)
@settings(max_examples=60, deadline=None)
def test_brute_force(inside: list[float], outside: list[float]) -> None:
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(np.mean(pairs), abs=1e-15)
    for tpr in (0.07, 0.5, 0.8, 0.95, 1.0):
        limit = max(t for t in inside if np.mean(np.array(inside) >= t) >= tpr)
        assert fpr_at_tpr(inside, outside, tpr=tpr) == np.mean(np.array(outside) >= limit)
    assert aupr(inside, outside) == pytest.approx(slow_precision(inside, outside), abs=1e-12)
    turned = [[-value for value in side] for side in (outside, inside)]
    assert aupr(inside, outside, positive="out") == pytest.approx(slow_precision(*turned), abs=1e-12)


def slow_precision(wanted: list[float], other: list[float]) -> float:
    """The precision at the score of each sample that is looked for, averaged over them."""
    found = []
    for limit in wanted:
        right, wrong = (sum(value >= limit for value in side) for side in (wanted, other))
        found.append(right / (right + wrong))
    return float(np.mean(found))


@given(some_scores, some_scores)
@settings(max_examples=60, deadline=None)
def test_swapping_the_sides_turns_it_round(inside: list[float], outside: list[float]) -> None:
    assert auroc(inside, outside) == pytest.approx(1 - auroc(outside, inside), abs=1e-15)


def test_scikit_learn_agrees() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 3000).round(2), rng.normal(0, 1, 2000).round(2)
    truth = np.concatenate([np.ones(3000), np.zeros(2000)])
    both = np.concatenate([inside, outside])
    assert auroc(inside, outside) == pytest.approx(metrics.roc_auc_score(truth, both), abs=1e-12)
    assert aupr(inside, outside) == pytest.approx(metrics.average_precision_score(truth, both), abs=1e-12)
    other_way = metrics.average_precision_score(1 - truth, -both)
    assert aupr(inside, outside, positive="out") == pytest.approx(other_way, abs=1e-12)
    fpr, tpr, _ = metrics.roc_curve(truth, both, drop_intermediate=False)
    assert fpr_at_tpr(inside, outside) == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)


@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 1.0])
def test_percentile_is_that_of_numpy(tpr: float) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 19, 500):
        inside, outside = rng.random(n), rng.random(800)
        limit = np.percentile(inside, 100 * (1 - tpr))
        assert fpr_at_tpr(inside, outside, tpr=tpr, threshold="percentile") == np.mean(outside >= limit)


def test_limits() -> None:
    assert (auroc([0.5] * 7, [0.5] * 3), fpr_at_tpr([0.5] * 7, [0.5] * 3)) == (0.5, 1.0)
    assert (auroc([2.0, 3.0], [0.0, 1.0]), fpr_at_tpr([2.0, 3.0], [0.0, 1.0])) == (1.0, 0.0)
    assert (auroc([0.0], [1.0]), fpr_at_tpr([0.0], [1.0])) == (0.0, 1.0)
    for threshold in ("step", "percentile"):
        assert fpr_at_tpr([0.5] * 7, [0.5] * 3, threshold=threshold) == 1.0


def test_statistics_add() -> None:
    rng = np.random.default_rng(2)
    inside, outside = rng.random(50), rng.random(40)
    both = detection(inside[:20], outside[:10]) + detection(inside[20:], outside[10:])
    assert isinstance(both, Detection) and len(both) == 90
    assert auroc_of(both) == auroc(inside, outside)
    assert fpr_of(both) == fpr_at_tpr(inside, outside)


@pytest.mark.parametrize("name", ["msp", "margin", "negative-entropy", "energy", "max-logit"])
def test_of_predictions(name: str) -> None:
    familiar, _ = random_predictions(200, 4, sharpness=3.0)
    strange, _ = random_predictions(100, 4, seed=1, sharpness=1.0)
    found = ood(familiar, strange, score=name, from_logits=True)
    a, b = (score(logits, name, from_logits=True) for logits in (familiar, strange))
    assert found == OODResult(auroc(a, b), fpr_at_tpr(a, b), aupr(a, b), aupr(a, b, positive="out"))
    assert found.auroc > 0.7
    assert ood(familiar.numpy(), strange.tolist(), score=name, from_logits=True) == found


def test_predictions_of_other_classes_can_be_compared() -> None:
    assert ood(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.4, 0.3, 0.3]])) == OODResult(1.0, 0.0, 1.0, 1.0)


def test_bad_input_is_refused() -> None:
    for inside, outside, name in (([], [0.5], "id_scores"), ([0.5], [], "ood_scores"), ([[0.5]], [0.5], "id_scores")):
        for measure in (auroc, fpr_at_tpr, aupr):
            with pytest.raises(InputError, match=f"{name} must have shape \\(n,\\), one score"):
                measure(inside, outside)
    with pytest.raises(InputError, match="ood_scores must be finite; sample 1 has nan"):
        auroc([0.5], [0.1, float("nan")])
    for tpr in (0.0, 1.5, -1, float("nan"), "0.95"):
        with pytest.raises(InputError, match="tpr must be a number above 0 and up to 1"):
            fpr_at_tpr([0.5], [0.5], tpr=tpr)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threshold must be one of step, percentile"):
        fpr_at_tpr([0.5], [0.5], threshold="linear")
    with pytest.raises(InputError, match="positive must be one of in, out"):
        aupr([0.5], [0.5], positive="inside")
    with pytest.raises(InputError, match="energy score needs logits"):
        ood([[0.5, 0.5]], [[0.5, 0.5]], score="energy")


def test_intervals_cover_the_truth_and_hold_the_value() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = 0.5 * (1 + math.erf(1 / 2))  # two normal distributions one apart
    covered = 0
    for _ in range(60):
        inside, outside = 1 + torch.randn(200, generator=generator), torch.randn(150, generator=generator)
        found = ood_intervals(inside, outside, n_resamples=100)
        assert found["auroc"].value == auroc(inside, outside)
        assert found["fpr95"].low <= found["fpr95"].value <= found["fpr95"].high
        covered += found["auroc"].low <= truth <= found["auroc"].high
    assert covered >= 50


@pytest.mark.parametrize("n", [50, 200])
def test_intervals_hold_for_few_samples_and_small_errors(n: int) -> None:
    generator, normal = torch.Generator().manual_seed(0), NormalDist()
    shift = normal.inv_cdf(0.95) + normal.inv_cdf(0.88)  # between two normal distributions
    truth = {"auroc": normal.cdf(shift / math.sqrt(2)), "fpr95": 0.12}
    covered = Counter[str]()
    for _ in range(60):
        inside, outside = torch.randn(n, generator=generator), torch.randn(50, generator=generator) - shift
        found = ood_intervals(inside, outside, n_resamples=200)
        covered.update(name for name in truth if found[name].low <= truth[name] <= found[name].high)
    assert min(covered[name] for name in truth) >= 56


def test_sides_without_a_mistake_have_the_interval_of_a_frequency() -> None:
    found = ood_intervals([0.9] * 300, [0.1] * 100, n_resamples=2000)["fpr95"]
    _, high = clopper_pearson(torch.tensor(0), torch.tensor(100), 0.95)
    assert (found.value, found.low) == (0, 0) and found.high == pytest.approx(float(high), rel=0.15)


def test_weights_are_those_of_repeated_scores() -> None:
    rng = torch.Generator().manual_seed(1)
    inside, outside = ((torch.randn(n, generator=rng) * 3).round() for n in (57, 40))  # many ties
    drawn = [torch.randint(3, (30, n), generator=rng) for n in (57, 40)]
    found = measures_of(detection(inside, outside), *(counts.double() for counts in drawn))
    for i in range(30):
        a, b = inside.repeat_interleave(drawn[0][i]), outside.repeat_interleave(drawn[1][i])
        assert float(found["auroc"][i]) == pytest.approx(auroc(a, b), abs=1e-12)
        assert float(found["fpr95"][i]) == pytest.approx(fpr_at_tpr(a, b), abs=1e-12)
        assert float(found["aupr-in"][i]) == pytest.approx(aupr(a, b), abs=1e-12)
        assert float(found["aupr-out"][i]) == pytest.approx(aupr(a, b, positive="out"), abs=1e-12)
