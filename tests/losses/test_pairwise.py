"""Pairwise constraints: golden values and gradients, sums over pairs that are hard to sum over."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import random_predictions
from temperance.losses import CPC, CrossEntropy, pairwise
from temperance.losses.pairwise import pair_spread


def cpc_penalty(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    """The penalty of each row."""
    with_penalty = CPC(reduction="none", **settings)(logits, labels)
    found: Tensor = with_penalty - CrossEntropy(reduction="none")(logits, labels)
    return found


@pytest.fixture
def row(vectors: Any) -> tuple[Tensor, Tensor]:
    golden = vectors["cpc_hand"]
    return torch.tensor([golden["z"]], dtype=torch.float64), torch.tensor([golden["y"]])


def test_golden_values(vectors: Any, row: tuple[Tensor, Tensor]) -> None:
    golden = vectors["cpc_hand"]
    discrimination = cpc_penalty(*row, discrimination_weight=1.0, exclusion_weight=0.0)
    exclusion = cpc_penalty(*row, discrimination_weight=0.0, exclusion_weight=1.0)
    assert float(discrimination) == pytest.approx(golden["one_vs_one_mean"], abs=1e-6)
    assert float(exclusion) == pytest.approx(golden["exclusion_default"], abs=1e-6)
    total = CPC()(*row) - CrossEntropy()(*row)
    expected = 0.1 * golden["one_vs_one_mean"] + golden["exclusion_default"]
    assert float(total) == pytest.approx(expected, abs=1e-6)


def test_golden_gradients(vectors: Any, row: tuple[Tensor, Tensor]) -> None:
    golden, (z, y) = vectors["cpc_grad"], row
    z.requires_grad_()
    (found,) = torch.autograd.grad(3 * cpc_penalty(z, y, discrimination_weight=1.0, exclusion_weight=0.0), z)
    assert found[0].tolist() == pytest.approx(golden["d1v1"], abs=1e-6)
    scale = 2 * 3 * 2
    (found,) = torch.autograd.grad(scale * cpc_penalty(z, y, discrimination_weight=0.0, exclusion_weight=1.0), z)
    assert found[0].tolist() == pytest.approx(golden["dBE_unordered"], abs=1e-6)


def all_pairs(z: Tensor) -> Tensor:
    difference = z[:, :, None] - z[:, None, :]
    above = torch.triu(torch.ones(z.shape[1], z.shape[1], dtype=torch.bool), 1)
    return (F.softplus(difference, threshold=40) + F.softplus(-difference, threshold=40))[:, above].sum(1)


def with_slope(spread: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = spread(z)
    (slope,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), slope


def rows_of(kind: str, k: int) -> Tensor:
    """Rows of logits that are hard to sum over, in float64."""
    noise = random_predictions(6, k, sharpness=1.0)[0]
    first, even = torch.arange(k) == 0, torch.arange(k) % 2 == 0
    found: dict[str, Tensor] = {
        "usual": 3 * noise,
        "nearly equal": noise / 1000,
        "equal": torch.full_like(noise, 2.5),
        "large and equal": torch.full_like(noise, 1e4),
        "large": 1e4 + 3 * noise,
        "far apart": 1e4 * noise.sign(),
        "one far away": torch.where(first, 1e4, noise),
        "one away": torch.where(first, -40.0, noise),
        "two clusters": noise / 10 + 60.0 * even,
        "spread out": torch.linspace(-49, 49, k, dtype=torch.float64).expand_as(noise),
    }
    return found[kind]


KINDS = (
    "usual",
    "nearly equal",
    "equal",
    "large and equal",
    "large",
    "far apart",
    "one far away",
    "one away",
    "two clusters",
    "spread out",
)


@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_over_all_pairs(kind: str, k: int) -> None:
    """In float64 to 1e-10; in float32 to a few units of its last digit, of the widest pair and of all pairs."""
    for dtype, digits in ((torch.float64, 1e-11), (torch.float32, 2e-6)):
        z = rows_of(kind, k).to(dtype)
        value, slope = with_slope(pair_spread, z)
        expected, right = with_slope(all_pairs, z.double())
        widest = 1 + float((z.amax(1) - z.amin(1)).amax())
        assert value.dtype == dtype
        assert torch.allclose(value.double(), expected, rtol=digits, atol=0.1 * digits * widest * k**2 / 2)
        assert torch.allclose(slope.double(), right, rtol=0, atol=digits * k)


def test_gradients_are_those_of_the_value() -> None:
    assert torch.autograd.gradcheck(pair_spread, (rows_of("usual", 5).requires_grad_(),))


def test_more_pairs_than_fit_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    z = rows_of("usual", 9)
    expected = with_slope(pair_spread, z)
    monkeypatch.setattr(pairwise, "MOST_PAIRS", 2 * 81)
    sizes: list[int] = []
    whole = pairwise._all_pairs

    def watched(part: Tensor) -> Tensor:
        sizes.append(len(part))
        return whole(part)

    monkeypatch.setattr(pairwise, "_all_pairs", watched)
    for found, right in zip(with_slope(pair_spread, z), expected, strict=True):
        assert torch.allclose(found, right)
    assert sizes == [2, 2, 2, 2, 2, 2]  # in the forward pass, and again in the backward pass


def test_no_rows_have_no_spread() -> None:
    value, slope = with_slope(pair_spread, torch.zeros(0, 30))
    assert value.shape == (0,)
    assert slope.shape == (0, 30)


def test_nan_stays_nan() -> None:
    z = rows_of("usual", 40)
    z[1, 3] = torch.nan
    assert pair_spread(z).isnan().tolist() == [False, True, False, False, False, False]


def test_two_classes_have_nothing_to_exclude() -> None:
    logits, labels = random_predictions(20, 2)
    assert not cpc_penalty(logits, labels, discrimination_weight=0.0).any()
    expected = F.softplus(-(logits.gather(1, labels[:, None]) - logits.gather(1, 1 - labels[:, None])).squeeze(1))
    assert torch.allclose(cpc_penalty(logits, labels, discrimination_weight=1.0), expected)


def test_the_label_takes_no_part_in_the_exclusion() -> None:
    logits, labels = random_predictions(20, 6)
    moved = logits.scatter_add(1, labels[:, None], torch.full((20, 1), 5.0, dtype=torch.float64))
    still, after = (cpc_penalty(z, labels, discrimination_weight=0.0) for z in (logits, moved))
    assert torch.allclose(still, after)
