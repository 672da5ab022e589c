"""How much groups of samples differ: the variances between groups, estimated by their moments.

s_g and I_g are the first two derivatives of the log-likelihood of a group, in its slope or in its shifts, while all
groups share one map. If groups do not differ, s_g varies by I_g. Any more is due to them: E s_g² = I_g + σ² I_g².
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Groups differ by more than chance if Σ (s² − I) is this many of its standard errors above 0: in simulations of ten to
# a thousand groups that do not differ, of 3 to 100 samples each, 2 to 7 % were that far above it.
CRITICAL = 2.0

# Each of p partitions must be this times log p further above it, so that together they are there by chance as often as
# one. Between two groups chance is a χ² with one degree of freedom, which fades slowest: it needs 1.22 to 1.24.
FURTHER = 1.25

# The second derivatives of combinations may have this many values; with more, combinations are corrected alone.
MOST_VALUES = 1 << 26

# A share of the information that is only rounding.
ROUNDING = 1e-10

# The variances of several partitions have settled when they change by less than this share in a round.
SETTLED, MOST_ROUNDS = 1e-9, 1_000


class Spread(NamedTuple):
    """The variance between groups of their slopes and of their shifts, 0 where groups do not differ."""

    slopes: float
    shifts: float


class Partition(NamedTuple):
    """Groups of which every sample is in one: the number of each sample's group (n,), and how many groups there are."""

    of_sample: Tensor
    n_groups: int


class Derivatives(NamedTuple):
    """Of each group: scores s (g, d), information I (g, d, d), and the sums of its samples' fourth cumulants (g,)."""

    scores: Tensor
    information: Tensor
    tails: Tensor


def spreads_between(log_probs: Tensor, labels: Tensor, counts: Tensor, partitions: Sequence[Partition]) -> list[Spread]:
    """The variances between the groups of each partition; the last one's are the combinations of the others."""
    *others, cells = partitions
    if not others or cells.n_groups * log_probs.shape[1] ** 2 > MOST_VALUES:
        return [Spread(0.0, 0.0) for _ in others] + [_between(log_probs, labels, counts, cells)]
    of_cells = [_of_cells(partition, cells) for partition in partitions]
    score, variance, tails = (
        torch.bincount(cells.of_sample, counts * each, minlength=cells.n_groups)
        for each in _of_slopes(log_probs, labels)
    )
    slopes = _crossed(Derivatives(score[:, None], variance[:, None, None], tails), of_cells)
    each = zip(*_of_shifts(log_probs, labels, counts, cells), strict=True)
    shifts = _crossed(Derivatives(*(torch.stack(list(values)) for values in each)), of_cells)
    return [Spread(*both) for both in zip(slopes, shifts, strict=True)]


def _between(log_probs: Tensor, labels: Tensor, counts: Tensor, groups: Partition) -> Spread:
    """The variances between the groups of one partition: Σ (s² − I) / Σ I², or 0 where chance explains it."""
    score, variance, tails = _of_slopes(log_probs, labels)
    slope = torch.bincount(groups.of_sample, counts * score, minlength=groups.n_groups)
    slope_information = torch.bincount(groups.of_sample, counts * variance, minlength=groups.n_groups)
    slope_excess = float((slope.square() - slope_information).sum())
    slope_size = float(slope_information.square().sum())
    shift_excess = shift_size = shift_tails = 0.0
    for missing, information, tail in _of_shifts(log_probs, labels, counts, groups):
        shift_excess += float(missing.square().sum() - information.trace())
        shift_size += float(information.square().sum())
        shift_tails += float(tail)
    return Spread(
        _variance(slope_excess, slope_size, float(counts @ tails)), _variance(shift_excess, shift_size, shift_tails)
    )


def _variance(excess: float, size: float, tails: float) -> float:
    """Σ (s² − I) / Σ I², or 0 if chance explains it.

    If groups do not differ, the variance of s² is 2 I² plus the sum of its samples' fourth cumulants, the `tails`. They
    matter where groups are small or mistakes rare: without them, groups that do not differ did in up to 27 % of draws.
    """
    return excess / size if excess > CRITICAL * math.sqrt(max(2 * size + tails, 0.0)) else 0.0


def _of_cells(partition: Partition, cells: Partition) -> Partition:
    """The groups of cells, whose samples are all in one group."""
    found = cells.of_sample.new_zeros(cells.n_groups)
    found[cells.of_sample] = partition.of_sample
    return Partition(found, partition.n_groups)


def _crossed(cells: Derivatives, partitions: Sequence[Partition]) -> list[float]:
    """The variance between the groups of each partition of the cells, or 0 for all if chance explains them.

    What all groups share is no difference between them, so it is taken out. With s and I of all samples,

        s̃_g = s_g − I_g I⁻¹ s   has with s̃_h the covariance   J_gh = I_gh − I_g I⁻¹ I_h

    if groups do not differ, where I_gh is of the samples in both. A variance σ_d² between the groups of each d adds

        Σ_g ‖s̃_g‖² − tr J_gg = Σ_d σ_d² A_cd,   A_cd = Σ_gh ‖J_gh‖²,   for g in partition c and h in partition d.

    These are as many equations as variances; of variances that are not negative, those that fit best are taken.
    """
    whole, common = cells.information.sum(0), cells.scores.sum(0)
    inverse = torch.linalg.pinv(whole, rtol=ROUNDING, hermitian=True)
    information = [_summed(cells.information, partition) for partition in partitions]
    shares = [each @ inverse for each in information]
    p = len(partitions)
    sizes = torch.zeros(p, p, dtype=torch.float64)
    excess, errors = torch.zeros(2, p, dtype=torch.float64)
    for c, (partition, own, share) in enumerate(zip(partitions, information, shares, strict=True)):
        expected = _trace(own).sum() - (share * own).sum()
        if expected <= ROUNDING * _trace(whole):
            continue  # a single group: there is nothing to differ from
        score = _summed(cells.scores, partition) - share @ common
        excess[c] = score.square().sum() - expected
        for d in range(c + 1):
            both, g, h = _both(partition, partitions[d])
            met = _summed(cells.information, both)
            apart = (share.mT @ share).sum(0) * (information[d] @ information[d]).sum(0)
            size = met.square().sum() - 2 * (met * (share[g] @ information[d][h])).sum() + apart.sum()
            sizes[c, d] = sizes[d, c] = size
        # A sample also takes part in the s̃ of other groups, by minus its group's share of the information.
        part = _trace(own) / _trace(whole)
        parts = (1 - 2 * part + part.square().sum()).square()
        errors[c] = (2 * sizes[c, c] + parts[partition.of_sample] @ cells.tails).clamp_min(0).sqrt()
    if not bool((excess > (CRITICAL + FURTHER * math.log(p)) * errors).any()):
        return [0.0] * p
    return _not_negative(sizes, excess)


def _both(one: Partition, other: Partition) -> tuple[Partition, Tensor, Tensor]:
    """The groups of the samples that two groups share, one of each partition, and the number of either."""
    pairs, of_sample = torch.unique(one.of_sample * other.n_groups + other.of_sample, return_inverse=True)
    return Partition(of_sample, len(pairs)), pairs // other.n_groups, pairs % other.n_groups


def _summed(values: Tensor, groups: Partition) -> Tensor:
    """The sum of the values of each group. (g, …)"""
    return values.new_zeros(groups.n_groups, *values.shape[1:]).index_add_(0, groups.of_sample, values)


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _not_negative(sizes: Tensor, excess: Tensor) -> list[float]:
    """The x ≥ 0 that minimises x·A x / 2 − e·x, one coordinate after the other."""
    found = torch.zeros_like(excess)
    for _ in range(MOST_ROUNDS):
        before = found.clone()
        for c in range(len(found)):
            if sizes[c, c] > 0:
                found[c] = (found[c] + (excess[c] - sizes[c] @ found) / sizes[c, c]).clamp_min(0)
        if bool((found - before).abs().max() <= SETTLED * found.max()):
            break
    return [float(each) for each in found]


def _of_slopes(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The score of each row's slope, its variance and its fourth cumulant. (n,)"""
    probs, of_label = log_probs.exp(), log_probs.gather(1, labels[:, None]).squeeze(1)
    mean = (probs * log_probs).sum(1)
    deviation = log_probs - mean[:, None]
    variance = (probs * deviation.square()).sum(1)
    return of_label - mean, variance, (probs * deviation.pow(4)).sum(1) - 3 * variance.square()


def _of_shifts(
    log_probs: Tensor, labels: Tensor, counts: Tensor, groups: Partition
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each group, the score of its shifts (k,), their information (k, k), and the sum of fourth cumulants ()."""
    sizes = torch.bincount(groups.of_sample, minlength=groups.n_groups).tolist()
    probs = log_probs.exp()
    for rows in torch.split(groups.of_sample.argsort(stable=True), sizes):
        p, each = probs[rows], counts[rows][:, None]
        missing = -(p * each).sum(0)
        missing += torch.bincount(labels[rows], counts[rows], minlength=p.shape[1])
        information = (p * each).sum(0).diag() - p.T @ (p * each)
        yield missing, information, counts[rows] @ _tails_of_label(p)


def _tails_of_label(probs: Tensor) -> Tensor:
    """E‖e‖⁴ − (tr V)² − 2 tr V² of each row; e is the one-hot label minus the probabilities, V its covariance. (n,)"""
    squares = probs.square().sum(1)
    fourth = (probs * (1 - 2 * probs + squares[:, None]).square()).sum(1)
    return fourth - (1 - squares).square() - 2 * (squares - 2 * probs.pow(3).sum(1) + squares.square())
