"""Intra-order-preserving maps: the formula, the order, and what they can learn that a temperature cannot."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import nll_loss, softplus

from conftest import random_predictions
from temperance.calibrators import OrderPreserving
from temperance.calibrators.ordered import gains, integral, run, stretch
from temperance.calibrators.temperature import Temperature

VARIANTS: tuple[Any, ...] = ("oi", "op", "diag")


@pytest.fixture(scope="module")
def fitted() -> dict[str, OrderPreserving]:
    logits, labels = random_predictions(600, 5, sharpness=3.0)
    return {variant: OrderPreserving(variant=variant, epochs=10).fit(logits, labels) for variant in VARIANTS}


def test_forward(vectors: Any) -> None:
    """The formula sums from the last gap, ours from the first: they differ by a number, which softmax does not see."""
    expected = vectors["iop_forward"]
    z = torch.tensor([expected["z"]], dtype=torch.float64)
    ordered, order = z.sort(dim=1, descending=True)
    network = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    assert np.allclose(gains(network, ordered), expected["softplus0"], atol=1e-6)
    stretched = stretch(ordered, gains(network, ordered))
    found = torch.zeros_like(z).scatter(1, order, stretched - stretched[:, -1:])
    assert np.allclose(found[0], expected["out"], atol=1e-6)


def test_stretching_is_the_papers_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    ordered = torch.randn(20, 6, generator=generator, dtype=torch.float64).sort(dim=1, descending=True).values
    factor = torch.rand(20, 5, generator=generator, dtype=torch.float64)
    expected = torch.zeros_like(ordered)
    for i in range(4, -1, -1):
        expected[:, i] = expected[:, i + 1] + (ordered[:, i] - ordered[:, i + 1]) * factor[:, i]
    found = stretch(ordered, factor)
    assert torch.allclose(found - found[:, -1:], expected, atol=1e-12)


def test_gains_of_one_change_nothing() -> None:
    ordered = random_predictions(20, 6)[0].sort(dim=1, descending=True).values
    found = stretch(ordered, torch.ones(20, 5, dtype=torch.float64))
    assert torch.allclose(found.log_softmax(1), ordered.log_softmax(1), atol=1e-12)


def test_the_network() -> None:
    generator = torch.Generator().manual_seed(0)
    w1, b1, w2, b2 = (torch.randn(*size, generator=generator) for size in ((4, 3), (3,), (3, 2), (2,)))
    x = torch.randn(5, 4, generator=generator)
    assert torch.allclose(run([w1, b1, w2, b2], x), (x @ w1 + b1).clamp_min(0) @ w2 + b2)
    assert torch.allclose(gains([w1[:, :2], b1[:2]], x), softplus(x @ w1[:, :2] + b1[:2]))


@pytest.mark.parametrize("variant", VARIANTS)
@given(st.lists(st.integers(-40, 40), min_size=5, max_size=5))
def test_order_stays_and_equal_stays_equal(fitted: dict[str, OrderPreserving], variant: Any, row: list[int]) -> None:
    logits = torch.tensor([row], dtype=torch.float64) / 4
    log_probs = fitted[variant](logits)[0]
    differences = logits[0][:, None] - logits[0]
    mapped = log_probs[:, None] - log_probs
    assert bool((mapped[differences > 0] > 0).all()) and bool((mapped[differences == 0].abs() < 1e-12).all())


@pytest.mark.parametrize("variant", VARIANTS)
def test_predictions_stay_however_extreme_the_logits(fitted: dict[str, OrderPreserving], variant: Any) -> None:
    for scale in (1e-6, 1.0, 1e4):
        logits = torch.randn(500, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale
        log_probs = fitted[variant](logits)
        assert bool(torch.isfinite(log_probs).all())
        assert torch.equal(log_probs.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_number_added_to_a_row_changes_nothing(fitted: dict[str, OrderPreserving], variant: Any) -> None:
    logits, _ = random_predictions(50, 5)
    shifted = logits + torch.linspace(-90, 90, 50, dtype=torch.float64)[:, None]
    assert torch.allclose(fitted[variant].predict_proba(shifted), fitted[variant].predict_proba(logits), atol=1e-9)
    log_probs = logits.log_softmax(1)
    assert torch.allclose(fitted[variant].predict_proba(log_probs), fitted[variant].predict_proba(logits), atol=1e-9)


def test_the_order_invariant_map_treats_all_classes_alike(fitted: dict[str, OrderPreserving]) -> None:
    logits, _ = random_predictions(50, 5)
    order = [3, 0, 4, 1, 2]
    for variant in ("oi", "diag"):
        found = fitted[variant]
        assert torch.allclose(found.predict_proba(logits[:, order]), found.predict_proba(logits)[:, order], atol=1e-12)
    assert not torch.allclose(
        fitted["op"].predict_proba(logits[:, order]), fitted["op"].predict_proba(logits)[:, order]
    )


def test_the_integral_has_the_slopes() -> None:
    nodes, slopes = torch.tensor([-1.0, 0.0, 2.0]).double(), torch.tensor([0.5, 2.0, 1.0]).double()
    z = torch.linspace(-3, 4, 141, dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(integral(z, nodes, slopes).sum(), z)
    assert np.allclose(derivative, np.interp(z.detach(), nodes, slopes), atol=1e-9)
    assert np.allclose(integral(nodes, nodes, slopes), [0, 1.25, 4.25])


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_begins_as_temperature_scaling(variant: Any) -> None:
    logits, labels = random_predictions(400, 4, sharpness=3.0)
    hardly = OrderPreserving(variant=variant, epochs=1, learning_rate=1e-9).fit(logits, labels)
    assert torch.allclose(
        hardly.predict_proba(logits), Temperature().fit(logits, labels).predict_proba(logits), atol=1e-5
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_what_a_temperature_cannot(variant: Any) -> None:
    """Logits that were squared on the way: no factor undoes that."""
    (logits, labels), (unseen, truth) = random_predictions(3000, 4), random_predictions(3000, 4, seed=1)

    def bend(z: torch.Tensor) -> torch.Tensor:
        return z.sign() * z.abs() ** 2 / 2

    ours = OrderPreserving(variant=variant, epochs=20).fit(bend(logits), labels)
    theirs = Temperature().fit(bend(logits), labels)
    assert float(nll_loss(ours(bend(unseen)), truth)) < float(nll_loss(theirs(bend(unseen)), truth)) - 0.01


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_seed_decides(variant: Any) -> None:
    logits, labels = random_predictions(300, 4)
    probs = [
        OrderPreserving(variant=variant, epochs=3, seed=seed).fit(logits, labels).predict_proba(logits)
        for seed in (0, 0, 1)
    ]
    assert torch.equal(probs[0], probs[1]) and not torch.equal(probs[0], probs[2])


def test_a_network_without_hidden_layers() -> None:
    logits, labels = random_predictions(200, 4)
    found = OrderPreserving(depth=0, epochs=5).fit(logits, labels)
    assert set(found.learnt) == {"scale", "network_0", "network_1"}
    assert torch.allclose(found.predict_proba(logits).sum(1), torch.ones(200, dtype=torch.float64))
