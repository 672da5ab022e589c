"""Groups of samples, in fits and in use: their names and numbers.

A sample has a group in each of one or more columns. The groups of all columns are numbered one after the other, so a
number says in which column it is.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_array, combination_names
from temperance.errors import InputError, plural

# The number of a group that no sample of the fit part belonged to.
UNKNOWN = -1

# The groups of each column, sorted.
Columns = tuple[tuple[str, ...], ...]


def numbered_groups(groups: ArrayLike, logits: Tensor, kept: Tensor | slice) -> tuple[Columns, Tensor]:
    """The groups of the rows that are kept, and their numbers (n, c); `logits` are (n, k, *space)."""
    known: list[tuple[str, ...]] = []
    numbers = []
    for column in _text(groups, logits).T:
        names, places = np.unique(column, return_inverse=True)
        present, found = torch.unique(_of_rows(places, logits)[kept], return_inverse=True)
        numbers.append(found + sum(map(len, known)))
        known.append(tuple(names[present.cpu().numpy()].tolist()))
    return tuple(known), torch.stack(numbers, 1)


def known_groups(groups: ArrayLike, columns: Columns, logits: Tensor) -> Tensor:
    """The numbers of each row's groups (n, c), UNKNOWN for one that is not in its column."""
    numbers, first = [], 0
    for names, column in zip(columns, in_columns(_text(groups, logits), columns).T, strict=True):
        places = places_among(names, column)
        numbers.append(_of_rows(np.where(places == UNKNOWN, UNKNOWN, first + places), logits))
        first += len(names)
    return torch.stack(numbers, 1)


def in_columns(groups: npt.NDArray[np.str_], columns: Columns) -> npt.NDArray[np.str_]:
    """Groups (n,) or (n, c) in the columns of a fit (n, columns); if that was one, several are their combinations."""
    given = groups[:, None] if groups.ndim == 1 else groups
    if len(columns) == 1 and given.shape[1] > 1:
        return combination_names(given)[:, None]
    if given.shape[1] != len(columns):
        raise InputError(
            f"groups must be the {len(columns)} columns that the calibrator was fitted with, in the same order; got "
            f"{plural(given.shape[1], 'column')}"
        )
    return given


def places_among(names: Sequence[str], given: npt.NDArray[np.str_]) -> npt.NDArray[np.int64]:
    """The place of each name among these, which are sorted, or UNKNOWN."""
    known = np.array(names)
    places = np.searchsorted(known, given).clip(max=len(names) - 1)
    return np.where(known[places] == given, places, UNKNOWN)


def combination_numbers(groups: Tensor) -> Tensor:
    """A number for each combination of groups (n, c), the same where all are the same, in their order. (n,)"""
    found = torch.zeros_like(groups[:, 0])
    for column in groups.T:
        # Numbers stay below n · groups, because they are counted anew for each column.
        found = torch.unique(found * (column.max() + 2) + column + 1, return_inverse=True)[1]
    return found


def _text(groups: ArrayLike, logits: Tensor) -> npt.NDArray[np.str_]:
    """Groups (n,) or (n, c) as text (n, c)."""
    given = groups.cpu().numpy() if isinstance(groups, Tensor) else as_array(groups, "groups")
    n = len(logits)
    if given.shape[:1] != (n,) or given.ndim > 2 or 0 in given.shape[1:]:
        raise InputError(
            f"groups must have shape {(n,)}, one for each sample; got {given.shape}. Several columns have shape "
            f"({n}, c)"
        )
    if given.dtype.kind not in "Uiub":
        raise InputError(f"groups must be text or integers; got {given.dtype}. Pass groups.astype(str)")
    return (given[:, None] if given.ndim == 1 else given).astype(np.str_)


def _of_rows(numbers: npt.NDArray[np.int64], logits: Tensor) -> Tensor:
    """Every pixel has the group of its image."""
    found = torch.from_numpy(numbers.reshape(-1).astype(np.int64)).to(logits.device)
    return found.repeat_interleave(logits[:1, 0].numel())
