"""Every sample calibrated by a fit that has not seen it."""

import torch
from torch import Tensor

from temperance.calibrators.base import make_calibrator


def cross_fitted(
    method: str, logits: Tensor, labels: Tensor, counts: Tensor | None = None, *, folds: int, seed: int
) -> Tensor:
    """Probabilities of each sample by a calibrator that was not fitted on it. (n, k)

    Where all samples to fit on have one label, there is nothing to learn: the probabilities stay as they are.
    """
    n = len(labels)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(labels.device)
    found = torch.empty_like(logits)
    for i in range(min(folds, n)):
        out = order[i::folds]
        inside = torch.ones(n, dtype=torch.bool, device=labels.device)
        inside[out] = False
        if torch.all(labels[inside] == labels[inside][:1]):
            found[out] = logits[out].softmax(1)
            continue
        weights = None if counts is None else counts[inside]
        found[out] = (
            make_calibrator(method).fit(logits[inside], labels[inside], weights=weights).predict_proba(logits[out])
        )
    return found
