"""Looking at rows, sorting and sums against the plainest way to do them."""

import functools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import isotonic_regression

from temperance import numerics
from temperance.calibrators import Temperature, base, priors
from temperance.metrics import METRICS, ece, smooth_ece
from temperance.metrics.base import SERIAL_VALUES
from temperance.metrics.statistic import Running
from temperance.numerics import (
    bin_edges,
    bin_sums,
    first_places,
    one_thread,
    prefix_sums,
    row_extremes,
    stable_order,
    stable_sort,
    workers,
    working_type,
)

# Of few values, so that they tie, with both zeros and both signs.
few = st.lists(st.sampled_from([-1.5, -1e-30, -0.0, 0.0, 1e-30, 0.1, 0.25, 1.0, 3e38]), min_size=1, max_size=40)
any_finite = st.lists(st.floats(allow_nan=False), min_size=1, max_size=40)


def plain_order(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


@given(few)
def test_order_of_float32_values_is_stable(values: list[float]) -> None:
    single = torch.tensor(values, dtype=torch.float32)
    expected = plain_order(single.tolist())
    assert stable_order(single).tolist() == expected
    assert stable_order(single.double()).tolist() == expected


@given(few | any_finite)
def test_order_of_float64_values_is_stable(values: list[float]) -> None:
    assert stable_order(torch.tensor(values, dtype=torch.float64)).tolist() == plain_order(values)


# In [0, 2), where a number and a flag are sorted as one: those that float32 can hold, and those that it cannot.
small = st.lists(st.sampled_from([0.0, -0.0, 1e-300, 0.1, 0.25, 1 / 3, 1.0, 1 + 1e-9]), min_size=1, max_size=40)


@given(few | any_finite | small, st.randoms(use_true_random=False), st.booleans())
def test_values_are_sorted_with_their_flags(values: list[float], random: Any, last_first: bool) -> None:
    flags = [random.random() < 0.5 for _ in values]
    found, with_them = stable_sort(
        torch.tensor(values, dtype=torch.float64), torch.tensor(flags), last_first=last_first
    )
    last = len(values) - 1
    order = [last - i for i in plain_order(values[::-1])] if last_first else plain_order(values)
    assert found.tolist() == [values[i] for i in order] and with_them.tolist() == [flags[i] for i in order]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("k", [1, 2, 10, 31, 32, 33, 64, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_places(compiled: bool, k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(numerics, "COMPILED", {})
    # Of few values, so that each is in most rows more than once.
    rows = torch.randint(5, (200, k), generator=torch.Generator().manual_seed(k)).to(dtype)
    values = rows[torch.arange(200), torch.randint(k, (200,), generator=torch.Generator().manual_seed(0))]
    expected = [row.index(value) for row, value in zip(rows.tolist(), values.tolist(), strict=True)]
    assert first_places(rows, values).tolist() == expected
    assert first_places(rows[:, : k // 2 + 1], rows[:, 0]).tolist() == [0] * 200  # not contiguous


def test_many_equal_values_stay_in_order() -> None:
    assert stable_order(torch.ones(10_000)).tolist() == list(range(10_000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64])
def test_prefix_sums(dtype: torch.dtype) -> None:
    found = prefix_sums(torch.tensor([1, 0, 1, 1]).to(dtype))
    assert found.tolist() == [0, 1, 1, 2, 3]
    assert found.dtype == (torch.float64 if dtype.is_floating_point else torch.int64)


# ---------------------------------------------------------------------------------------------------------------- rows

compiled = pytest.mark.skipif(not numerics.COMPILED, reason="temperance was installed without a C compiler")
both_ways = pytest.mark.parametrize("way", ["torch", pytest.param("compiled", marks=compiled)])

# Values that tie, cancel and round.
values = st.sampled_from([-2.0, -1e-7, 0.0, 1e-30, 0.25, 0.5, 1.0, 1e10])


def look(rows: torch.Tensor, labels: torch.Tensor | None, way: str, threads: int = 3) -> numerics.RowExtremes:
    """`row_extremes` with or without the compiled library; several threads even where tests are given one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        if way == "torch":
            patch.setattr(numerics, "COMPILED", {})
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


@compiled
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


@compiled
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


@compiled
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
    monkeypatch.setattr(numerics, "__file__", str(tmp_path / "numerics.py"))
    assert numerics._compiled() == {}
    (tmp_path / "_rows.so").write_text("not a library")
    assert numerics._compiled() == {}


def test_helpers_share_the_work_and_are_not_waited_for_if_they_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    numerics.with_helpers(lambda: both.wait(10), 1)  # broken unless two threads come
    closed = threading.Event()
    with ThreadPoolExecutor(1) as busy:
        busy.submit(closed.wait)
        monkeypatch.setattr(numerics, "_pool", lambda process: busy)
        called: list[str] = []
        numerics.with_helpers(lambda: called.append(threading.current_thread().name), 3)
        closed.set()
    assert called == [threading.current_thread().name]


def test_the_number_does_not_depend_on_the_way() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(150_000, 10, generator=generator).mul_(2).softmax(1)
    labels = torch.randint(10, (150_000,), generator=generator)
    labels[::2] = probs[::2].argmax(1)
    found = ece(probs, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numerics, "COMPILED", {})
        assert not numerics.read_once(probs)
        assert ece(probs, labels) == pytest.approx(found, abs=1e-12)


# ------------------------------------------------------------------------------------------------------------- threads

MANY = 3


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(MANY)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    """The number of threads that torch gives to a thread that starts now."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.usefixtures("many_threads")
def test_one_thread_in_the_block_and_all_of_them_after_it() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread():
            assert torch.get_num_threads() == 1
        with one_thread(where=False):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == MANY
    with one_thread(where=False):
        assert torch.get_num_threads() == MANY


@pytest.mark.usefixtures("many_threads")
def test_an_error_in_the_block_gives_the_threads_back() -> None:
    with pytest.raises(KeyboardInterrupt), one_thread(), one_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == MANY and threads_of_a_new_thread() == MANY


@pytest.mark.usefixtures("many_threads")
def test_a_thread_that_starts_during_the_block_keeps_all_threads() -> None:
    with one_thread(), one_thread():
        assert threads_of_a_new_thread() == MANY
    assert threads_of_a_new_thread() == MANY


@pytest.mark.usefixtures("many_threads")
def test_blocks_of_two_threads_may_overlap() -> None:
    """The first to enter is the first to leave, so each would give back what it saw of the other."""
    entered, left = threading.Event(), threading.Event()
    seen: list[int] = []

    def second() -> None:
        with one_thread():
            entered.set()
            left.wait(10)
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=second)
    with one_thread():
        thread.start()
        assert entered.wait(10)
    left.set()
    thread.join()
    assert seen == [1, MANY]
    assert torch.get_num_threads() == MANY and threads_of_a_new_thread() == MANY


# --------------------------------------------------------------------------------------------------------------- types


def test_every_device_but_those_without_it_computes_in_float64() -> None:
    assert working_type(torch.device("cpu")) == working_type(torch.device("cuda", 1)) == torch.float64
    assert working_type(torch.device("mps")) == torch.float32


@pytest.mark.usefixtures("many_threads")
@pytest.mark.parametrize("name", ["classwise-ece", "nll", "kde-ece", "aurc"])
def test_metrics_keep_torch_to_one_thread_and_do_not_depend_on_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metric, seen = METRICS[name], set[int]()
    logits = torch.randn(20_000 if not metric.quadratic else 500, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(len(logits)) % 10

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # the metric reads its settings from it
        def call(*arguments: Any, **options: Any) -> Any:
            seen.add(torch.get_num_threads())
            assert workers() == MANY
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        where = "of_stats" if metric.quadratic else "of_batch"
        patch.setattr(metric, where, counted(getattr(metric, where)))
        found = metric(logits, labels, from_logits=True)
    assert seen == {1} and torch.get_num_threads() == MANY
    with one_thread():
        assert metric(logits, labels, from_logits=True) == found


@pytest.mark.parametrize("n", [1, 2, 50, 3000])
@pytest.mark.parametrize("with_ties", [False, True])
def test_isotonic_is_scipys_however_many_values(n: int, with_ties: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(n)
    values = (torch.linspace(0, 1, n) + torch.randn(n, generator=generator)).double()
    if with_ties:
        values = (values > 0.5).double()
    weights = torch.randint(1, 5, (n,), generator=generator).double()
    expected = torch.from_numpy(isotonic_regression(values.numpy(), weights=weights.numpy()).x)
    for few in (numerics.FEW, 0):
        monkeypatch.setattr(numerics, "FEW", few)
        torch.testing.assert_close(numerics.isotonic(values, weights), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("many_threads")
def test_metrics_and_references_of_many_rows_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, noise = torch.randn(2, SERIAL_VALUES, 2, generator=torch.Generator().manual_seed(0))
    labels = (logits + noise).argmax(1)
    seen = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            seen.append(torch.get_num_threads())
            return function(*given, **more)

        return called

    monkeypatch.setattr(Running, "add", noted(Running.add))
    smooth_ece(logits.softmax(1), labels)
    monkeypatch.setattr(base, "ONE_THREAD_VALUES", 1)
    monkeypatch.setattr(priors, "implied_prior", noted(priors.implied_prior))
    Temperature().fit(logits, labels)
    assert len(seen) > 1 and set(seen) == {1} and torch.get_num_threads() == MANY
