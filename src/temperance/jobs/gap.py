"""Calibration error without bins: how much a calibrator gains on samples that it was not fitted on.

A calibrator g that is fitted to all folds but one is measured on that one. On average it cannot gain more than the best
possible one, so what it gains bounds the calibration error from below, whatever g is; and nothing depends on bins.

nll, brier  the score before minus the score after; the calibration error is the most that any map could gain
top-l2      √ of the same for the squared error of the confidence: at most √E(accuracy − confidence)²
top-l1      E s (correct − confidence), where s is the sign of g − confidence: at most E|accuracy − confidence|
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.arrays import LOG_FLOOR, ArrayLike
from temperance.calibrators._fit.reduction import top_log_odds
from temperance.calibrators.base import make_calibrator
from temperance.errors import TemperanceWarning
from temperance.jobs.cross_fitting import cross_fitted
from temperance.jobs.results import shown
from temperance.metrics.gain import Gains
from temperance.predictions.checks import Positive
from temperance.predictions.given import Set, as_predictions
from temperance.settings import AtLeastTwo, OpenFraction, Seed, of_kind

# Of 1 - level, in the bound of "top-l1". Its sides are chosen by fits that share most of their samples, and so agree.
# Where nothing is wrong, that makes its gains vary by up to 1.4 times as much as if they were independent, and the
# bound of calibrated predictions was above zero in up to 11 % of simulations, not 5 %; with this share in 3 to 5 %.
SHARE_OF_L1 = 1 / 4


@dataclass(frozen=True)
class Gap:
    """A calibration error, estimated from below, and the bound that the true one exceeds with probability `level`."""

    value: float
    low: float
    level: float


def calibration_gap(
    predictions: Set | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    positive: Positive | None = None,
    columns: Mapping[str, str] | None = None,
    weights: ArrayLike | None = None,
    answers: bool = False,
    method: str = "auto",
    folds: int = 5,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Gap]:
    """Calibration errors without bins: what a calibrator gains on samples it was not fitted on, with a lower bound.

    "nll" and "brier" are what `method` lowers these scores by, "top-l1" and "top-l2" the mean and the root mean square
    error of the confidence. All are estimates from below: a better calibrator may find more. The bound is one-sided, by
    Gaffke's test, which holds for few samples; it treats fits that share samples as independent, and for "top-l1",
    where that does not hold, has a quarter of the level. Where every prediction is right, or every one wrong, there is
    nothing to learn about the confidence: "top-l1" and "top-l2" are left out.

    `positive`, `columns`, `weights` and `answers` are those of `evaluate`.

    >>> from temperance.demo import demo_predictions
    >>> found = calibration_gap(demo_predictions()[1], method="temperature")
    >>> found["top-l1"].low < found["top-l1"].value
    True
    """
    of_kind("seed", seed, Seed)
    of_kind("folds", folds, AtLeastTwo)
    of_kind("level", level, OpenFraction)
    make_calibrator(method)  # a wrong name is refused before anything is read
    data = as_predictions(
        predictions,
        labels,
        from_logits=from_logits,
        positive=positive,
        columns=columns,
        weights=weights,
        answers=answers,
    )
    data.need_one_label()  # the labels of a sample go together, and the bound is for independent rows
    logits, truth, counts = data.logits().double(), data.labels, data.weights
    if counts is not None:
        kept = counts > 0
        logits, truth, counts = logits[kept], truth[kept], counts[kept]
    if data.one_score:
        top, correct = logits, truth
    else:
        prediction, log_odds = top_log_odds(logits)
        correct = (prediction.squeeze(1) == truth).long()
        top = torch.stack([torch.zeros_like(log_odds[0]), log_odds[0]], 1)
    with data.located(), warnings.catch_warnings():
        # Too few samples to learn from make the gain smaller, so the bound still holds.
        warnings.simplefilter("ignore", TemperanceWarning)
        after, top_after = (
            cross_fitted(method, z, y, counts, folds=folds, seed=seed) for z, y in ((logits, truth), (top, correct))
        )
    before, top_before = logits.softmax(1), top.softmax(1)
    found = {
        "nll": _gained(before, after, truth, counts, _log_loss),
        "brier": _gained(before, after, truth, counts, _halved if data.one_score else _squares),
        "top-l1": _gained(top_before, top_after, correct, counts, None),
        "top-l2": _gained(top_before, top_after, correct, counts, _halved),
    }
    tails = {name: (1 - level) * (SHARE_OF_L1 if name == "top-l1" else 1) for name in found}
    gaps = {
        name: Gap(max(gains.mean, 0.0), max(gains.lowest(tails[name]), 0.0), level) for name, gains in found.items()
    }
    mean, square = gaps.pop("top-l1"), gaps.pop("top-l2")
    if bool((correct == correct[0]).all()):
        return gaps
    # A root mean square is at least the mean.
    root = replace(square, value=max(math.sqrt(square.value), mean.value), low=math.sqrt(square.low))
    return gaps | {"top-l1": mean, "top-l2": root}


def gap_sentence(gaps: Mapping[str, Gap]) -> str:
    """What was found, in a sentence."""
    first = gaps["nll"]

    def told(name: str, *, percent: bool) -> str:
        return f"{shown(gaps[name].value, percent=percent)} (at least {shown(gaps[name].low, percent=percent)})"

    if "top-l1" not in gaps:
        confidence = ". There is no confidence gap to measure, because all predictions are right or all are wrong."
    elif gaps["top-l2"].value:
        confidence = (
            f"; confidence is off by {told('top-l1', percent=True)} on average and by {told('top-l2', percent=True)} "
            "in root mean square."
        )
    else:
        confidence = "; of the confidence it finds no error, which does not mean that there is none."
    return (
        "Measured without bins, by a calibrator on samples that it was not fitted on: calibration would lower NLL by "
        f"{told('nll', percent=False)} and Brier by {told('brier', percent=False)}{confidence} "
        f'Each "at least" is a one-sided {100 * first.level:g} % bound.'
    )


Score = Callable[[Tensor], Tensor]


def _log_loss(probs: Tensor) -> Tensor:
    """The log-loss of each row if any of its classes were the label. (n, k)"""
    return -probs.clamp_min(LOG_FLOOR).log()


def _squares(probs: Tensor) -> Tensor:
    """The same for the Brier score."""
    return probs.square().sum(1, keepdim=True) - 2 * probs + 1


def _halved(probs: Tensor) -> Tensor:
    """The same for the squared error of the confidence alone."""
    return _squares(probs) / 2


def _gained(before: Tensor, after: Tensor, labels: Tensor, counts: Tensor | None, score: Score | None) -> Gains:
    """What each sample gains, and the least and the most that any label would make any of them gain."""
    if score is None:
        side = (after[:, 1] - before[:, 1]).sign()[:, None]
        change = side * (torch.tensor([0.0, 1.0], dtype=torch.float64, device=before.device) - before[:, 1:])
    else:
        change = score(before) - score(after)
    if counts is not None:
        change = change * (counts / counts.mean())[:, None]
    return Gains(change.gather(1, labels[:, None]).squeeze(1), float(change.min()), float(change.max()))
