"""Losses that weight samples by their confidence relative to the others: areas under the risk–coverage curve."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import PenaltyOptions, Regulariser, Used, Variant, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.rows import Rows
from temperance.metrics.scores import margin, msp, negative_entropy
from temperance.settings import Count, Fraction, Positive

ScoreName = Literal["msp", "margin", "negative-entropy"]

# Confidence scores of probabilities, each from 0 to 1. (n, k) → (n,)
SCORES: dict[ScoreName, Callable[[Tensor], Tensor]] = {
    "msp": msp,
    "margin": margin,
    "negative-entropy": partial(negative_entropy, normalised=True),
}


class Reweighted(BatchLevel, Regulariser):
    """Another loss whose rows are weighted by the confidence scores of the batch.

    base  the loss whose rows are weighted, by name, "focal:gamma=2", or as a loss, `Focal(gamma=2)`; class weights,
          ignore_index and reduction are set on the outer loss
    """

    score: ScoreName
    variant: Variant

    def _scores(self, rows: Rows) -> Tensor:
        """The confidence score of each row. (n,)"""
        if self.variant == "paper":
            return SCORES[self.score](rows.probs)
        if self.score == "negative-entropy":
            return torch.ones_like(rows.nll)  # the program's wrong sign makes every score 1
        return SCORES[self.score](rows.probs.softmax(1))

    def _weights(self, rows: Rows) -> Tensor:
        """The weight of each row's loss. (n,)"""
        raise NotImplementedError

    def _losses(self, rows: Rows) -> Tensor:
        return self._weights(rows) * self.base._losses(rows)

    def _weighted(self, rows: Rows, counts: Tensor, weight: Tensor | None) -> Tensor:
        return self._weights(rows) * self.base._weighted(rows, counts, weight)


# ---------------------------------------------------------------------------------------------------------------- AURC


def rank_weights(scores: Tensor, kept: Tensor) -> Tensor:
    """α_r = H_n − H_{n−r} for r the ascending rank of a score among those kept; 0 for the others. (n,), (n,) → (n,)"""
    order = scores.masked_fill(~kept, -math.inf).argsort(stable=True)
    left = torch.arange(len(scores), 0, -1, dtype=scores.dtype, device=scores.device)
    # H_n − H_{n−r} is the sum of 1 / left over the ranks up to r; the rows that are not kept come first.
    alpha = (kept[order] / left).cumsum(0)
    return alpha[order.argsort()]


@loss(
    name="aurc",
    paper="Zhou et al., Revisiting reweighted risk for calibration, 2025; Geifman, Uziel and El-Yaniv, ICLR 2019",
    per_sample=False,
)
class AURC(Reweighted):
    """AURC loss: the area under the risk–coverage curve, where the loss of a more confident prediction counts more.

    mean_i α_{r_i} base_i with α_r = H_n − H_{n−r}, H_n the harmonic numbers and r the ascending rank of the confidence
    score in the batch: exactly the empirical AURC of the base loss, with weights of mean 1. The weights carry no
    gradient; equal scores are ranked in batch order. Zhou et al.'s program applies the weights of the nominal batch
    size to the last, smaller batch, too; here it has its own.

    score    what ranks the samples: "msp", "margin" or "negative-entropy"
    variant  "paper", or "released": the program applies softmax twice before the score, which changes ranks slightly
    """

    def __init__(
        self,
        *,
        score: ScoreName = "msp",
        variant: Variant = "paper",
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.score = score
        self.variant = variant

    def _weights(self, rows: Rows) -> Tensor:
        own, (scores, kept) = self._all_rows(self._scores(rows).detach(), rows.kept)
        return rank_weights(scores, kept)[own]


# ------------------------------------------------------------------------------------------------------------------ AU


def soft_cdf(scores: Tensor, counts: Tensor, bandwidth: float) -> Tensor:
    """Ĝ(g) = Σ_b h_b σ((g − c_b) / bandwidth) / Σ_b h_b, a smoothed distribution function (Zhou et al., eq. 15). (n,)

    h_b, `counts`, is the number of scores in each of the equal bins of [0, 1], and c_b the centre of the bin.

    >>> soft_cdf(torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1, 2, 0, 1]), 0.1)
    tensor([0.1396, 0.6386, 0.8878])
    """
    n_bins = len(counts)
    centres = torch.linspace(0.5 / n_bins, 1 - 0.5 / n_bins, n_bins, dtype=scores.dtype, device=scores.device)
    below = torch.sigmoid((scores[:, None] - centres) / bandwidth)
    return below @ counts.to(scores.dtype) / counts.sum().clamp_min(1)


def quantile(scores: Tensor, kept: Tensor, share: float) -> Tensor:
    """The quantile of the kept scores, interpolated as in NumPy. (n,), (n,) → ()"""
    # Scores are at most 1. The others come last, with one extra, so that the index always exists.
    ordered = F.pad(scores.masked_fill(~kept, 2), (0, 1), value=2).sort().values
    position = share * (kept.sum(dtype=scores.dtype) - 1).clamp_min(0)
    below = position.floor()
    around = ordered.gather(0, torch.stack([below, position.ceil()]).long())
    return torch.lerp(around[0], around[1], position - below)


@loss(
    name="au",
    paper="Zhou et al., Revisiting reweighted risk for calibration: AURC, focal and inverse focal loss, 2025",
    per_sample=False,
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
    """AU loss: the selective-risk area over low thresholds; weights grow with confidence up to a quantile.

    mean_i β_i base_i with β_i = −ln(1 − Ĝ(g_i)) below τ and −ln(1 − Ĝ(τ)) from τ on (eqs 16, 17): g is a confidence
    score, τ the quantile of the batch's scores at `low_conf_coverage`, and Ĝ the distribution function of the scores,
    smoothed with logistic steps of width `cdf_bandwidth` over `n_bins` bins (eq. 15) and clamped to [1/(n+1), n/(n+1)].
    The least confident samples count least, although the paper speaks of a focus on them.

    low_conf_coverage  the quantile of the scores above which weights stop growing
    cdf_bandwidth      width of the logistic steps
    n_bins             number of bins of the scores
    variant         "released": as Zhou et al.'s program computes it, which is what their tables report. It applies
                    softmax twice before the score, which squeezes all scores into the lowest bins, lets a gradient
                    pass through τ, and its negative entropy is constant; "paper": eqs 15 to 17, with the gradient
                    of eq. 27 through Ĝ(g_i) below τ. That gradient can outweigh the loss and push a right prediction
                    down, and in training it does: `temperance gradients au:variant=paper --figure weights` shows where
    score           what ranks the samples: "msp", "margin" or "negative-entropy"
    window          "epoch": Ĝ is that of all batches of the epoch so far, including this one; call
                    `update(logits, labels)` after each batch and `end_epoch()` after each epoch. "batch": of this
                    batch alone
    detach_weights  with variant="paper": no gradient through β at all
    normalise       divide by `low_conf_coverage`, which makes eq. 11 an average over the samples below τ
    """

    histogram: Tensor

    def __init__(
        self,
        *,
        low_conf_coverage: Fraction = 0.9,
        cdf_bandwidth: Positive = 0.1,
        variant: Variant = "released",
        score: ScoreName = "msp",
        n_bins: Count = 64,
        window: Literal["epoch", "batch"] = "epoch",
        detach_weights: bool = False,
        normalise: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        if detach_weights and variant != "paper":
            raise InputError(f'detach_weights needs variant="paper"; got variant={variant!r}')
        if normalise and low_conf_coverage == 0:
            raise InputError("normalise divides by low_conf_coverage, which is 0")
        self.low_conf_coverage = low_conf_coverage
        self.cdf_bandwidth = cdf_bandwidth
        self.variant = variant
        self.score = score
        self.n_bins = n_bins
        self.window = window
        self.detach_weights = detach_weights
        self.normalise = normalise
        self.register_buffer("histogram", torch.zeros(n_bins, dtype=torch.int64))
        if window == "batch":
            self.learns_from = self.base.learns_from

    def _weights(self, rows: Rows) -> Tensor:
        g = self._scores(rows)
        _, (scores, kept) = self._all_rows(g, rows.kept)
        threshold = quantile(scores, kept, self.low_conf_coverage)
        if self.variant == "paper":
            threshold = threshold.detach()  # eq. 27 has no gradient at or above τ
        capped = torch.where(g < threshold, g, threshold)
        level = soft_cdf(capped, self._counts(g, rows.kept) + self.histogram, self.cdf_bandwidth)  # eq. 15
        least = 1 / (kept.sum(dtype=level.dtype) + 1)
        beta = -torch.log(1 - level.clamp(least, 1 - least))  # eqs 16, 17
        if self.normalise:
            beta = beta / self.low_conf_coverage
        return beta.detach() if self.detach_weights else beta

    def _counts(self, scores: Tensor, kept: Tensor) -> Tensor:
        """How many scores of the batch fall into each bin [b, b + 1) / n_bins, the last one closed. (n_bins,) int64"""
        bins = (scores * self.n_bins).long().clamp(0, self.n_bins - 1)
        return self._all_sum(torch.zeros_like(self.histogram).scatter_add(0, bins, kept.long()))

    def _update(self, rows: Rows) -> None:
        super()._update(rows)
        if self.window == "epoch":
            self.histogram += self._counts(self._scores(rows), rows.kept)

    def end_epoch(self) -> None:
        """Start the next epoch with an empty histogram."""
        super().end_epoch()
        self.histogram.zero_()
