"""The gradient of a loss in the logits as label smoothing, and the shape of a loss over a range of predictions.

`gradients(loss, logits, labels)` analyses any loss by autograd, or by formula if one is known; `sweep` and
`against_probability` do so along a line of predictions, for plots (`temperance gradients`, `temperance.report`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.arrays import flatten
from temperance.diagnose.smoothing import Smoothing, by_formula, has_formula
from temperance.errors import InputError
from temperance.losses.base import Loss, make_loss, with_samples
from temperance.losses.selective import soft_cdf
from temperance.settings import one_of

SOURCES = ("autograd", "formula")

# The size of the batch in which a batch-level loss is analysed.
REFERENCE_SIZE = 64


def gradients(
    loss: str | Loss, logits: Tensor, labels: Tensor, indices: Tensor | None = None, *, source: str = "autograd"
) -> Smoothing:
    """The gradient of a loss as label smoothing: how much each class's label is moved, and whether. (n, k)

    source  "autograd": any loss, but f is known only where C is true; "formula": exact formulas, with f everywhere

    Samples are summed, so the slope of a batch-level penalty is n times that of the mean, and comparable with one
    sample's p − q. Class weights are ignored.

    >>> found = gradients("label-smoothing", torch.tensor([[3.0, 1.0, -0.5]]), torch.tensor([0]))
    >>> found.amount
    tensor([[0.0333, 0.0167, 0.0167]], dtype=torch.float64)
    """
    one_of("source", source, SOURCES)
    loss = make_loss(loss) if isinstance(loss, str) else loss
    z = logits.detach().double().requires_grad_(source == "autograd")
    rows = loss._rows(z, labels, indices)
    if source == "formula":
        return by_formula(loss, rows)
    losses = loss._losses(rows).masked_fill(~rows.kept, 0)
    gradient = flatten(torch.autograd.grad(losses.sum(), z)[0])
    plain = rows.probs.detach() - rows.one_hot
    slope = (gradient - plain).masked_fill(~rows.kept[:, None], 0)
    return Smoothing.of_slope(slope, rows.prediction)


# ------------------------------------------------------------------------------------------------- along the logits


@dataclass(frozen=True)
class Sweep:
    """f and C of one class while its logit moves and the others stay. (m,) each

    logit, prob  of that class
    """

    logit: Tensor
    prob: Tensor
    f: Tensor
    C: Tensor


def probe(name: str, *, k: int = 10, **settings: Any) -> Loss:
    """A loss to analyse; if it has a memory, it is updated with the `overconfident_batch`."""
    loss = make_loss(with_samples(name, REFERENCE_SIZE + 1), **settings)
    if loss.learns_from is not None:
        logits, labels = overconfident_batch(k)
        loss.update(logits, labels, torch.arange(1, REFERENCE_SIZE + 1))
    return loss


def sweep(loss: Loss, place: str, *, k: int = 10, points: int = 241) -> Sweep:
    """How a loss smooths the label of a right prediction, at the predicted class or at another.

    place  "top": the predicted class's logit goes from 0 to 15, all others are 0; "other": another class's logit goes
           from −8 to 12, the logit of the predicted class, and the rest are 0

    A batch-level loss depends on the batch: here the prediction precedes an `overconfident_batch`. f comes from a
    formula if there is one, so that it is known even where C is false.
    """
    one_of("place", place, ("top", "other"))
    logits = torch.zeros(points, k, dtype=torch.float64)
    column = 0 if place == "top" else 1
    if place == "top":
        logits[:, 0] = torch.linspace(0, 15, points + 1, dtype=torch.float64)[1:]
    else:
        logits[:, 0] = 12
        logits[:, 1] = torch.linspace(-8, 12, points + 1, dtype=torch.float64)[:-1]
    labels = torch.zeros(points, dtype=torch.int64)
    if loss.per_sample:
        found = _best(loss, logits, labels, None)
        f, C = found.f[:, column], found.C[:, column]
    else:
        context, truth = overconfident_batch(k)
        indices = torch.arange(REFERENCE_SIZE + 1)
        each = [_best(loss, torch.cat([row[None], context]), torch.cat([labels[:1], truth]), indices) for row in logits]
        f, C = (torch.stack([getattr(one, part)[0, column] for one in each]) for part in ("f", "C"))
    return Sweep(logits[:, column], logits.softmax(1)[:, column], f, C)


def overconfident_batch(k: int = 10) -> tuple[Tensor, Tensor]:
    """Predictions of class 0 with confidences from low to high, three in five of them right at any confidence."""
    order = torch.randperm(REFERENCE_SIZE, generator=torch.Generator().manual_seed(0))
    logits = torch.zeros(REFERENCE_SIZE, k, dtype=torch.float64)
    logits[:, 0] = torch.linspace(0.5, 8, REFERENCE_SIZE, dtype=torch.float64)[order]
    number = torch.arange(REFERENCE_SIZE)
    return logits, torch.where(number % 5 < 3, 0, 1 + number % (k - 1))


def _best(loss: Loss, logits: Tensor, labels: Tensor, indices: Tensor | None) -> Smoothing:
    return gradients(loss, logits, labels, indices, source="formula" if has_formula(loss) else "autograd")


# -------------------------------------------------------------------------------------------- along the probability


@dataclass(frozen=True)
class Curve:
    """A loss as a function of the label's probability. (m,) each

    weight  the loss as a multiple of cross-entropy, scaled to a mean of 1 over probabilities from 0 to 1
    loss    its value at that scale
    slope   its derivative in the probability at that scale
    """

    prob: Tensor
    weight: Tensor
    loss: Tensor
    slope: Tensor


def against_probability(loss: Loss, *, points: int = 400, k: int = 1000) -> Curve:
    """The weight, value and slope of a loss over the label's probability (Zhou et al., 2025, Figure 1, App. Figure 1).

    The batch has right predictions with probabilities spread evenly from 0 to 1, the rest shared by the k − 1 other
    classes. So the confidence is the label's probability, and its distribution function is the probability itself.
    """
    prob = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    label_logit = (prob / (1 - prob) * (k - 1)).log().requires_grad_()
    logits = torch.cat([label_logit[:, None], torch.zeros(points, k - 1, dtype=torch.float64)], dim=1)
    labels = torch.zeros(points, dtype=torch.int64)
    value = _along(loss, logits, labels)
    (in_logit,) = torch.autograd.grad(value.sum(), label_logit)
    value = value.detach()
    weight = value / -prob.log()
    scale = 1 / weight.mean()
    return Curve(prob, scale * weight, scale * value, scale * in_logit / (prob * (1 - prob)))


def beside_rival(loss: Loss, *, rival: float = 0.45, points: int = 400, k: int = 10) -> Curve:
    """A loss over the label's probability if another class has the probability `rival` (Zhou et al., App. Figure 2).

    Below it the prediction is wrong. The k − 2 other classes share the rest. The weight is the loss as a multiple of
    cross-entropy; nothing is scaled.
    """
    prob = ((torch.arange(points, dtype=torch.float64) + 0.5) / points * (1 - rival)).requires_grad_()
    others = ((1 - rival - prob) / (k - 2))[:, None].expand(-1, k - 2)
    logits = torch.cat([prob[:, None], torch.full_like(prob[:, None], rival), others], dim=1).log()
    labels = torch.zeros(points, dtype=torch.int64)
    value = _along(loss, logits, labels)
    (slope,) = torch.autograd.grad(value.sum(), prob)
    prob, value = prob.detach(), value.detach()
    return Curve(prob, value / -prob.log(), value, slope)


def _along(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each of these predictions. (n,)"""
    if loss.needs_indices:
        raise InputError(
            f"{loss.name} depends on what it has recorded of each sample, and not on the label's probability alone; "
            "draw its smoothing, with sweep",
            flags={"with sweep": "with --figure smoothing"},
        )
    return loss._losses(loss._rows(logits, labels, None))


# ------------------------------------------------------------------------------------------- the smoothed distribution


@dataclass(frozen=True)
class Distribution:
    """The distribution function of some confidences: exact, and as the AU loss smooths it at several bandwidths.

    at      confidences. (m,)
    exact   the share of confidences up to there. (m,)
    smooth  bandwidth → smoothed share. (m,) each
    """

    at: Tensor
    exact: Tensor
    smooth: dict[float, Tensor]


def smoothed_distribution(
    bandwidths: Sequence[float] = (0.01, 0.05, 0.1, 0.3), *, n_bins: int = 64, points: int = 401
) -> Distribution:
    """The effect of `cdf_bandwidth` on the distribution of confidences in the AU loss (Zhou et al., App. Figure 5).

    The confidences are 1000 quantiles of Beta(4, 1.2): a network that is mostly confident.
    """
    from scipy.special import betaincinv  # here, because importing it is slow

    shares = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    confidence = torch.from_numpy(betaincinv(4.0, 1.2, shares.numpy()))
    at = torch.linspace(0, 1, points, dtype=torch.float64)
    counts = torch.bincount((confidence * n_bins).long().clamp_max(n_bins - 1), minlength=n_bins)
    exact = torch.searchsorted(confidence, at, right=True) / 1000
    return Distribution(at, exact, {width: soft_cdf(at, counts, width) for width in bandwidths})
