"""Venn–Abers predictors: isotonic regression that counts the sample it is asked about."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from temperance.calibrators._fit.curve import CurveCalibrator, groups, interleave, merge_steps, steps
from temperance.calibrators.base import calibrator

Point = tuple[float, float]


@calibrator(family="binary", preserves_argmax=False)
class VennAbers(CurveCalibrator):
    """Isotonic regression fitted twice, with the new sample as a miss and as a hit, and the two answers merged.

    Of the isotonic fit with (p, 0) added p_0 is the value at p, and p_1 that with (p, 1) added. One of the two is
    perfectly calibrated, whatever the distribution; the interval is narrow where there is much data. Merged for least
    regret in log-loss (Vovk, Petej and Fedorova 2015):

        curve(p) = p_1 / (1 − p_0 + p_1)

    which is never 0 or 1: of n samples that were all hits it makes (n + 1) / (n + 2). Both fits for every possible p
    are found beforehand in one pass (their Algorithms 1–4), so that a prediction is a look-up. Steps that differ by
    less than 0.001 in log-odds are merged.

    Vovk, Petej and Fedorova, "Large-scale probabilistic predictors with and without guarantees of validity" (NeurIPS
    2015).
    """

    def __init__(self, *, reduction: str = "pooled") -> None:
        super().__init__(reduction=reduction)

    def _fit_curve(self, probs: Tensor, happened: Tensor) -> tuple[Tensor, Tensor]:
        places, count, hits = groups(probs, happened)
        p1 = places.new_tensor(with_a_hit_more(hits.tolist(), count.tolist()))
        # A miss more is a hit more with outcomes and order reversed.
        p0 = 1 - places.new_tensor(with_a_hit_more((count - hits).flip(0).tolist(), count.flip(0).tolist())).flip(0)

        # Between two places p_1 is that of the upper one, where the added hit is pooled with all that lies above, and
        # p_0 that of the lower one. A place itself is what lies above the number just below it, and not above it.
        above, below = torch.cat([p1, p1.new_ones(1)]), torch.cat([p0.new_zeros(1), p0])
        gap, at = merged(below, above), merged(p0, p1)
        values = torch.cat([interleave(gap[:-1], at), gap[-1:]])
        edges = interleave(torch.nextafter(places, places - 1), places)
        return steps(*merge_steps(edges, values))


def merged(p0: Tensor, p1: Tensor) -> Tensor:
    """The one probability with the least regret for both."""
    return p1 / (1 - p0 + p1)


def with_a_hit_more(hits: Sequence[float], count: Sequence[float]) -> list[float]:
    """For each group of samples, in order, its isotonic value if it had one hit more.

    The isotonic value of a group is the slope there of the greatest convex minorant of the points (samples so far, hits
    so far). The added hit is a step (1, 1) that begins the walk and then moves up past one group after the other; the
    slope of the minorant above it only grows, so the corners that it has passed are never needed again.
    """
    x, y = sum(count), sum(hits)
    corners = [(x, y)]
    for group_hits, group_count in zip(reversed(hits), reversed(count), strict=True):
        x, y = x - group_count, y - group_hits
        _add_corner(corners, (x, y))
    _add_corner(corners, (-1.0, -1.0))

    values = []
    x, y = -1.0, -1.0
    for group_hits, group_count in zip(hits, count, strict=True):
        first, second = corners[-1], corners[-2]
        slope = (second[1] - first[1]) / (second[0] - first[0])
        values.append(slope)
        x, y = x + group_count, y + group_hits
        if y - first[1] < slope * (x - first[0]):
            corners.pop()
            _add_corner(corners, (x, y))
    return values


def _add_corner(corners: list[Point], new: Point) -> None:
    """Put a point to the left of a convex chain, whose corners end with the leftmost, and drop those it hides."""
    while len(corners) > 1:
        (x1, y1), (x2, y2) = corners[-1], corners[-2]
        if (y1 - new[1]) * (x2 - x1) < (y2 - y1) * (x1 - new[0]):
            break
        corners.pop()
    corners.append(new)
