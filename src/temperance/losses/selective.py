"""Losses that weigh samples by the rank of their confidence: areas under the risk–coverage curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from temperance.errors import InputError, at_least, one_of
from temperance.losses.base import Loss, Regulariser, Rows, TorchOptions, Used, loss, number, positive, switch
from temperance.losses.distributed import BatchLevel
from temperance.metrics.scores import margin, negative_entropy

# How sure each row is, from 0 to 1.
SCORES: dict[str, Callable[[Rows], Tensor]] = {
    "msp": lambda rows: rows.confidence,
    "margin": lambda rows: margin(rows.probs),
    "negative-entropy": lambda rows: negative_entropy(rows.probs, normalised=True),
}

# A quantile is found by counting its first and then its second twelve binary digits: as exact as float32 near 1.
DIGITS = 12

# The smoothed distribution is taken for as many samples at once as make this many values, which stay in cache.
TILE_VALUES = 1 << 20


class Reweighted(BatchLevel, Regulariser):
    """Another loss, with each row multiplied by a weight that depends on the batch."""

    def _weights(self, rows: Rows) -> Tensor:
        """What each row's loss counts. (n,)"""
        raise NotImplementedError

    def _losses(self, rows: Rows) -> Tensor:
        losses = self.base._losses(rows)
        return self._weights(rows) * losses


@loss(
    name="aurc",
    paper="Zhou et al., Revisiting reweighted risk for calibration, 2025; Geifman, Uziel and El-Yaniv, ICLR 2019",
    per_sample=False,
)
class AURC(Reweighted):
    """AURC loss: the area under the risk–coverage curve, where the surer a prediction, the more its loss counts.

    mean_i α_{r_i} base_i with α_r = H_n − H_{n−r}, r the ascending rank of the confidence score in the batch: exactly
    the empirical AURC of the base loss, whose weights have mean 1. The weights are held constant in the gradient; equal
    scores keep the order of the batch. Zhou et al.'s program takes the weights of the nominal batch size for the last,
    smaller batch too, and applies softmax twice before the score.

    score  "msp", "margin" or "negative-entropy"
    """

    def __init__(
        self, *, score: str = "msp", base: str | Loss = "cross-entropy", **options: Unpack[TorchOptions]
    ) -> None:
        super().__init__(base=base, **options)
        one_of("score", score, SCORES)
        self.score = score

    def _weights(self, rows: Rows) -> Tensor:
        score = SCORES[self.score](rows.detached())
        if rows.ignored is not None:
            score = score.masked_fill(rows.ignored, -1)  # below every score, so that the others' ranks end at n
        everyone, own = self._all_rows(score)
        return rank_weights(everyone)[own]


def rank_weights(scores: Tensor) -> Tensor:
    """What each sample counts in AURC; samples with a score below 0 do not count. (n,)

    A sample takes part in every selection that begins at or below its own rank, as one of those that are left: α is the
    sum of their 1 / left, which is H_n − H_{n−r}.
    """
    order = scores.argsort(stable=True)
    left = torch.arange(len(scores), 0, -1, dtype=torch.float64, device=scores.device)
    alpha = (left.reciprocal() * (scores[order] >= 0)).cumsum(0)
    return torch.empty_like(scores).scatter_(0, order, alpha.to(scores.dtype))


@loss(
    name="au",
    paper="Zhou et al., Revisiting reweighted risk for calibration: AURC, focal and inverse focal loss, 2025",
    per_sample=False,
    exact_gradient=False,
    learns_from="training",
    hyper_parameters=(
        Used("CIFAR-10, ResNet-50 and -110", {"low_conf_coverage": 0.9, "cdf_bandwidth": 0.1}, "App. Table 3, E.2"),
        Used("CIFAR-10, WRN and PreResNet-56", {"low_conf_coverage": 0.8, "cdf_bandwidth": 0.1}, "App. Table 3, E.2"),
        Used("CIFAR-100, ResNet-50", {"low_conf_coverage": 0.9, "cdf_bandwidth": 0.01, "score": "margin"}, "App. E.2"),
        Used("CIFAR-100, ResNet-110", {"low_conf_coverage": 0.8, "cdf_bandwidth": 0.01, "score": "margin"}, "App. E.2"),
        Used("CIFAR-100, WRN", {"low_conf_coverage": 0.8, "cdf_bandwidth": 0.1, "score": "margin"}, "App. E.2"),
        Used("CIFAR-100, PreResNet-56", {"low_conf_coverage": 0.9, "cdf_bandwidth": 0.01}, "App. Table 3, E.2"),
        Used("Tiny-ImageNet, ViT-S", {"low_conf_coverage": 0.2, "cdf_bandwidth": 0.05, "score": "margin"}, "App. E.2"),
        Used(
            "Tiny-ImageNet, Swin-T",
            {"low_conf_coverage": 0.4, "cdf_bandwidth": 0.1, "score": "negative-entropy"},
            "App. Table 3, E.2",
        ),
    ),
)
class AU(Reweighted):
    """AU loss: the selective-risk area over low thresholds; weight grows with confidence up to a quantile, then stays.

    mean_i β_i base_i with β_i = −ln(1 − Ĝ(g_i)) below τ, −ln(1 − Ĝ(τ)) from there (eqs 16, 17), where g is a
    confidence score, τ the quantile of the batch's scores at `low_conf_coverage`, and Ĝ the scores' distribution
    function smoothed with logistic steps of width `cdf_bandwidth` over `n_bins` bins (eq. 15), kept in [1/(n+1),
    n/(n+1)]. So the least sure samples count least, although the paper speaks of a focus on them.

    score              "msp", "margin" or "negative-entropy" (normalised to 0 … 1)
    window             "epoch": the distribution is that of all batches since the epoch began and this one: call
                       `update(logits, labels)` after each batch and `end_epoch()` after each epoch; "batch": of this
                       batch alone
    detach_weights     no gradient through β at all; otherwise it has one through Ĝ(g_i) below τ, as eq. 27 says, and
                       none through τ
    normalise          divide by `low_conf_coverage`, which makes eq. 11 an average over the samples below τ

    Below τ the gradient through β can outweigh that of the loss and push the probability of a right prediction down;
    `temperance gradients au --figure weights` shows where. `detach_weights=True` avoids it.

    Everything is counted, nothing sorted: the cost is linear in the batch. Zhou et al.'s program applies softmax twice
    before the score, which squeezes it into the lowest bins, and normalises the entropy with the wrong sign, which
    makes every weight equal; it also lets a gradient pass through τ. None of that is done here, so its tables are not
    to be expected.
    """

    histogram: Tensor

    def __init__(
        self,
        *,
        low_conf_coverage: float = 0.9,
        cdf_bandwidth: float = 0.1,
        score: str = "msp",
        n_bins: int = 64,
        window: str = "epoch",
        detach_weights: bool = False,
        normalise: bool = False,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("low_conf_coverage", low_conf_coverage, 0, 1)
        positive("cdf_bandwidth", cdf_bandwidth)
        one_of("score", score, SCORES)
        at_least("n_bins", n_bins, 1)
        one_of("window", window, ("epoch", "batch"))
        switch("detach_weights", detach_weights)
        switch("normalise", normalise)
        if normalise and low_conf_coverage == 0:
            raise InputError("normalise divides by low_conf_coverage, which is 0")
        self.low_conf_coverage = low_conf_coverage
        self.cdf_bandwidth = cdf_bandwidth
        self.score = score
        self.n_bins = n_bins
        self.window = window
        self.detach_weights = detach_weights
        self.normalise = normalise
        self.register_buffer("histogram", torch.zeros(n_bins, dtype=torch.int64))
        if window == "batch":
            self.learns_from = self.base.learns_from

    def _weights(self, rows: Rows) -> Tensor:
        score = SCORES[self.score](rows.detached() if self.detach_weights else rows)
        weights, slopes = self._found(rows, score.detach())
        return weights + slopes * (score - score.detach()) if score.requires_grad else weights

    @torch.no_grad()
    def _found(self, rows: Rows, score: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the rows, and their slopes in the score. (n,), (n,)"""
        batch = self._counted(rows, score)
        n = batch.sum()
        threshold = self._quantile(rows, score, n)
        level, slope = smoothed(torch.minimum(score, threshold), batch + self.histogram, self.cdf_bandwidth)
        edge = 1 / (n + 1).to(score.dtype)
        kept = level.clamp(edge, 1 - edge)
        factor = 1 / self.low_conf_coverage if self.normalise else 1.0
        moves = (score < threshold) & (kept == level)
        return -factor * torch.log1p(-kept), factor * slope * moves / (1 - kept)

    def _update(self, rows: Rows) -> None:
        super()._update(rows)
        if self.window == "epoch":
            self.histogram += self._counted(rows, SCORES[self.score](rows))

    def end_epoch(self) -> None:
        """Begin the next epoch with an empty histogram."""
        super().end_epoch()
        self.histogram.zero_()

    def _counted(self, rows: Rows, score: Tensor) -> Tensor:
        """How many scores fall into each bin [b, b + 1) / n_bins, the last one closed. (n_bins,) int64"""
        place = (score * self.n_bins).long().clamp(0, self.n_bins - 1)
        return self._all_sum(_count(place, rows.kept, self.n_bins))

    def _quantile(self, rows: Rows, score: Tensor, n: Tensor) -> Tensor:
        """The quantile at `low_conf_coverage` of the scores that count. ()"""
        if rows.ignored is None and len(score) and not self._spread:
            return selected_quantile(score, self.low_conf_coverage)
        return self._counted_quantile(score, rows.kept, n)

    def _counted_quantile(self, score: Tensor, kept: Tensor, n: Tensor) -> Tensor:
        """The same by counting. ()

        How many rows count is not known without waiting for a GPU, and the other processes' scores are not known at
        all: so the first half of the binary digits is counted, then the second half of those with the right first. What
        remains is the score itself, or some within 6e-8 of each other.
        """
        size = 1 << DIGITS
        digits = (score * (size * size)).long().clamp(0, size * size - 1)
        high, low = digits >> DIGITS, digits & (size - 1)
        position = self.low_conf_coverage * (n - 1).clamp_min(0).double()
        wanted = torch.stack([position.floor(), position.ceil()])
        up_to = self._all_sum(_count(high, kept, size)).cumsum(0)
        first = torch.searchsorted(up_to, wanted, right=True).clamp_max(size - 1)
        before = torch.where(first > 0, up_to[first - 1], 0)
        inside = torch.stack([_count(low, kept & (high == digit), size) for digit in first.unbind()])
        up_to = self._all_sum(inside).cumsum(1)
        second = torch.searchsorted(up_to, (wanted - before)[:, None], right=True).clamp_max(size - 1)
        there = kept & (digits == (first[:, None] << DIGITS | second))
        found, _ = self._all_rows(score.masked_fill(~there, 0).amax(1)[None] if len(score) else score.new_zeros(1, 2))
        below, above = found.amax(0)
        return torch.lerp(below, above, (position - position.floor()).to(score.dtype))


def selected_quantile(scores: Tensor, share: float) -> Tensor:
    """The quantile of scores, between two of them where it falls there, in linear time. (n,) → ()"""
    position = share * (len(scores) - 1)
    whole = int(position)
    below = torch.kthvalue(scores, whole + 1).values
    above = torch.kthvalue(scores, min(whole + 2, len(scores))).values
    return torch.lerp(below, above, position - whole)


def soft_cdf(scores: Tensor, counts: Tensor, bandwidth: float) -> Tensor:
    """The distribution function of binned scores in [0, 1], smoothed: Σ_b h_b σ((g − c_b) / bandwidth) / Σ_b h_b. (n,)

    c_b are the middles of the bins and h_b, `counts`, how many scores they hold (Zhou et al., eq. 15).

    >>> soft_cdf(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1, 2, 0, 1]), 0.1)
    tensor([0.1396, 0.6386, 0.8878])
    """
    return smoothed(scores, counts, bandwidth)[0]


def smoothed(scores: Tensor, counts: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """`soft_cdf` and its slope in the scores; some at a time, so that samples × bins are never held. (n,), (n,)"""
    n_bins = len(counts)
    middles = torch.arange(0.5, n_bins, dtype=scores.dtype, device=scores.device) / (n_bins * bandwidth)
    shares = counts.to(scores.dtype) / counts.sum().clamp_min(1)
    values, slopes = [], []
    for part in torch.split(scores / bandwidth, max(1, TILE_VALUES // n_bins)):
        steps = (part[:, None] - middles).sigmoid_()
        values.append(steps @ shares)
        slopes.append((values[-1] - steps.square_() @ shares) / bandwidth)
    return torch.cat(values), torch.cat(slopes)


def _count(places: Tensor, counted: Tensor, size: int) -> Tensor:
    """How many of the counted samples are at each place. (size,) int64"""
    counts = torch.zeros(size, dtype=torch.int64, device=places.device)
    return counts.scatter_add_(0, places, counted.long())
