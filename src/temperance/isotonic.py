"""Isotonic regression: the best non-decreasing fit to a sequence."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Up to this many values, fitting in Python takes less time than importing SciPy.
FEW = 20_000


def isotonic(values: Tensor, weights: Tensor) -> Tensor:
    """The non-decreasing sequence with the least weighted squared distance from `values`, in float64. (n,)"""
    # Equal neighbours stay equal, so they are fitted as one. Among hits and misses most neighbours are equal.
    different, place = torch.unique_consecutive(values.double().cpu(), return_inverse=True)
    y, w = different.numpy(), torch.bincount(place, weights.double().cpu()).numpy()
    if len(y) > FEW:
        from scipy.optimize import isotonic_regression  # here, because it takes longer to import than all of temperance

        fitted = isotonic_regression(y, weights=w).x
    else:
        fitted = _pool_adjacent_violators(y, w)
    return torch.from_numpy(fitted)[place].to(values.device)


def _pool_adjacent_violators(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The same in Python: a value below the mean of the block before it joins that block."""
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for mean, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while means and means[-1] >= mean:
            before, other = means.pop(), masses.pop()
            mean, weight = (other * before + weight * mean) / (other + weight), other + weight
            size += sizes.pop()
        means.append(mean)
        masses.append(weight)
        sizes.append(size)
    return np.repeat(means, sizes)
