"""Which samples are held out: at random, class by class, or as published programs do it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, to_tensor
from temperance.errors import InputError
from temperance.settings import CountOrZero, of_kind, one_of

Numbers = npt.NDArray[np.int64]


def hold_out(
    labels: ArrayLike, amount: float, *, split: str = "random", seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """The indices of the samples that stay and of those that are held out, in shuffled order.

    amount  how many are held out: a fraction below 1, rounded to the nearest number (halves up), or a number
    split   "random": the last ones of a permutation;
            "stratified": the last ones of each class, so that every class is held out in proportion;
            "focal-calibration": the first ones of the shuffle in the program of focal calibration (Mukhoti et al.
            2020), which CTS, FLSD and MaC-Cal build on; "plp": the last ones of the permutation in PLP's and MIT's
    seed    by default 0, and for the published splits the seed that their programs use: 1 and 101

    The published splits draw from NumPy's legacy generator, so that the very images of the papers are held out.

    >>> kept, held = hold_out([0, 1, 0, 1, 0, 1], 1 / 3, split="stratified")
    >>> sorted(held.remainder(2).tolist())
    [0, 1]
    """
    given = to_tensor(labels, "labels")
    if given.ndim != 1 or given.is_floating_point():
        raise InputError(f"labels must be class numbers of shape (n,); got {given.dtype} {tuple(given.shape)}")
    one_of("split", split, SPLITS)
    draw, published_seed = SPLITS[split]
    if seed is not None:
        of_kind("split_seed", seed, CountOrZero)
    held = _number(amount, len(given))
    parts = draw(given.cpu().numpy(), held, published_seed if seed is None else seed)
    kept_index, held_index = (torch.from_numpy(part.astype(np.int64)) for part in parts)
    return kept_index, held_index


def _number(amount: float, n: int) -> int:
    """How many of n samples a fraction or a number means; at least one is held out, and one stays."""
    is_fraction = isinstance(amount, float) and 0 < amount < 1
    is_number = isinstance(amount, int) and not isinstance(amount, bool) and 0 < amount < n
    if not is_fraction and not is_number:
        raise InputError(
            f"the part held out must be a fraction between 0 and 1, or a whole number below the {n} samples; got "
            f"{amount!r}",
            flags={"the part held out": "--val-fraction"},
        )
    # A half is rounded up, also where the product came out just below it.
    held = int(amount * n + 0.5 + 1e-9) if is_fraction else int(amount)
    if not 0 < held < n:
        raise InputError(f"holding out {amount!r} of {n} samples leaves one side empty; choose another fraction")
    return held


def _random(labels: Numbers, held: int, seed: int) -> tuple[Numbers, Numbers]:
    order = np.random.default_rng(seed).permutation(len(labels))
    return order[:-held], order[-held:]


def _stratified(labels: Numbers, held: int, seed: int) -> tuple[Numbers, Numbers]:
    order = np.random.default_rng(seed).permutation(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    # Largest remainders: each class gets its share, rounded down, and those cut shortest get one more.
    share = counts * (held / len(labels))
    quota = np.floor(share + 1e-9).astype(np.int64)
    quota[np.argsort(quota - share, kind="stable")[: held - quota.sum()]] += 1
    is_held = np.zeros(len(labels), bool)
    for label, number in zip(classes, quota, strict=True):
        of_class = np.flatnonzero(labels[order] == label)
        is_held[of_class[len(of_class) - number :]] = True
    return order[~is_held], order[is_held]


def _focal_calibration(labels: Numbers, held: int, seed: int) -> tuple[Numbers, Numbers]:
    order = np.arange(len(labels))
    np.random.RandomState(seed).shuffle(order)
    return order[held:], order[:held]


def _plp(labels: Numbers, held: int, seed: int) -> tuple[Numbers, Numbers]:
    order = np.random.RandomState(seed).permutation(len(labels))
    return order[:-held], order[-held:]


# The function that draws each split, and its default seed.
SPLITS: dict[str, tuple[Callable[[Numbers, int, int], tuple[Numbers, Numbers]], int]] = {
    "random": (_random, 0),
    "stratified": (_stratified, 0),
    "focal-calibration": (_focal_calibration, 1),
    "plp": (_plp, 101),
}
