"""Torch limited to one thread, and helpers that share work."""

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from temperance import arrays, threads
from temperance.calibrators import Temperature, fit_part, make_calibrator
from temperance.metrics import METRICS, smooth_ece
from temperance.metrics.base import SERIAL_VALUES
from temperance.metrics.statistic import Running
from temperance.registry import parse_entry
from temperance.threads import one_thread, workers

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
    monkeypatch.setattr(fit_part, "implied_prior", noted(fit_part.implied_prior))
    monkeypatch.setattr(Temperature, "_fit_rows", noted(Temperature._fit_rows))
    Temperature().fit(logits, labels)
    assert len(seen) > 1 and set(seen) == {1} and torch.get_num_threads() == MANY


@pytest.mark.usefixtures("many_threads")
@pytest.mark.parametrize(
    "method", ["matrix", "vector:objective=focal", "ensemble-temperature", "class-temperature", "grouped"]
)
def test_a_fit_shares_blocks_with_helpers_and_does_not_depend_on_them(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are small here, so that there are many."""
    for name in ("BLOCK_VALUES", "CORE_BLOCK_VALUES"):
        monkeypatch.setitem(getattr(arrays, name), "cpu", 500)
    logits, noise = torch.randn(2, 600, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, groups = (logits + noise).argmax(1), np.arange(600) % 3
    helped: list[int] = []

    def with_helpers(work: Callable[[], object], helpers: int) -> None:
        helped.append(helpers)
        before(work, helpers)

    before = threads.with_helpers
    monkeypatch.setattr(threads, "with_helpers", with_helpers)
    kind, settings = parse_entry(method)
    fitted = []
    for alone in (False, True):
        calibrator = make_calibrator(kind, **settings)
        monkeypatch.setattr(threads, "workers", lambda alone=alone: 1 if alone else MANY)
        fitted.append(calibrator.fit(logits, labels, groups=groups if calibrator.takes_groups else None).state_dict())
    assert set(helped) >= {0, MANY - 1}
    for name, tensor in fitted[0].items():
        assert torch.equal(tensor, fitted[1][name])


@pytest.mark.usefixtures("many_threads")
def test_parts_are_computed_once_each_with_one_thread_and_come_in_order() -> None:
    begun = threading.Barrier(2)
    seen: list[tuple[str, int]] = []

    def work(part: int) -> int:
        if part < 2:
            begun.wait(10)  # broken unless two threads take parts
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return part**2

    with one_thread():
        assert threads.in_parts(work, range(20)) == [part**2 for part in range(20)]
    assert len(seen) == 20 and len({name for name, _ in seen}) > 1 and {count for _, count in seen} == {1}
    assert torch.get_num_threads() == MANY and threads_of_a_new_thread() == MANY


@pytest.mark.usefixtures("many_threads")
def test_an_error_in_a_part_is_raised() -> None:
    def work(part: int) -> float:
        return 1 / (part - 5)

    with pytest.raises(ZeroDivisionError):
        threads.in_parts(work, range(20))


def test_helpers_share_the_work_and_are_not_waited_for_if_they_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    threads.with_helpers(lambda: both.wait(10), 1)  # broken unless two threads come
    closed = threading.Event()
    with ThreadPoolExecutor(1) as busy:
        busy.submit(closed.wait)
        monkeypatch.setattr(threads, "_pool", lambda process: busy)
        called: list[str] = []
        threads.with_helpers(lambda: called.append(threading.current_thread().name), 3)
        closed.set()
    assert called == [threading.current_thread().name]
