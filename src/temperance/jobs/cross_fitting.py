"""Every sample calibrated by a fit that has not seen it."""

import torch
from torch import Tensor

from temperance.calibrators.base import make_calibrator
from temperance.numerics import random_folds


def cross_fitted(
    method: str,
    logits: Tensor,
    labels: Tensor,
    counts: Tensor | None = None,
    *,
    images: Tensor | None = None,
    folds: int,
    seed: int,
) -> Tensor:
    """Probabilities of each sample by a calibrator that was not fitted on it. (n, k)

    Where samples are pixels, `images` (n,) numbers their images from 0 on, and none is fitted on pixels of its image.
    Where all samples to fit on have one label, there is nothing to learn: the probabilities stay as they are.
    """
    n = len(labels) if images is None else int(images.max()) + 1
    fold = random_folds(n, folds, seed)
    fold = (fold if images is None else fold[images]).to(labels.device)
    found = torch.empty_like(logits)
    for i in range(min(folds, n)):
        out, inside = fold == i, fold != i
        if torch.all(labels[inside] == labels[inside][:1]):
            found[out] = logits[out].softmax(1)
            continue
        weights = None if counts is None else counts[inside]
        found[out] = (
            make_calibrator(method).fit(logits[inside], labels[inside], weights=weights).predict_proba(logits[out])
        )
    return found
