"""Isotonic regression, and its centred variant without flat stretches."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.curve import GroupedCurve, interleave, steps
from temperance.calibrators._fit.reduction import Reduction
from temperance.calibrators.base import Shared, calibrator
from temperance.isotonic import isotonic


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class Isotonic(GroupedCurve):
    """Isotonic regression: the non-decreasing map of a probability that fits best.

    It minimises Σ_i (curve(p_i) − y_i)² over all non-decreasing curves (Zadrozny and Elkan 2002) by pooling adjacent
    violators, which gives blocks of samples; the value of a block is the share of its events that happened. Samples of
    equal probability form one group. `interpolate=True` draws a line across the gap between two blocks, as scikit-learn
    does; with False the curve jumps in the middle of the gap.

    The trap: with one map for each class (`reduction="one-versus-rest"`, the common choice) it overfits, and more so
    with more classes. With one map for all classes, the default here, its NLL stays near that of temperature scaling,
    and predictions do not change. Where the curve is 0 or 1, some of the network's own probability is mixed in: see
    `CurveCalibrator`.

    interpolate  draw lines across the gaps between blocks; false: jump in the middle

    >>> calibrator = Isotonic().fit([[0.0, -2.0], [0.0, -1.0], [0.0, 1.0], [0.0, 2.0]], [0, 1, 0, 1])
    >>> calibrator.values.tolist()
    [[0.0, 0.0, 0.5, 0.5, 1.0, 1.0]]

    Zadrozny and Elkan, "Transforming classifier scores into accurate multiclass probability estimates" (KDD 2002).
    """

    def __init__(self, *, reduction: Reduction = "pooled", interpolate: bool = True, **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)
        self.interpolate = interpolate

    def _fit_groups(self, places: Tensor, count: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
        starts, ends, values = isotonic_blocks(count, hits)
        if self.interpolate:
            return interleave(places[starts], places[ends]), interleave(values, values)
        return steps((places[ends[:-1]] + places[starts[1:]]) / 2, values)


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class CentredIsotonic(GroupedCurve):
    """Isotonic regression without its flat stretches: lines between the centres of its blocks.

    Each block of the isotonic fit becomes one point, its value at its mean probability, and lines join the points
    (Oron and Flournoy 2017). So samples that isotonic regression would make equal keep their order. As in the paper,
    blocks of value 0 or 1 stay flat, and the curve is flat beyond the outer points.

    Oron and Flournoy, "Centered isotonic regression: point and interval estimation for dose-response studies"
    (Statistics in Biopharmaceutical Research 9, 2017).
    """

    def _fit_groups(self, places: Tensor, count: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
        starts, ends, values = isotonic_blocks(count, hits)
        block = torch.arange(len(values), device=places.device).repeat_interleave(ends - starts + 1)
        centre = torch.bincount(block, places * count) / torch.bincount(block, count)
        # Rounding must not move a mean out of its block: the knots have to ascend.
        centre = centre.clamp(places[starts], places[ends])
        flat = (values == 0) | (values == 1)
        low, high = torch.where(flat, places[starts], centre), torch.where(flat, places[ends], centre)
        return interleave(low, high), interleave(values, values)


def isotonic_blocks(count: Tensor, hits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Isotonic regression of groups sorted by probability: the first group, last group and value of each block."""
    values, lengths = torch.unique_consecutive(isotonic(hits / count, count).clamp(0, 1), return_counts=True)
    ends = lengths.cumsum(0) - 1
    return ends - lengths + 1, ends, values
