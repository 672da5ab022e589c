"""Binned maps: each bin has one calibrated value."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.calibrators._fit.curve import TINY, CurveCalibrator, GroupedCurve, interleave, merge_steps, steps
from temperance.calibrators._fit.reduction import Reduction
from temperance.calibrators.base import Shared, calibrator
from temperance.calibrators.logistic import fit_platt
from temperance.numerics import bin_edges, is_whole, prefix_sums
from temperance.settings import Count

# As in its paper, Bayesian binning averages over numbers of bins from n^⅓ / 10 to 10 n^⅓, and its prior weighs as much
# as two samples.
BBQ_RANGE = 10
BBQ_PRIOR = 2.0


@calibrator(family="binary", preserves_argmax=False, takes_weights=True, name="histogram")
class HistogramBinning(GroupedCurve):
    """Histogram binning: the calibrated confidence is the accuracy of its bin.

    Zadrozny and Elkan (2001). With `bins="mass"` the bins have about the same number of samples (equal probabilities
    stay together), with `bins="width"` the same width; in a bin without samples probabilities do not change.

    The default reduction is top-label, unlike that of most methods: with many classes nearly all probabilities are near
    zero, and so would be nearly all bins of equal mass.

    The trap: all samples in a bin get the same confidence, so ranking and NLL pay for the gain in ECE.

    n_bins  number of bins
    bins    "mass": equally many samples in each; "width": of equal width

    Zadrozny and Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers"
    (ICML 2001).
    """

    def __init__(
        self,
        *,
        reduction: Reduction = "top-label",
        bins: Literal["mass", "width"] = "mass",
        n_bins: Count = 15,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        self.bins = bins
        self.n_bins = n_bins

    def _fit_groups(self, places: Tensor, count: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
        seen, hit = prefix_sums(count), prefix_sums(hits)
        if self.bins == "mass":
            cuts = mass_cuts(places, count, self.n_bins)
            edges = midpoints(places)[cuts]
        else:
            edges = bin_edges(self.n_bins, places.device)
            cuts = torch.searchsorted(places, edges, right=True)
            cuts[0], cuts[-1] = 0, len(places)
        empty = cuts.diff() == 0
        share = hit[cuts].diff() / torch.where(empty, 1, seen[cuts].diff())
        low, high = edges[:-1], edges[1:]
        return interleave(low, high), interleave(torch.where(empty, low, share), torch.where(empty, high, share))


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class ScalingBinning(CurveCalibrator):
    """Platt scaling, then the mean of its output in each bin: a map whose error can be measured.

    Kumar, Liang and Ma (2019): binning hides part of the calibration error of a continuous map, but none of the error
    of a map with few values. Bins have equal mass. The mean of the scaled probabilities in a bin varies far less from
    sample to sample than the mean of the outcomes, which `HistogramBinning` takes.

    The paper's theorem needs three disjoint parts of the data, to scale, to bin and to average; like the authors'
    program this uses all data for each, which is better in practice.

    n_bins  number of bins of equal mass

    Kumar, Liang and Ma, "Verified uncertainty calibration" (NeurIPS 2019).
    """

    def __init__(self, *, reduction: Reduction = "top-label", n_bins: Count = 15, **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)
        self.n_bins = n_bins

    def _fit_curve(self, probs: Tensor, happened: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        log_odds = probs.clamp(TINY, 1 - torch.finfo(probs.dtype).eps / 2).logit()
        slope, intercept = fit_platt(log_odds[None], happened[None], weights).theta[0]
        scaled = (slope * log_odds + intercept).sigmoid()
        cuts = mass_cuts(probs, weights, self.n_bins)
        count, total = (prefix_sums(each)[cuts].diff() for each in (weights, scaled * weights))
        return steps(midpoints(probs)[cuts[1:-1]], total / count)


@calibrator(family="binary", preserves_argmax=False, takes_weights=True)
class Bbq(CurveCalibrator):
    """Bayesian binning (BBQ): histograms with different numbers of bins, averaged by how well each explains the data.

    For every number of bins B from n^⅓ / 10 to 10 n^⅓ there is a histogram M of equal mass; each bin has a beta prior
    of weight 2 / B whose mean is the bin's centre. The evidence for M (Naeini et al. 2015) is

        Π_b Γ(2/B) / Γ(n_b + 2/B) · Γ(hits_b + α_b) / Γ(α_b) · Γ(misses_b + β_b) / Γ(β_b)

    and the calibrated probability is the mean of (hits_b + α_b) / (n_b + 2/B) over all M, weighted by evidence. A mean
    of step functions is a step function. It is stored without steps of less than 0.001 in log-odds.

    netcal's method of this name has bins of equal width, ranked by BIC: a different method, with different results.

    Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning" (AAAI 2015).
    """

    def _fit_curve(self, probs: Tensor, happened: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        n, device = float(weights.sum()), probs.device
        typical = n ** (1 / 3)
        most = min(int(n), int(typical * BBQ_RANGE))
        sizes = torch.arange(max(1, int(typical / BBQ_RANGE)), most + 1, device=device)
        # The bins of all histograms, one after the other.
        model = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        place = torch.arange(1, len(model) + 1, device=device) - (sizes.cumsum(0) - sizes)[model]
        end = cut_after(probs, weights, ranks(weights, place, sizes[model]))
        start = torch.where(place == 1, 0, end.roll(1))
        count, hits = (total[end] - total[start] for total in map(prefix_sums, (weights, happened * weights)))

        edges = midpoints(probs)
        centre = ((edges[start] + edges[end]) / 2).clamp(TINY, 1 - torch.finfo(probs.dtype).eps)
        weight = BBQ_PRIOR / sizes[model].double()
        a, b = weight * centre, weight * (1 - centre)
        evidence = torch.lgamma(weight) - torch.lgamma(count + weight)
        evidence += torch.lgamma(hits + a) - torch.lgamma(a) + torch.lgamma(count - hits + b) - torch.lgamma(b)
        posterior = torch.bincount(model, evidence).softmax(0)[model]

        # A bin contributes from its start to its end.
        part = posterior * (hits + a) / (count + weight)
        mean = part.new_zeros(len(probs) + 1).index_add_(0, start, part).index_add_(0, end, -part).cumsum(0)
        cuts = torch.unique(end)[:-1]
        return steps(*merge_steps(edges[cuts], mean[torch.cat([cuts.new_zeros(1), cuts])].clamp(0, 1)))


def mass_cuts(probs: Tensor, weights: Tensor, n_bins: int) -> Tensor:
    """Where to cut sorted samples into n_bins bins of equal mass, fewer where samples tie: indices from 0 to n."""
    rank = ranks(weights, torch.arange(n_bins + 1, device=probs.device), n_bins)
    cuts: Tensor = torch.unique(torch.where(rank == 0, 0, cut_after(probs, weights, rank)))
    return cuts


def ranks(weights: Tensor, part: Tensor, n_parts: Tensor | int) -> Tensor:
    """How many samples the first `part` of `n_parts` parts of equal mass hold, rounded down if weights are whole."""
    if is_whole(weights):
        return (part * int(weights.sum()) // n_parts).double()
    # Rounding must not move the end of a part into the next row.
    return part / n_parts * weights.sum() * (1 - 1e-12)


def cut_after(probs: Tensor, weights: Tensor, rank: Tensor) -> Tensor:
    """How many rows lie at or below the one of each rank: equal probabilities stay together."""
    row = torch.searchsorted(weights.cumsum(0), rank).clamp_max(len(probs) - 1)
    return torch.searchsorted(probs, probs[row], right=True)


def midpoints(probs: Tensor) -> Tensor:
    """An edge for each cut of sorted samples: 0, the middle between neighbours, 1. (n + 1,)"""
    return torch.cat([probs.new_zeros(1), (probs[:-1] + probs[1:]) / 2, probs.new_ones(1)])
