"""A temperature for each class, found by a greedy search for the least ECE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.arrays import block_rows
from temperance.calibrators._fit.inverse_temperature import caution_of, divided, fit_inverse_temperature, unit_of
from temperance.calibrators.base import Calibrator, Shared, calibrator
from temperance.calibrators.temperature_ece import ROUNDING, least_ece
from temperance.errors import InputError
from temperance.numerics import bin_edges
from temperance.objectives import Nll
from temperance.progress import tell
from temperance.settings import Count, CountOrZero, Positive

# A confidence this close to a bin edge, in bin widths, is recomputed as the metric does it: rounding decides its bin.
NEAR_EDGE = 1e-9

# Candidates × rows (or rows × classes) are processed in blocks of about this many values, which stay in cache.
BLOCK_VALUES = {"cpu": 1 << 16, "cuda": 1 << 25}

# How many grid values on either side a local search tries.
LOCAL_REACH = 2


@calibrator(family="temperature", preserves_argmax=False, steady_from=200)
class ClassTemperatureGreedy(Calibrator):
    """A temperature for each class, chosen class by class for the least ECE (CTS).

    p = softmax(z_1 / T_1, …, z_k / T_k). Every T_j starts at the grid's single temperature of least ECE. Then, class by
    class, T_j becomes the grid value of least ECE with the others fixed (CTS eq. 7), until a sweep over the classes
    changes nothing or `sweeps` are done. A value is accepted only if it lowers the ECE; of equally good ones, the
    smallest.

    The trap: ECE falls on the data it was fitted on, by construction. On new data the gain is smaller and can be a
    loss, more so with more classes and fewer samples; compare it on held-out data, with a proper score. Samples without
    a mistake get the single temperature of `temperature`, with a warning. If the logits of most samples differ by more
    than 256, start, stop and step are multiplied by a power of two, as are the bounds of `temperature`.

    Unlike a single temperature, it can change predictions. `constrained=True` accepts only values that keep the
    accuracy on the fit data, as the paper does; `False` is its U-CTS. The paper's text asks for an accuracy not below
    that of the current temperatures (`accuracy_rule="start"`), its algorithm box for a higher one ("strict"), and its
    program raises the bar at every better candidate of a scan ("ratchet"). `search="local"` tries only the two grid
    values on either side of the current one, as a later version of the program does.

    `info` holds ECE and accuracy at the start and after every sweep.

    n_bins             bins of the ECE
    start, stop, step  the grid of temperatures: start, start + step, … up to stop
    grid               other temperatures to try, instead of start, stop and step
    sweeps             maximum number of sweeps over the classes
    constrained        accept only values that keep the accuracy on the fit data
    accuracy_rule      the accuracy that a constrained value needs: "start", at least the current one; "strict", more;
                       "ratchet", at least that of the best value so far
    search             "full": every value of the grid; "local": the two on either side of the current one

    Frenkel and Goldberger, "Network calibration by class-based temperature scaling" (EUSIPCO 2021), Algorithm 1.
    """

    temperatures: Tensor

    def __init__(
        self,
        *,
        n_bins: Count = 15,
        start: Positive = 0.1,
        stop: Positive = 10.0,
        step: Positive = 0.1,
        grid: Sequence[Positive] | None = None,
        sweeps: CountOrZero = 5,
        constrained: bool = True,
        accuracy_rule: Literal["start", "strict", "ratchet"] = "start",
        search: Literal["full", "local"] = "full",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        self.n_bins = n_bins
        self.start = start
        self.stop = stop
        self.step = step
        self.grid = grid
        self.sweeps = sweeps
        self.constrained = constrained
        self.accuracy_rule = accuracy_rule
        self.search = search

    def _check_settings(self) -> None:
        self._values()  # refuses values that are not a grid

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        n, k = logits.shape
        grid, caution = self._values().to(logits.device), {}
        if self.grid is None:
            grid *= unit_of(logits)
        if bool((logits.argmax(1) == labels).all()):
            # The least ECE is then at an end of any grid.
            inverse, record = fit_inverse_temperature(Nll(), logits, labels)
            grid, caution = logits.new_tensor([1 / inverse]), caution_of(record)
        first, error = least_ece(logits, labels, grid, self.n_bins)
        best = _Outcome(error, int((logits.argmax(1) == labels).sum()))
        scan = _Scan(logits, labels, grid[first].expand(k).clone(), self.n_bins)
        chosen = [first] * k
        eces, counts = [best.ece], [best.correct]
        converged = False
        for sweep in range(self.sweeps):
            before = list(chosen)
            scan.refresh()
            for j in range(k):
                near = self._candidates(chosen[j], len(grid))
                at, best = self._choose(near.start, scan.outcomes(j, grid[near]), chosen[j], best)
                if at != chosen[j]:
                    chosen[j] = at
                    scan.accept(grid[at])
                tell(sweep * k + j + 1, self.sweeps * k, f"{self.name}: sweep {sweep + 1}, class {j}")
            eces.append(best.ece)
            counts.append(best.correct)
            converged = chosen == before
            if converged:
                break
        self._keep("temperatures", scan.temperatures)
        self.info = {
            "start_temperature": float(grid[first]),
            "ece": eces,
            "accuracy": [count / n for count in counts],
            "converged": converged,
        } | caution

    def _calibrate(self, logits: Tensor) -> Tensor:
        return divided(logits, self.temperatures)

    def _values(self) -> Tensor:
        """The grid, ascending."""
        if self.grid is None:
            if self.start > self.stop:
                raise InputError(f"start, stop and step must be a rising grid; got {self.start!r} to {self.stop!r}")
            steps = range(math.floor((self.stop - self.start) / self.step + 1e-9) + 1)
            given = [round(self.start + i * self.step, 10) for i in steps]
        else:
            given = [float(value) for value in self.grid]
        if not given:
            raise InputError(f"grid must be one or more positive temperatures; got {self.grid!r}")
        return torch.tensor(sorted(set(given)), dtype=torch.float64)

    def _candidates(self, current: int, size: int) -> slice:
        if self.search == "full":
            return slice(0, size)
        return slice(max(0, current - LOCAL_REACH), min(size, current + LOCAL_REACH + 1))

    def _choose(self, offset: int, outcomes: list[_Outcome], current: int, best: _Outcome) -> tuple[int, _Outcome]:
        """The grid index of the value to accept, and its outcome; the current ones if none is better."""
        bar = best.correct + (self.accuracy_rule == "strict")
        at = current
        for i, outcome in enumerate(outcomes):
            if outcome.ece < best.ece - ROUNDING and (outcome.correct >= bar or not self.constrained):
                at, best = offset + i, outcome
                if self.accuracy_rule == "ratchet":
                    bar = outcome.correct
        return at, best


@dataclass(frozen=True)
class _Outcome:
    """What temperatures achieve: the ECE, and how many predictions are right."""

    ece: float
    correct: int


@dataclass
class _Rows:
    """What the softmax and the prediction of each row need from some columns of scaled logits. (n,)"""

    top: Tensor  # the largest
    best: Tensor  # its column, the lowest of equal ones
    total: Tensor  # Σ exp(scaled logit − top): from 1 to the number of columns

    @classmethod
    def of(cls, scaled: Tensor) -> _Rows:
        top = scaled.amax(1)
        return cls(top, scaled.argmax(1), (scaled - top[:, None]).exp_().sum(1))

    def with_column(self, j: int, column: Tensor) -> _Rows:
        """The same with one more column."""
        wins = column > _just_below(self.top, where=self.best > j)
        apart = (-(column - self.top).abs()).exp()
        return _Rows(
            torch.where(wins, column, self.top),
            torch.where(wins, j, self.best),
            torch.where(wins, 1 + self.total * apart, self.total + apart),
        )


class _Scan:
    """Evaluates every candidate temperature of one class at a time, at a cost that does not depend on k.

    Changing T_j changes one column. So each row is summed once without that column, and a candidate costs one exp per
    row instead of k. Where column j is not the largest of its row, the sum without it is a difference of two sums,
    which loses no precision because the largest term stays; where it is the largest, the row is summed again.
    """

    def __init__(self, logits: Tensor, labels: Tensor, temperatures: Tensor, n_bins: int) -> None:
        self.logits = logits
        self.labels = labels
        self.temperatures = temperatures
        self.n_bins = n_bins
        self.j = 0

    def refresh(self) -> None:
        """Sum every row again, so that rounding does not accumulate from sweep to sweep."""
        parts = [_Rows.of(rows / self.temperatures) for rows in _split(self.logits, self.logits.shape[1])]
        self.rows = _Rows(*(torch.cat([getattr(p, f) for p in parts]) for f in ("top", "best", "total")))

    def accept(self, temperature: Tensor) -> None:
        """Set this temperature for the class last scanned."""
        self.temperatures[self.j] = temperature
        self.rows = self.others.with_column(self.j, self.logits[:, self.j] / temperature)

    def outcomes(self, j: int, candidates: Tensor) -> list[_Outcome]:
        """What each candidate temperature of class j achieves, with all other classes unchanged."""
        self.j = j
        self.others = self._without(j)
        gap = self.logits.new_zeros(len(candidates), self.n_bins)
        correct = self.logits.new_zeros(len(candidates))
        was_correct = (self.others.best == self.labels).double()
        change = (self.labels == j).double() - was_correct
        # column > threshold is then "j wins", ties going to the lower class number.
        threshold = _just_below(self.others.top, where=self.others.best > j)
        columns = (self.logits[:, j], threshold, self.others.top, self.others.total, was_correct, change)
        first = 0
        for part in _split(torch.stack(columns, 1), len(candidates)):
            z, bar, top, total, base, delta = part.T.contiguous()
            column = z / candidates[:, None]
            wins = torch.gt(column, bar, out=torch.empty_like(column))  # directly as numbers, without a bool tensor
            hits = torch.addcmul(base, wins, delta)
            correct += hits.sum(1)
            ratio = column.sub_(top).clamp_(max=700).exp_()
            confidence = ratio.clamp(min=1).div_(ratio.add_(total))
            index = self._bin(confidence, candidates, first)
            gap.scatter_add_(1, index, hits.sub_(confidence))
            first += len(part)
        return _outcomes(gap, correct, len(self.labels))

    def _without(self, j: int) -> _Rows:
        column = self.logits[:, j] / self.temperatures[j]
        rows = self.rows
        found = _Rows(rows.top.clone(), rows.best.clone(), rows.total - (column - rows.top).exp_())
        own = (rows.best == j).nonzero().squeeze(1)
        for part in _split(own, self.logits.shape[1]):
            scaled = self.logits[part] / self.temperatures
            scaled[:, j] = -math.inf
            anew = _Rows.of(scaled)
            found.top[part], found.best[part], found.total[part] = anew.top, anew.best, anew.total
        return found

    def _bin(self, confidence: Tensor, candidates: Tensor, first: int) -> Tensor:
        """The bin of each confidence (candidates, rows from `first`); those near an edge are recomputed."""
        # The upper half of the last bin is clamped to its middle: 1 is an edge, but nothing lies beyond it.
        scaled = (confidence * self.n_bins).clamp_(max=self.n_bins - 0.5)
        index = scaled.long()
        above = scaled.frac_()
        low, high = above.aminmax()
        if bool((low < NEAR_EDGE) | (high > 1 - NEAR_EDGE)):
            candidate, row = ((above < NEAR_EDGE) | (above > 1 - NEAR_EDGE)).nonzero(as_tuple=True)
            scaled_logits = self.logits[first + row] / self.temperatures
            scaled_logits[:, self.j] = self.logits[first + row, self.j] / candidates[candidate]
            exact = _confidence(scaled_logits)
            confidence[candidate, row] = exact
            index[candidate, row] = _exact_bin(exact, self.n_bins)
        return index


def _outcomes(gap: Tensor, correct: Tensor, n: int) -> list[_Outcome]:
    """From Σ (correct − confidence) of each bin (candidates, n_bins), and the number of correct rows (candidates,)."""
    eces = (gap.abs().sum(1) / n).tolist()
    return [_Outcome(ece, int(count)) for ece, count in zip(eces, correct.tolist(), strict=True)]


def _confidence(scaled: Tensor) -> Tensor:
    """The largest probability of each row, computed as the metrics compute it from logits."""
    return (scaled.amax(1) - scaled.logsumexp(1)).exp_()


def _exact_bin(confidence: Tensor, n_bins: int) -> Tensor:
    """The equal-width bin (lo, hi] of each confidence."""
    return (torch.searchsorted(bin_edges(n_bins, confidence.device), confidence) - 1).clamp_(0, n_bins - 1)


def _just_below(values: Tensor, *, where: Tensor) -> Tensor:
    """The values, replaced in some places by the next smaller float, so that `x > value` there means `x >= value`."""
    return torch.where(where, values.nextafter(values.new_tensor(-math.inf)), values)


def _split(rows: Tensor, width: int) -> tuple[Tensor, ...]:
    """Rows in blocks that stay in cache if each row needs `width` values."""
    return torch.split(rows, block_rows(width, rows.device, BLOCK_VALUES))
