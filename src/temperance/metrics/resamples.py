"""Bootstrap resamples that several predictions of the same samples share, so that their differences are paired.

Everything is a sum over samples: of a value, or of a value in each bin. The samples are assigned at random to a few
hundred parts, a value is summed over each part once, and all resamples are one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from temperance.metrics.bins import bin_index
from temperance.metrics.significance import Draws, part_weights

N_PARTS = 200  # a standard error is known within about 5 %


@dataclass(frozen=True)
class Resamples:
    """Which part each sample belongs to (n,), and how often each part is drawn in each resample (resamples, parts).

    `counts` (n,) say how much each sample counts.
    """

    part: Tensor
    weights: Tensor
    counts: Tensor

    @classmethod
    def draw(
        cls,
        n: int,
        n_resamples: int,
        seed: int,
        counts: Tensor | None = None,
        together: Tensor | None = None,
    ) -> Self:
        """Resamples of n samples, which count equally unless `counts` (n,) are given.

        together  (n,) numbers from 0 on; those with the same number are drawn together
        """
        generator = torch.Generator().manual_seed(seed)
        n_drawn = n if together is None else int(together.max()) + 1
        n_parts = min(n_drawn, N_PARTS)
        weights = part_weights(n_parts, n_resamples, generator)
        counts = torch.ones(n, dtype=torch.float64) if counts is None else counts
        part = torch.randperm(n_drawn, generator=generator) % n_parts
        return cls(part if together is None else part[together], weights, counts)

    def means(self, values: Tensor) -> Draws:
        """The mean of a value of each sample (n,), on every resample."""
        return Draws(self._sums(values * self.counts) / self._sums(self.counts), 1.0)

    def calibration_errors(self, confidence: Tensor, correct: Tensor, n_bins: int) -> Draws:
        """ECE on every resample: Σ_b |Σ_i (correct − confidence)| / n, over bins b and the samples i in each."""
        cell = self.part * n_bins + bin_index(confidence, n_bins, "right")
        gap_of_each = (correct.double() - confidence) * self.counts
        gaps = torch.bincount(cell, gap_of_each, minlength=self.weights.shape[1] * n_bins)
        gap = self.weights @ gaps.reshape(-1, n_bins)
        return Draws(gap.abs().sum(1) / self._sums(self.counts), 1.0)

    def _sums(self, values: Tensor) -> Tensor:
        return self.weights @ torch.bincount(self.part, values.double(), minlength=self.weights.shape[1])
