"""Risk–coverage metrics: golden numbers, slow references, properties, limits."""

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import random_predictions
from reference import harmonic_weights
from temperance.errors import InputError
from temperance.metrics import augrc, aurc, coverage_at_risk, eaurc, risk_at_coverage, risk_coverage_curve
from temperance.metrics.base import Metric
from temperance.metrics.selective import Ranked, RiskCoverage

TINY = 2e-6  # the golden numbers are rounded to six decimals
Array = npt.NDArray[np.float64]


def ranked(score: Any, loss: Any) -> Ranked:
    return Ranked(torch.tensor(score, dtype=torch.float64), torch.tensor(loss, dtype=torch.float64))


def slow_risks(score: Array, loss: Array) -> list[float]:
    """The selective risk of the surest sample, the two surest, and so on."""
    order = sorted(range(len(score)), key=lambda i: -score[i])
    return [float(np.mean([loss[i] for i in order[: m + 1]])) for m in range(len(score))]


# Scores on a coarse grid tie often.
samples = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([i / 10 for i in range(11)]), min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n),
    )
)
real_losses = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0, 1), min_size=n, max_size=n), st.lists(st.floats(0, 50), min_size=n, max_size=n)
    )
)


def test_golden_hand(vectors: Any) -> None:
    v = vectors["aurc_hand"]
    found = ranked(v["score"], v["loss"])
    assert aurc.value(found) == pytest.approx(v["aurc"], abs=TINY)
    assert eaurc.value(found) == pytest.approx(v["eaurc"], abs=TINY)
    assert eaurc.value(found, optimum="exact") == pytest.approx(v["eaurc_exact"], abs=TINY)
    curve = RiskCoverage.of(found)
    assert curve.selective_risk(0.7) == pytest.approx(v["risk_at_tau_0p7"], abs=TINY)
    assert curve.coverage_at(0.7) == v["coverage_at_tau_0p7"]


def test_golden_ties(vectors: Any) -> None:
    v = vectors["aurc_ties"]
    found = ranked(v["score"], v["loss"])
    assert aurc.value(found) == pytest.approx(v["stable"], abs=TINY)
    assert aurc.value(found, ties="mean") == pytest.approx(v["tie_mean"], abs=TINY)


def test_golden_fixture_a(vectors: Any, fixture_a: Any) -> None:
    v = vectors["aurc_A"]
    logits, labels = fixture_a
    assert aurc(logits, labels, from_logits=True) == pytest.approx(v["aurc"], abs=TINY)
    assert eaurc(logits, labels, from_logits=True) == pytest.approx(v["eaurc"], abs=TINY)
    assert eaurc(logits, labels, from_logits=True, optimum="exact") == pytest.approx(v["eaurc_exact"], abs=TINY)
    curve = risk_coverage_curve(logits, labels, from_logits=True)
    assert curve.risk.tolist() == pytest.approx(v["risks"], abs=TINY)
    assert float(curve.risk[-1]) == pytest.approx(v["err"], abs=TINY)


def test_golden_weighted_cross_entropy(vectors: Any, fixture_a: Any) -> None:
    v = vectors["aurc_loss_A"]
    logits, labels = fixture_a
    assert aurc(logits, labels, from_logits=True, loss="nll") == pytest.approx(v["loss_mean"], abs=TINY)
    weights = harmonic_weights(6)
    assert [float(weights[rank - 1]) for rank in v["rank"]] == pytest.approx(v["alpha"], abs=TINY)


def test_golden_degenerate(vectors: Any, fixture_a: Any) -> None:
    score = vectors["aurc_hand"]["score"]
    for name, loss in (("all_correct", 0.0), ("all_wrong", 1.0)):
        area, optimum = vectors["eaurc_degenerate"][name]
        found = ranked(score, [loss] * 4)
        assert aurc.value(found) == area
        assert eaurc.value(found) == area - optimum == 0.0
        assert eaurc.value(found, optimum="exact") == 0.0


def test_golden_harmonic_weights(vectors: Any) -> None:
    assert harmonic_weights(4).tolist() == pytest.approx(vectors["harmonic_weights_n4"]["alphas"], abs=TINY)


@given(real_losses)
@settings(max_examples=60, deadline=None)
def test_weighted_form_equals_cumulative_form(found: tuple[list[float], list[float]]) -> None:
    score, loss = found
    # Of equal scores the first to come is the surer, so it has the higher ascending rank.
    ascending = sorted(range(len(score)), key=lambda i: (score[i], -i))
    weighted = harmonic_weights(len(loss)) * torch.tensor([loss[i] for i in ascending], dtype=torch.float64)
    assert float(weighted.mean()) == pytest.approx(aurc.value(ranked(score, loss)), abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 200_000])
def test_harmonic_weights_are_sums_of_reciprocals(n: int) -> None:
    sums = torch.arange(n, 0, -1, dtype=torch.float64).reciprocal().cumsum(0)
    weights = harmonic_weights(n)
    assert torch.allclose(weights, sums, rtol=1e-8, atol=1e-11)
    assert float(weights.mean()) == pytest.approx(1.0, abs=1e-9)


@given(samples)
@example(([0.5], [1.0]))
@settings(max_examples=60, deadline=None)
def test_slow_reference(found: tuple[list[float], list[float]]) -> None:
    score, loss = np.array(found[0]), np.array(found[1])
    n, risks = len(loss), slow_risks(score, loss)
    stats = ranked(*found)
    assert RiskCoverage.of(stats).risk.tolist() == pytest.approx(risks)
    assert aurc.value(stats) == pytest.approx(np.mean(risks))
    assert augrc.value(stats) == pytest.approx(np.mean([risk * (m + 1) / n for m, risk in enumerate(risks)]))
    if n > 1:
        coverage = np.arange(1, n + 1) / n
        area = sum((risks[i] + risks[i + 1]) / 2 * (coverage[i + 1] - coverage[i]) for i in range(n - 1))
        assert aurc.value(stats, area="trapezoid") == pytest.approx(area / (1 - 1 / n))
    for share in (0.07, 0.3, 0.5, 0.7, 0.9, 1.0):
        kept = next(m for m in range(1, n + 1) if m / n >= share)
        assert risk_at_coverage.value(stats, coverage=share) == pytest.approx(risks[kept - 1])
    for limit in (0.0, 0.05, 0.2, 0.5, 1.0):
        kept = max(
            (m for m in range(1, n + 1) if loss[np.argsort(-score, kind="stable")][:m].mean() <= limit), default=0
        )
        assert coverage_at_risk.value(stats, risk=limit) == kept / n


@given(samples)
@settings(max_examples=60, deadline=None)
def test_selective_risk_at_a_threshold(found: tuple[list[float], list[float]]) -> None:
    score, loss = np.array(found[0]), np.array(found[1])
    for ties in ("stable", "mean"):
        curve = RiskCoverage.of(ranked(*found), ties=ties)
        for threshold in (0.0, 0.35, 0.5, 1.0):
            kept = score >= threshold
            assert curve.coverage_at(threshold) == kept.mean()
            if kept.any():
                assert curve.selective_risk(threshold) == pytest.approx(loss[kept].mean())
            else:
                assert math.isnan(curve.selective_risk(threshold))


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_mean_of_ties_is_the_mean_over_their_orders(pairs: list[tuple[float, float]]) -> None:
    every = [ranked(*zip(*order, strict=True)) for order in itertools.permutations(pairs)]
    for metric in (aurc, augrc):
        assert metric.value(every[0], ties="mean") == pytest.approx(np.mean([metric.value(one) for one in every]))
        averaged = [metric.value(one, ties="mean") for one in every]
        assert averaged == pytest.approx([averaged[0]] * len(every), abs=1e-12)


@given(samples)
@settings(max_examples=60, deadline=None)
def test_excess_is_never_negative(found: tuple[list[float], list[float]]) -> None:
    stats = ranked(*found)
    exact = eaurc.value(stats, optimum="exact")
    assert 0 <= exact <= eaurc.value(stats) + 1e-12
    # The area when the wrong predictions come last: no risk until they begin.
    n, wrong = len(found[1]), int(sum(found[1]))
    best = sum((m - (n - wrong)) / m for m in range(n - wrong + 1, n + 1)) / n
    assert exact == pytest.approx(aurc.value(stats) - best, abs=1e-12)


def test_a_perfect_order_has_no_excess() -> None:
    stats = ranked([0.9, 0.8, 0.7, 0.6, 0.5], [0, 0, 0, 1, 1])
    assert eaurc.value(stats, optimum="exact") == 0.0
    assert eaurc.value(stats) > 0.0
    many = ranked(np.linspace(1, 0, 20_000), np.arange(20_000) >= 15_000)
    assert eaurc.value(many) == pytest.approx(0.0, abs=1e-4)


def test_exact_excess_of_a_real_loss() -> None:
    logits, labels = random_predictions(100, 4)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none").sort().values
    best = float((losses.cumsum(0) / torch.arange(1, 101)).mean())
    found = eaurc(logits, labels, from_logits=True, loss="nll", optimum="exact")
    assert found == pytest.approx(aurc(logits, labels, from_logits=True, loss="nll") - best, abs=1e-12)
    with pytest.raises(InputError, match='pass optimum="exact"'):
        eaurc(logits, labels, from_logits=True, loss="nll")


def test_generalised_area_of_the_paper() -> None:
    # Trapezoidal area from coverage 0, as the paper's program measures it.
    score, loss = np.array([0.9, 0.8, 0.7, 0.6]), np.array([0.0, 1.0, 0.0, 1.0])
    joint = np.concatenate([[0.0], np.cumsum(loss) / 4])
    area = float(((joint[1:] + joint[:-1]) / 2).mean())
    assert augrc.value(ranked(score, loss)) - loss.mean() / 8 == pytest.approx(area)


@pytest.mark.parametrize("metric", [aurc, augrc, risk_at_coverage], ids=lambda m: str(m.name))
@pytest.mark.parametrize("ties", ["stable", "mean"])
def test_limits(metric: Metric, ties: str) -> None:
    assert metric.value(ranked([0.7], [0.0]), ties=ties) == 0.0
    assert metric.value(ranked([0.7], [1.0]), ties=ties) == 1.0
    assert metric.value(ranked([0.5] * 8, [0.0] * 8), ties=ties) == 0.0
    all_wrong = 9 / 16 if metric is augrc else 1.0
    assert metric.value(ranked([0.5] * 8, [1.0] * 8), ties=ties) == all_wrong


def test_equal_scores_averaged_have_the_error_rate_everywhere() -> None:
    stats = ranked([0.5] * 5, [1, 0, 0, 1, 0])
    assert RiskCoverage.of(stats, ties="mean").risk.tolist() == pytest.approx([0.4] * 5)
    assert aurc.value(stats, ties="mean", area="trapezoid") == pytest.approx(0.4)


def test_coverage_at_risk_limits() -> None:
    assert coverage_at_risk.value(ranked([0.9, 0.8], [1, 1])) == 0.0
    assert coverage_at_risk.value(ranked([0.9, 0.8], [0, 0]), risk=0.0) == 1.0
    # A surest sample that is wrong does not end the search.
    assert coverage_at_risk.value(ranked([0.9] + [0.5] * 19, [1] + [0] * 19)) == 1.0


@pytest.mark.parametrize("name", ["msp", "margin", "negative-entropy", "energy"])
def test_scores_change_the_order_only(name: str) -> None:
    logits, labels = random_predictions(300, 5)
    curve = risk_coverage_curve(logits, labels, from_logits=True, score=name)
    error = float((logits.argmax(1) != labels).double().mean())
    assert float(curve.risk[-1]) == pytest.approx(error)
    assert bool((curve.threshold.diff() <= 0).all())
    assert float(curve.risk.mean()) == pytest.approx(aurc(logits, labels, from_logits=True, score=name))


def test_settings_are_checked() -> None:
    probs, labels = [[0.9, 0.1], [0.8, 0.2]], [0, 1]
    with pytest.raises(InputError, match="no confidence score named 'mps'; did you mean msp"):
        aurc(probs, labels, score="mps")
    for wrong in ({"score": "mps"}, {"loss": "mse"}, {"ties": "random"}):
        with pytest.raises(InputError, match=r"must be one of|did you mean msp"):
            risk_coverage_curve(probs, labels, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="energy score needs logits"):
        aurc(probs, labels, score="energy")


@pytest.mark.shared
def test_real_predictions(shared_data: Any) -> None:
    data = np.load(shared_data / "logits" / "c100_resnet56.npz")
    logits, labels = data["logits"], data["labels"]
    error = float((logits.argmax(1) != labels).mean())
    for name in ("msp", "margin", "negative-entropy"):
        assert (
            0.0
            < eaurc(logits, labels, from_logits=True, score=name)
            < aurc(logits, labels, from_logits=True, score=name)
            < error
        )
    curve = risk_coverage_curve(logits, labels, from_logits=True)
    kept = coverage_at_risk(logits, labels, from_logits=True, risk=0.1)
    assert float(curve.risk[round(kept * len(labels)) - 1]) <= 0.1
