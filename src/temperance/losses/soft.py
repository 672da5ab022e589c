"""Calibration measures of a batch with hard thresholds made soft: binned ECE, accuracy versus uncertainty."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from temperance.errors import InputError, at_least, number, positive
from temperance.losses.base import Loss, Regulariser, TorchOptions, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.formula import FAR
from temperance.losses.rows import Rows
from temperance.numerics import root

KARANDIKAR = "Karandikar et al., Soft calibration objectives for neural networks, NeurIPS 2021"

# How near to 0 and 1 the normalised entropy may come before its log-odds stop growing.
ENTROPY_MARGIN = 1e-6


@loss(name="soft-ece", paper=KARANDIKAR, per_sample=False, equals_cross_entropy_at={"strength": 0.0})
class SoftECE(BatchLevel, Regulariser):
    """Soft-binned ECE: adds the calibration error of the batch over bins to which every sample belongs a little.

    base + strength · (Σ_b (S_b / n) |A_b − C_b|^p)^{1/p}: sample i belongs to bin b by
    softmax_b(−(c_i − ξ_b)² / temperature), ξ_b the bin's middle; S_b, A_b and C_b are the bin's weight, accuracy and
    mean confidence (SB-ECE_bin, eq. 11). As the temperature goes to 0 this is binned ECE. From one bin to the next the
    weight falls by exp(1 / (n_bins² · temperature)).
    """

    def __init__(
        self,
        *,
        strength: float = 1.0,
        n_bins: int = 15,
        temperature: float = 0.01,
        p: float = 2.0,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("strength", strength, 0)
        at_least("n_bins", n_bins, 1)
        positive("temperature", temperature)
        number("p", p, 1)
        self.strength = strength
        self.n_bins = n_bins
        self.temperature = temperature
        self.p = p

    def _penalty(self, rows: Rows) -> Tensor:
        confidence, kept = rows.confidence, rows.kept.to(rows.given.dtype)
        middles = (torch.arange(self.n_bins, device=kept.device, dtype=kept.dtype) + 0.5) / self.n_bins
        belongs = (-(confidence[:, None] - middles).square() / self.temperature).softmax(1)
        amounts = torch.stack([kept, kept * (confidence - rows.correct.to(kept.dtype))])
        weight, gap = self._all_sum(amounts @ belongs)
        # (S/n) |gap/S|^p, written so that an empty bin is 0 with a finite gradient.
        tiny = torch.finfo(kept.dtype).tiny ** 0.25
        terms = weight * (gap / weight.clamp_min(tiny)).abs().pow(self.p)
        total = terms.sum() / weight.sum().clamp_min(1)
        return self.strength * root(total, self.p)


@loss(name="soft-avuc", paper=KARANDIKAR, per_sample=False, equals_cross_entropy_at={"strength": 0.0})
class SoftAvUC(BatchLevel, Regulariser):
    """Soft accuracy versus uncertainty: penalises being right but unsure, and being wrong but sure.

    base + strength · ln(1 + (n_AU + n_IC) / (n_AC + n_IU)), eq. 15: with H the entropy, h = H / ln k and
    s = sigmoid((logit h − logit threshold) / temperature), a sample counts (1 − s)(1 − tanh H) as certain and s tanh H
    as uncertain, and A or I by whether its prediction is right. In Krishnan and Tickoo's AvUC (2020) s is a hard
    threshold and the confidence a factor.
    """

    def __init__(
        self,
        *,
        strength: float = 1.0,
        threshold: float = 0.5,
        temperature: float = 1.0,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("strength", strength, 0)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold < 1:
            raise InputError(f"threshold must be a number between 0 and 1; got {threshold!r}")
        positive("temperature", temperature)
        self.strength = strength
        self.threshold = threshold
        self.temperature = temperature

    def _penalty(self, rows: Rows) -> Tensor:
        entropy = -(rows.probs * rows.log_probs.clamp_min(-FAR)).sum(1)
        share = (entropy / math.log(max(rows.k, 2))).clamp(ENTROPY_MARGIN, 1 - ENTROPY_MARGIN)
        at_threshold = math.log(self.threshold / (1 - self.threshold))
        unsure = ((share.logit() - at_threshold) / self.temperature).sigmoid()
        certain, uncertain = (1 - unsure) * (1 - entropy.tanh()), unsure * entropy.tanh()
        right = rows.correct
        bad = rows.kept * torch.where(right, uncertain, certain)
        good = rows.kept * torch.where(right, certain, uncertain)
        sums = self._all_sum(torch.stack([bad.sum(), good.sum()]))
        return self.strength * (sums[0] / sums[1].clamp_min(1e-5)).log1p()
