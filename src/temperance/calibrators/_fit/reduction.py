"""Reductions: how a binary method calibrates a classifier with many classes.

A binary method learns a map of one number to one number, from the log-odds of events and from whether they happened. A
reduction says which events these are, and how their calibrated probabilities become a row that sums to one:

one-versus-rest  "the label is j", a map for each class j; rows are divided by their sum (Zadrozny and Elkan 2002)
pooled           "the label is j", one map for all classes together; rows are divided by their sum (Zhang, Kailkhura
                 and Han 2020, who call it multi-class)
top-label        "the prediction is right", one map for the confidence; the other classes share the rest in their
                 original proportions

One-versus-rest learns what is particular to a class, but from the few samples of that class: with 1000 classes and five
samples of each, every method overfits. Pooled learns from all k · n pairs, is the safe choice for many classes, and
keeps the order of the classes. Top-label corrects the confidence and leaves the other classes as wrong as they were,
which costs NLL; it can push the confidence below another class's probability and so change a prediction. With two
classes all three are the same map of the probability of class 1, and `reduction` makes no difference.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from temperance.arrays import block_rows
from temperance.calibrators.base import Calibrator, Shared

Reduction = Literal["one-versus-rest", "pooled", "top-label"]


class BinaryCalibrator(Calibrator):
    """A calibrator that learns maps of one number, lifted to k classes by a reduction.

    A method implements `_fit_binary` and `_map`; both see m binary problems as the rows of a tensor (m, n).

    reduction  how many classes become binary events: "pooled" (one map for all classes), "one-versus-rest" (a map for
               each class) or "top-label" (one map, for the confidence)
    """

    def __init__(self, *, reduction: Reduction = "pooled", **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.reduction = reduction

    # What a method implements.

    def _fit_binary(self, log_odds: Tensor, happened: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Tensors of m rows, learnt from float64 log-odds and bool outcomes (m, n).

        `weights` (n,) say how many samples each column counts as.
        """
        raise NotImplementedError

    def _map(self, log_odds: Tensor) -> Tensor:
        """Calibrated log-odds (m, n), finite, of log-odds (m, n)."""
        raise NotImplementedError

    # How a reduction uses it.

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        log_odds, happened = self._problems(logits, labels)
        step = block_rows(log_odds.shape[1], logits.device)
        counts = torch.ones_like(log_odds[0]) if weights is None else weights.repeat(log_odds.shape[1] // len(weights))
        parts = [
            self._fit_binary(*some, counts)
            for some in zip(torch.split(log_odds, step), torch.split(happened, step), strict=True)
        ]
        for name in parts[0]:
            self._keep(name, stack_ragged([row for part in parts for row in part[name]]))

    def _calibrate(self, logits: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # for any number of rows
            return self._lift(logits)
        step = block_rows(logits.shape[1], logits.device)
        return torch.cat([self._lift(rows) for rows in torch.split(logits, step)])

    def _problems(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The log-odds of each event and whether it happened. (m, n)"""
        if logits.shape[1] == 2:
            return binary_log_odds(logits), (labels == 1)[None]
        if self.reduction == "top-label":
            prediction, log_odds = top_log_odds(logits)
            return log_odds, (labels[:, None] == prediction).T
        log_odds = class_log_odds(logits).T.contiguous()
        happened = labels == torch.arange(len(log_odds), device=labels.device)[:, None]
        return (log_odds.view(1, -1), happened.view(1, -1)) if self.reduction == "pooled" else (log_odds, happened)

    def _lift(self, logits: Tensor) -> Tensor:
        """Log-probabilities of a block of rows."""
        if logits.shape[1] == 2:
            mapped = self._map(binary_log_odds(logits))[0]
            return torch.stack([logsigmoid(-mapped), logsigmoid(mapped)], dim=1)
        if self.reduction == "top-label":
            prediction, log_odds = top_log_odds(logits)
            mapped = self._map(log_odds).T
            others = logits.scatter(1, prediction, -torch.inf).log_softmax(1) + logsigmoid(-mapped)
            return others.scatter(1, prediction, logsigmoid(mapped))
        log_odds = class_log_odds(logits)
        if self.reduction == "pooled":
            mapped = self._map(log_odds.view(1, -1)).view(logits.shape)
        else:
            mapped = self._map(log_odds.T).T
        return logsigmoid(mapped).log_softmax(1)


def binary_log_odds(logits: Tensor) -> Tensor:
    """The log-odds of class 1 of two. (1, n)"""
    return (logits[:, 1] - logits[:, 0])[None]


def top_log_odds(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The predicted class (n, 1), the first of equal ones, and its log-odds (1, n), exact even where it is certain."""
    prediction = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, prediction, -torch.inf).logsumexp(1, keepdim=True)
    return prediction, (logits.gather(1, prediction) - others).T


def class_log_odds(logits: Tensor) -> Tensor:
    """The log-odds of each class against all others, exact even where its probability rounds to one. (n, k)"""
    log_probs = logits.log_softmax(1)
    # Below the top a probability is at most one half, so its complement loses nothing to rounding.
    log_odds = log_probs - torch.log1p(-log_probs.exp())
    prediction, top = top_log_odds(logits)
    return log_odds.scatter(1, prediction, top.T)


def stack_ragged(rows: list[Tensor]) -> Tensor:
    """Rows of different lengths as one tensor; the shorter ones repeat their last value."""
    if rows[0].ndim == 0:
        return torch.stack(rows)
    longest = max(len(row) for row in rows)
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in rows])
