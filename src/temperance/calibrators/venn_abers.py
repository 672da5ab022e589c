"""Venn–Abers predictors: isotonic regression that includes the sample to be predicted."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.calibrators._fit.curve import CurveCalibrator, groups, interleave, merge_steps, steps
from temperance.calibrators.base import calibrator
from temperance.numerics import prefix_sums, true_places

Point = list[float]


@calibrator(family="binary", preserves_argmax=False, takes_weights=True, steady_from=50)
class VennAbers(CurveCalibrator):
    """Venn–Abers: isotonic regression fitted twice, with the new sample as a miss and as a hit, and the two merged.

    p_0 is the value at p of the isotonic fit to the samples and (p, 0), and p_1 that of the fit to the samples and
    (p, 1). One of the two is perfectly calibrated, for any distribution, and they are close where there are many
    samples. The merged value has the least regret in log-loss (Vovk, Petej and Fedorova 2015):

        curve(p) = p_1 / (1 − p_0 + p_1)

    It is never 0 or 1: after n samples that were all hits it is (n + 1) / (n + 2). One pass at fitting time finds both
    fits for every possible p (Algorithms 1–4 of the paper), so a prediction is a lookup. Steps that differ by less than
    0.001 in log-odds are merged.

    Vovk, Petej and Fedorova, "Large-scale probabilistic predictors with and without guarantees of validity" (NeurIPS
    2015).
    """

    def _fit_curve(self, probs: Tensor, happened: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        places, count, hits = groups(probs, happened, weights)
        p1 = with_one_more_hit(hits, count)
        # An added miss is an added hit with outcomes and order reversed.
        p0 = 1 - with_one_more_hit((count - hits).flip(0), count.flip(0)).flip(0)

        # Between two places p_1 is that of the upper place, because the added hit is pooled with the samples above it,
        # and p_0 is that of the lower place. A place itself is a step of its own: the next smaller number is its edge.
        above, below = torch.cat([p1, p1.new_ones(1)]), torch.cat([p0.new_zeros(1), p0])
        gap, at = merged(below, above), merged(p0, p1)
        values = torch.cat([interleave(gap[:-1], at), gap[-1:]])
        edges = interleave(torch.nextafter(places, places - 1), places)
        return steps(*merge_steps(edges, values))


def merged(p0: Tensor, p1: Tensor) -> Tensor:
    """The probability with the least regret, whichever of the two is right."""
    return p1 / (1 - p0 + p1)


def with_one_more_hit(hits: Tensor, count: Tensor) -> Tensor:
    """For each group of samples (m,), in order, its isotonic value if it had one more hit. (m,)

    The isotonic value of a group is the slope there of the greatest convex minorant of the points (samples so far, hits
    so far). The added hit is a step (1, 1). It starts below all groups, then moves up past one group after another. The
    slope of the minorant above it only grows, so corners that it has passed are never needed again.
    """
    points = torch.stack([prefix_sums(count), prefix_sums(hits)], 1)
    rate = hits / count
    turns = true_places(torch.cat([rate.new_ones(1), rate.diff(), rate.new_ones(1)]) != 0)  # only these can be corners
    corners: list[Point] = []
    for point in points[turns].flip(0).tolist():
        _add_corner(corners, point)
    _add_corner(corners, [-1.0, -1.0])

    values = []
    x, y = -1.0, -1.0
    for group_hits, group_count in zip(hits.tolist(), count.tolist(), strict=True):
        first, second = corners[-1], corners[-2]
        slope = (second[1] - first[1]) / (second[0] - first[0])
        values.append(slope)
        x, y = x + group_count, y + group_hits
        if y - first[1] < slope * (x - first[0]):
            corners.pop()
            _add_corner(corners, [x, y])
    return count.new_tensor(values)


def _add_corner(corners: list[Point], new: Point) -> None:
    """Add a point at the left end of a convex chain, which is its last corner, and drop the corners it hides."""
    while len(corners) > 1:
        (x1, y1), (x2, y2) = corners[-1], corners[-2]
        if (y1 - new[1]) * (x2 - x1) < (y2 - y1) * (x1 - new[0]):
            break
        corners.pop()
    corners.append(new)
