"""Lower bounds of the calibration error at a given error rate, and the maps that attain them.

Zhou, Gruber, Popordanoska and Blaschko (2025, section 4.1, after Ma and Blaschko, 2021) bound ECE from below by error
rate / k. The bound holds for the supremum over all binnings of the sample, which puts every sample into its own bin. It
does not hold for a fixed number of bins, nor for the population as they print it: ten samples with confidence 0.6, six
of them right, have ECE 0 and error rate / k = 0.2 (k = 2).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_scores, unflatten
from temperance.metrics.batch import Columns, batches, narrow
from temperance.metrics.stats import mean_metric


@mean_metric(title="ECE, supremum", range=(0, 1), percent=True)
@narrow
def ece_sup(batch: Columns) -> Tensor:
    """The largest ECE under any binning: every sample in its own bin.

    sup ECE = mean |correct − confidence|. No ECE of the same predictions is above it, and it is at least `error_over_k`
    (Zhou et al., 2025, Lemma 4.1). It is not an estimate of the calibration error: a perfectly calibrated model with
    confidence 0.6 has 0.48.

    >>> round(ece_sup([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.4
    """
    return (batch.correct.double() - batch.confidence).abs()


@mean_metric(title="classwise ECE, supremum", range=(0, 1), percent=True, of_classes=True)
@narrow
def classwise_ece_sup(batch: Columns) -> Tensor:
    """The largest classwise ECE under any binning: every sample in its own bin.

    sup cwECE = mean of Σ_c |1[c = y] − p_c| / k = mean of 2 (1 − p_y) / k. It is at least `error_over_k` (Zhou et al.,
    2025, Proposition 4.3). Their strict inequality fails if every right row is one-hot and every wrong one has
    p_y = 1/2, tied with the prediction: the two are then equal, as for a model without error that is always certain.

    >>> round(classwise_ece_sup([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.4
    """
    return 2 * (1 - batch.label_prob).clamp_min(0) / batch.k


@mean_metric(title="error rate / k", range=(0, 0.5), percent=True, of_classes=True)
@narrow
def error_over_k(batch: Columns) -> Tensor:
    """Error rate divided by the number of classes: a floor under `ece_sup` and `classwise_ece_sup`.

    Post-hoc calibration cannot lower them below it unless it changes predictions. It is not a floor for an ECE with a
    fixed number of bins, which can be 0 at any error rate.

    >>> round(error_over_k([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]), 6)
    0.166667
    """
    return (~batch.correct).double() / batch.k


def oracle_map(probs: ArrayLike, labels: ArrayLike, *, from_logits: bool = False) -> tuple[Tensor, Tensor]:
    """The probabilities of least `ece_sup` for these predictions, given which are right; and the predictions.

    Right rows become one-hot, wrong ones uniform (Zhou et al., 2025, Proposition 4.2). This attains the floor, error
    rate / k, as long as correctness is judged by the predictions returned here: the argmax of a uniform row is class 0,
    so predicting again from the new rows changes the accuracy.

    >>> oracle_map([[0.7, 0.3], [0.7, 0.3]], [0, 1])
    (tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]], dtype=torch.float64), tensor([0, 0]))
    """
    return _mapped(probs, labels, from_logits, lambda wrong, prediction: torch.full_like(wrong, 1 / wrong.shape[1]))


def half_map(probs: ArrayLike, labels: ArrayLike, *, from_logits: bool = False) -> tuple[Tensor, Tensor]:
    """Probabilities of lower `classwise_ece_sup`, given which predictions are right; and the predictions.

    Right rows become one-hot; in wrong ones the largest probability becomes m = min(1/2, p) (Zhou et al., 2025,
    Proposition 4.4). The paper leaves the others unchanged, so the row no longer sums to 1; here the others are scaled
    to sum to 1 − m, or share it evenly if they are all 0. The supremum never rises, but it reaches error rate / k only
    if p_y becomes 1/2. Judge correctness by the predictions returned: at 1/2 another class may tie.

    >>> half_map([[0.8, 0.15, 0.05]], [1])
    (tensor([[0.5000, 0.3750, 0.1250]], dtype=torch.float64), tensor([0]))
    """
    return _mapped(probs, labels, from_logits, _halved)


def _halved(rows: Tensor, prediction: Tensor) -> Tensor:
    at = prediction[:, None]
    top = rows.gather(1, at)
    others = rows.scatter(1, at, 0.0)
    total = others.sum(1, keepdim=True)
    shares = torch.where(total > 0, others / total, 1 / max(rows.shape[1] - 1, 1))
    return torch.where(top > 0.5, (0.5 * shares).scatter(1, at, 0.5), rows)


def _mapped(
    probs: ArrayLike, labels: ArrayLike, from_logits: bool, of_wrong: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """One-hot rows where the prediction is right, `of_wrong(rows, prediction)` elsewhere; and the predictions."""
    given = as_scores(probs, "logits" if from_logits else "probs")
    rows, predictions = [], []
    for batch in batches(given, labels, from_logits=from_logits):
        mapped = torch.zeros_like(batch.probs).scatter_(1, batch.prediction[:, None], 1.0)
        wrong = ~batch.correct
        mapped[wrong] = of_wrong(batch.probs[wrong], batch.prediction[wrong])
        rows.append(mapped)
        predictions.append(batch.prediction)
    prediction = torch.cat(predictions).reshape(given.shape[0], *given.shape[2:])
    return unflatten(torch.cat(rows), given.shape), prediction
