"""Randomness under control: seeds made of numbers, global generators that are restored, deterministic kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_of(*numbers: int) -> int:
    """One seed from several numbers, such as a run's seed and an epoch: similar numbers give very different seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch's global generators, which dropout uses, and restore their state afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def reproducible(deterministic: bool) -> Iterator[None]:
    """Let GPUs choose the fastest kernels by timing them, or the same ones every time."""
    flags: Any = torch.backends.cudnn.flags  # has no types
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        with flags(enabled=True, benchmark=not deterministic, deterministic=deterministic, allow_tf32=True):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
