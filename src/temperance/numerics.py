"""Small numerical functions that know nothing of calibration."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def softmax(logits: Tensor) -> Tensor:
    """The softmax of logits (n, k); torch's own takes four times as long for short rows."""
    powers = (logits - logits.amax(1, keepdim=True)).exp_()
    return powers.div_(powers.sum(1, keepdim=True))


def bin_edges(n_bins: int, device: torch.device | None = None) -> Tensor:
    """The edges of bins of equal width, each the float64 nearest to i / n_bins, unlike those of linspace."""
    return torch.arange(n_bins + 1, dtype=torch.float64, device=device) / n_bins


def soft_bins(values: Tensor, n_bins: int, temperature: float) -> Tensor:
    """Each value's membership in each bin of [0, 1]; ξ_b are the middles of the bins. (n,) → (n, n_bins)

    softmax_b(−(c_i − ξ_b)² / temperature) (Karandikar et al. 2021, eq. 11).
    """
    middles = (torch.arange(n_bins, dtype=values.dtype, device=values.device) + 0.5) / n_bins
    return (-(values[:, None] - middles).square() / temperature).softmax(1)


# Devices that cannot hold float64.
WITHOUT_FLOAT64 = ("mps",)


def working_type(device: torch.device) -> torch.dtype:
    """The most precise type that a device computes in: float64, or float32 where there is no float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def uncast(move: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What `nn.Module._apply` does to each tensor, to the same device but without another type."""

    def moved(tensor: Tensor) -> Tensor:
        found = move(tensor)
        return found if found.dtype == tensor.dtype else tensor.to(found.device)

    return moved


def bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value; NaN if there is one."""
    if values.device.type == "cpu":
        # By NumPy, on one thread: waking torch's threads takes longer than the search, on a busy machine far longer.
        array = values.numpy()
        return array.min().item(), array.max().item()
    low, high = values.aminmax()
    return low.item(), high.item()


def true_places(mask: Tensor) -> Tensor:
    """The indices at which a mask of any shape, flattened, is true. (m,)"""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # several times as fast as torch
    return mask.reshape(-1).nonzero().squeeze(1)


def prefix_sums(values: Tensor) -> Tensor:
    """The sums of the first 0, 1, …, n values or rows, booleans as counts. (n + 1, …)"""
    kind = torch.float64 if values.is_floating_point() else torch.int64
    total = values.new_zeros(len(values) + 1, *values.shape[1:], dtype=kind)
    torch.cumsum(values, 0, dtype=total.dtype, out=total[1:])
    return total


def random_folds(n: int, n_folds: int, seed: int) -> Tensor:
    """The fold of each of n samples, at random; their sizes differ by at most one. (n,)"""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    fold = torch.empty_like(order)
    fold[order] = torch.arange(n) % n_folds
    return fold


def is_whole(values: Tensor) -> bool:
    """Are these all whole numbers?"""
    return bool((values == values.round()).all())


def root(values: Tensor, p: float = 2) -> Tensor:
    """values^(1/p) for values ≥ 0, with a finite gradient: below 1e-10 it is a straight line to 0."""
    smallest = 1e-10
    return torch.where(values > smallest, values.clamp_min(smallest).pow(1 / p), values * smallest ** (1 / p - 1))


def zero_of(rising: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-3) -> float:
    """Where a rising function is zero, by bisection; the nearer end if it has no zero in between.

    >>> round(zero_of(lambda x: x - 0.3, 0, 1), 2)
    0.3
    """
    if rising(high) <= 0:
        return high
    if rising(low) >= 0:
        return low
    while high - low > tolerance:
        middle = (low + high) / 2
        if rising(middle) > 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2
