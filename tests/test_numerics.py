"""Prefix sums, the working type and isotonic regression."""

import pytest
import torch
from scipy.optimize import isotonic_regression

from temperance import isotonic
from temperance.numerics import prefix_sums, random_folds, working_type


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64])
def test_prefix_sums(dtype: torch.dtype) -> None:
    found = prefix_sums(torch.tensor([1, 0, 1, 1]).to(dtype))
    assert found.tolist() == [0, 1, 1, 2, 3]
    assert found.dtype == (torch.float64 if dtype.is_floating_point else torch.int64)


@pytest.mark.parametrize(("n", "sizes"), [(11, [4, 4, 3]), (2, [1, 1])])
def test_folds_are_of_even_sizes_and_follow_the_seed(n: int, sizes: list[int]) -> None:
    fold = random_folds(n, 3, seed=0)
    assert torch.bincount(fold).tolist() == sizes
    assert torch.equal(fold, random_folds(n, 3, seed=0))
    assert not torch.equal(random_folds(100, 3, seed=0), random_folds(100, 3, seed=1))


def test_every_device_but_those_without_it_computes_in_float64() -> None:
    assert working_type(torch.device("cpu")) == working_type(torch.device("cuda", 1)) == torch.float64
    assert working_type(torch.device("mps")) == torch.float32


@pytest.mark.parametrize("n", [1, 2, 50, 3000])
@pytest.mark.parametrize("with_ties", [False, True])
def test_isotonic_is_scipys_however_many_values(n: int, with_ties: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(n)
    values = (torch.linspace(0, 1, n) + torch.randn(n, generator=generator)).double()
    if with_ties:
        values = (values > 0.5).double()
    weights = torch.randint(1, 5, (n,), generator=generator).double()
    expected = torch.from_numpy(isotonic_regression(values.numpy(), weights=weights.numpy()).x)
    for few in (isotonic.FEW, 0):
        monkeypatch.setattr(isotonic, "FEW", few)
        torch.testing.assert_close(isotonic.isotonic(values, weights), expected, rtol=1e-12, atol=1e-12)
