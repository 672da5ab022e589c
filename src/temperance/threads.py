"""Threads: limiting torch to one, and sharing work among several."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

# For each thread inside `one_thread`: torch's thread count outside of it.
_outside = local()


@contextmanager
def one_thread(*, where: bool = True) -> Iterator[None]:
    """Limit torch to one thread in this block, for thousands of operations too small to share.

    Only the calling thread is limited. Torch keeps a thread count for each thread and a default for new ones, and
    `set_num_threads` sets both. So another thread restores the default right away, and no thread that starts during
    the block keeps a count of one for good.
    """
    before = 1
    try:
        if where:
            with _thread_lock(os.getpid()):
                before = _limit_this_thread()
                if before > 1:
                    _outside.threads = before
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
            _outside.threads = None


def workers() -> int:
    """How many threads may share work that comes in blocks: torch's thread count outside of `one_thread`."""
    return getattr(_outside, "threads", None) or torch.get_num_threads()


def _limit_this_thread() -> int:
    """Limit torch to one thread in this one, but not in others that start; returns how many it had."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
        _restorer(os.getpid()).submit(torch.set_num_threads, before).result()
    return before


# One of each for each process: a parent may hold its lock while it forks, and a fork has none of its parent's threads.
@cache
def _thread_lock(process: int) -> Lock:
    return Lock()


@cache
def _restorer(process: int) -> ThreadPoolExecutor:
    """A thread that restores torch's default for new threads."""
    return ThreadPoolExecutor(1, "temperance-default")


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Helpers, in each of which torch uses one thread."""

    def limit() -> None:
        with _thread_lock(os.getpid()):
            _limit_this_thread()

    return ThreadPoolExecutor(os.cpu_count(), "temperance", limit)


def in_parts(work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """The result of `work` for each part, in order. Helpers take parts, too, if torch may use several threads.

    Unlike torch's own threads, which wait for each other after every operation, they do so once, after the last part.
    On a busy machine that is many times faster, if a part is worth waking a thread: a hundred thousand values or more.
    """
    results: list[R | None] = [None] * len(parts)
    waiting = iter(range(len(parts)))
    lock = Lock()

    def take() -> None:
        while True:
            with lock:
                i = next(waiting, None)
            if i is None:
                return
            results[i] = work(parts[i])

    with_helpers(take, min(workers(), len(parts)) - 1)
    return results  # type: ignore[return-value]  # all are there


def with_helpers(work: Callable[[], object], helpers: int) -> None:
    """Call `work`, which takes chunks until none is left, in this thread and in `helpers` others.

    A helper that has not started by the end, because the machine is busy, is cancelled. Torch would wait for it.
    """
    found = [_pool(os.getpid()).submit(work) for _ in range(helpers)]
    work()
    for helper in found:
        if not helper.cancel():
            helper.result()
