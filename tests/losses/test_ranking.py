"""Correctness ranking: golden value, the record against an obvious one, and the ablations that use it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import random_predictions
from temperance.errors import InputError
from temperance.losses import ACLS, CRL, ACLSRanking, CRLMargin, CrossEntropy
from temperance.losses.ranking import Record, neighbours, ranking_penalty
from temperance.losses.rows import Rows
from temperance.metrics import score


def test_golden_value(vectors: Any) -> None:
    golden = vectors["crl_hand"]
    confidence = torch.tensor(golden["conf"], dtype=torch.float64)
    record = Record(5)
    record.times_right.copy_(torch.tensor([*golden["history"], golden["min_correctness"]]))
    record.epochs.fill_(golden["max_correctness"])
    correctness = record.correctness(torch.arange(4)).double()
    found = ranking_penalty(confidence - confidence.roll(-1), correctness - correctness.roll(-1))
    assert float(found.mean()) == pytest.approx(golden["loss"], abs=1e-6)


def penalty_slowly(confidence: list[float], correctness: list[float]) -> float:
    """Pair by pair, as a margin ranking loss."""
    n, total = len(confidence), 0.0
    for i in range(n):
        j = (i + 1) % n
        if correctness[i] == correctness[j]:
            continue
        hi, lo = (i, j) if correctness[i] > correctness[j] else (j, i)
        total += max(0.0, correctness[hi] - correctness[lo] - (confidence[hi] - confidence[lo]))
    return total / n


@pytest.mark.parametrize("name", ["msp", "margin", "negative-entropy"])
def test_trained_as_described(name: Any) -> None:
    """Three epochs of shuffled batches, against counting by hand."""
    n, k = 30, 4
    loss = CRL(n_samples=n, score=name, strength=0.7)
    right = [0] * n
    for epoch in range(3):
        logits, labels = random_predictions(n, k, seed=epoch, sharpness=1.0)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch))
        for indices in order.reshape(3, 10).unbind():
            z, y = logits[indices], labels[indices]
            span = max(epoch, 1) - min(right)
            correctness = [(right[i] - min(right)) / span if span > 0 else 1.0 for i in indices.tolist()]
            confidence = score(z, name, from_logits=True)
            if name == "negative-entropy":
                confidence = 1 + confidence / torch.tensor(k).log()
            expected = 0.7 * penalty_slowly(confidence.tolist(), correctness)
            assert float(loss(z, y, indices) - CrossEntropy()(z, y)) == pytest.approx(expected, abs=1e-6)
            loss.update(z, y, indices)
            for i, was_right in zip(indices.tolist(), (z.argmax(1) == y).tolist(), strict=True):
                right[i] += was_right
        loss.end_epoch()
    assert loss.record.times_right.tolist() == right
    assert int(loss.record.epochs) == 3


def test_samples_that_are_always_right_have_no_order() -> None:
    logits, labels = random_predictions(10, 3)
    loss = CRL(n_samples=10)
    for _ in range(2):
        loss.update(logits, logits.argmax(1), torch.arange(10))
        loss.end_epoch()
    assert loss.record.correctness(torch.arange(10)).tolist() == [1.0] * 10
    assert torch.equal(loss(logits, labels, torch.arange(10)), CrossEntropy()(logits, labels))


def test_samples_drawn_several_times_in_an_epoch_are_right_at_most_always() -> None:
    record = Record(3)
    for _ in range(4):
        record.add(torch.tensor([0, 1]), torch.tensor([True, False]))
    assert record.correctness(torch.arange(3)).tolist() == [1, 0, 0]


def test_enormous_logits_of_samples_in_order_cost_nothing() -> None:
    logits, labels = torch.tensor([[3e30, 0.0], [1e30, 0.0]]), torch.tensor([0, 0])
    loss = ACLSRanking(n_samples=2, reduction="none")
    assert loss(logits, labels, torch.arange(2)).tolist() == [0, 0]


def test_gradient_reaches_both_of_a_pair() -> None:
    confidence = torch.tensor([0.6, 0.9], requires_grad=True)
    penalty = ranking_penalty(confidence - confidence.roll(-1), torch.tensor([0.5, -0.5]))
    assert penalty.tolist() == pytest.approx([0.8, 0.8])
    (slope,) = torch.autograd.grad(penalty.mean(), confidence)
    assert slope.tolist() == pytest.approx([-1.0, 1.0])


def test_without_a_margin_only_the_order_counts() -> None:
    confidence_gap = torch.tensor([0.3, -0.3, 0.1, -0.1, 0.2])
    correctness_gap = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.0])
    found = ranking_penalty(confidence_gap, correctness_gap, margin=False)
    assert found.tolist() == pytest.approx([0.0, 0.3, 0.1, 0.0, 0.0])


def test_neighbours_skip_ignored_rows() -> None:
    ignored = torch.tensor([True, False, True, True, False, False, True])
    assert neighbours(~ignored)[~ignored].tolist() == [4, 5, 1]
    assert neighbours(torch.ones(3, dtype=torch.bool)).tolist() == [1, 2, 0]
    assert bool((neighbours(torch.zeros(3, dtype=torch.bool)) < 3).all())


def test_indices_out_of_range_are_refused() -> None:
    logits, labels = random_predictions(4, 3)
    loss = CRL(n_samples=10)
    for call in (loss, loss.update):
        with pytest.raises(InputError, match="indices must lie in 0 … 9, as n_samples=10; found 12"):
            call(logits, labels, torch.tensor([0, 12, 3, 4]))
        with pytest.raises(InputError, match="found -1"):
            call(logits, labels, torch.tensor([0, -1, 3, 4]))


# ----------------------------------------------------------------------------------------------------------- ablations


def slope(loss: Any, logits: Tensor, *rest: Tensor) -> Tensor:
    z = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(z, *rest), z)[0]


def test_acls_with_the_ranking_condition() -> None:
    logits, labels = random_predictions(40, 5, sharpness=4.0)
    indices = torch.arange(40)
    loss = ACLSRanking(n_samples=40, reduction="none")
    assert torch.equal(loss(logits, labels, indices), CrossEntropy(reduction="none")(logits, labels))
    loss.record.times_right.copy_(torch.randint(5, (40,), generator=torch.Generator().manual_seed(0)))
    loss.record.epochs.fill_(5)
    right, confidence = loss.record.times_right, logits.softmax(1).amax(1)
    wrong_order = (right - right.roll(-1)) * (confidence - confidence.roll(-1)) < 0
    assert bool(wrong_order.any()) and not bool(wrong_order.all())
    found = loss(logits, labels, indices) - CrossEntropy(reduction="none")(logits, labels)
    penalty = ACLS(terms="adaptive")._penalty(Rows(logits, labels))
    assert torch.allclose(found, torch.where(wrong_order, penalty, 0))
    total = ACLSRanking(n_samples=40, reduction="sum")
    total.load_state_dict(loss.state_dict())
    expected = torch.where(wrong_order[:, None], slope(ACLS(terms="adaptive", reduction="sum"), logits, labels), 0)
    plain = slope(CrossEntropy(reduction="sum"), logits, labels)
    found = slope(total, logits, labels, indices)
    assert torch.allclose(found, torch.where(wrong_order[:, None], expected, plain))


OPTIONS = [
    {},
    {"detach": True},
    {"aggregation": "sum"},
    {"aggregation": "mean"},
    {"variant": "released"},
    {"variant": "released", "aggregation": "sum"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_acls_with_the_ranking_condition_has_the_options_of_acls(options: dict[str, Any]) -> None:
    logits, labels = random_predictions(2, 5, sharpness=4.0)
    loss = ACLSRanking(n_samples=2, reduction="sum", **options)
    more_often_right = logits.softmax(1).amax(1).argmin()
    loss.record.times_right[more_often_right] = 1
    found = slope(loss, logits, labels, torch.arange(2))
    assert torch.allclose(found, slope(ACLS(terms="adaptive", reduction="sum", **options), logits, labels))


def test_crl_with_the_margin_condition(vectors: Any) -> None:
    """Eq. 20 with eq. 11: the pattern of the paper if its terms are held constant."""
    golden = vectors["gradient_analysis"]
    logits, labels = torch.tensor([golden["z"]], dtype=torch.float64), torch.tensor([0])
    penalty = {
        margin: slope(CRLMargin(margin=margin, detach=True), logits, labels) - slope(CrossEntropy(), logits, labels)
        for margin in (0.0, 2.5, 4.0)
    }
    top, second, third = golden["crl"]
    assert penalty[0.0][0].tolist() == pytest.approx([top, -second, -third], abs=1e-6)
    assert penalty[2.5][0].tolist() == pytest.approx([top, 0, -third], abs=1e-6)
    assert penalty[4.0][0].tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert torch.equal(CRLMargin()(logits, labels), CrossEntropy()(logits, labels))


def test_crl_with_the_margin_condition_pulls_from_both_sides(vectors: Any) -> None:
    golden = vectors["gradient_analysis"]
    logits, labels = torch.tensor([golden["z"]], dtype=torch.float64), torch.tensor([0])
    top, second, third = golden["crl"]
    found = slope(CRLMargin(margin=0.0), logits, labels) - slope(CrossEntropy(), logits, labels)
    assert found[0].tolist() == pytest.approx([top + second + third, -second, -third - top], abs=1e-6)
    mean = slope(CRLMargin(margin=0.0, aggregation="mean"), logits, labels) - slope(CrossEntropy(), logits, labels)
    assert mean[0].tolist() == pytest.approx([top + (second + third) / 2, -second / 2, -third / 2 - top], abs=1e-6)
    released = slope(CRLMargin(margin=2.0, variant="released"), logits, labels) - slope(CrossEntropy(), logits, labels)
    assert released[0].tolist() == pytest.approx([top, -second, -third], abs=1e-6)


def test_losses_whose_logits_drift_say_what_to_change() -> None:
    for made in (ACLS(detach=True), ACLSRanking(n_samples=3, detach=True), CRLMargin(detach=True)):
        assert made.remedy is not None and f"set detach=False in {made.name}" in made.remedy
    assert ACLS().remedy is ACLSRanking(n_samples=3).remedy is CRLMargin().remedy is None
