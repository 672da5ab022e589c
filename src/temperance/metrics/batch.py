"""A block of checked predictions, and what the metrics share about it, computed once."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from temperance.arrays import (
    LOG_FLOOR,
    SUM_TOLERANCE,
    ArrayLike,
    as_labels,
    as_scores,
    blocks,
    check_logits,
    check_probs,
    refuse_probs,
)
from temperance.errors import InputError
from temperance.numerics import read_once

Statistic = TypeVar("Statistic", bound=Callable[..., Any])

# A tie for the largest probability needs two of them, so it is possible only up to one half (plus what rounding adds).
TIE_LIMIT = 0.5 + 1e-2

# Rows that are looked at in one go where each is read only once, so that they need not stay in cache.
TALL_ROWS = 1 << 20

# Rows of a batch of these. Torch gives longer columns to several threads, which gains little and, on a busy machine
# where they wait for each other, loses far more than the whole work.
SERIAL_ROWS = 1 << 15

NARROW: set[Callable[..., Any]] = set()


def narrow(statistic: Statistic) -> Statistic:
    """Mark a statistic that asks a batch for one number per row, never for one per class, and so can use `tall`."""
    NARROW.add(statistic)
    return statistic


class Batch:
    """Rows of logits or probabilities with their labels; everything derived is in float64 and computed on first use."""

    def __init__(self, scores: Tensor, labels: Tensor, *, from_logits: bool, first_row: int = 0) -> None:
        self.from_logits = from_logits
        self.labels = labels
        self.scores = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        if from_logits:
            check_logits(self.scores, first_row)
            self._top, self._hit = self.scores.amax(1), None
        else:
            found = check_probs(self.scores, labels, first_row=first_row, tolerance=SUM_TOLERANCE[scores.dtype])
            self._top, self._hit = found.top, found.hit

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def k(self) -> int:
        return self.scores.shape[1]

    def select(self, index: Tensor | slice) -> "Batch":
        """The same predictions for some of the rows, already checked."""
        part = object.__new__(Batch)
        part.from_logits, part.labels = self.from_logits, self.labels[index]
        part.scores, part._top = self.scores[index], self._top[index]
        part._hit = None if self._hit is None else self._hit[index]
        return part

    @cached_property
    def log_probs(self) -> Tensor:
        """(n, k) natural logarithms."""
        if self.from_logits:
            return self.scores.double().log_softmax(1)
        return self.scores.double().clamp_min(LOG_FLOOR).log_()

    @cached_property
    def probs(self) -> Tensor:
        """(n, k)."""
        return self.log_probs.exp() if self.from_logits else self.scores.double()

    @cached_property
    def confidence(self) -> Tensor:
        """(n,) the largest probability of each row."""
        if self.from_logits:
            return (self._top.double() - self._log_normaliser).exp_()
        return self._top.double()

    @property
    def own_confidence(self) -> Tensor:
        """(n,) the same number in the type it came in: bins of float32 values are found with less care."""
        return self.confidence if self.from_logits else self._top

    @cached_property
    def _log_normaliser(self) -> Tensor:
        return self.scores.double().logsumexp(1)

    @cached_property
    def _may_tie(self) -> Tensor:
        return self.confidence <= TIE_LIMIT

    @cached_property
    def prediction(self) -> Tensor:
        """(n,) the most probable class; of several, the lowest."""
        prediction = self.scores.argmax(1)
        tied = self._may_tie.nonzero().squeeze(1)
        if len(tied):
            is_top = self.scores[tied] == self._top[tied, None]
            columns = torch.arange(self.k, device=self.scores.device)
            prediction[tied] = torch.where(is_top, columns, self.k).amin(1)
        return prediction

    @cached_property
    def correct(self) -> Tensor:
        """(n,) bool: is the prediction the label? Found without an argmax, which costs several times as much."""
        if self._hit is not None:
            return self._hit
        correct = self._label_score == self._top
        tied = (correct & self._may_tie).nonzero().squeeze(1)
        if len(tied):
            columns = torch.arange(self.k, device=self.scores.device)
            is_earlier = columns < self.labels[tied, None]
            correct[tied] = ~((self.scores[tied] == self._top[tied, None]) & is_earlier).any(1)
        return correct

    @cached_property
    def _label_score(self) -> Tensor:
        return self.scores.gather(1, self.labels[:, None]).squeeze(1)

    @cached_property
    def nll(self) -> Tensor:
        """(n,) minus the log-probability of the label."""
        if self.from_logits:
            return self._log_normaliser - self._label_score.double()
        return -self._label_score.double().clamp_min(LOG_FLOOR).log()

    @cached_property
    def label_prob(self) -> Tensor:
        """(n,) the probability of the label."""
        return (-self.nll).exp() if self.from_logits else self._label_score.double()


def batches(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool = False,
    ignore_index: int | None = None,
    first_row: int = 0,
    tall: bool = False,
) -> Iterator[Batch]:
    """Checked predictions in blocks that stay in cache; `first_row` is what errors count rows from.

    With `tall`, for `narrow` statistics, probabilities are looked at many rows at a time where each is read only once.
    """
    name = "logits" if from_logits else "probs"
    given = as_scores(scores, name)
    truth = as_labels(labels, given, ignore_index=ignore_index, name=name, first_row=first_row)
    tall = tall and not from_logits and ignore_index is None and read_once(given)
    empty = True
    for rows, y, start in blocks(given, truth, ignore_index=ignore_index, step=TALL_ROWS if tall else None):
        if from_logits and empty:
            refuse_probs(rows, "give them as probs, not as logits")
        empty = False
        batch = Batch(rows, y, from_logits=from_logits, first_row=first_row + start)
        height = SERIAL_ROWS if tall else len(batch)
        yield from (batch.select(slice(i, i + height)) for i in range(0, len(batch), height))
    if empty:
        raise InputError(f"every label is ignore_index={ignore_index}: there is nothing to measure")
