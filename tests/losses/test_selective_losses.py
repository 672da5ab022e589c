"""AURC and AU losses: golden numbers, the metric, the weights' shape, the quantile, memory over an epoch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_predictions
from reference import harmonic_weights
from temperance.errors import InputError
from temperance.losses import AU, AURC, CPC, CrossEntropy, Focal, MbLS
from temperance.losses.rows import Rows
from temperance.losses.selective import SCORES, quantile, rank_weights, soft_cdf
from temperance.metrics import aurc

TINY = 2e-6  # the golden numbers are rounded to six decimals


@pytest.fixture
def a(fixture_a: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(fixture_a[0]), torch.from_numpy(fixture_a[1])


def weights(loss: AU | AURC, logits: Tensor, labels: Tensor) -> Tensor:
    return loss._weights(loss._rows(logits, labels, None)).detach()


def ranks_of(scores: Tensor) -> Tensor:
    return rank_weights(scores, torch.ones_like(scores, dtype=torch.bool))


# ---------------------------------------------------------------------------------------------------------------- aurc


def test_aurc_golden(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    v = vectors["aurc_loss_A"]
    assert weights(AURC(), *a).tolist() == pytest.approx(v["alpha"], abs=TINY)
    assert float(AURC()(*a)) == pytest.approx(v["loss_mean"], abs=TINY)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 200))
def test_weights_are_harmonic_and_have_mean_one(n: int) -> None:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    found = ranks_of(order / n)
    assert torch.allclose(found.double().sort().values, harmonic_weights(n), rtol=1e-5)
    assert float(found.double().mean()) == pytest.approx(1, abs=1e-5)


def test_equal_scores_keep_their_order() -> None:
    assert torch.allclose(ranks_of(torch.full((50,), 0.3)), harmonic_weights(50).float())
    assert torch.equal(ranks_of(torch.full((0,), 0.3)), torch.zeros(0))


@pytest.mark.parametrize("score", SCORES)
def test_the_loss_is_the_metric(score: Any) -> None:
    logits, labels = random_predictions(77, 5)
    expected = aurc(logits, labels, from_logits=True, loss="nll", score=score)
    assert float(AURC(score=score)(logits, labels)) == pytest.approx(expected, abs=1e-9)


def test_aurc_weights_are_constants_and_any_loss_can_be_weighted(a: tuple[Tensor, Tensor]) -> None:
    logits = a[0].requires_grad_()
    focal = Focal(gamma=2.0)
    alpha = weights(AURC(base=focal), *a)
    expected = alpha * Focal(gamma=2.0, reduction="none")(logits, a[1])
    found = AURC(base=focal, reduction="none")(logits, a[1])
    assert torch.allclose(found, expected)
    (slope,), (right,) = (torch.autograd.grad(value.sum(), logits) for value in (found, expected))
    assert torch.allclose(slope, right)


def test_ignored_rows_have_no_rank() -> None:
    logits, labels = random_predictions(12, 4)
    ignored = labels.clone()
    ignored[[0, 3, 11]] = -100
    kept = ignored >= 0
    for loss in (AURC(), AU(), AU(low_conf_coverage=0.3, score="margin"), AU(variant="paper")):
        assert torch.allclose(weights(loss, logits, ignored)[kept], weights(loss, logits[kept], labels[kept]))


# ------------------------------------------------------------------------------------------------------------------ au


def test_soft_cdf_golden(vectors: Any) -> None:
    v = vectors["soft_cdf_hand"]
    at = torch.tensor(v["at"], dtype=torch.float64)
    assert soft_cdf(at, torch.tensor(v["counts"]), v["nu"]).tolist() == pytest.approx(v["G"], abs=TINY)
    loss = AU(n_bins=v["K_bins"])
    scores = torch.tensor(v["scores"])
    assert loss._counts(scores, torch.ones(4, dtype=torch.bool)).tolist() == v["counts"]


@pytest.mark.parametrize(("score", "key"), [("msp", "msp"), ("margin", "margin"), ("negative-entropy", "negent")])
def test_au_golden(vectors: Any, a: tuple[Tensor, Tensor], score: Any, key: str) -> None:
    v = vectors["au_loss_A"]
    settings_: dict[str, Any] = {"low_conf_coverage": v["kappa"], "cdf_bandwidth": v["nu"], "n_bins": v["bins"]}
    loss = AU(**settings_, score=score, variant="paper", window="batch")
    assert weights(loss, *a).tolist() == pytest.approx(v[key]["beta"], abs=TINY)
    assert float(loss(*a)) == pytest.approx(v[key]["loss"], abs=TINY)


def test_the_released_negative_entropy_is_constant(vectors: Any, a: tuple[Tensor, Tensor]) -> None:
    v = vectors["au_released_negentropy_constant_weight"]
    loss = AU(low_conf_coverage=0.5, cdf_bandwidth=v["sigma"], score="negative-entropy")
    assert weights(loss, *a).tolist() == pytest.approx(v["beta"], abs=TINY)


@pytest.mark.parametrize("score", ["msp", "margin"])
def test_the_released_scores_are_those_of_softmax_taken_twice(score: Any) -> None:
    logits, labels = random_predictions(40, 5)
    settings_: dict[str, Any] = {"low_conf_coverage": 0.6, "score": score}
    twice = logits.softmax(1).softmax(1).log()
    expected = weights(AU(**settings_, variant="paper"), twice, labels)
    assert torch.allclose(weights(AU(**settings_), logits, labels), expected)
    expected = weights(AURC(score=score), twice, labels)
    assert torch.allclose(weights(AURC(score=score, variant="released"), logits, labels), expected)


def test_the_released_gradient_passes_through_the_threshold() -> None:
    """All that a finite difference sees: the histogram is piecewise constant."""
    logits, labels = random_predictions(12, 4, sharpness=1.0)
    assert torch.autograd.gradcheck(lambda z: AU(low_conf_coverage=0.5)(z, labels), logits.requires_grad_())


def test_the_bounds_of_the_distribution_are_as_exact_as_the_logits() -> None:
    """Of two samples all scores are 1, so the distribution function is cut at 2/3 for both."""
    logits, labels = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64), torch.tensor([0, 1])
    loss = AU(score="negative-entropy", window="batch", cdf_bandwidth=1e-4)
    cross_entropy = torch.nn.functional.cross_entropy(logits, labels)
    assert float(loss(logits, labels)) == pytest.approx(math.log(3) * float(cross_entropy), rel=1e-14)


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 80),
    coverage=st.floats(0, 1),
    bandwidth=st.floats(0.005, 1),
    score=st.sampled_from(sorted(SCORES)),
    seed=st.integers(0, 99),
)
def test_weights_grow_with_the_score_up_to_the_cap(
    n: int, coverage: float, bandwidth: float, score: Any, seed: int
) -> None:
    logits, labels = random_predictions(n, 4, seed)
    loss = AU(low_conf_coverage=coverage, cdf_bandwidth=bandwidth, score=score, variant="paper")
    found = weights(loss, logits, labels)
    at = SCORES[score](logits.softmax(1))
    ordered = found[at.argsort()]
    assert bool((ordered.diff() >= -1e-7).all())
    threshold = float(np.quantile(at.numpy(), coverage))
    capped = found[at >= threshold + 1e-6]
    assert torch.allclose(capped, capped[:1], rtol=1e-12)
    assert bool(torch.isfinite(found).all()) and bool((found > 0).all())


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", [AURC, AU])
def test_single_precision_and_any_base(kind: Any, score: Any, variant: str) -> None:
    shape = n, k, *space = 2, 6, 7, 3
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(k, (n, *space), generator=generator)
    for truth in (labels, labels.where(labels > 0, -100)):
        for base in (CrossEntropy(), Focal(gamma=2.0), MbLS(margin=3.0, base=Focal()), CPC()):
            found = []
            for z in (logits.requires_grad_(), logits.detach().float().requires_grad_()):
                value = kind(score=score, variant=variant, base=base)(z, truth)
                found.append((value.detach().double(), torch.autograd.grad(value, z)[0].double()))
            (value, slope), (single, single_slope) = found
            assert torch.allclose(single, value, rtol=1e-4, atol=1e-5)
            assert torch.allclose(single_slope, slope, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_scores_have_their_gradients(score: Any) -> None:
    logits, _ = random_predictions(9, 4)
    assert torch.autograd.gradcheck(lambda z: SCORES[score](z.softmax(1)), logits.requires_grad_())
    single = torch.ones(3, 1, dtype=torch.float64)
    assert torch.equal(SCORES[score](single), single[:, 0])


def test_capped_samples_have_no_gradient_through_their_weight() -> None:
    logits, labels = random_predictions(40, 5)
    logits.requires_grad_()
    loss = AU(low_conf_coverage=0.6, variant="paper", reduction="sum")
    (full,) = torch.autograd.grad(loss(logits, labels), logits)
    beta = weights(loss, logits, labels)
    (only_base,) = torch.autograd.grad((beta * CrossEntropy(reduction="none")(logits, labels)).sum(), logits)
    confidence = logits.detach().softmax(1).amax(1)
    capped = confidence >= torch.quantile(confidence, 0.6)
    assert torch.allclose(full[capped], only_base[capped], atol=1e-12)
    assert bool(((full - only_base)[~capped].abs().amax(1) > 1e-9).all())
    detached = AU(low_conf_coverage=0.6, variant="paper", reduction="sum", detach_weights=True)
    (found,) = torch.autograd.grad(detached(logits, labels), logits)
    assert torch.allclose(found, only_base, atol=1e-12)


def test_the_gradient_below_the_threshold_is_eq_27() -> None:
    """Against finite differences of β_i · CE_i with the counts, the threshold and the clamp held constant."""
    logits, labels = random_predictions(15, 3)
    loss = AU(low_conf_coverage=1.0, cdf_bandwidth=0.1, variant="paper", reduction="sum")
    rows = Rows(logits, labels)
    counts = loss._counts(rows.confidence, rows.kept)

    def value(z: Tensor) -> Tensor:
        confidence = z.softmax(1).amax(1)
        centres = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
        g = (torch.sigmoid((confidence[:, None] - centres) / 0.1) * counts).sum(1) / 15
        losses: Tensor = -torch.log(1 - g) * CrossEntropy(reduction="none")(z, labels)
        return losses[below].sum()

    below = rows.confidence < rows.confidence.amax()
    z = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(z, labels), z)
    (expected,) = torch.autograd.grad(value(z), z)
    assert torch.allclose(found[below], expected[below], atol=1e-9)


def test_narrow_steps_give_the_ranks() -> None:
    """With a narrow bandwidth and many bins Ĝ is the rank, up to the sample's own half step."""
    logits, labels = random_predictions(50, 4)
    loss = AU(low_conf_coverage=1.0, cdf_bandwidth=1e-6, n_bins=1 << 14, variant="paper")
    confidence = logits.softmax(1).amax(1)
    rank = confidence.argsort().argsort() + 1
    found = 1 - torch.exp(-weights(loss, logits, labels))
    below = rank < 50
    assert bool(((found - rank / 50)[below].abs() <= 1 / 50 + 1e-6).all())


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 120),
    coverage=st.floats(0, 1),
    levels=st.sampled_from([1, 3, 999]),
    seed=st.integers(0, 999),
)
def test_quantiles_are_those_of_sorted_scores(n: int, coverage: float, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels + 1, (n,), generator=generator).double() / levels
    kept = torch.rand(n, generator=generator) < 0.8
    kept[0] = True
    found = float(quantile(scores, kept, coverage))
    assert found == pytest.approx(float(np.quantile(scores[kept].numpy(), coverage)), abs=1e-12)


def test_memory_over_an_epoch() -> None:
    first, labels = random_predictions(40, 4, seed=1)
    second, others = random_predictions(30, 4, seed=2)
    loss = AU(low_conf_coverage=0.7, variant="paper")
    alone = float(loss(second, others))
    assert alone == float(AU(low_conf_coverage=0.7, variant="paper", window="batch")(second, others))

    before = loss(first, labels)
    loss.update(first, labels)
    assert int(loss.histogram.sum()) == 40
    # The batch counted twice has the distribution of the batch.
    assert torch.allclose(loss(first, labels), before)
    after = weights(loss, second, others)

    # The distribution is that of both batches, the threshold that of the second alone.
    both = Rows(torch.cat([first, second]), torch.cat([labels, others]))
    confidence = second.softmax(1).amax(1)
    threshold = torch.quantile(confidence, 0.7)
    counts = AU()._counts(both.confidence, both.kept)
    level = soft_cdf(torch.minimum(confidence, threshold), counts, 0.1).clamp(1 / 31, 30 / 31)
    assert torch.allclose(after, -torch.log(1 - level), atol=1e-6)

    restored = AU(low_conf_coverage=0.7, variant="paper")
    restored.load_state_dict(loss.state_dict())
    assert torch.equal(weights(restored, second, others), after)
    loss.end_epoch()
    assert float(loss(second, others)) == alone
    forgetful = AU(window="batch")
    forgetful.update(first, labels)
    assert forgetful.learns_from is None and not forgetful.histogram.any()


def test_normalised_by_the_share_below_the_threshold(a: tuple[Tensor, Tensor]) -> None:
    plain, normalised = AU(low_conf_coverage=0.4), AU(low_conf_coverage=0.4, normalise=True)
    assert float(normalised(*a)) == pytest.approx(float(plain(*a)) / 0.4)
    with pytest.raises(InputError, match="normalise divides"):
        AU(low_conf_coverage=0.0, normalise=True)


@pytest.mark.parametrize("loss", [AURC(), AU(), AU(window="batch", score="margin")], ids=["aurc", "au", "au-margin"])
def test_overflow_gives_nan(loss: AU | AURC) -> None:
    """A step that overflowed in half precision must come out as NaN, for a gradient scaler to skip it."""
    logits, labels = random_predictions(9, 4)
    logits[2, 1] = math.inf
    for truth in (labels, labels.masked_fill(torch.arange(9) == 5, -100)):
        assert math.isnan(float(loss(logits, truth)))


def test_detached_weights_belong_to_the_paper() -> None:
    with pytest.raises(InputError, match="detach_weights needs variant=\"paper\"; got variant='released'"):
        AU(detach_weights=True)
