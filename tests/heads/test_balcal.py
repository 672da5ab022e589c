"""BalCAL: the simplex, the share that balances, class scaling, the mixture."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from temperance.errors import InputError
from temperance.heads import BalCAL
from temperance.heads.features import Features
from temperance.heads.loop import FeatureBatch
from temperance.losses import CrossEntropy
from temperance.training.simplex import balanced_share, class_scale, mean_confidence, simplex_frame


@pytest.fixture(scope="module")
def features() -> Features:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(4, 12, generator=generator)
    labels = torch.arange(400) % 4
    rows = means[labels] + torch.randn(400, 12, generator=generator)
    return Features.of(rows[:300], labels[:300], val_features=rows[300:], val_labels=labels[300:])


def test_simplex(vectors: Any) -> None:
    found = vectors["etf_gram"]
    frame = simplex_frame(5, found["K"], torch.Generator().manual_seed(0))
    assert np.allclose(frame.T @ frame, found["gram"], atol=1e-6)


@given(st.integers(2, 12), st.integers(0, 6), st.integers(0, 99))
def test_corners_are_unit_vectors_at_equal_angles(k: int, more: int, seed: int) -> None:
    frame = simplex_frame(k + more, k, torch.Generator().manual_seed(seed))
    gram = frame.T @ frame
    expected = torch.full((k, k), -1 / (k - 1)).fill_diagonal_(1)
    assert torch.allclose(gram, expected, atol=1e-5)
    assert torch.allclose(frame.sum(1), torch.zeros(k + more), atol=1e-5)


def test_share(vectors: Any) -> None:
    found = vectors["balcal_lambda"]
    linear, even = torch.tensor(found["z_linear"]), torch.tensor(found["z_etf"])
    share = balanced_share(linear, even, found["delta"])
    assert share == pytest.approx(found["lam"], abs=1e-4)
    assert mean_confidence(torch.lerp(even, linear, share)) == pytest.approx(found["conf_at_lam"], abs=1e-4)


def test_the_share_at_its_limits() -> None:
    linear, even = torch.tensor([[4.0, 0.0], [0.0, 4.0]]), torch.eye(2)
    assert balanced_share(linear, even, 0.999) == 1.0
    assert balanced_share(linear, even, 0.6) == pytest.approx(0, abs=1e-4)


def test_class_scale() -> None:
    labels = torch.tensor([0, 0, 0, 1, 3, 3])
    expected = [(2 / 3) ** 0.5, 2**0.5, 1.0, 1.0]
    assert torch.allclose(class_scale(labels, 4), torch.tensor(expected))


def test_the_batch_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one process finds, given what another one adds to its sums, is what both find together."""
    labels, logits = torch.tensor([0, 0, 0, 1, 3, 3]), 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    expected = class_scale(labels, 4), mean_confidence(logits)
    counts = torch.bincount(labels[2:], minlength=4)
    monkeypatch.setattr("temperance.training.simplex.all_sum", lambda values: values + counts)
    assert torch.allclose(class_scale(labels[:2], 4), expected[0])
    rest = torch.tensor([float(logits[2:].softmax(1).amax(1).sum()), 4.0])
    monkeypatch.setattr("temperance.training.simplex.all_sum", lambda values: values + rest)
    assert mean_confidence(logits[:2]) == pytest.approx(expected[1], abs=1e-6)


def by_hand(head: BalCAL, x: Tensor) -> tuple[Tensor, Tensor]:
    adapted = x + head.adaptor[3](torch.relu(head.adaptor[1](torch.relu(x))))
    return head.linear(x), adapted / adapted.norm(dim=1, keepdim=True) @ head.simplex


def test_mixture(features: Features) -> None:
    head = BalCAL(epochs=2).fit(features)
    x = features.train.features
    linear, even = by_hand(head, x)
    share = head.info["share"]
    assert torch.allclose(head(x), share * linear + (1 - share) * even, atol=1e-5)
    assert float(even.abs().max()) <= 1 + 1e-5


def test_objective(features: Features) -> None:
    head = BalCAL(epochs=1, share=0.7).fit(features)
    batch = FeatureBatch(features.train.features[:50], features.train.labels[:50], torch.arange(50))
    head.mix.fill_(0.7)
    head._seen = torch.zeros(2, 300, 4)
    value, logits = head._objective(batch, CrossEntropy(), torch.Generator())
    linear, even = by_hand(head, batch.features)
    even = even * class_scale(batch.labels, 4)
    expected = 0.7 * F.cross_entropy(linear, batch.labels) + 0.3 * F.cross_entropy(even, batch.labels)
    assert float(value) == pytest.approx(float(expected), abs=1e-5)
    assert torch.allclose(logits, 0.7 * linear + 0.3 * even, atol=1e-5)
    assert torch.allclose(head._seen[:, :50], torch.stack([linear, even]), atol=1e-5)


def test_share_is_found_after_each_epoch(features: Features) -> None:
    head = BalCAL(epochs=8, batch_size=10, acc_discount=0.8).fit(features)
    shares = [row["share"] for row in head.history]
    assert shares[0] == pytest.approx(0.8) and head.info["share"] == pytest.approx(float(head.mix), abs=1e-6)
    assert len(set(shares)) > 2
    # Where training has settled the epoch's confidence is the discounted accuracy.
    row = head.history[-1]
    assert row["confidence"] == pytest.approx(0.8 * row["accuracy"], abs=0.03)


def test_the_simplex_is_not_trained(features: Features) -> None:
    head = BalCAL(epochs=2).fit(features, seed=4)
    start = BalCAL(epochs=0).fit(features, seed=4)
    assert torch.equal(head.simplex, start.simplex)
    assert not torch.equal(head.linear.weight, start.linear.weight)
    name = "adaptor.1.weight"
    assert not torch.equal(head.state_dict()[name], start.state_dict()[name])


def test_one_class_is_refused() -> None:
    one = Features.of(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), [0] * 5)
    with pytest.raises(InputError, match="at least two classes"):
        BalCAL(epochs=1).fit(one)
