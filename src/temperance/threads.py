"""Threads: limiting torch to one, and sharing work among several."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock, local

import torch

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
                before = torch.get_num_threads()
                if before > 1:
                    torch.set_num_threads(1)
                    _outside.threads = before
                    _pool(os.getpid()).submit(torch.set_num_threads, before).result()
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
            _outside.threads = None


def workers() -> int:
    """How many threads may share work that comes in blocks: torch's thread count outside of `one_thread`."""
    return getattr(_outside, "threads", None) or torch.get_num_threads()


@cache
def _thread_lock(process: int) -> Lock:
    """One lock for each process: a parent may hold its own while it forks."""
    return Lock()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool for each process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(os.cpu_count(), "temperance")


def with_helpers(work: Callable[[], object], helpers: int) -> None:
    """Call `work`, which takes chunks until none is left, in this thread and in `helpers` others.

    A helper that has not started by the end, because the machine is busy, is cancelled. Torch would wait for it.
    """
    found = [_pool(os.getpid()).submit(work) for _ in range(helpers)]
    work()
    for helper in found:
        if not helper.cancel():
            helper.result()
