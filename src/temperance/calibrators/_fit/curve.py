"""Binary maps that are piecewise linear from probability to probability: knots, and a value at each.

A jump is two knots at one place. So step functions and continuous lines, with one bin or thousands, have the same form
and are looked up in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.calibrators._fit.reduction import BinaryCalibrator, stack_ragged
from temperance.calibrators._fit.streaming import StreamCalibrator, Streamed

# Probabilities are clamped to this before taking logarithms: the smallest float64 of full precision.
TINY = torch.finfo(torch.float64).tiny

# Steps that differ by less than this in log-odds can be merged. A curve with a step for each sample is more detailed
# than the data justify, and its file would be a copy of the data.
RESOLUTION = 1e-3

# The log-odds of a stream are counted in cells between minus and plus this, with limits on the number of cells per
# problem and in total.
FARTHEST = 32.0
MOST_CELLS, TOTAL_CELLS = 1 << 16, 1 << 24


class CurveCalibrator(BinaryCalibrator):
    """A binary calibrator whose map is piecewise linear; a method implements `_fit_curve`.

    The curve of an isotonic or binned method is 0 or 1 where it saw only one outcome, and a single new sample with the
    other outcome would cost an infinite NLL. So the network's own probability p is mixed in with a share s:

        q = (1 − s) · curve(p) + s · p,   s = 1 / (1 + number of samples with the rarer outcome)

    s is the chance that the next sample with the rarer outcome lies beyond all those seen, where nothing is known about
    the curve. With thousands of samples it is negligible. For a class of five samples it is a sixth, and without it
    one-versus-rest fails on many classes: the usual floor of 1e-12 triples the NLL at 1000 classes. A class that was
    never seen keeps the network's own probability, and so does a row whose curves are all zero.
    """

    knots: Tensor
    values: Tensor
    share: Tensor

    def _fit_curve(self, probs: Tensor, happened: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Knots in ascending order and the value at each, from one problem's samples (n,) sorted by probability."""
        raise NotImplementedError

    def _fit_binary(self, log_odds: Tensor, happened: Tensor, weights: Tensor) -> dict[str, Tensor]:
        probs, order = log_odds.sigmoid().sort(dim=1)
        curves = [self._fit_curve(*one) for one in zip(probs, happened.gather(1, order), weights[order], strict=True)]
        hits = happened.double() @ weights
        rarer = torch.minimum(hits, weights.sum() - hits)
        return {
            "knots": stack_ragged([knots for knots, _ in curves]),
            "values": stack_ragged([values for _, values in curves]),
            "share": 1 / (1 + rarer),
        }

    def _map(self, log_odds: Tensor) -> Tensor:
        probs = log_odds.sigmoid()
        curve = look_up(probs, self.knots, self.values)
        share = self.share[:, None]
        yes = (1 - share) * curve + share * probs
        no = (1 - share) * (1 - curve) + share * (-log_odds).sigmoid()
        tiny = torch.finfo(probs.dtype).tiny
        return yes.clamp_min(tiny).log() - no.clamp_min(tiny).log()


class GroupedCurve(StreamCalibrator, CurveCalibrator):
    """A curve fitted to groups of samples sorted by probability; a method implements `_fit_groups`.

    It can be fitted to a stream of any length: samples of nearly equal log-odds form one group.
    """

    def _fit_groups(self, places: Tensor, count: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
        """Knots and values from groups (g,): their ascending probabilities, and the samples and hits of each."""
        raise NotImplementedError

    def _fit_curve(self, probs: Tensor, happened: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return self._fit_groups(*groups(probs, happened, weights))

    def _fit_stream(self, stream: Streamed) -> None:
        cells = LogOddsCells(stream.k if self.reduction == "one-versus-rest" and stream.k > 2 else 1)
        for logits, labels in stream:
            cells.add(*self._problems(logits, labels))
        curves = [self._fit_groups(*cells.groups(problem)) for problem in range(len(cells))]
        self._keep("knots", stack_ragged([knots for knots, _ in curves]))
        self._keep("values", stack_ragged([values for _, values in curves]))
        self._keep("share", 1 / (1 + cells.rarer()))


class LogOddsCells:
    """Samples of m binary problems, counted in cells of log-odds of equal `width`.

    Samples in one cell form one group at their mean probability. A cell is at most 1/1024 wide, a difference of at most
    0.00025 in probability, unless there are more than 256 problems.
    """

    def __init__(self, problems: int) -> None:
        per_problem = min(MOST_CELLS, TOTAL_CELLS // problems)
        self.width = 2 * FARTHEST / per_problem
        self._count, self._hits, self._sum = torch.zeros(3, problems, per_problem, dtype=torch.float64).unbind()

    def add(self, log_odds: Tensor, happened: Tensor) -> None:
        """Add samples (m, n)."""
        problems, size = self._count.shape
        cell = ((log_odds + FARTHEST) / self.width).clamp(0, size - 1).long()
        cell += torch.arange(problems)[:, None] * size
        for into, values in ((self._count, None), (self._hits, happened.double()), (self._sum, log_odds.sigmoid())):
            weights = None if values is None else values.reshape(-1)
            into += torch.bincount(cell.reshape(-1), weights, minlength=into.numel()).reshape(into.shape)

    def groups(self, problem: int) -> tuple[Tensor, Tensor, Tensor]:
        """The non-empty cells of a problem: mean probability, samples, hits."""
        seen = self._count[problem] > 0
        count, hits, total = (each[problem][seen] for each in (self._count, self._hits, self._sum))
        return total / count, count, hits

    def rarer(self) -> Tensor:
        """How many samples of each problem had the rarer outcome. (m,)"""
        hits = self._hits.sum(1)
        return torch.minimum(hits, self._count.sum(1) - hits)

    def __len__(self) -> int:
        return len(self._count)


def look_up(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Each row of x (m, n) interpolated on its own knots (m, l): flat beyond the ends; at a jump, the value before."""
    x = x.contiguous().clamp(knots[:, :1], knots[:, -1:])
    right = torch.searchsorted(knots, x)
    left = (right - 1).clamp_min(0)
    x0, x1 = knots.gather(1, left), knots.gather(1, right)
    y0, y1 = values.gather(1, left), values.gather(1, right)
    return torch.lerp(y0, y1, (x - x0) / (x1 - x0).clamp_min(torch.finfo(x.dtype).tiny))


def interleave(low: Tensor, high: Tensor) -> Tensor:
    """low[0], high[0], low[1], high[1], …: the knots or the values of pieces with a low and a high end. (2l,)"""
    return torch.stack([low, high], dim=1).flatten()


def steps(edges: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Knots and values of a step function: `values` (l + 1,) between `edges` (l,); a step includes its upper edge."""
    before, after = edges.new_tensor([-1.0]), edges.new_tensor([2.0])  # beyond every probability
    return interleave(torch.cat([before, edges]), torch.cat([edges, after])), interleave(values, values)


def merge_steps(edges: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Edges (l,) and values (l + 1,) of a step function, without steps that hardly differ from the one before."""
    changes = (values.logit() / RESOLUTION).floor().diff() != 0
    return edges[changes], torch.cat([values[:1], values[1:][changes]])


def groups(probs: Tensor, happened: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted samples grouped by equal probability: the distinct probabilities, the samples and the hits of each."""
    places, group = torch.unique_consecutive(probs, return_inverse=True)
    return places, torch.bincount(group, weights), torch.bincount(group, happened * weights)
