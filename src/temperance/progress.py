"""The progress of long jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Called with (steps done, steps in all, what is being done); the command line draws a progress bar.
Progress = Callable[[int, int, str], None]


def no_progress(done: int, steps: int, what: str) -> None:
    """Do nothing."""


_listener: ContextVar[Progress] = ContextVar("listener", default=no_progress)


@contextmanager
def listening(progress: Progress) -> Iterator[None]:
    """Inside this block `tell` calls `progress`, however deep in a fit."""
    before = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(done: int, steps: int, what: str) -> None:
    """Report progress to the innermost `listening` block; without one nothing happens."""
    _listener.get()(done, steps, what)
