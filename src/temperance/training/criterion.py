"""The loss of a training, by name or as an object."""

from __future__ import annotations

import copy

from temperance.errors import InputError
from temperance.losses import Loss, make_loss
from temperance.losses.base import with_samples


def as_loss(loss: Loss | str, n_samples: int) -> Loss:
    """A loss for one training: a copy of the caller's, or a new one by name.

    A loss by name that keeps a record of every training sample gets their number; so does a base.

    >>> as_loss("focal:gamma=2", 100)
    Focal(gamma=2, detach_weight=False)
    >>> as_loss("acls:base=crl", 100).base.n_samples
    100
    """
    if not isinstance(loss, Loss | str):
        raise InputError(f"loss must be a loss of temperance or the name of one, such as 'cross-entropy'; got {loss!r}")
    found = copy.deepcopy(loss) if isinstance(loss, Loss) else make_loss(with_samples(loss, n_samples))
    if found.reduction == "none":
        raise InputError(f"the loss must return one number to train with; use {found.name}(reduction='mean')")
    return found
