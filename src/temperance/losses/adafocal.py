"""Focal loss whose gammas follow the calibration error of the validation set."""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import Loss, TorchOptions, Used, loss
from temperance.losses.distributed import all_rows
from temperance.losses.focal import MAX_GAMMA, Gamma, one_minus_p
from temperance.losses.rows import Rows
from temperance.settings import Bounds, Count, NonNegative, of_kind


@loss(
    name="adafocal",
    paper="Ghosh, Schaaf and Gormley, AdaFocal: calibration-aware adaptive focal loss, NeurIPS 2022",
    learns_from="validation",
    equals_cross_entropy_at={"initial_gamma": 0.0},
    hyper_parameters=(
        Used(
            "CIFAR-10",
            {"rate": 1.0, "switch_at": 0.2, "min_gamma": -2.0, "max_gamma": 20.0, "initial_gamma": 1.0, "n_bins": 15},
            "AdaFocal program",
        ),
    ),
)
class AdaFocal(Loss):
    """AdaFocal: focal loss with a gamma for each range of confidence, set by the validation set's calibration error.

    A sample has the gamma of the bin that its label's probability p falls in: −(1 − p)^gamma · log p if gamma ≥ 0,
    else −(1 + p)^|gamma| · log p. After each epoch `update(logits, labels)` with the validation set divides its
    confidences into equal-mass bins and, with gap = mean confidence − accuracy of a bin, multiplies the bin's gamma by
    exp(rate · gap) (by exp(−rate · gap) if gamma is negative). A gamma closer to 0 than `switch_at` changes sign, to
    ∓switch_at; all are clamped to min_gamma … max_gamma. A bin without samples keeps its gamma.

    Bin edges are interpolated between sorted confidences as in the authors' program, in (low, high]; the first and the
    last bin extend to ±∞. The program sums over the batch and clips the gradient norm at 2. With several processes,
    each is updated with its own part of the validation set, and the parts are gathered.

    initial_gamma         gamma of every bin at the start
    rate                  how fast gammas follow the calibration error
    switch_at             smallest magnitude of a gamma; below it the sign changes
    min_gamma             lowest gamma
    max_gamma             highest gamma
    n_bins                number of equal-mass bins of the validation set

    >>> loss = AdaFocal(n_bins=2)
    >>> loss.update(torch.tensor([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 0.5]]), torch.tensor([1, 0, 0, 1]))
    >>> loss.gammas
    tensor([0.7747, 2.5924])
    """

    edges: Tensor
    gammas: Tensor

    def __init__(
        self,
        *,
        initial_gamma: float = 1.0,
        rate: NonNegative = 1.0,
        switch_at: NonNegative = 0.2,
        min_gamma: Annotated[float, Bounds(-MAX_GAMMA, 0)] = -2.0,
        max_gamma: Gamma = 20.0,
        n_bins: Count = 15,
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(**options)
        of_kind("initial_gamma", initial_gamma, Annotated[float, Bounds(min_gamma, max_gamma)])
        self.initial_gamma = initial_gamma
        self.rate = rate
        self.switch_at = switch_at
        self.min_gamma = min_gamma
        self.max_gamma = max_gamma
        self.n_bins = n_bins
        self.register_buffer("edges", torch.linspace(0, 1, n_bins + 1, dtype=torch.float32)[1:-1].clone())
        self.register_buffer("gammas", torch.full((n_bins,), initial_gamma, dtype=torch.float32))

    def _losses(self, rows: Rows) -> Tensor:
        p, rest = torch.exp(-rows.nll), one_minus_p(rows.nll)
        bins = (p.detach()[:, None] > self.edges).sum(1)
        gamma = self.gammas.to(p.dtype)[bins]
        return torch.where(gamma >= 0, rest, 1 + p) ** gamma.abs() * rows.nll

    def _update(self, rows: Rows) -> None:
        # Each process may have a part of the validation set; the bins are those of the whole set.
        seen, _ = all_rows(torch.stack([rows.confidence.double(), rows.correct.double()], 1)[rows.kept])
        confidence, correct = seen.T.contiguous()
        if not len(confidence):
            raise InputError("AdaFocal needs predictions on the validation set to update; all of these are ignored")
        self.edges.copy_(equal_mass_edges(confidence, self.n_bins))
        bins = torch.bucketize(confidence, self.edges.double())
        count = torch.bincount(bins, minlength=self.n_bins)
        surplus = torch.bincount(bins, confidence - correct, minlength=self.n_bins)
        gap = surplus / count.clamp_min(1)
        self.gammas.copy_(torch.where(count > 0, self._step(self.gammas.double(), gap), self.gammas))

    def _step(self, gammas: Tensor, gap: Tensor) -> Tensor:
        """The gammas after one update with these gaps."""
        moved = gammas * torch.exp(torch.where(gammas > 0, self.rate, -self.rate) * gap)
        other_side = torch.where(moved > 0, -self.switch_at, self.switch_at)
        return torch.where(moved.abs() < self.switch_at, other_side, moved).clamp(self.min_gamma, self.max_gamma)


def equal_mass_edges(values: Tensor, n_bins: int) -> Tensor:
    """The inner edges of bins with about equal counts, interpolated between sorted values. (n_bins − 1,)"""
    ordered = values.sort().values
    n = len(ordered)
    position = (torch.arange(1, n_bins, device=values.device, dtype=values.dtype) * n / n_bins).clamp_max(n - 1)
    below = position.floor().long()
    above = (below + 1).clamp_max(n - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
