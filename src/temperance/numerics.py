"""Numerical building blocks that know nothing of calibration."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def stable_order(values: Tensor, cuts: Sequence[int] | None = None) -> Tensor:
    """The indices that sort `values`, equal ones in the order they came. (n,)

    With `cuts` only the sets between two cuts are right: positions cuts[b] … cuts[b + 1] − 1 hold the indices of these
    ranks in any order, which is all that a sum over them needs and takes a third of the time.
    """
    single = values.float()
    if values.device.type != "cpu" or not torch.equal(single.to(values.dtype), values):
        return torch.argsort(values, stable=True)
    # A float32 and an index make one int64 that sorts like the pair, and whole numbers are what NumPy sorts fastest.
    bits = (single + 0.0).view(torch.int32)  # −0.0 becomes 0.0, which equals it
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # the bits of negative numbers count down
    keys = ((ordered.long() << 32) | torch.arange(len(values))).numpy()
    if cuts is None:
        keys.sort()
    elif inner := [cut for cut in cuts if 0 < cut < len(keys)]:
        keys.partition(inner)
    return torch.from_numpy(keys & np.int64(0xFFFFFFFF))


def prefix_sums(values: Tensor) -> Tensor:
    """The sums of the first 0, 1, …, n values, booleans as counts. (n + 1,)"""
    total = values.new_zeros(len(values) + 1, dtype=torch.float64 if values.is_floating_point() else torch.int64)
    total[1:] = values.cumsum(0, dtype=total.dtype)
    return total


def root(values: Tensor, p: float = 2) -> Tensor:
    """values^{1/p} of values of at least 0, with a finite gradient: below 1e-10 a straight line to 0."""
    smallest = 1e-10
    return torch.where(values > smallest, values.clamp_min(smallest).pow(1 / p), values * smallest ** (1 / p - 1))


def isotonic(values: Tensor, weights: Tensor) -> Tensor:
    """The non-decreasing sequence nearest to `values` in weighted squares, in float64. (n,)"""
    from scipy.optimize import isotonic_regression  # here, because it takes longer to import than torch's own parts

    fitted = isotonic_regression(values.double().cpu().numpy(), weights=weights.double().cpu().numpy()).x
    return torch.from_numpy(fitted).to(values.device)
