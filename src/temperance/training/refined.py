"""The validation loss after temperature scaling: the part that a calibrator cannot correct afterwards."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.calibrators._fit.inverse_temperature import fit_inverse_temperature
from temperance.metrics import nll
from temperance.objectives import Nll

FOLDS = 5


def refined_nll(logits: Tensor, labels: Tensor) -> float:
    """NLL after cross-fitted temperature scaling: each fifth uses the temperature fitted to the other four.

    A single sample has no others, and keeps its NLL.

    A network that gets more confident without getting better has a rising NLL, although a temperature would correct it.
    With the temperature, NLL falls as long as the predictions improve.

    >>> logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 0.0]] * 50)
    >>> labels = torch.tensor([0, 0, 1, 1] * 50)
    >>> nll(logits, labels, from_logits=True) > 4 * refined_nll(logits, labels)
    True

    Berta et al., Rethinking early stopping: refine, then calibrate, 2025.
    """
    rows = logits.double()
    folds = min(FOLDS, len(rows))
    if folds < 2:
        return nll(rows, labels, from_logits=True)
    fold = torch.arange(len(rows), device=rows.device) % folds
    scaled = torch.empty_like(rows)
    for i in range(folds):
        inverse, _ = fit_inverse_temperature(Nll(), rows[fold != i], labels[fold != i])
        scaled[fold == i] = inverse * rows[fold == i]
    return nll(scaled, labels, from_logits=True)
