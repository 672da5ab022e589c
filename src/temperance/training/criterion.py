"""The loss of a training, by name or as an object."""

from __future__ import annotations

import copy

from temperance.errors import InputError
from temperance.losses import LOSSES, Loss, make_loss
from temperance.registry import parse_entry


def as_loss(loss: Loss | str, n_samples: int) -> Loss:
    """A loss for one training: a copy of the caller's, or a new one by name.

    A loss that keeps a record of every training sample gets their number, if it is given by name.

    >>> as_loss("focal:gamma=2", 100)
    Focal(gamma=2, detach_weight=False)
    """
    if isinstance(loss, Loss):
        return copy.deepcopy(loss)
    if not isinstance(loss, str):
        raise InputError(f"loss must be a loss of temperance or the name of one; got {loss!r}")
    name, settings = parse_entry(loss)
    if LOSSES[name].needs_indices:
        settings.setdefault("n_samples", n_samples)
    return make_loss(name, **settings)
