"""Calibration errors, which need all rows at once."""

import torch
from torch import Tensor

from temperance.numerics import soft_bins
from temperance.objectives.base import Objective, objective
from temperance.settings import Count, Positive


@objective(convex=False, whole=True, name="soft-ece")
class SoftBinnedError(Objective):
    """Soft-binned ECE, the objective of SMART: ECE over bins with soft membership.

    Σ_b (S_b / n) √((A_b − C_b)² + δ²): the membership of sample i in bin b is softmax_b(−(c_i − ξ_b)² / temperature),
    ξ_b the bin's centre; S_b, A_b and C_b are the bin's weight, accuracy and mean confidence (Karandikar et al. 2021,
    eq. 11), and δ, `rounding`, smooths the kink of |A_b − C_b|. It uses only the most probable class.

    n_bins       number of bins
    temperature  how far a sample reaches into other bins
    rounding     δ: smaller gaps count by their square

    Guo et al., Sample margin-aware recalibration of temperature scaling, ICML 2026.
    """

    def __init__(self, *, n_bins: Count = 15, temperature: Positive = 0.01, rounding: Positive = 1e-3) -> None:
        self.n_bins = n_bins
        self.temperature = temperature
        self.rounding = rounding

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        top, predicted = log_probs.max(1)
        confidence = top.exp()
        belongs = soft_bins(confidence, self.n_bins, self.temperature)
        weight = belongs.sum(0)
        gap = (confidence - (predicted == labels).to(top.dtype)) @ belongs
        return (torch.hypot(gap, self.rounding * weight).sum() / len(labels)).expand(len(labels))


@objective(convex=False, whole=True)
class HCalibration(Objective):
    """h-calibration: the gap between probability and frequency among neighbouring probabilities of any class.

    All n · k pairs (p, q), of a probability and of whether its class is the label, are sorted by p. The gap of a pair
    is |Σ (p − q)| / `window` over the `window` pairs around it. Its mean over the pairs of a cluster of p is averaged
    over `n_clusters` clusters (k-means), so that rare large probabilities count as much as the many small ones. The
    authors multiply this by 10⁵ and average it over leaving out each class in turn, at k times the cost; not done here.

    window      pairs that a gap is averaged over
    n_clusters  number of clusters, which count equally

    Huang et al., h-calibration: rethinking classifier recalibration with probabilistic error-bounded objective, 2025.
    """

    def __init__(self, *, window: Count = 201, n_clusters: Count = 15) -> None:
        self.window = window
        self.n_clusters = n_clusters

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        probs = log_probs.exp()
        gaps = probs.scatter_add(1, labels[:, None], -torch.ones_like(probs[:, :1])).flatten()
        ordered, order = probs.detach().flatten().sort()
        # Prefix sums, so that the sum over a window is a difference.
        sums = torch.cat([gaps.new_zeros(1), gaps[order].cumsum(0)])
        place = torch.arange(len(order), device=order.device)
        first = (place - self.window // 2).clamp_min(0)
        end = (place - self.window // 2 + self.window).clamp_max(len(order))
        local = (sums[end] - sums[first]).abs() / self.window
        sizes = _cluster_sizes(ordered, self.n_clusters)
        share = (1 / sizes.to(local.dtype)).repeat_interleave(sizes)
        return ((share * local).sum() / len(sizes)).expand(len(labels))


def _cluster_sizes(ordered: Tensor, n: int) -> Tensor:
    """The sizes of the non-empty k-means clusters of these ascending values, lowest first."""
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    centres = torch.lerp(ordered[0], ordered[-1], torch.linspace(0, 1, n, dtype=ordered.dtype, device=ordered.device))
    for _ in range(20):
        inner = torch.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
        edges = torch.cat([inner.new_zeros(1), inner, inner.new_tensor([len(ordered)])])
        sizes = edges.diff()
        centres = torch.where(sizes > 0, sums[edges].diff() / sizes.clamp_min(1), centres)
    return sizes[sizes > 0]
