"""Proper scores, accuracy, and the spread of loss between classes."""

import math
from typing import Literal

import torch
from torch import Tensor

from temperance.metrics.base import metric
from temperance.metrics.batch import Batch, Columns, narrow
from temperance.metrics.stats import Sums, mean_metric
from temperance.settings import Count, CountOrZero


@mean_metric(
    title="accuracy", range=(0, 1), lower_is_better=False, perfect=1.0, headline=1, percent=True, of_decisions=True
)
@narrow
def accuracy(batch: Columns) -> Tensor:
    """Accuracy: how often the prediction is right.

    The prediction is the most probable class, the lowest of tied ones; each answer is a prediction of its own.

    >>> accuracy([[0.9, 0.1], [0.8, 0.2]], [0, 1])
    0.5
    """
    return batch.correct


@mean_metric(title="top-k accuracy", range=(0, 1), lower_is_better=False, perfect=1.0, percent=True, of_classes=True)
def top_k_accuracy(batch: Batch, *, top: Count = 5) -> Tensor:
    """Top-k accuracy: how often the label is among the `top` most probable classes, by default five.

    With `top=1` this is accuracy, and with `top=k` it is always 1. Of tied classes the lower index comes first.

    top  how many of the most probable classes count

    >>> top_k_accuracy([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2], top=2)
    0.5
    """
    mine = batch.label_score[:, None]
    lower_index = torch.arange(batch.k, device=mine.device) < batch.labels[:, None]
    before = (batch.scores > mine) | ((batch.scores == mine) & lower_index)
    return before.sum(1) < top


@mean_metric(title="NLL", range=(0, math.inf), headline=2, proper=True)
@narrow
def nll(batch: Columns) -> Tensor:
    """Negative log-likelihood, also called log-loss or cross-entropy: a proper score, in nats.

    Exact from logits. Probabilities are clamped to at least 1e-12, so a sample costs at most 27.6.

    >>> round(nll([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 6)
    0.857399
    """
    return batch.nll


@mean_metric(title="Brier", range=(0, 2), headline=3, proper=True)
def brier(batch: Batch, *, mean_over_classes: bool = False) -> Tensor:
    """Brier score: the mean squared distance of the probabilities to the truth, a proper score.

    The truth is the one-hot label. Summed over classes, as Brier defined it, the score lies between 0 and 2;
    `mean_over_classes=True` divides by k, as some programs report it. Of answers, whose classes are not known, it is
    (confidence − correct)², from 0 to 1.

    mean_over_classes  divide by the number of classes

    >>> round(brier([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 6)
    0.65
    """
    # Σ_j (p_j − 1[j = y])² = Σ_j p_j² − 2 p_y + 1; rounding can make it negative.
    squared = (batch.probs.square().sum(1) - 2 * batch.label_prob + 1).clamp_min(0)
    return squared / batch.k if mean_over_classes or batch.one_score else squared


@narrow
def class_nll_sums(batch: Columns) -> Sums:
    """For each class, the number of samples with its label and the sum of their NLL. (k,)"""
    return Sums(batch.tally(batch.labels, batch.k), batch.tally(batch.labels, batch.k, batch.nll))


@metric(class_nll_sums, title="class loss spread", range=(0, math.inf), of_classes=True)
def class_loss_spread(sums: Sums, *, reduce: Literal["mean", "sum"] = "mean", ddof: CountOrZero = 0) -> float:
    """How unevenly the loss falls on classes: the standard deviation of their NLL (SCTL eq. 4).

    Over the classes that occur. `reduce="sum"` takes each class's summed loss (SCTL eq. 3 as printed), `ddof=1` the
    sample standard deviation, as its program does.

    reduce  "mean" or "sum" of the losses of a class
    ddof    0 for the population standard deviation, 1 for the sample's
    """
    present = sums.count > 0
    losses = (sums.total if reduce == "sum" else sums.mean)[present]
    return float(losses.std(correction=ddof)) if len(losses) > max(ddof, 1) else 0.0
