"""Pairwise constraints: golden values and gradients, the sums by polynomials and by tiles against all pairs, memory."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import random_predictions
from temperance.losses import CPC, CrossEntropy, cpc_penalty, pairwise
from temperance.losses.pairwise import BLOCK_VALUES, pair_spread


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


@pytest.mark.parametrize("k", [2, 3, 9, 21, 128, 129, 500])
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


def test_many_classes_are_not_taken_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def by_tiles(z: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(z))
        return z.sum(1), z.clone()

    monkeypatch.setattr(pairwise, "_by_tiles", by_tiles)
    pair_spread(rows_of("usual", 100))
    assert not calls
    pair_spread(torch.cat([rows_of("usual", 100), rows_of("far apart", 100)]))
    assert calls == [6]


def test_gradients_are_those_of_the_value() -> None:
    assert torch.autograd.gradcheck(pair_spread, (rows_of("usual", 40).requires_grad_(),))


@pytest.mark.parametrize("k", [20, 130])
def test_rows_of_many_blocks_agree_with_single_rows(k: int) -> None:
    z = random_predictions(BLOCK_VALUES["cpu"] // (12 * k) + 3, k)[0]
    assert torch.allclose(pair_spread(z)[-2:], pair_spread(z[-2:]))


def test_rows_that_are_far_apart_change_nothing_for_the_others() -> None:
    z = torch.stack([rows_of("usual", 60), rows_of("far apart", 60)], dim=1).flatten(0, 1)
    (value, slope), (expected, right) = with_slope(pair_spread, z), with_slope(all_pairs, z)
    assert torch.allclose(value, expected) and torch.allclose(slope, right)


def test_no_rows_have_no_spread() -> None:
    value, slope = with_slope(pair_spread, torch.zeros(0, 30))
    assert value.shape == (0,)
    assert slope.shape == (0, 30)


def test_what_is_not_a_number_stays_so() -> None:
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


@pytest.mark.slow
def test_memory_does_not_grow_with_the_square_of_the_classes() -> None:
    """All pairs of 128 × 1000 would take 512 MB, in each of several steps; what the process grows by is measured."""
    program = (
        "import resource, torch\n"
        "from temperance.losses import CPC\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "run = lambda n, k: CPC()(torch.randn(n, k).requires_grad_(), torch.arange(n) % k).backward()\n"
        "run(8, 10)\n"
        "before = peak()\n"
        "run(128, 1000)\n"
        "print(peak() - before)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kilobytes = int(found.stdout) / (1024 if sys.platform == "darwin" else 1)
    assert kilobytes < 60_000
