"""Long-tailed subsets: each class is rarer than the one before, down to a given ratio."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, to_tensor
from temperance.errors import InputError
from temperance.settings import AtLeastTwo, Count, CountOrZero, PositiveFraction, of_kind


def long_tail_counts(n_max: int, k: int, ratio: float) -> list[int]:
    """How many samples each of k classes keeps: n_i = int(n_max · ratio^(i / (k − 1))).

    The rarest class has `ratio` times the samples of the most frequent one (Jung et al., Scaling of class-wise training
    losses, ICML 2023, App. C). The paper prints no ratio; 0.1 gives exactly its totals of 20431 samples for CIFAR-10
    and 19573 for CIFAR-100. Numbers are truncated, not rounded: rounding gives other totals.

    >>> long_tail_counts(5000, 10, 0.1)
    [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]
    """
    of_kind("n_max", n_max, Count)
    of_kind("the number of classes of a long tail", k, AtLeastTwo)
    of_kind("long_tail", ratio, PositiveFraction)
    counts = [int(n_max * ratio ** (i / (k - 1))) for i in range(k)]
    if not counts[-1]:
        raise InputError(
            f"a long tail of ratio {ratio:g} leaves nothing of the last class, which would have {n_max * ratio:.2g} "
            f"samples; choose a ratio of at least {1 / n_max:.3g}"
        )
    return counts


def long_tailed(labels: ArrayLike, ratio: float, seed: int = 0) -> Tensor:
    """The indices of the samples in a long-tailed subset, in ascending order; class 0 is the most frequent.

    n_max is the largest for which every class has enough samples: if all classes have the same number, that number. The
    subset is of images or of predictions; `hold_out(labels[index], 0.5)` halves it as the paper does.

    >>> long_tailed([0, 0, 0, 0, 1, 1, 1, 1], 0.5).shape
    torch.Size([6])
    """
    given = to_tensor(labels, "labels")
    if given.ndim != 1 or given.is_floating_point() or not len(given):
        raise InputError(f"labels must be class numbers of shape (n,); got {given.dtype} {tuple(given.shape)}")
    of_kind("the seed of a long tail", seed, CountOrZero)
    numbers = given.cpu().numpy()
    if numbers.min() < 0:
        raise InputError(f"labels must be class numbers from 0; got {numbers.min()}")
    there = np.bincount(numbers)
    if not there.all():
        raise InputError(f"a long tail needs samples of every class; class {int((there == 0).argmax())} has none")
    k = len(there)
    of_kind("the number of classes of a long tail", k, AtLeastTwo)
    of_kind("long_tail", ratio, PositiveFraction)
    # A class with more samples than it needs does not lengthen the tail; one with fewer shortens all of it.
    n_max = int(min(have / ratio ** (i / (k - 1)) for i, have in enumerate(there.tolist())) + 1e-9)
    draw = np.random.default_rng(seed)
    chosen = [
        draw.permutation(np.flatnonzero(numbers == i))[:count]
        for i, count in enumerate(long_tail_counts(n_max, k, ratio))
    ]
    return torch.from_numpy(np.sort(np.concatenate(chosen)))
