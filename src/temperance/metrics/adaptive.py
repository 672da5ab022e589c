"""Calibration error over bins of equally many samples, so that none is empty and none holds nearly all."""

from typing import Literal

import torch
from torch import Tensor

from temperance.metrics.base import metric
from temperance.metrics.classwise import Classes
from temperance.metrics.stats import FullRows, TopLabels, full_rows, top_labels
from temperance.numerics import is_whole, prefix_sums, true_places
from temperance.settings import Count, Fraction
from temperance.sorting import stable_order, stable_sort

BLOCK_VALUES = 1 << 18  # probabilities to sort at a time

Rule = Literal["sorted", "interp", "quantile-left"]


@metric(top_labels, title="adaptive ECE", range=(0, 1), headline=6, percent=True, interval="distance")
def adaptive_ece(samples: TopLabels, *, n_bins: Count = 15, rule: Rule = "sorted") -> float:
    """Adaptive expected calibration error: ECE over bins of equally many samples.

    Σ_b n_b / n · |accuracy(b) − confidence(b)| (Nguyen and O'Connor, 2015). Programs cut the bins differently:

    rule="sorted"         the sorted samples in min(n_bins, n) runs, the first n mod n_bins of which are one longer;
                          samples of equal confidence may be separated, in the order of the data
    rule="interp"         edges interpolated between the sorted confidences, bins (lo, hi], as in the programs of focal
                          calibration, MbLS, ACLS and AdaFocal: every sample at the lowest confidence is left out, but
                          the sum is still divided by n
    rule="quantile-left"  edges at sorted confidences, bins [lo, hi), the last one closed, as in AURC's program

    n_bins  number of bins of equal mass
    rule    how the bins are cut: "sorted", "interp" or "quantile-left"

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.55, 0.45]]
    >>> round(adaptive_ece(probs, [0, 1, 1, 0], n_bins=2), 6)
    0.3875
    """
    found = samples.ordered if rule == "sorted" else samples.repeated().ordered
    return _error(found.confidence, found.correct, found.weights, n_bins, rule)


@metric(full_rows, title="classwise adaptive ECE", range=(0, 1), percent=True, interval="distance", of_classes=True)
def classwise_adaptive_ece(
    samples: FullRows, *, n_bins: Count = 15, rule: Rule = "sorted", classes: Classes = "all"
) -> float:
    """Classwise adaptive ECE: adaptive ECE of each class's probability, averaged over classes.

    Like `adaptive_ece`, with every sample ranked by its probability of the class, and the event that the class is the
    label; `classes="present"` leaves out classes without a label. With many classes most probabilities are near 0 and
    so is this mean: compare it only at equal k.

    n_bins   number of bins of equal mass
    rule     how the bins are cut: see `adaptive_ece`
    classes  "all", or "present": only those that occur as a label
    """
    if rule == "sorted" and samples.weights is None and classes == "all":
        return float(_class_errors(samples, n_bins, -1.0).mean())
    if rule != "sorted":
        samples = samples.repeated()
    counted = torch.bincount(samples.labels, minlength=samples.probs.shape[1]).tolist()
    columns = [j for j, count in enumerate(counted) if count or classes == "all"]
    errors = [_class_error(samples, j, n_bins, rule) for j in columns]
    return sum(errors) / len(errors)


@metric(full_rows, title="TACE", range=(0, 1), percent=True, interval="distance", of_classes=True)
def tace(samples: FullRows, *, n_bins: Count = 15, rule: Rule = "sorted", threshold: Fraction = 1e-3) -> float:
    """Thresholded adaptive calibration error: adaptive ECE of each class's probability where it exceeds a threshold.

    Like `classwise_adaptive_ece`, but each class counts only the samples whose probability of it is above `threshold`,
    and classes without such a sample are left out (Nixon et al., 2019). With many classes nearly all probabilities are
    close to 0, and their bins would hide the others.

    n_bins     number of bins of equal mass
    rule       how the bins are cut: see `adaptive_ece`
    threshold  probabilities up to this are ignored

    >>> probs = [[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.3, 0.7, 0.0]]
    >>> round(tace(probs, [0, 1, 1], n_bins=1), 6)  # the third class has no probability above the threshold
    0.266667
    """
    if rule == "sorted" and samples.weights is None:
        found = _class_errors(samples, n_bins, threshold)
        return float(found.nanmean()) if not bool(found.isnan().all()) else 0.0
    if rule != "sorted":
        samples = samples.repeated()
    errors = []
    for j in range(samples.probs.shape[1]):
        above = samples.probs[:, j] > threshold
        if bool(above.any()):
            errors.append(_class_error(samples.select(above), j, n_bins, rule))
    return sum(errors) / len(errors) if errors else 0.0


def _class_errors(samples: FullRows, n_bins: int, threshold: float) -> Tensor:
    """The error of each class's probability where it is above a threshold; NaN if it never is. (k,)"""
    n, k = samples.probs.shape
    width = max(1, BLOCK_VALUES // n)
    return torch.cat([_block_errors(samples, slice(j, j + width), n_bins, threshold) for j in range(0, k, width)])


def _block_errors(samples: FullRows, classes: slice, n_bins: int, threshold: float) -> Tensor:
    probs = samples.probs[:, classes]
    gap, above = _sorted_gaps(probs, samples.labels - classes.start, threshold)
    total = prefix_sums(gap)
    # Runs as in `even_cuts`; surplus cuts repeat the last.
    bins = above.clamp_max(n_bins).clamp_min(1)
    index = torch.arange(int(bins.max()) + 1, device=probs.device)[:, None].minimum(bins)
    cuts = above.cumsum(0) - above + index * (above // bins) + index.minimum(above % bins)
    error: Tensor = total[cuts].diff(dim=0).abs().sum(0)
    return error / above


def _sorted_gaps(probs: Tensor, labels: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Event minus probability where that is above a threshold, by class and then by probability, and counts per class.

    (n, k) → (m,) and (k,). With many classes few probabilities are above the threshold, and only these are sorted.
    """
    n, k = probs.shape
    if threshold < 0:
        value, order = probs.sort(dim=0, stable=True)
        gap = (labels[order] == torch.arange(k, device=probs.device)).double().sub_(value)
        return gap.T.reshape(-1), torch.full((k,), n, device=probs.device)
    chosen = probs > threshold
    place = true_places(chosen.T)
    j, row = place // n, place % n
    value = probs[row, j]
    order = stable_order(value)
    order = order[torch.argsort(j[order], stable=True)]
    return (labels[row] == j)[order].double().sub_(value[order]), chosen.sum(0)


def _class_error(samples: FullRows, j: int, n_bins: int, rule: Rule) -> float:
    """The error of the probability of class j."""
    value, happened, weights = samples.probs[:, j].contiguous(), samples.labels == j, samples.weights
    if weights is None:
        value, happened = stable_sort(value, happened)
    else:
        order = stable_order(value)
        value, happened, weights = value[order], happened[order], weights[order]
    return _error(value, happened, weights, n_bins, rule)


def _error(value: Tensor, happened: Tensor, weights: Tensor | None, n_bins: int, rule: Rule) -> float:
    """The error over the bins that the sorted values are cut into."""
    if weights is None:
        return _error_of_runs(value, happened, _cuts(value, n_bins, rule))
    # Bins hold equal weight. A sample on an edge is split between the two bins, as that many equal samples would be.
    n, most = float(weights.sum()), min(n_bins, len(value))
    if is_whole(weights):
        cuts = even_cuts(int(n), min(n_bins, int(n))).double()
    else:
        cuts = torch.arange(most + 1, dtype=torch.float64) * (n / most)
    gap, before = happened.double() - value, prefix_sums(weights)
    cuts = cuts.to(value.device).clamp_max(before[-1])
    place = (torch.searchsorted(before, cuts, right=True) - 1).clamp_max(len(value) - 1)
    total = prefix_sums(gap * weights)[place] + (cuts - before[place]) * gap[place]
    return float(total.diff().abs().sum() / n)


def _error_of_runs(value: Tensor, happened: Tensor, cuts: Tensor) -> float:
    """Σ |Σ (happened − value)| / n, where the inner sums are over the samples between two cuts."""
    total = value.new_zeros(len(value) + 1)
    torch.neg(value, out=total[1:]).add_(happened).cumsum_(0)  # in place, because samples can be many
    return float(total[cuts.to(total.device)].diff().abs().sum() / len(value))


def _cuts(ranked: Tensor, n_bins: int, rule: str) -> Tensor:
    """Where the sorted values are cut into bins. (n_bins + 1,), or fewer if there are fewer samples"""
    n = len(ranked)
    # With more bins than samples, "sorted" has one bin for each sample; the other rules leave bins empty.
    return even_cuts(n, min(n_bins, n)) if rule == "sorted" else _edge_cuts(ranked, n_bins, rule)


def even_cuts(n: int, n_bins: int) -> Tensor:
    """Where n samples are cut into runs whose lengths differ by at most one, the longer ones first. (n_bins + 1,)"""
    return _cut(torch.arange(n_bins + 1), n, n_bins)


def _cut(index: Tensor, n: int, n_bins: int) -> Tensor:
    return index * (n // n_bins) + index.clamp_max(n % n_bins)


def _edge_cuts(ranked: Tensor, n_bins: int, rule: str) -> Tensor:
    """Where edges among the sorted values cut them. (n_bins + 1,)"""
    n, index = len(ranked), torch.arange(n_bins + 1, device=ranked.device)
    if rule == "quantile-left":
        cuts = torch.searchsorted(ranked, ranked[index * (n - 1) // n_bins])
        cuts[-1] = n
        return cuts
    place, part = (index * n // n_bins).clamp_max(n - 1), (index * n % n_bins).double() / n_bins
    low, high = ranked[place], ranked[(place + 1).clamp_max(n - 1)]
    return torch.searchsorted(ranked, low + part * (high - low), right=True)


@metric(top_labels, title="ECE sweep", range=(0, 1), percent=True, whole_weights=True, interval="distance")
def ece_sweep(samples: TopLabels) -> float:
    """Sweep ECE: adaptive ECE with as many bins as possible while accuracy still rises with confidence.

    Bins hold equally many samples. Their number b is the largest such that, with b or any fewer bins, the accuracy
    never falls from one bin to the next (Roelofs, Cain, Shlens and Mozer, 2022). For a calibrated model this is less
    biased than a fixed number of bins. Gaps are absolute, as in ECE; the paper also uses squares.
    """
    value, correct = samples.ordered.confidence, samples.ordered.correct
    return _error_of_runs(value, correct, even_cuts(len(correct), _most_rising_bins(correct.cpu())))


def _most_rising_bins(correct: Tensor) -> int:
    """The largest number of even runs such that, with it and every smaller number, the share of hits never falls."""
    n, hits = len(correct), prefix_sums(correct)
    right, wrong = correct.nonzero(), (~correct).nonzero()
    if not len(right) or not len(wrong) or int(right[0]) > int(wrong[-1]):
        return n
    # Bins before the first hit have accuracy 0 and bins after the last miss have 1: only those between can fall.
    first, last = int(right[0]), int(wrong[-1])
    n_bins = 1
    while n_bins < n:
        among = torch.arange(_bin_at(first, n, n_bins + 1), _bin_at(last, n, n_bins + 1) + 2)
        cuts = _cut(among, n, n_bins + 1)
        count, found = cuts.diff(), hits[cuts].diff()
        # Compare accuracies as integer fractions, so that equal ones are equal.
        if bool((found[:-1] * count[1:] > found[1:] * count[:-1]).any()):
            break
        n_bins += 1
    return n_bins


def _bin_at(position: int, n: int, n_bins: int) -> int:
    """The run of `even_cuts` that holds a position."""
    return max(position // (n // n_bins + 1), (position - n % n_bins) // (n // n_bins))
