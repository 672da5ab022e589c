"""Probabilities that were rounded before they were saved: rows that do not sum to 1, and zeros that are not exact."""

import torch
from torch import Tensor

from temperance.arrays import SUM_TOLERANCE
from temperance.errors import InputError

# Numbers with more decimals than this do not count as rounded.
MOST_DECIMALS = 6


def decimals_of(probs: Tensor) -> int:
    """The number of decimals, at most six, to which all numbers are rounded; 0 if they are all 0 or 1.

    >>> decimals_of(torch.tensor([[0.5, 0.5], [0.125, 0.875]]))
    3
    """
    values = probs.double()
    for decimals in range(MOST_DECIMALS):
        scaled = values * 10.0**decimals
        # float32 holds a number below 1 to within 6e-8.
        if bool(((scaled - scaled.round()).abs() <= 1e-7 * 10.0**decimals).all()):
            return decimals
    return MOST_DECIMALS


def half_unit(decimals: int) -> float:
    """Half a unit of the last decimal: the most by which rounding moves a number."""
    return 0.5 * 10.0**-decimals


def zero_at(decimals: int, k: int) -> float:
    """The substitute for a probability that was rounded to 0: k of them sum to half a unit of the last decimal."""
    return half_unit(decimals) / k


def unrounded(probs: Tensor, decimals: int, *, first_row: int = 0) -> Tensor:
    """Rows without zeros that sum to 1. (n, k)

    Refused where rounding cannot explain the sum: each of the k numbers may be off by one unit of the last decimal.

    >>> unrounded(torch.tensor([[0.333, 0.333, 0.333]]), 3).sum().item()
    1.0
    """
    rows = probs.double()
    total, k = rows.sum(1), rows.shape[1]
    allowed = max(k * 10.0**-decimals, SUM_TOLERANCE[probs.dtype])
    # Written so that NaN and a row of zeros fail.
    good = (rows.amin(1) >= 0) & (total > 0) & ((total - 1).abs() <= allowed)
    if not bool(good.all()):
        i = int((~good).nonzero()[0])
        low = float(rows[i].amin())
        what = f"sums to {float(total[i]):.6g}" if low >= 0 else f"contains {low:.4g}"
        remedy = ". If only their ratios count, divide each row by its sum" if low >= 0 and total[i] > 0 else ""
        raise InputError(
            f"rounded probs must be at least 0 and sum to nearly 1; row {first_row + i} {what}, and rounding {k} "
            f"numbers to {decimals} decimals explains a difference of at most {k * 10.0**-decimals:.3g}{remedy}",
            row=first_row + i,
        )
    rows = rows.where(rows > 0, zero_at(decimals, k))
    return (rows / rows.sum(1, keepdim=True)).to(torch.promote_types(probs.dtype, torch.float32))
