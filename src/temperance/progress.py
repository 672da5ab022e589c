"""How a long job says where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Called with (steps done, steps in all, what is being done); the command line hangs a progress bar on it.
Progress = Callable[[int, int, str], None]


def no_progress(done: int, steps: int, what: str) -> None:
    """Say nothing."""


_listener: ContextVar[Progress] = ContextVar("listener", default=no_progress)


@contextmanager
def listening(progress: Progress) -> Iterator[None]:
    """Let `progress` hear what is said by `tell` in this block, deep inside of a fit."""
    before = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(done: int, steps: int, what: str) -> None:
    """Say where a job is to whoever is listening."""
    _listener.get()(done, steps, what)
