"""Calibration error of a batch by kernels: MMCE between confidences, KDE between whole distributions."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from temperance.errors import InputError, number, one_of, switch
from temperance.losses.base import Loss, Regulariser, TorchOptions, Used, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.rows import Rows
from temperance.metrics.kernel import canonical_error, check_bandwidth, loo_bandwidth
from temperance.metrics.smooth import MMCE_WIDTH
from temperance.numerics import root


def laplacian_energy(amounts: Tensor, places: Tensor, width: float = MMCE_WIDTH) -> Tensor:
    """Σ_ij u_i u_j exp(−|c_i − c_j| / width) for amounts u at places c in [0, 1]. (n,), (n,) → ()

    In order of place the kernel is a product of a factor of i and a factor of j, so that O(n log n) is enough.
    """
    order = places.detach().argsort()
    u, c = amounts[order], places[order] / width
    grown = u * c.exp()
    before = grown.cumsum(0) - grown
    return (u * (u + 2 * (-c).exp() * before)).sum()


@loss(
    name="mmce",
    paper="Kumar, Sarawagi and Jain, Trainable calibration measures from kernel mean embeddings, ICML 2018",
    per_sample=False,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100, Tiny-ImageNet", {"strength": 2.0, "form": "weighted"}, "focal_calibration scripts"),
        Used("CIFAR-10, Tiny-ImageNet, ImageNet", {"strength": 1.0, "form": "plain"}, "MbLS and ACLS configurations"),
        Used("CIFAR-10, CIFAR-100", {"strength": 4.0, "form": "weighted"}, "MDCA scripts"),
    ),
)
class MMCE(BatchLevel, Regulariser):
    """Maximum mean calibration error (MMCE): adds a kernel distance between confidence and correctness.

    base + strength · M with u_i = (correct_i − c_i) / n_i and M² = Σ_ij u_i u_j exp(−|c_i − c_j| / 0.4):

    form="weighted"  M, where n_i counts the samples that are right, or wrong, as sample i is: both kinds weigh
                     the same however rare mistakes are. Without one of the kinds it is 0
    form="plain"     M², where n_i is the number of all samples, as several programs do
    form="root"      M, where n_i is the number of all samples, as the paper's text does

    Which samples are right is held constant. `double_norm=True` divides by n_i twice in the weighted form, as the
    released program does. Exact in O(n log n), without a matrix of pairs.
    """

    def __init__(
        self,
        *,
        strength: float = 2.0,
        form: str = "weighted",
        double_norm: bool = False,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("strength", strength, 0)
        one_of("form", form, ("weighted", "plain", "root"))
        switch("double_norm", double_norm)
        if double_norm and form != "weighted":
            raise InputError(f'double_norm belongs to form="weighted"; got form={form!r}')
        self.strength = strength
        self.form = form
        self.double_norm = double_norm

    def _penalty(self, rows: Rows) -> Tensor:
        kept, correct = rows.kept.to(rows.given.dtype), rows.correct.to(rows.given.dtype)
        everyone, _ = self._all_rows(torch.stack([rows.confidence, kept, correct], dim=1))
        confidence, kept, correct = everyone.unbind(1)
        residual = (correct - confidence) * kept
        if self.form == "weighted":
            n_right = (kept * correct).sum()
            n_wrong = kept.sum() - n_right
            n_like_it = torch.where(correct > 0, n_right, n_wrong).clamp_min(1)
            both = ((n_right > 0) & (n_wrong > 0)).to(residual.dtype)
            amounts = both * residual / (n_like_it.square() if self.double_norm else n_like_it)
        else:
            amounts = residual / kept.sum().clamp_min(1)
        squared = laplacian_energy(amounts, confidence).clamp_min(0)
        return self.strength * (squared if self.form == "plain" else root(squared))


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

    bandwidth  of the kernels, or "loo": the likeliest for this batch, each sample left out in turn, held constant
    detach     the error is added to the value, but has no gradient: what Zhou et al.'s program does, and therefore
               trains with plain cross-entropy

    Time and memory grow with the square of the batch: for images, not for their pixels.
    """

    def __init__(
        self,
        *,
        strength: float = 0.3,
        bandwidth: float | str = 0.02,
        p: float = 1.0,
        detach: bool = False,
        base: str | Loss = "cross-entropy",
        **options: Unpack[TorchOptions],
    ) -> None:
        super().__init__(base=base, **options)
        number("strength", strength, 0)
        check_bandwidth(bandwidth)
        number("p", p, 1)
        switch("detach", detach)
        self.strength = strength
        self.bandwidth = bandwidth
        self.p = p
        self.detach = detach

    def _penalty(self, rows: Rows) -> Tensor:
        probs, _ = self._all_rows(rows.probs)
        marks, _ = self._all_rows(torch.stack([rows.labels, rows.kept.long()], dim=1))
        labels, counted = marks[:, 0], marks[:, 1] > 0
        if len(probs) < 2:
            return 0 * probs.sum()
        bandwidth = self.bandwidth
        if isinstance(bandwidth, str):
            neighbours = probs.detach()[counted]
            bandwidth = loo_bandwidth(neighbours) if len(neighbours) > 1 else 1.0
        error = canonical_error(probs, labels, bandwidth, p=self.p, counted=counted) * (counted.sum() > 1)
        return self.strength * (error.detach() if self.detach else error)
