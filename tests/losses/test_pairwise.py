"""Pairwise constraints: golden values and gradients, the tiled sum against all pairs at once, memory."""

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import random_predictions
from temperance.losses import CPC, CrossEntropy, cpc_penalty
from temperance.losses.pairwise import TILE_VALUES, pair_spread


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
    return (F.softplus(difference) + F.softplus(-difference))[:, above].sum(1)


@pytest.mark.parametrize("k", [2, 3, 127, 128, 129, 300])
def test_tiles_add_up_to_all_pairs(k: int) -> None:
    z = random_predictions(40, k, sharpness=3.0)[0].requires_grad_()
    found, expected = pair_spread(z), all_pairs(z)
    assert torch.allclose(found, expected)
    weights = torch.linspace(-1, 1, 40, dtype=torch.float64)
    (slope,) = torch.autograd.grad((weights * found).sum(), z)
    (right,) = torch.autograd.grad((weights * expected).sum(), z)
    assert torch.allclose(slope, right, atol=1e-9)


def test_rows_of_many_tiles_agree_with_single_rows() -> None:
    z = random_predictions(2 * TILE_VALUES["cpu"] // 128**2 + 3, 130)[0]
    assert torch.allclose(pair_spread(z)[-2:], pair_spread(z[-2:]))


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
