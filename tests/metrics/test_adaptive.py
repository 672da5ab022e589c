"""Equal-mass bins: golden numbers, slow references of each rule, properties, limits."""

import itertools
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import random_predictions
from temperance.metrics import adaptive_ece, classwise_adaptive_ece, ece, ece_sweep, tace
from temperance.metrics.adaptive import Rule, even_cuts
from temperance.metrics.stats import TopLabels

TINY = 2e-6  # the golden numbers are rounded to six decimals
Array = npt.NDArray[np.float64]


def top(confidence: Any, correct: Any) -> TopLabels:
    return TopLabels(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct).bool())


def slow_adaptive(confidence: Array, correct: Array, n_bins: int, rule: str) -> float:
    """Each rule with a mask for each bin, as the programs that it is named after do."""
    n = len(confidence)
    ranked = np.sort(confidence)
    if rule == "sorted":
        order = sorted(range(n), key=lambda i: confidence[i])
        bins = np.array_split(order, min(n_bins, n))
    elif rule == "interp":
        edges = np.interp(np.arange(n_bins + 1) * n / n_bins, np.arange(n), ranked)
        pairs = itertools.pairwise(edges)
        bins = [np.flatnonzero((confidence > low) & (confidence <= high)) for low, high in pairs]
    else:
        edges = ranked[[i * (n - 1) // n_bins for i in range(n_bins + 1)]]
        pairs = itertools.pairwise(edges)
        bins = [np.flatnonzero((confidence >= low) & (confidence < high)) for low, high in pairs]
        last = np.flatnonzero(confidence == edges[-1])
        bins[-1] = np.union1d(bins[-1], last)
    return float(sum(len(b) / n * abs(correct[b].mean() - confidence[b].mean()) for b in bins if len(b)))


def slow_sweep(confidence: Array, correct: Array) -> float:
    order = sorted(range(len(confidence)), key=lambda i: confidence[i])
    best = 0.0
    for n_bins in range(1, len(order) + 1):
        bins = np.array_split(order, n_bins)
        # Multiplied out, so that equal accuracies compare equal.
        shares = [(int(correct[b].sum()), len(b)) for b in bins]
        if any(h1 * n2 > h2 * n1 for (h1, n1), (h2, n2) in itertools.pairwise(shares)):
            break
        best = sum(len(b) * abs(correct[b].mean() - confidence[b].mean()) for b in bins) / len(order)
    return best


# Confidences on a coarse grid tie often; others are any float.
samples = st.lists(
    st.tuples(
        st.sampled_from([i / 16 for i in range(17)]) | st.floats(0, 1, width=32) | st.floats(0, 1), st.booleans()
    ),
    min_size=1,
    max_size=50,
)


def test_golden(vectors: Any) -> None:
    v = vectors["aece"]
    found = top(v["conf"], v["correct"])
    assert adaptive_ece.value(found, n_bins=v["M"]) == pytest.approx(v["sorted"], abs=TINY)
    assert adaptive_ece.value(found, n_bins=v["M"], rule="interp") == pytest.approx(v["interp"], abs=TINY)


def test_golden_b(vectors: Any) -> None:
    v = vectors["ece_B"]
    found = top(v["conf"], v["correct"])
    assert adaptive_ece.value(found, n_bins=4) == pytest.approx(v["aece4"], abs=TINY)
    assert adaptive_ece.value(found, n_bins=4, rule="interp") == pytest.approx(v["aece4_interp"], abs=TINY)
    assert adaptive_ece.value(found) == pytest.approx(v["aece15"], abs=TINY)


def test_golden_fixture_a(vectors: Any, fixture_a: Any) -> None:
    v = vectors["aece_A"]
    logits, labels = fixture_a
    assert adaptive_ece(logits, labels, from_logits=True) == pytest.approx(v["sorted15"], abs=TINY)
    assert adaptive_ece(logits, labels, from_logits=True, n_bins=3) == pytest.approx(v["sorted3"], abs=TINY)
    found = adaptive_ece(logits, labels, from_logits=True, n_bins=3, rule="interp")
    assert found == pytest.approx(v["interp3"], abs=TINY)


@pytest.mark.parametrize("rule", get_args(Rule))
@given(samples, st.integers(1, 20))
@example([(0.5, True), (0.5, False), (0.5, False)], 2)
def test_agrees_with_the_slow_rule(rule: str, pairs: list[tuple[float, bool]], n_bins: int) -> None:
    confidence, correct = np.array([c for c, _ in pairs]), np.array([float(y) for _, y in pairs])
    expected = slow_adaptive(confidence, correct, n_bins, rule)
    assert adaptive_ece.value(top(confidence, correct), n_bins=n_bins, rule=rule) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_the_slow_rule_on_many_samples(dtype: torch.dtype) -> None:
    logits, labels = random_predictions(5000, 10)
    probs = logits.softmax(1).to(dtype)
    confidence, prediction = probs.double().max(1)
    expected = slow_adaptive(confidence.numpy(), (prediction == labels).double().numpy(), 15, "sorted")
    assert adaptive_ece(probs, labels) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 300), st.integers(1, 300))
def test_even_cuts_are_those_of_array_split(n: int, n_bins: int) -> None:
    sizes = [len(part) for part in np.array_split(np.arange(n), n_bins)]
    assert even_cuts(n, n_bins).diff().tolist() == sizes


def test_interp_leaves_out_the_lowest_confidence() -> None:
    found = top([0.5, 0.5, 0.9, 0.9], [0, 0, 1, 1])
    assert adaptive_ece.value(found, n_bins=2, rule="interp") == pytest.approx(0.05)
    assert adaptive_ece.value(found, n_bins=2) == pytest.approx(0.3)


def test_quantile_left_keeps_equal_confidences_together() -> None:
    """The inner edge falls on 0.5, so the first of the bins [0.5, 0.5) and [0.5, 0.9] is empty."""
    found = top([0.5, 0.5, 0.9, 0.9], [0, 0, 1, 1])
    assert adaptive_ece.value(found, n_bins=2, rule="quantile-left") == pytest.approx(0.2)


def test_one_bin_is_the_gap_of_the_means() -> None:
    probs, labels = random_predictions(100, 5)
    probs = probs.softmax(1)
    assert adaptive_ece(probs, labels, n_bins=1) == pytest.approx(ece(probs, labels, n_bins=1), abs=1e-12)


def test_classwise_is_the_mean_over_columns() -> None:
    logits, labels = random_predictions(400, 5)
    labels = labels % 3
    probs = logits.softmax(1)
    each = [slow_adaptive(probs[:, j].numpy(), (labels == j).double().numpy(), 15, "sorted") for j in range(5)]
    assert classwise_adaptive_ece(probs, labels) == pytest.approx(np.mean(each), abs=1e-12)
    assert classwise_adaptive_ece(probs, labels, classes="present") == pytest.approx(np.mean(each[:3]), abs=1e-12)


@given(samples)
@example([(0.1, True), (0.2, False), (0.3, True), (0.4, True)])
@example([(0.3, True)] * 5 + [(0.2, False)])
def test_sweep_agrees_with_trying_every_number(pairs: list[tuple[float, bool]]) -> None:
    confidence, correct = np.array([c for c, _ in pairs]), np.array([float(y) for _, y in pairs])
    assert ece_sweep.value(top(confidence, correct)) == pytest.approx(slow_sweep(confidence, correct), abs=1e-12)


def test_sweep_takes_single_samples_where_accuracy_rises_throughout() -> None:
    found = top(np.linspace(0.3, 1, 1000), [0] * 400 + [1] * 600)
    singles = float((found.correct.double() - found.confidence).abs().mean())
    assert ece_sweep.value(found) == pytest.approx(singles, abs=1e-12)


def test_sweep_is_less_biased_for_a_calibrated_model() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(300, 200, generator=generator, dtype=torch.float64)
    correct = torch.rand(300, 200, generator=generator) < confidence
    runs = [TopLabels(c, y) for c, y in zip(confidence, correct, strict=True)]
    mean_sweep = np.mean([ece_sweep.value(run) for run in runs])
    assert mean_sweep < 0.7 * np.mean([adaptive_ece.value(run) for run in runs])


@pytest.mark.parametrize("rule", get_args(Rule))
def test_limits(rule: str) -> None:
    one = top([0.7], [1])
    assert adaptive_ece.value(one, rule=rule) == pytest.approx(0 if rule == "interp" else 0.3)
    equal = top([0.6] * 10, [1] * 6 + [0] * 4)
    assert adaptive_ece.value(equal, n_bins=1, rule="sorted") == pytest.approx(0, abs=1e-12)
    assert adaptive_ece.value(equal, rule="quantile-left") == pytest.approx(0, abs=1e-12)
    certain = top([1.0] * 20, [0] * 20)
    assert adaptive_ece.value(certain, rule=rule) == (0 if rule == "interp" else 1)
    assert ece_sweep.value(one) == pytest.approx(0.3)
    assert ece_sweep.value(certain) == 1


@pytest.mark.parametrize("rule", get_args(Rule))
@pytest.mark.parametrize("threshold", [1e-3, 0.05, 0.5])
def test_tace_is_adaptive_ece_of_what_exceeds_the_threshold(rule: str, threshold: float) -> None:
    logits, labels = random_predictions(300, 6, sharpness=4.0)
    probs = logits.softmax(1).numpy()
    errors = []
    for j in range(6):
        above = probs[:, j] > threshold
        happened = (labels.numpy()[above] == j).astype(float)
        errors.append(slow_adaptive(probs[above, j], happened, 7, rule))
    found = tace(probs, labels, n_bins=7, rule=rule, threshold=threshold)
    assert found == pytest.approx(np.mean(errors), abs=1e-12)


def test_tace_without_a_threshold_is_the_classwise_error() -> None:
    logits, labels = random_predictions(200, 5)
    whole = classwise_adaptive_ece(logits, labels, from_logits=True)
    assert tace(logits, labels, from_logits=True, threshold=0.0) == pytest.approx(whole, abs=1e-12)


def test_tace_leaves_out_classes_that_are_never_predicted() -> None:
    probs = np.array([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.3, 0.7, 0.0]])
    assert tace(probs, [0, 1, 1]) == pytest.approx(tace(probs[:, :2], [0, 1, 1]), abs=1e-12)
    assert tace([[0.25] * 4] * 3, [0, 1, 2], threshold=0.5) == 0.0
