"""The scores of a batch in order, on a GPU: what AURC and AU want to know of them is one kernel each.

Each is a dozen steps in torch, and to start a step takes longer than to do it for the few scores of a batch.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from temperance.losses.fused import power_of_two, works
from temperance.losses.launch import Kernel, readable

# More scores than this are left to torch: then it is the work that takes the time.
MOST_SCORES = 1 << 10

# Scores that do not count come first. Behind the bits of a score is its place, which scores keep where they are equal.
RANKS = """
@triton.jit(do_not_specialize=["n"])
def kernel(scores, labels, weights, n):
    i = tl.arange(0, {size})
    score = tl.load(scores + i, mask=i < n, other=0.0)
    counts = (i < n) & (tl.load(labels + i, mask=i < n, other=0) != {ignore_index})
    bits = tl.where(score < 0, 0.0, score).to(tl.int32, bitcast=True).to(tl.int64) + 1
    order = tl.where(i < n, tl.where(counts, bits, 0), 0x7fffffff)
    order = tl.sort((order << 32) + i)
    part = tl.where((i < n) & (order >> 32 > 0), 1 / (n - i).to(tl.float32), 0.0)
    tl.store(weights + (order & 0xffffffff), tl.cumsum(part), mask=i < n)
"""

SURVEY = """
@triton.jit(do_not_specialize=["n"])
def kernel(scores, labels, histogram, quantile, whole, shares, share, n):
    i = tl.arange(0, {size})
    score = tl.load(scores + i, mask=i < n, other=0.0)
    counts = (i < n) & (tl.load(labels + i, mask=i < n, other=0) != {ignore_index})
    m = tl.sum(counts.to(tl.int32))
    position = share * tl.where(m > 0, m - 1, 0)
    below = position.to(tl.int32)
    above = tl.where(below + 1 < m, below + 1, below)
    order = tl.sort(tl.where(counts, score, float('inf')))
    low, high = tl.sum(tl.where(i == below, order, 0.0)), tl.sum(tl.where(i == above, order, 0.0))
    tl.store(quantile, tl.where(m > 0, low + (position - below) * (high - low), 0.0))
    tl.store(whole, m.to(tl.float32))
    place = (score * {n_bins}).to(tl.int32)
    place = tl.where(place < 0, 0, tl.where(place < {n_bins}, place, {n_bins} - 1))
    bins = tl.arange(0, {bins})
    found = tl.histogram(tl.where(counts, place, {n_bins}), {bins})
    before = tl.load(histogram + bins, mask=bins < {n_bins}, other=0)
    found = tl.where(bins < {n_bins}, found + before, 0).to(tl.float32)
    total = tl.sum(found)
    tl.store(shares + bins, found / tl.where(total > 0, total, 1.0), mask=bins < {n_bins})
"""


def rank_weights(scores: Tensor, labels: Tensor, ignore_index: int) -> Tensor | None:
    """What each sample counts in AURC, and 0 if its label is ignored: see `selective.rank_weights`."""
    if not _fits(scores):
        return None
    n, weights = scores.numel(), torch.empty_like(scores)
    _ranks(power_of_two(n), ignore_index)(1, [scores, readable(labels), weights, n])
    return weights


def surveyed(
    scores: Tensor, labels: Tensor, ignore_index: int, histogram: Tensor, share: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The quantile of the scores whose labels are not ignored, their number, and shares: see `compiled.surveyed`."""
    if not _fits(scores):
        return None
    n, n_bins = scores.numel(), len(histogram)
    quantile, whole, shares = scores.new_empty(()), scores.new_empty(()), scores.new_empty(n_bins)
    kernel = _survey(power_of_two(n), n_bins, ignore_index)
    kernel(1, [scores, readable(labels), histogram, quantile, whole, shares, share, n])
    return quantile, whole, shares


def _fits(scores: Tensor) -> bool:
    few = scores.dtype == torch.float32 and scores.is_contiguous() and 0 < scores.numel() <= MOST_SCORES
    return scores.is_cuda and few and works()


@cache
def _ranks(size: int, ignore_index: int) -> Kernel:
    return Kernel(RANKS.format(size=size, ignore_index=ignore_index))


@cache
def _survey(size: int, n_bins: int, ignore_index: int) -> Kernel:
    bins = power_of_two(n_bins + 1)
    return Kernel(SURVEY.format(size=size, n_bins=n_bins, bins=bins, ignore_index=ignore_index))
