"""Batch-level penalties: golden numbers, pairs and bins written out in NumPy, limits, degenerate batches."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import KDEXE, MDCA, MMCE, CrossEntropy, Focal, Loss, SoftAvUC, SoftECE, make_loss
from temperance.losses.batch import laplacian_energy
from temperance.metrics import ece, kde_ece_canonical

TINY = 2e-6  # the golden numbers are rounded to six decimals
Array = npt.NDArray[np.float64]

PENALTIES: dict[str, Loss] = {
    "mmce": MMCE(),
    "mmce-weighted": MMCE(form="weighted"),
    "mmce-root": MMCE(form="root"),
    "mdca": MDCA(),
    "kde-xe": KDEXE(bandwidth=0.1),
    "soft-ece": SoftECE(),
    "soft-ece-1": SoftECE(p=1.0),
    "soft-avuc": SoftAvUC(),
}


def penalty(loss: Loss, logits: Tensor, labels: Tensor) -> float:
    return float((loss(logits, labels) - CrossEntropy()(logits, labels)).detach())


def top_label(logits: Tensor, labels: Tensor) -> tuple[Array, Array, Array]:
    probs = logits.softmax(1).numpy()
    return probs, probs.max(1), (probs.argmax(1) == labels.numpy()).astype(float)


@pytest.fixture
def a(fixture_a: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(fixture_a[0]), torch.from_numpy(fixture_a[1])


# ---------------------------------------------------------------------------------------------------------------- mmce


def slow_mmce(confidence: Array, correct: Array, form: str, double_norm: bool = False) -> float:
    """Pair by pair; the weighted form as three means."""
    kernel = np.exp(-np.abs(confidence[:, None] - confidence) / 0.4)
    if form != "weighted":
        residual = correct - confidence
        squared = float(residual @ kernel @ residual) / len(confidence) ** 2
        return squared if form == "plain" else squared**0.5
    right, wrong = correct == 1, correct == 0
    m, n = right.sum(), wrong.sum()
    if not m or not n:
        return 0.0
    up, down = 1 - confidence[right], confidence[wrong]
    both_right = (up[:, None] * up * kernel[right][:, right]).mean()
    both_wrong = (down[:, None] * down * kernel[wrong][:, wrong]).mean()
    mixed = (up[:, None] * down * kernel[right][:, wrong]).mean()
    if double_norm:
        both_right, both_wrong, mixed = both_right / m**2, both_wrong / n**2, mixed / (m * n)
    return float(np.sqrt(both_right + both_wrong - 2 * mixed))


def test_mmce_golden(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    v = vectors["mmce_A"]
    for loss, expected in (
        (MMCE(form="weighted"), v["mmce_w"]),
        (MMCE(form="weighted", double_norm=True), v["mmce_w_public_code"]),
        (MMCE(), v["mmce_squared"]),
        (MMCE(form="root"), v["mmce"]),
        (MMCE(strength=3.0, form="root"), 3 * v["mmce"]),
    ):
        assert penalty(loss, *a) == pytest.approx(expected, abs=3 * TINY)
    hand = vectors["mmce_hand"]
    confidence = torch.tensor(hand["conf"], dtype=torch.float64)
    logits = torch.stack([confidence, 1 - confidence], 1).log()
    labels = 1 - torch.tensor(hand["correct"])
    assert penalty(MMCE(strength=1.0, form="plain"), logits, labels) == pytest.approx(hand["mmce_squared"], abs=TINY)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 60), k=st.integers(2, 5), seed=st.integers(0, 99), sharpness=st.floats(0.1, 20))
def test_mmce_is_the_sum_over_pairs(n: int, k: int, seed: int, sharpness: float) -> None:
    logits, labels = random_predictions(n, k, seed, sharpness)
    _, confidence, correct = top_label(logits, labels)
    for form, double_norm in (("weighted", False), ("weighted", True), ("plain", False), ("root", False)):
        found = penalty(make_loss("mmce", strength=1.0, form=form, double_norm=double_norm), logits, labels)
        near = 1e-12 if form == "plain" else 3e-6  # below 1e-5 the root is a straight line
        assert found == pytest.approx(slow_mmce(confidence, correct, form, double_norm), abs=near)
        assert found >= 0


def test_mmce_is_zero_for_honest_confidence_and_without_a_comparison() -> None:
    sure = 200 * torch.eye(4, dtype=torch.float64)
    labels = torch.arange(4)
    for form in ("plain", "root"):
        assert penalty(MMCE(form=form), sure, labels) == 0
    unsure = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    right = unsure.argmax(1)
    for everyone in (right, (right + 1) % 4):
        loss = MMCE(form="weighted")(unsure, everyone)
        plain = CrossEntropy()(unsure, everyone)
        assert loss == plain
        (found,) = torch.autograd.grad(loss, unsure)
        (expected,) = torch.autograd.grad(plain, unsure)
        assert torch.equal(found, expected)


def test_mmce_has_no_matrix_of_pairs() -> None:
    places = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    amounts = torch.ones_like(places) / len(places)
    # The mean of exp(−|x − y| / w) over uniform x, y is 2w − 2w² (1 − exp(−1/w)).
    w = 0.4
    expected = 2 * w - 2 * w * w * (1 - np.exp(-1 / w))
    assert float(laplacian_energy(amounts, places)) == pytest.approx(expected, abs=2e-3)


def test_double_norm_belongs_to_the_weighted_form() -> None:
    with pytest.raises(InputError, match="double_norm needs"):
        MMCE(form="plain", double_norm=True)


# ---------------------------------------------------------------------------------------------------------------- mdca


def test_mdca_golden(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    v = vectors["mdca_A"]
    assert penalty(MDCA(), *a) == pytest.approx(v["mean_over_classes"], abs=TINY)
    assert penalty(MDCA(strength=3.0), *a) == pytest.approx(v["sum_over_classes"], abs=TINY)


def test_mdca_gradient_sums_to_zero_over_classes() -> None:
    logits, labels = random_predictions(30, 7)
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(MDCA()(logits, labels), logits)
    assert torch.allclose(gradient.sum(1), torch.zeros(30, dtype=torch.float64), atol=1e-15)


def test_mdca_adds_to_any_loss(a: tuple[Tensor, Tensor]) -> None:
    focal = Focal(gamma=1.0)
    found = MDCA(base=focal)(*a) - focal(*a)
    assert float(found) == pytest.approx(penalty(MDCA(), *a), abs=1e-12)


# ----------------------------------------------------------------------------------------------------------------- kde


def test_kde_golden(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    v = vectors["kde_xe_A"]
    loss = KDEXE(strength=v["lam"], bandwidth=v["bandwidth"])
    assert float(loss(*a)) == pytest.approx(v["loss"], abs=TINY)
    squares = penalty(KDEXE(strength=1.0, bandwidth=0.1, p=2.0), *a)
    assert squares == pytest.approx(vectors["ece_kde_A"]["canonical_p2"], abs=TINY)


@pytest.mark.parametrize("bandwidth", [0.05, "loo"])
def test_kde_is_the_metric(bandwidth: Any) -> None:
    logits, labels = random_predictions(40, 4)
    expected = kde_ece_canonical(logits, labels, from_logits=True, bandwidth=bandwidth)
    assert penalty(KDEXE(strength=1.0, bandwidth=bandwidth), logits, labels) == pytest.approx(expected, abs=1e-9)


def test_kde_detached_is_a_constant(a: tuple[Tensor, Tensor]) -> None:
    logits = a[0].requires_grad_()
    attached, detached = KDEXE(bandwidth=0.1)(logits, a[1]), KDEXE(bandwidth=0.1, detach=True)(logits, a[1])
    assert attached == detached
    (found,) = torch.autograd.grad(detached, logits)
    (plain,) = torch.autograd.grad(CrossEntropy()(logits, a[1]), logits)
    (full,) = torch.autograd.grad(attached, logits)
    assert torch.equal(found, plain)
    assert not torch.allclose(full, plain)


def test_kde_refuses_more_predictions_than_it_can_compare() -> None:
    labels = torch.zeros(3, 128, 128, dtype=torch.int64)  # pixels
    with pytest.raises(InputError, match="takes at most 32,768; got 49,152"):
        KDEXE()(torch.zeros(3, 2, 128, 128), labels)


@pytest.mark.parametrize("bandwidth", [0.02, "loo"])
def test_kde_of_a_single_sample_is_zero(bandwidth: Any) -> None:
    logits, labels = random_predictions(3, 4)
    assert penalty(KDEXE(bandwidth=bandwidth), logits[:1], labels[:1]) == 0
    ignored = torch.tensor([int(labels[0]), -100, -100])
    assert penalty(KDEXE(bandwidth=bandwidth), logits, ignored) == 0


# ---------------------------------------------------------------------------------------------------------------- soft


def slow_soft_ece(confidence: Array, correct: Array, n_bins: int, temperature: float, p: float) -> float:
    middles = (np.arange(n_bins) + 0.5) / n_bins
    total = 0.0
    belongs = np.exp(-((confidence[:, None] - middles) ** 2) / temperature)
    belongs /= belongs.sum(1, keepdims=True)
    for b in range(n_bins):
        weight = belongs[:, b].sum()
        gap = (belongs[:, b] * confidence).sum() / weight - (belongs[:, b] * correct).sum() / weight
        total += weight / len(confidence) * abs(gap) ** p
    return float(total ** (1 / p))


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 40), n_bins=st.integers(1, 20), p=st.sampled_from([1.0, 1.5, 2.0]), seed=st.integers(0, 99))
def test_soft_ece_is_its_formula(n: int, n_bins: int, p: float, seed: int) -> None:
    logits, labels = random_predictions(n, 4, seed)
    _, confidence, correct = top_label(logits, labels)
    loss = SoftECE(n_bins=n_bins, temperature=0.02, p=p)
    expected = slow_soft_ece(confidence, correct, n_bins, 0.02, p)
    assert penalty(loss, logits, labels) == pytest.approx(expected, abs=3e-6)


def test_soft_ece_with_hard_bins_is_ece() -> None:
    logits, labels = random_predictions(300, 4)
    found = penalty(SoftECE(p=1.0, temperature=1e-9), logits, labels)
    assert found == pytest.approx(ece(logits, labels, from_logits=True), abs=1e-9)


def slow_soft_avuc(probs: Array, correct: Array, threshold: float, temperature: float) -> float:
    sums = {"AC": 0.0, "AU": 0.0, "IC": 0.0, "IU": 0.0}
    for p, right in zip(probs, correct, strict=True):
        entropy = -float((p * np.log(p)).sum())
        h = entropy / np.log(len(p))
        s = 1 / (1 + np.exp(-np.log(h * (1 - threshold) / ((1 - h) * threshold)) / temperature))
        side = "A" if right else "I"
        sums[side + "C"] += (1 - s) * (1 - np.tanh(entropy))
        sums[side + "U"] += s * np.tanh(entropy)
    return float(np.log(1 + (sums["AU"] + sums["IC"]) / (sums["AC"] + sums["IU"])))


@pytest.mark.parametrize(("threshold", "temperature"), [(0.5, 1.0), (0.3, 0.1)])
def test_soft_avuc_is_its_formula(threshold: float, temperature: float) -> None:
    logits, labels = random_predictions(50, 5)
    probs, _, correct = top_label(logits, labels)
    loss = SoftAvUC(threshold=threshold, temperature=temperature)
    assert penalty(loss, logits, labels) == pytest.approx(
        slow_soft_avuc(probs, correct, threshold, temperature), abs=1e-9
    )


# ---------------------------------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("name", PENALTIES)
def test_gradients_are_those_of_the_value(name: str) -> None:
    logits, labels = random_predictions(9, 4, sharpness=1.0)
    assert torch.autograd.gradcheck(lambda z: PENALTIES[name](z, labels), logits.requires_grad_())


@pytest.mark.parametrize("name", PENALTIES)
def test_ignored_rows_have_no_effect(name: str) -> None:
    logits, labels = random_predictions(12, 4)
    ignored = labels.clone()
    ignored[[1, 5, 6]] = -100
    kept = ignored >= 0
    everyone, alone = logits.clone().requires_grad_(), logits[kept].clone().requires_grad_()
    with_ignored, without = PENALTIES[name](everyone, ignored), PENALTIES[name](alone, labels[kept])
    (found,) = torch.autograd.grad(with_ignored, everyone)
    (expected,) = torch.autograd.grad(without, alone)
    assert with_ignored.item() == pytest.approx(without.item(), abs=1e-12)
    assert torch.allclose(found[kept], expected, atol=1e-12)
    assert not found[~kept].any()


@pytest.mark.parametrize("name", PENALTIES)
def test_overflow_gives_nan(name: str) -> None:
    """A step that overflowed in half precision must come out as NaN, for a gradient scaler to skip it."""
    logits, labels = random_predictions(9, 4)
    logits[2, 1] = float("inf")
    for truth in (labels, labels.masked_fill(torch.arange(9) == 5, -100)):
        assert bool(torch.isnan(PENALTIES[name](logits, truth)))


@pytest.mark.parametrize("name", PENALTIES)
def test_the_penalty_does_not_depend_on_the_order_of_the_batch(name: str) -> None:
    logits, labels = random_predictions(20, 4)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    assert penalty(PENALTIES[name], logits, labels) == pytest.approx(
        penalty(PENALTIES[name], logits[order], labels[order]), abs=1e-9
    )
