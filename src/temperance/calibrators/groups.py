"""Groups of samples, in fits and in use: their names and numbers."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_array
from temperance.errors import InputError

# The number of a group that no sample of the fit part belonged to.
UNKNOWN = -1


def numbered_groups(groups: ArrayLike, logits: Tensor, kept: Tensor | slice) -> tuple[tuple[str, ...], Tensor]:
    """The sorted names of the groups of the rows that are kept, and their numbers; `logits` are (n, k, *space)."""
    names, numbers = np.unique(_text(groups, logits), return_inverse=True)
    present, places = torch.unique(_of_rows(numbers, logits)[kept], return_inverse=True)
    return tuple(names[present.cpu().numpy()].tolist()), places


def known_groups(groups: ArrayLike, names: tuple[str, ...], logits: Tensor) -> Tensor:
    """The number of each row's group among these names, or UNKNOWN."""
    return _of_rows(places_among(names, _text(groups, logits)), logits)


def places_among(names: tuple[str, ...], given: npt.NDArray[np.str_]) -> npt.NDArray[np.int64]:
    """The place of each name among these, which are sorted, or UNKNOWN."""
    known = np.array(names)
    places = np.searchsorted(known, given).clip(max=len(names) - 1)
    return np.where(known[places] == given, places, UNKNOWN)


def _text(groups: ArrayLike, logits: Tensor) -> npt.NDArray[np.str_]:
    given = groups.cpu().numpy() if isinstance(groups, Tensor) else as_array(groups, "groups")
    if given.shape != (len(logits),):
        raise InputError(f"groups must have shape {(len(logits),)}, one for each sample; got {given.shape}")
    if given.dtype.kind not in "Uiub":
        raise InputError(f"groups must be text or integers; got {given.dtype}. Pass groups.astype(str)")
    return given.astype(np.str_)


def _of_rows(numbers: npt.NDArray[np.int64], logits: Tensor) -> Tensor:
    """Every pixel has the group of its image."""
    found = torch.from_numpy(numbers.reshape(-1).astype(np.int64)).to(logits.device)
    return found.repeat_interleave(logits[:1, 0].numel())
