"""A block of checked predictions, and the quantities that metrics share, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    as_weights,
    check_probs,
    refuse_non_finite,
    refuse_probs,
    weighted_blocks,
)
from temperance.compiled import first_places, read_once, row_extremes
from temperance.errors import NothingCountsError

Statistic = TypeVar("Statistic", bound=Callable[..., Any])

# Two probabilities can both be the largest only up to one half, plus rounding.
TIE_LIMIT = 0.5 + 1e-2

# Rows to check at once if each is read only once: they need not stay in cache.
TALL_ROWS = 1 << 20

# Rows of a batch for narrow statistics. Torch splits longer columns among threads, which gains little and, on a busy
# machine where threads wait for each other, costs far more than the work.
SERIAL_ROWS = 1 << 15

NARROW: set[Callable[..., Any]] = set()


def narrow(statistic: Statistic) -> Statistic:
    """Mark a statistic that needs only `Columns`: a few numbers per row, however many classes there are."""
    NARROW.add(statistic)
    return statistic


class Columns:
    """A few numbers for each of n rows, enough for everything that does not need all k classes.

    labels       (n,) int64
    top          (n,) the largest logit or probability of the row, in its original dtype
    label_score  (n,) that of the label
    normaliser   (n,) of logits: Σ_j exp(z_j − top), in float64
    correct      (n,) bool: is the label the most probable class? Ties go to the lowest index

    weights      (n,) float64, above 0: how much the row counts; None if all rows count equally

    Every sum is over `weighed` values, so weights enter the statistics only here. Without weights, counts are int64.

    Rows can be assigned to parts (`part`, (n,) numbers below `n_parts`); every sum then has a leading dimension.
    """

    k: int
    from_logits: bool
    labels: Tensor
    top: Tensor
    label_score: Tensor
    normaliser: Tensor
    correct: Tensor
    one_score: bool = False
    weights: Tensor | None = None
    part: Tensor | None = None
    n_parts: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def joined(cls, several: Sequence[Columns]) -> Columns:
        """The concatenated columns of batches, without their scores."""
        found, first = Columns(), several[0]
        found.k, found.from_logits, found.one_score = first.k, first.from_logits, first.one_score
        names = ["labels", "top", "label_score", "correct"]
        names += ["normaliser"] * first.from_logits
        # The confidence in an answer cannot be computed from the largest logit.
        names += ["confidence"] * (first.from_logits and first.one_score)
        names += [name for name in ("weights", "part") if getattr(first, name) is not None]
        for name in names:
            setattr(found, name, torch.cat([getattr(each, name) for each in several]))
        return found

    def deal(self, part: Tensor | None, n_parts: int) -> None:
        """Assign each row to the part given by `part` (n,); None undoes that."""
        self.part, self.n_parts = (None, 1) if part is None else (part % n_parts, n_parts)

    @cached_property
    def confidence(self) -> Tensor:
        """(n,) the largest probability of each row, in float64."""
        return self.normaliser.reciprocal() if self.from_logits else self.top.double()

    @property
    def own_confidence(self) -> Tensor:
        """(n,) the confidence in its original dtype: the bins of float32 values are found faster."""
        return self.confidence if self.from_logits else self.top

    @cached_property
    def nll(self) -> Tensor:
        """(n,) minus the log-probability of the label, in float64."""
        if self.from_logits:
            # Subtract the logits first: their difference is (nearly) exact, and a small logarithm keeps its digits.
            return (self.top.double() - self.label_score).add_(self.normaliser.log())
        return -self.label_score.double().clamp_min(LOG_FLOOR).log()

    @cached_property
    def label_prob(self) -> Tensor:
        """(n,) the probability of the label, in float64."""
        return (-self.nll).exp() if self.from_logits else self.label_score.double()

    @property
    def parts(self) -> Tensor:
        """(n,) the part of each row; all zero if rows are not assigned to parts."""
        return torch.zeros_like(self.labels) if self.part is None else self.part

    # Sums over rows. With parts they have an extra leading dimension.

    def weighed(self, values: Tensor, row: Tensor | None = None) -> Tensor:
        """Values of all rows (n,), or of those with index `row` (m,), times their weights if there are any."""
        if self.weights is None:
            return values
        return values * (self.weights if row is None else self.weights[row])

    @property
    def count(self) -> Tensor:
        """The number of rows, or the sum of their weights. ()"""
        if self.part is None:
            return torch.tensor(len(self), device=self.labels.device) if self.weights is None else self.weights.sum()
        return torch.bincount(self.part, self.weights, minlength=self.n_parts)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a value per row, in float64. ()"""
        values = self.weighed(values)
        if self.part is None:
            return values.sum(dtype=torch.float64)
        return torch.bincount(self.part, values.double(), minlength=self.n_parts)

    def tally(self, index: Tensor, size: int, values: Tensor | None = None) -> Tensor:
        """How many rows have each index below `size`, or the sum of their values in float64. (size,)"""
        # Without rows bincount returns int64, whatever the dtype of its weights.
        weights = self.weights if values is None else self.weighed(values).double()
        if self.part is None:
            found = torch.bincount(index, weights, minlength=size)
        else:
            found = torch.bincount(self.part * size + index, weights, minlength=self.n_parts * size)
            found = found.reshape(self.n_parts, size)
        return found if weights is None else found.double()


class Batch(Columns):
    """Rows of logits or probabilities with their labels. Derived quantities are computed on first use.

    one_score  of two classes, whose second one every row predicts: that an answer is right, or that a label applies
    """

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        *,
        from_logits: bool,
        first_row: int = 0,
        weights: Tensor | None = None,
        one_score: bool = False,
    ) -> None:
        self.from_logits = from_logits
        self.one_score = one_score
        self.labels = labels
        self.weights = weights
        self.scores = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        self.k = scores.shape[1]
        if from_logits:
            found = row_extremes(self.scores, labels)
            # Any NaN or infinity shows in the sum of its row. A sum of very large numbers can be infinite, too.
            if not -torch.inf < found.lightest <= found.heaviest < torch.inf:
                refuse_non_finite(self.scores, "logits", first_row)
        else:
            found = check_probs(self.scores, labels, first_row=first_row, tolerance=SUM_TOLERANCE[scores.dtype])
        self.top, self._hit = found.top, found.hit
        if one_score:  # the prediction even where it is more likely wrong than right
            self._hit = labels == 1
            if from_logits:
                self.confidence = (self.scores[:, 1].double() - self.scores[:, 0]).sigmoid()
            else:
                self.top = self.scores[:, 1]

    def select(self, index: Tensor | slice) -> Batch:
        """The same predictions for some of the rows, already checked."""
        part = object.__new__(Batch)
        part.from_logits, part.k, part.labels = self.from_logits, self.k, self.labels[index]
        part.one_score = self.one_score
        part.scores, part.top = self.scores[index], self.top[index]
        part._hit = None if self._hit is None else self._hit[index]
        if self.one_score and self.from_logits:
            part.confidence = self.confidence[index]
        part.weights = None if self.weights is None else self.weights[index]
        return part

    @cached_property
    def _softmax(self) -> tuple[Tensor, Tensor]:
        """The probabilities of logits, and their normalisers."""
        exponential = self.scores.to(torch.float64, copy=True).sub_(self.top[:, None]).exp_()
        normaliser = exponential.sum(1)
        return exponential.div_(normaliser[:, None]), normaliser

    @property
    def normaliser(self) -> Tensor:  # type: ignore[override]
        return self._softmax[1]

    @cached_property
    def probs(self) -> Tensor:
        """(n, k) in float64."""
        return self._softmax[0] if self.from_logits else self.scores.double()

    @cached_property
    def label_score(self) -> Tensor:  # type: ignore[override]
        return self.scores.gather(1, self.labels[:, None]).squeeze(1)

    @cached_property
    def correct(self) -> Tensor:  # type: ignore[override]
        # Found without an argmax, which costs several times as much.
        if self._hit is not None:
            return self._hit
        correct = self.label_score == self.top
        tied = (correct & (self.confidence <= TIE_LIMIT)).nonzero().squeeze(1)
        if len(tied):
            correct[tied] = first_places(self.scores[tied], self.top[tied]) == self.labels[tied]
        return correct

    @cached_property
    def prediction(self) -> Tensor:
        """(n,) the most probable class, the lowest index of tied ones; with one score, the second."""
        if self.one_score:
            return torch.ones_like(self.labels)
        return first_places(self.scores, self.top)


def batches(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    from_logits: bool = False,
    ignore_index: int | None = None,
    weights: ArrayLike | None = None,
    first_row: int = 0,
    tall: bool = False,
    one_score: bool = False,
    first: bool = True,
) -> Iterator[Batch]:
    """Checked predictions in blocks that stay in cache. Errors count rows from `first_row`.

    Rows of weight 0 are checked and then left out. `one_score` is that of `Batch`. With `tall`, for `narrow`
    statistics, probabilities are checked many rows at a time if each is read only once. The `first` rows of some
    data show whether their logits are probabilities by mistake; a few of the others may look so by chance.
    """
    name = "logits" if from_logits else "probs"
    given = as_scores(scores, name)
    truth = as_labels(labels, given, ignore_index=ignore_index, name=name, first_row=first_row)
    counted = None if weights is None else as_weights(weights, tuple(truth.shape), first_row=first_row).to(given.device)
    tall = tall and not from_logits and ignore_index is None and read_once(given)
    step = TALL_ROWS if tall else None
    empty = True
    for rows, y, w, start in weighted_blocks(given, truth, counted, ignore_index=ignore_index, step=step):
        if from_logits and empty and first:
            refuse_probs(rows, "pass them as probs, not as logits")
        empty = False
        batch = Batch(rows, y, from_logits=from_logits, first_row=first_row + start, weights=w, one_score=one_score)
        if w is not None and not bool(w.all()):
            batch = batch.select(w > 0)
            if not len(batch):
                continue
        height = SERIAL_ROWS if tall else len(batch)
        yield from (batch.select(slice(i, i + height)) for i in range(0, len(batch), height))
    if empty:
        raise NothingCountsError(f"every label is ignore_index={ignore_index}: there is nothing to measure")
