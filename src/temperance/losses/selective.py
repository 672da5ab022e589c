"""Losses that weigh samples by the rank of their confidence: areas under the risk–coverage curve."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Unpack

import torch
from torch import Tensor

from temperance.errors import InputError, at_least, number, one_of, positive, switch
from temperance.losses import compiled, ranks
from temperance.losses.base import Loss, Regulariser, TorchOptions, Used, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.formula import (
    Batch,
    Part,
    Parts,
    Sample,
    Term,
    below_top,
    dot,
    first_largest,
    largest,
    pick,
    plus,
    put,
    soft_density,
    soft_rank,
    times,
)
from temperance.losses.plain import all_count, watched
from temperance.losses.rows import Rows
from temperance.losses.rowwise import reduced_loss, without_gradient

# A quantile is found by counting its first and then its second twelve binary digits: as exact as float32 near 1.
DIGITS = 12


# ------------------------------------------------------------------------------------------------- how sure each row is
# The scores, from 0 to 1, and some multiple of their gradients in the logits. `per_log_k` is 1 / ln k; 0 if k is 1.


def _msp(sample: Sample, per_log_k: float) -> Tensor:
    """The largest probability."""
    return sample.confidence


def _msp_slope(sample: Sample, per_log_k: float, times: Part) -> Tensor:
    push = times * sample.confidence
    return put(-push * sample.p, sample.winner, push * (1 - sample.confidence))


def _margin(sample: Sample, per_log_k: float) -> Tensor:
    """The largest probability minus the second largest, which is 0 for a single class."""
    return sample.confidence - largest(put(sample.p, sample.winner, 0.0))


def _margin_slope(sample: Sample, per_log_k: float, times: Part) -> Tensor:
    others = put(sample.p, sample.winner, 0.0)
    second = first_largest(others)
    first_p, second_p = sample.confidence, pick(others, second)
    margin = first_p - second_p
    slope = put(-times * margin * sample.p, second, -times * second_p * (1 + margin))
    return put(slope, sample.winner, times * first_p * (1 - margin))


def _negative_entropy(sample: Sample, per_log_k: float) -> Tensor:
    """1 + Σ_j p_j ln p_j / ln k; 1 for a single class."""
    return 1 + per_log_k * (dot(sample.p, below_top(sample)) + sample.log_confidence)


def _negative_entropy_slope(sample: Sample, per_log_k: float, times: Part) -> Tensor:
    log_p = below_top(sample)
    return times * per_log_k * sample.p * (log_p - dot(sample.p, log_p))


FORMULAS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "msp": (_msp, _msp_slope),
    "margin": (_margin, _margin_slope),
    "negative-entropy": (_negative_entropy, _negative_entropy_slope),
}


def _score(sample: Sample, per_log_k: float, name: str) -> Parts:
    score, slope = FORMULAS[name]
    return score(sample, per_log_k), 0.0, slope(sample, per_log_k, 1.0)


def score_term(name: str, k: int) -> Term:
    """A score for k classes."""
    return Term(_score, (_per_log(k),), (name,))


def _per_log(k: int) -> float:
    return 1 / math.log(k) if k > 1 else 0.0


def _of_rows(name: str) -> Callable[[Rows], Tensor]:
    return lambda rows: rows.confidence if name == "msp" else rows.losses((score_term(name, rows.k),))


# Each as a function of rows. (n,)
SCORES = {name: _of_rows(name) for name in FORMULAS}


# --------------------------------------------------------------------------------------------------------- the weights


class Reweighted(BatchLevel, Regulariser):
    """Another loss, with each row multiplied by a weight that depends on the scores in the batch."""

    score: str

    def _known(self, score: Tensor, kept: Tensor | None) -> tuple[Any, ...]:
        """What the weights depend on, given the scores and which rows count (n,); None if all of them do."""
        raise NotImplementedError

    def _known_soon(self, scores: Tensor, batch: Batch) -> tuple[Any, ...] | None:
        """The same for this batch in one step, where that can be done."""
        raise NotImplementedError

    def _weighed(self, of: tuple[Term, ...], known: tuple[Any, ...], logits: Tensor) -> Term:
        """Terms with a weight for each row."""
        raise NotImplementedError

    def _losses(self, rows: Rows) -> Tensor:
        of_base = self.base._terms(rows.k)
        if of_base is None:
            return self.base._losses(rows) * rows.losses((self._of_rows(ONE, rows),))
        return rows.losses((self._of_rows(of_base, rows),))

    def _weights(self, rows: Rows) -> Tensor:
        """What each row's loss is multiplied by, as a constant. (n,)"""
        return rows.detached().losses((self._of_rows(ONE, rows),))

    def _of_rows(self, of: tuple[Term, ...], rows: Rows) -> Term:
        kept = None if rows.ignored is None else rows.kept
        return self._weighed(of, self._known(SCORES[self.score](rows.detached()), kept), rows.given)

    def _value(self, logits: Tensor, labels: Tensor, indices: Tensor | None) -> Tensor:
        of_base = self.base._terms(logits.shape[1]) if logits.ndim > 1 else None
        if of_base is None or self._spread or watched():
            return super()._value(logits, labels, indices)
        batch = self._batch(logits, labels, indices, of_base)
        return reduced_loss(batch._replace(terms=(self._of_batch(batch),)))

    def _of_batch(self, batch: Batch) -> Term:
        k = batch.logits.shape[1]
        scores = without_gradient(batch._replace(weight=None, terms=(score_term(self.score, k),)))
        known = self._known_soon(scores, batch)
        if known is None:
            all_here = all_count(batch.labels, k, batch.ignore_index)
            known = self._known(scores.flatten(), None if all_here else (batch.labels != batch.ignore_index).flatten())
        return self._weighed(batch.terms, known, batch.logits)


def _one(sample: Sample) -> Parts:
    """1."""
    return sample.confidence / sample.confidence, 0.0, 0.0


ONE = (Term(_one),)


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

    def _known_soon(self, scores: Tensor, batch: Batch) -> tuple[Tensor] | None:
        at_once = ranks.rank_weights if scores.is_cuda else compiled.rank_weights
        weights = at_once(scores, batch.labels, batch.ignore_index)
        return None if weights is None else (weights,)

    def _known(self, score: Tensor, kept: Tensor | None) -> tuple[Tensor]:
        if kept is not None:
            score = score.clamp_min(0).where(kept, -1)  # below every score, so that the others' ranks end at n
        if not self._spread:
            return (rank_weights(score, all_count=kept is None),)
        everyone, own = self._all_rows(score)
        return (rank_weights(everyone)[own],)

    def _weighed(self, of: tuple[Term, ...], known: tuple[Tensor], logits: Tensor) -> Term:
        n, _, *space = logits.shape
        return Term(_times, columns=(known[0].view(n, 1, *space),), of=of)


def _times(sample: Sample, parts: Parts, weight: Tensor) -> Parts:
    """A loss times a constant weight."""
    value, slope, rest = parts
    return weight * value, times(weight, slope), times(weight, rest)


def rank_weights(scores: Tensor, *, all_count: bool = False) -> Tensor:
    """What each sample counts in AURC; samples with a score below 0 do not count, unless it is known that all do. (n,)

    A sample takes part in every selection that begins at or below its own rank, as one of those that are left: α is the
    sum of their 1 / left, which is H_n − H_{n−r}.
    """
    order = scores.argsort(stable=True)
    if all_count and scores.is_cpu:
        alpha = _alphas(len(scores))
    else:
        left = torch.arange(len(scores), 0, -1, dtype=torch.float64, device=scores.device)
        alpha = ((scores[order] >= 0) / left).cumsum(0)
    return torch.empty_like(scores).scatter_(0, order, alpha.to(scores.dtype))


@lru_cache(maxsize=4)
def _alphas(n: int) -> Tensor:
    """What samples count in the order of their ranks, if all do. (n,) float64"""
    return (1 / torch.arange(n, 0, -1, dtype=torch.float64)).cumsum(0)


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

    The cost is linear in the batch: scores are counted, or parted at the quantile, and sorted only on a GPU, digit by
    digit. Zhou et al.'s program applies softmax twice before the score, which squeezes it into the lowest bins, and
    normalises the entropy with the wrong sign, which makes every weight equal; it also lets a gradient pass through τ.
    None of that is done here, so its tables are not to be expected.
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

    def _known_soon(self, scores: Tensor, batch: Batch) -> tuple[Any, ...] | None:
        at_once = ranks.surveyed if scores.is_cuda else compiled.surveyed
        return at_once(scores, batch.labels, batch.ignore_index, self.histogram, self.low_conf_coverage)

    def _weighed(self, of: tuple[Term, ...], known: tuple[Any, ...], logits: Tensor) -> Term:
        factor = 1 / self.low_conf_coverage if self.normalise else 1.0
        numbers = (*known, self.cdf_bandwidth, factor, _per_log(logits.shape[1]))
        return Term(_beta_times, numbers, (self.score, self.detach_weights), of=of)

    def _update(self, rows: Rows) -> None:
        super()._update(rows)
        if self.window == "epoch":
            self.histogram += self._counted(rows, SCORES[self.score](rows))

    def end_epoch(self) -> None:
        """Begin the next epoch with an empty histogram."""
        super().end_epoch()
        self.histogram.zero_()

    def _known(self, score: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The threshold τ, the number of scores that count, and the share of the window's scores in each bin."""
        if kept is None:
            kept = torch.ones_like(score, dtype=torch.bool)
        batch = self._histogram(score, kept)
        n = batch.sum()
        if score.is_cuda and not self._spread and not watched():
            threshold = sorted_quantile(score.where(kept, -1), n, self.low_conf_coverage)
        else:
            threshold = self._counted_quantile(score, kept, n)
        counts = batch + self.histogram
        return threshold, n, counts.to(score.dtype) / counts.sum().clamp_min(1)

    def _counted(self, rows: Rows, score: Tensor) -> Tensor:
        """How many scores of rows that count fall into each bin. (n_bins,) int64"""
        return self._histogram(score, rows.kept)

    def _histogram(self, score: Tensor, kept: Tensor) -> Tensor:
        """How many scores fall into each bin [b, b + 1) / n_bins, the last one closed. (n_bins,) int64"""
        places = (score * self.n_bins).long().clamp_(0, self.n_bins - 1)
        return self._all_sum(_count(places, kept, self.n_bins))

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


def _beta_times(
    sample: Sample,
    parts: Parts,
    threshold: Part,
    n: Part,
    shares: Tensor,
    bandwidth: float,
    factor: float,
    per_log_k: float,
    score: str,
    detach_weights: bool,
) -> Parts:
    """A loss times β of eq. 17, whose slope is that of eq. 27."""
    value, slope, rest = parts
    of_sample, slope_of_sample = FORMULAS[score]
    g = of_sample(sample, per_log_k)
    capped = g.clamp_max(threshold)
    level = soft_rank(capped, shares, bandwidth)
    inner = level.clamp_min(1 / (n + 1)).clamp_max(n / (n + 1))
    beta = -factor * torch.log(1 - inner)
    rest = times(beta, rest)
    if not detach_weights:
        moves = (g < threshold).to(g) * (inner == level).to(g)
        beta_slope = factor * moves * soft_density(capped, shares, bandwidth) / (1 - inner)
        rest = plus(rest, slope_of_sample(sample, per_log_k, beta_slope * value))
    return beta * value, times(beta, slope), rest


def sorted_quantile(scores: Tensor, n: Tensor, share: float) -> Tensor:
    """The quantile of the n scores that are not below 0: on a GPU, where sorting takes linear time too. (n,) → ()"""
    position = len(scores) - n + share * (n - 1).clamp_min(0).double()
    around = torch.stack([position.floor(), position.ceil()]).long().clamp_max(len(scores) - 1)
    below, above = scores.sort().values[around]
    return torch.lerp(below, above, position.frac().to(scores.dtype))


def soft_cdf(scores: Tensor, counts: Tensor, bandwidth: float) -> Tensor:
    """The distribution function of binned scores in [0, 1], smoothed: Σ_b h_b σ((g − c_b) / bandwidth) / Σ_b h_b. (n,)

    c_b are the middles of the bins and h_b, `counts`, how many scores they hold (Zhou et al., eq. 15).

    >>> soft_cdf(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1, 2, 0, 1]), 0.1)
    tensor([0.1396, 0.6386, 0.8878])
    """
    return soft_rank(scores, counts / counts.sum().clamp_min(1), bandwidth)


def _count(places: Tensor, counted: Tensor, size: int) -> Tensor:
    """How many of the counted samples are at each place. (size,) int64"""
    counts = torch.zeros(size, dtype=torch.int64, device=places.device)
    return counts.scatter_add(0, places, counted.long())
