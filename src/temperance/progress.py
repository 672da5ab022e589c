"""How a long job says where it is."""

from __future__ import annotations

from collections.abc import Callable

# Called with (steps done, steps in all, what is being done); the command line hangs a progress bar on it.
Progress = Callable[[int, int, str], None]


def no_progress(done: int, steps: int, what: str) -> None:
    """Say nothing."""
