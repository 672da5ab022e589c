"""The functions of _rows.c and their fallbacks in torch, against the plainest way to compute the same."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from temperance import compiled
from temperance.compiled import bin_sums, first_places, row_extremes
from temperance.metrics import ece
from temperance.numerics import bin_edges

with_library = pytest.mark.skipif(not compiled.COMPILED, reason="temperance was installed without a C compiler")
both_ways = pytest.mark.parametrize("way", ["torch", pytest.param("compiled", marks=with_library)])

# Values that tie, cancel and round.
values = st.sampled_from([-2.0, -1e-7, 0.0, 1e-30, 0.25, 0.5, 1.0, 1e10])


def look(rows: torch.Tensor, labels: torch.Tensor | None, way: str, threads: int = 3) -> compiled.RowExtremes:
    """`row_extremes` with or without the compiled library; several threads even where tests are given one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        if way == "torch":
            patch.setattr(compiled, "COMPILED", {})
        return row_extremes(rows, labels)


def check_look(rows: torch.Tensor, labels: torch.Tensor, way: str) -> None:
    """The plainest way: NumPy's argmax takes the first of equal values, and its sum is in float64."""
    x = rows.double().numpy()
    rounding = (64 + rows.shape[1] / 32) * torch.finfo(rows.dtype).eps  # so many additions in turn, at most
    near = rounding * float(np.abs(x).sum(1).max()) + 1e-300
    found = look(rows, labels, way)
    assert found.top.dtype == rows.dtype
    np.testing.assert_array_equal(found.top.double().numpy(), x.max(1))
    assert found.low == x.min()
    assert found.lightest == pytest.approx(x.sum(1).min(), abs=near, rel=0)
    assert found.heaviest == pytest.approx(x.sum(1).max(), abs=near, rel=0)
    if found.hit is not None:
        np.testing.assert_array_equal(found.hit.numpy(), x.argmax(1) == labels.numpy())
    # Without labels it is the same look.
    unlabelled = look(rows, None, way)
    assert torch.equal(unlabelled.top, found.top)
    assert unlabelled[1:] == (*found[1:4], None)


@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (9, 1), (9, 2), (5, 31), (5, 32), (5, 33), (3, 1000), (600, 1000), (1, 300_000), (200_000, 3)]
)
def test_extremes_of_random_rows(n: int, k: int, dtype: torch.dtype, way: str) -> None:
    generator = torch.Generator().manual_seed(n + k)
    probs = torch.randn(n, k, dtype=dtype, generator=generator).mul_(4).softmax(1)
    labels = torch.randint(k, (n,), generator=generator)
    labels[::2] = probs[::2].argmax(1)
    check_look(probs, labels, way)
    check_look(probs.log_(), labels, way)  # below zero, where half of the sum says nothing about ties


@both_ways
@given(
    rows=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=70), elements=values), data=st.data()
)
def test_extremes_of_rows_with_ties(rows: npt.NDArray[np.float32], data: Any, way: str) -> None:
    labels = data.draw(hnp.arrays(np.int64, len(rows), elements=st.integers(0, rows.shape[1] - 1)))
    check_look(torch.from_numpy(rows), torch.from_numpy(labels), way)
    check_look(torch.from_numpy(rows).double(), torch.from_numpy(labels), way)


@with_library
def test_of_tied_classes_only_the_first_is_hit() -> None:
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.4, 0.2, 0.4], [0.2, 0.6, 0.2]])
    hits = [look(rows, torch.full((4,), j), "compiled").hit for j in range(3)]
    assert [hit.tolist() for hit in hits if hit is not None] == [
        [True, False, True, False],
        [False, True, False, True],
        [False, False, False, False],
    ]


@both_ways
@pytest.mark.parametrize("k", [1, 2, 40, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_that_is_not_finite_gets_lost(k: int, dtype: torch.dtype, way: str) -> None:
    for value in (math.nan, math.inf, -math.inf):
        for place in {0, 1 % k, k // 2, k - 1}:
            rows = torch.full((3, k), 1 / k, dtype=dtype)
            rows[1, place] = value
            found = look(rows, torch.zeros(3, dtype=torch.int64), way)
            assert not (math.isfinite(found.lightest) and math.isfinite(found.heaviest))
            if math.isnan(value):
                assert math.isnan(found.lightest) and math.isnan(found.heaviest)


@both_ways
def test_rows_in_any_layout(way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.rand(40, 60, generator=generator)
    labels = torch.randint(20, (80,), generator=generator)
    for rows in (wide[:, ::3], wide[::2, 5:25], wide[:20].T[:40, :20], wide[:, :20].half()):
        check_look(rows, labels[: len(rows)], way)
    check_look(wide[:, :20].contiguous(), labels[::2], way)  # labels that do not lie side by side


@with_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("closed", ["right", "left"])
def test_sums_over_bins_are_exact_at_the_edges(closed: str, dtype: torch.dtype) -> None:
    for n_bins in (*range(1, 40), 1000):
        edges = bin_edges(n_bins)
        at = edges.to(dtype)
        beside = [torch.nextafter(at, torch.tensor(side, dtype=dtype)) for side in (-1.0, 2.0)]
        values = torch.cat([at, *beside, *beside[:1], torch.tensor([-0.1, 0.0, 1.0, 1.1], dtype=dtype)])
        hits = torch.arange(len(values)) % 3 == 0
        index = (
            np.searchsorted(edges.numpy(), values.double().numpy(), side="left" if closed == "right" else "right") - 1
        )
        index = index.clip(0, n_bins - 1)
        found = bin_sums(values, hits, edges, closed=closed)
        assert found is not None
        count, total, hit = (tensor.numpy() for tensor in found)
        np.testing.assert_array_equal(count, np.bincount(index, minlength=n_bins))
        np.testing.assert_array_equal(hit, np.bincount(index[hits.numpy()], minlength=n_bins))
        np.testing.assert_allclose(total, np.bincount(index, values.double().numpy(), n_bins), rtol=1e-14, atol=1e-14)


@with_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_bins_of_columns_that_do_not_lie_side_by_side(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values, hits = torch.rand(1000, 3, dtype=dtype, generator=generator), torch.rand(1000, 2, generator=generator) < 0.3
    strided = bin_sums(values[:, 1], hits[:, 1], bin_edges(15), closed="right")
    packed = bin_sums(values[:, 1].clone(), hits[:, 1].clone(), bin_edges(15), closed="right")
    assert strided is not None and packed is not None
    assert all(torch.equal(a, b) for a, b in zip(strided, packed, strict=True))
    assert int(packed[0].sum()) == 1000 and int(packed[2].sum()) == int(hits[:, 1].sum())
    assert float(packed[1].sum()) == pytest.approx(float(values[:, 1].double().sum()))
    assert bin_sums(values.half()[:, 1], hits[:, 1], bin_edges(15), closed="right") is None


def test_without_the_library_torch_does_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert compiled._compiled() == {}
    (tmp_path / "_rows.so").write_text("not a library")
    assert compiled._compiled() == {}


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("k", [1, 2, 10, 31, 32, 33, 64, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_places(library: bool, k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.setattr(compiled, "COMPILED", {})
    # Of few values, so that each is in most rows more than once.
    rows = torch.randint(5, (200, k), generator=torch.Generator().manual_seed(k)).to(dtype)
    values = rows[torch.arange(200), torch.randint(k, (200,), generator=torch.Generator().manual_seed(0))]
    expected = [row.index(value) for row, value in zip(rows.tolist(), values.tolist(), strict=True)]
    assert first_places(rows, values).tolist() == expected
    assert first_places(rows[:, : k // 2 + 1], rows[:, 0]).tolist() == [0] * 200  # not contiguous


def test_the_number_does_not_depend_on_the_way() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(150_000, 10, generator=generator).mul_(2).softmax(1)
    labels = torch.randint(10, (150_000,), generator=generator)
    labels[::2] = probs[::2].argmax(1)
    found = ece(probs, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "COMPILED", {})
        assert not compiled.read_once(probs)
        assert ece(probs, labels) == pytest.approx(found, abs=1e-12)
