"""What papers say about losses, and what holds: the docs of each family name these tests."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from temperance.diagnose.gradient import against_probability, gradients
from temperance.losses import AU, CRL, MDCA, MMCE, CrossEntropy, make_loss
from temperance.losses.mixup import Mixed
from temperance.losses.selective import rank_weights


def push(name: str, logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    """What a step of gradient descent does to the logits. (n, k)"""
    found = gradients(make_loss(name, **settings), logits, labels)
    return found.targets(labels) - logits.softmax(1)


def leads(*values: float, k: int = 10) -> tuple[Tensor, Tensor]:
    """Predictions whose label leads all other classes by these amounts."""
    logits = torch.zeros(len(values), k, dtype=torch.float64)
    logits[:, 0] = torch.tensor(values, dtype=torch.float64)
    return logits, torch.zeros(len(values), dtype=torch.int64)


# ------------------------------------------------------------------------------------------------ where a loss leads to


@pytest.mark.parametrize(
    ("name", "settings", "how"),
    [
        ("cross-entropy", {}, "honest"),
        ("brier", {}, "honest"),
        ("mbls", {}, "honest"),
        ("acls", {}, "honest"),
        ("label-smoothing", {"smoothing": 0.1}, "less confident"),
        ("entropy-penalty", {}, "less confident"),
        ("focal", {}, "less confident"),
        ("flsd", {}, "less confident"),
        ("dual-focal", {}, "less confident"),
        ("inverse-focal", {}, "more confident"),
    ],
)
def test_best_forecast_of_an_event_with_probability_080(name: str, settings: dict[str, Any], how: str) -> None:
    """Zhou et al. (on their Figure 3) say that focal loss leads to over-confidence, and inverse focal to less."""
    forecasts = torch.linspace(0.5, 0.999, 500, dtype=torch.float64)
    logits = torch.stack([forecasts, 1 - forecasts], dim=1).log()
    loss = make_loss(name, **settings, reduction="none")
    cost = 0.8 * loss(logits, torch.full((500,), 0)) + 0.2 * loss(logits, torch.full((500,), 1))
    best = float(forecasts[cost.argmin()])
    if how == "honest":
        assert best == pytest.approx(0.8, abs=1e-3)
    else:
        assert best < 0.78 if how == "less confident" else best > 0.82


def test_brier_score_learns_little_from_confident_mistakes() -> None:
    logits, labels = leads(-12.0, k=2)
    assert float(push("brier", logits, labels)[0, 0]) < 1e-4
    assert float(push("cross-entropy", logits, labels)[0, 0]) > 0.9999


def test_where_the_label_stops_being_pushed_ahead() -> None:
    """Cross-entropy never stops; label smoothing does where softmax is its target, the others at the margin."""
    target = math.log((0.95 + 0.005) / 0.005)
    for name, stop in (("label-smoothing", target), ("mbls", 6.0), ("acls", 6.11)):
        before, after = push(name, *leads(stop - 0.02, stop + 0.02))[:, 0].tolist()
        assert before > 0 > after
    assert float(push("cross-entropy", *leads(30.0))[0, 0]) > 0


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_mixed_labels_stop_at_their_odds(share: float) -> None:
    logits, _ = leads(math.log(share / (1 - share)), 0.0, k=2)
    mixed = Mixed(torch.tensor([0, 1]), torch.tensor([1, 0]), logits.requires_grad_(), share)
    (slope,) = torch.autograd.grad(mixed.loss(CrossEntropy(), lambda images: images), logits)
    assert torch.allclose(slope[0], torch.zeros(2, dtype=torch.float64), atol=1e-12)


# --------------------------------------------------------------------------------------------------------- batch losses


def test_signs_of_absolute_values_would_leave_mdca_without_a_gradient() -> None:
    """The ACLS paper's a_c = sgn(|…|) is 1 for every class, and probabilities sum to 1 whatever the logits."""
    logits = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad((logits.softmax(1).mean(0) * torch.ones(5)).sum(), logits)
    assert torch.allclose(slope, torch.zeros_like(slope), atol=1e-15)
    labels = torch.zeros(20, dtype=torch.int64)
    assert bool((gradients(MDCA(), logits, labels).slope.abs() > 1e-6).any())


def test_mdca_needs_batches_larger_than_the_number_of_classes() -> None:
    """Labels are drawn from the predictions, which are therefore honest: what MDCA finds is the size of the batch."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for n in (32, 3200):
        logits = torch.randn(n, 100, dtype=torch.float64, generator=generator)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        found.append(float(MDCA(strength=1.0)(logits, labels) - CrossEntropy()(logits, labels)))
    assert found[0] > 6 * found[1]


def test_mmce_normalised_twice_fades_with_the_size_of_the_batch() -> None:
    """The same batch twice over is as badly calibrated; the released program finds half of it."""
    logits, labels = leads(*torch.linspace(0.5, 6, 12).tolist(), k=4)
    labels[::3] = 1

    def penalty(loss: MMCE, times: int) -> float:
        batch = logits.repeat(times, 1), labels.repeat(times)
        return float(loss(*batch) - CrossEntropy()(*batch))

    once, twice = MMCE(form="weighted"), MMCE(form="weighted", double_norm=True)
    assert penalty(once, 2) == pytest.approx(penalty(once, 1))
    assert penalty(twice, 2) == pytest.approx(penalty(twice, 1) / 2)


# ------------------------------------------------------------------------------------------------------- selective risk


@pytest.mark.parametrize(("k", "most"), [(10, 0.2320), (100, 0.0268), (200, 0.0135)])
def test_softmax_twice_leaves_little_of_the_confidence(k: int, most: float) -> None:
    """e / (e + k − 1) at most: with 200 classes all scores are in the first of 64 bins."""
    logits = torch.eye(k, dtype=torch.float64)[:1] * 1e3
    score = float(logits.softmax(1).softmax(1).amax())
    assert score == pytest.approx(math.e / (math.e + k - 1))
    assert score == pytest.approx(most, abs=1e-4)
    assert (score < 1 / 64) == (k == 200)


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_au_pushes_some_right_predictions_down(coverage: float) -> None:
    found = against_probability(AU(low_conf_coverage=coverage, variant="paper"))
    down = found.prob[found.slope > 0]
    assert float(down.amin()) == pytest.approx(0.05, abs=0.01)
    assert float(down.amax()) == pytest.approx(0.49, abs=0.01)
    held = against_probability(AU(low_conf_coverage=coverage, variant="paper", detach_weights=True))
    assert float(held.slope.amax()) < 0


def test_weights_of_the_nominal_batch_are_wrong_for_a_smaller_one() -> None:
    """Zhou et al.'s program takes the first 16 of 128 weights for a last batch of 16."""
    nominal, own = (
        rank_weights(torch.linspace(0, 1, n, dtype=torch.float64), torch.ones(n, dtype=torch.bool)) for n in (128, 16)
    )
    assert float(own.mean()) == pytest.approx(1)
    assert float(nominal[:16].mean()) < 0.08


def test_crl_asks_for_a_distance_that_the_acls_paper_leaves_out() -> None:
    """Two samples in the right order: one was always right, the other never, and the first is more confident."""
    logits = torch.tensor([[0.6, 0.0], [0.5, 0.0]], dtype=torch.float64)
    labels, indices = torch.tensor([0, 0]), torch.tensor([0, 1])
    loss = CRL(n_samples=2)
    loss.update(logits, torch.tensor([0, 1]), indices)
    assert bool(gradients(loss, logits, labels, indices).C.all())
    confidence = logits.softmax(1).amax(1)
    assert confidence[0] > confidence[1], "so Table 2's condition, that the two are in the wrong order, does not hold"
