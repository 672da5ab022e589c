"""Calibration errors of a batch: MMCE and KDE with kernels, MDCA per class, soft ECE and AvUC with soft thresholds."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import PenaltyOptions, Regulariser, Used, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.rows import Rows
from temperance.metrics.kernel import Bandwidth, Power, canonical_error, loo_bandwidth
from temperance.metrics.smooth import MMCE_WIDTH
from temperance.numerics import root, soft_bins
from temperance.settings import Count, NonNegative, OpenFraction, Positive

KARANDIKAR = "Karandikar et al., Soft calibration objectives for neural networks, NeurIPS 2021"

# The normalised entropy is clamped this far from 0 and 1 before its log-odds are taken.
ENTROPY_MARGIN = 1e-6

# A batch in which all pairs are compared may have this many predictions; they take about 12 GB.
MOST_ROWS = 1 << 15


def laplacian_energy(amounts: Tensor, places: Tensor) -> Tensor:
    """Σ_ij u_i u_j exp(−|c_i − c_j| / 0.4) for amounts u at places c in [0, 1]. (n,), (n,) → ()

    Sorted by place, the kernel is a factor of i times a factor of j, so O(n log n) is enough.
    """
    order = places.detach().argsort()
    u, c = amounts[order], places[order] / MMCE_WIDTH
    grown = u * c.exp()
    before = grown.cumsum(0) - grown
    return (u * (u + 2 * (-c).exp() * before)).sum()


@loss(
    name="mmce",
    paper="Kumar, Sarawagi and Jain, Trainable calibration measures from kernel mean embeddings, ICML 2018",
    per_sample=False,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used(
            "CIFAR-10, CIFAR-100, Tiny-ImageNet",
            {"strength": 2.0, "form": "weighted", "double_norm": True},
            "focal_calibration scripts",
        ),
        Used("CIFAR-10, Tiny-ImageNet, ImageNet", {"strength": 1.0, "form": "plain"}, "MbLS and ACLS configurations"),
        Used("CIFAR-10, CIFAR-100", {"strength": 4.0, "form": "weighted", "double_norm": True}, "MDCA scripts"),
    ),
)
class MMCE(BatchLevel, Regulariser):
    """Maximum mean calibration error (MMCE): adds a kernel distance between confidence and correctness.

    base + strength · M with u_i = (correct_i − c_i) / n_i and M² = Σ_ij u_i u_j exp(−|c_i − c_j| / 0.4), c the
    confidence:

    strength     weight of the penalty
    form         "plain": M², where n_i is the number of samples, as in several programs; "root": M, as in the paper's
                 text; "weighted": M, where n_i is the number of right samples for a right one and of wrong samples for
                 a wrong one; 0 if the batch lacks either. Mistakes then weigh as much as right predictions however rare
                 they are, which costs accuracy: with strength=2, 12 points on CIFAR-100 and 6 on CIFAR-10
    double_norm  with form="weighted": divide by n_i twice, as the released program does, which makes M much smaller

    Correctness carries no gradient. Exact in O(n log n), without a matrix of pairs.
    """

    def __init__(
        self,
        *,
        strength: NonNegative = 1.0,
        form: Literal["weighted", "plain", "root"] = "plain",
        double_norm: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        if double_norm and form != "weighted":
            raise InputError(f'double_norm needs form="weighted"; got form={form!r}')
        self.strength = strength
        self.form = form
        self.double_norm = double_norm

    def _penalty(self, rows: Rows) -> Tensor:
        _, (confidence, kept, correct) = self._all_rows(rows.confidence, rows.kept, rows.correct)
        residual = (correct.to(confidence.dtype) - confidence) * kept
        if self.form == "weighted":
            n_right = (kept & correct).sum()
            n_wrong = kept.sum() - n_right
            n_alike = torch.where(correct, n_right, n_wrong).clamp_min(1)
            both = (n_right > 0) & (n_wrong > 0)
            amounts = both * residual / (n_alike.square() if self.double_norm else n_alike)
        else:
            amounts = residual / kept.sum().clamp_min(1)
        squared = laplacian_energy(amounts, confidence).clamp_min(0)
        return self.strength * (squared if self.form == "plain" else root(squared))


@loss(
    name="mdca",
    paper="Hebbalaguppe et al., A stitch in time saves nine: a train-time regularizing loss for calibration, CVPR 2022",
    per_sample=False,
    soft_targets=True,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100", {"strength": 1.0}, "MDCA scripts, on cross-entropy or Focal(gamma=1)"),
    ),
)
class MDCA(BatchLevel, Regulariser):
    """MDCA: adds the distance between each class's mean probability over the batch and its share of the labels.

    base + strength · (1/k) Σ_c |mean_i p_ic − mean_i 1[y_i = c]|. It is informative only for batches larger than the
    number of classes. The ACLS paper's supplement omits 1/k, and its a_c = sgn(|…|), which is always 1, would make the
    gradient vanish; it should be the sign of the difference. The authors' best results are with focal loss,
    `MDCA(base=Focal(gamma=1.0))`.

    strength  weight of the penalty
    """

    def __init__(self, *, strength: NonNegative = 1.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(**options)
        self.strength = strength

    def _penalty(self, rows: Rows) -> Tensor:
        surplus = self._all_sum((rows.kept[:, None] * (rows.probs - rows.one_hot)).sum(0))
        n = self._all_sum(rows.kept.sum()).clamp_min(1)
        return self.strength * (surplus / n).abs().mean()


@loss(
    name="kde-xe",
    paper="Popordanoska, Sayer and Blaschko, A consistent and differentiable Lp canonical calibration error "
    "estimator, NeurIPS 2022",
    per_sample=False,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used("CIFAR-10", {"strength": 0.3}, "Zhou et al. 2025"),
        Used("CIFAR-100", {"strength": 0.5}, "Zhou et al. 2025"),
        Used("Tiny-ImageNet", {"strength": 0.3}, "Zhou et al. 2025, program"),
    ),
)
class KDEXE(BatchLevel, Regulariser):
    """KDE-XE: adds the canonical calibration error of the batch, estimated with Dirichlet kernels.

    base + strength · mean_i Σ_c |Ê[y_c | p_i] − p_ic|^p, where Ê leaves sample i out; see
    `temperance.metrics.kde_ece_canonical`. A batch of one sample has no neighbours and no error.

    strength  weight of the penalty
    p         power of the error
    bandwidth  of the kernels, or "loo": chosen for each batch by leave-one-out likelihood, without a gradient
    detach     add the error to the value without a gradient, as Zhou et al.'s program does; that trains on plain
               cross-entropy

    Time and memory grow with the square of the batch: it is meant for images, and refuses the pixels of large ones.
    """

    def __init__(
        self,
        *,
        strength: NonNegative = 0.3,
        bandwidth: Bandwidth = 0.02,
        p: Power = 1.0,
        detach: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.strength = strength
        self.bandwidth = bandwidth
        self.p = p
        self.detach = detach

    def _penalty(self, rows: Rows) -> Tensor:
        _, (probs, labels, counted) = self._all_rows(rows.probs, rows.labels, rows.kept)
        if len(probs) < 2:
            return 0 * probs.sum()
        if len(probs) > MOST_ROWS:
            raise InputError(
                f"{self.name} compares every prediction of a batch with every other, so it takes at most "
                f"{MOST_ROWS:,}; got {len(probs):,}. Pass a random part of them, or use soft-ece"
            )
        bandwidth = self.bandwidth
        if isinstance(bandwidth, str):
            neighbours = probs.detach()[counted]
            bandwidth = loo_bandwidth(neighbours) if len(neighbours) > 1 else 1.0
        error = canonical_error(probs, labels, bandwidth, p=self.p, counted=counted) * (counted.sum() > 1)
        return self.strength * (error.detach() if self.detach else error)


@loss(name="soft-ece", paper=KARANDIKAR, per_sample=False, equals_cross_entropy_at={"strength": 0.0})
class SoftECE(BatchLevel, Regulariser):
    """Soft-binned ECE: adds the calibration error of the batch over bins with soft membership.

    base + strength · (Σ_b (S_b / n) |A_b − C_b|^p)^{1/p}: the membership of sample i in bin b is
    softmax_b(−(c_i − ξ_b)² / temperature), ξ_b the bin's centre; S_b, A_b and C_b are the bin's weight, accuracy and
    mean confidence (SB-ECE_bin, eq. 11). As the temperature goes to 0 this is binned ECE. From one bin to the next the
    membership falls by a factor of exp(1 / (n_bins² · temperature)).

    strength     weight of the penalty
    n_bins       number of bins
    temperature  how much neighbouring bins overlap
    p            power of the gaps
    """

    def __init__(
        self,
        *,
        strength: NonNegative = 1.0,
        n_bins: Count = 15,
        temperature: Positive = 0.01,
        p: Power = 2.0,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.strength = strength
        self.n_bins = n_bins
        self.temperature = temperature
        self.p = p

    def _penalty(self, rows: Rows) -> Tensor:
        confidence, kept = rows.confidence, rows.kept.to(rows.nll.dtype)
        amounts = torch.stack([kept, kept * (confidence - rows.correct.to(kept.dtype))])
        weight, gap = self._all_sum(amounts @ soft_bins(confidence, self.n_bins, self.temperature))
        # (S/n) |gap/S|^p, written so that an empty bin is 0 with a finite gradient.
        tiny = torch.finfo(kept.dtype).tiny ** 0.25
        terms = weight * (gap / weight.clamp_min(tiny)).abs().pow(self.p)
        total = terms.sum() / weight.sum().clamp_min(1)
        return self.strength * root(total, self.p)


@loss(name="soft-avuc", paper=KARANDIKAR, per_sample=False, equals_cross_entropy_at={"strength": 0.0})
class SoftAvUC(BatchLevel, Regulariser):
    """Soft accuracy versus uncertainty: penalises right predictions that are uncertain and wrong ones that are certain.

    base + strength · ln(1 + (n_AU + n_IC) / (n_AC + n_IU)), eq. 15: with H the entropy, h = H / ln k and
    s = sigmoid((logit h − logit threshold) / temperature), a sample counts (1 − s)(1 − tanh H) as certain (C) and
    s tanh H as uncertain (U), and as accurate (A) or inaccurate (I). In Krishnan and Tickoo's AvUC (2020) s is a hard
    threshold and the confidence a factor.

    strength     weight of the penalty
    threshold    share of the maximum entropy above which a prediction is uncertain
    temperature  how soft that threshold is
    """

    def __init__(
        self,
        *,
        strength: NonNegative = 1.0,
        threshold: OpenFraction = 0.5,
        temperature: Positive = 1.0,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.strength = strength
        self.threshold = threshold
        self.temperature = temperature

    def _penalty(self, rows: Rows) -> Tensor:
        entropy = rows.entropy
        share = (entropy / math.log(max(rows.k, 2))).clamp(ENTROPY_MARGIN, 1 - ENTROPY_MARGIN)
        at_threshold = math.log(self.threshold / (1 - self.threshold))
        unsure = ((share.logit() - at_threshold) / self.temperature).sigmoid()
        certain, uncertain = (1 - unsure) * (1 - entropy.tanh()), unsure * entropy.tanh()
        right = rows.correct
        bad = rows.kept * torch.where(right, uncertain, certain)
        good = rows.kept * torch.where(right, certain, uncertain)
        sums = self._all_sum(torch.stack([bad.sum(), good.sum()]))
        return self.strength * (sums[0] / sums[1].clamp_min(1e-5)).log1p()
