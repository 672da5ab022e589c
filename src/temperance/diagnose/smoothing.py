"""Losses as label smoothing: by how much they move the label of each class, and under which condition.

Park et al. (ACLS, 2023) write the gradient of a loss in the logits as cross-entropy's with a smoothed label,

    ∂L/∂z_j = p_j − (q_j − f_j C_j)  for the predicted class,    p_j − (q_j + f_j C_j)  for every other (eq. 8),

with p the probabilities, q the one-hot label, f the smoothing function and C an indicator. `FORMULAS` has them exactly;
some rows of the paper's Table 2 differ. `temperance.diagnose.gradient` finds f and C of any loss by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from temperance.errors import InputError
from temperance.losses.base import Loss, Regulariser
from temperance.losses.batch import MDCA
from temperance.losses.focal import FLSD, Focal, InverseFocal
from temperance.losses.margin import ACLS, MbLS
from temperance.losses.pairwise import CPC
from temperance.losses.proper import CrossEntropy, LabelSmoothing
from temperance.losses.ranking import CRL, neighbours, ranking_penalty
from temperance.losses.rows import Rows

# Slopes below this are rounding errors.
NOTHING = 1e-12


@dataclass(frozen=True)
class Smoothing:
    """How a loss smooths the labels of some samples.

    f    the amount by which the predicted class's label is lowered and the others' are raised. (n, k)
    C    the condition: whether the label is moved at all. (n, k) bool
    top  the predicted classes. (n,)
    """

    f: Tensor
    C: Tensor
    top: Tensor

    @classmethod
    def of_slope(cls, slope: Tensor, top: Tensor, C: Tensor | None = None) -> Smoothing:
        """From what a loss adds to cross-entropy's gradient (n, k); C is where that is not 0, unless given."""
        f = slope * _signs(slope, top)
        return cls(f, f.abs() > NOTHING if C is None else C, top)

    @property
    def amount(self) -> Tensor:
        """f where C, else 0. (n, k)"""
        return torch.where(self.C, self.f, 0)

    @property
    def slope(self) -> Tensor:
        """What the loss adds to cross-entropy's gradient in the logits. (n, k)"""
        return self.amount * _signs(self.f, self.top)

    def targets(self, labels: Tensor) -> Tensor:
        """The labels with which plain cross-entropy would have this gradient. (n,) → (n, k)"""
        return -self.slope.scatter_add(1, labels[:, None], -torch.ones_like(self.f[:, :1]))


def _signs(like: Tensor, top: Tensor) -> Tensor:
    """1 for the predicted class, −1 for the others. (n, k)"""
    return torch.full_like(like, -1).scatter(1, top[:, None], 1)


Formula = Callable[[Any, Rows], Smoothing]
FORMULAS: dict[type[Loss], Formula] = {}


def _formula(*kinds: type[Loss]) -> Callable[[Formula], Formula]:
    def register(formula: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(kinds, formula))
        return formula

    return register


def has_formula(loss: Loss) -> bool:
    """Is there a formula for this loss? If it adds to another one, only where that is cross-entropy."""
    return type(loss) in FORMULAS and (not isinstance(loss, Regulariser) or isinstance(loss.base, CrossEntropy))


def by_formula(loss: Loss, rows: Rows) -> Smoothing:
    """f and C by the formula for this loss."""
    kind = type(loss)
    if kind not in FORMULAS:
        known = ", ".join(sorted(other.name for other in FORMULAS))
        raise InputError(f"no formula is known for the gradient of {loss.name}, only for {known}; use autograd")
    if isinstance(loss, Regulariser) and not isinstance(loss.base, CrossEntropy):
        raise InputError(f"the formula for {loss.name} is for a base of cross-entropy; its base is {loss.base.name}")
    found = FORMULAS[kind](loss, rows)
    return replace(found, C=found.C & rows.kept[:, None])


def _is_top(rows: Rows) -> Tensor:
    return torch.zeros_like(rows.probs, dtype=torch.bool).scatter(1, rows.prediction[:, None], True)


def _weights(rows: Rows, at_top: float, elsewhere: float) -> Tensor:
    """A number for the predicted class and one for the others. (n, k)"""
    return torch.full_like(rows.probs, elsewhere).masked_fill(_is_top(rows), at_top)


def _everywhere(rows: Rows) -> Tensor:
    return torch.ones_like(rows.probs, dtype=torch.bool)


@_formula(LabelSmoothing)
def label_smoothing(loss: LabelSmoothing, rows: Rows) -> Smoothing:
    """ε (1 − 1/k) at the label, ε/k elsewhere."""
    amount = loss.smoothing if loss.convention == "all" else loss.smoothing * rows.k / (rows.k - 1)
    return Smoothing.of_slope(amount * (rows.one_hot - 1 / rows.k), rows.prediction, _everywhere(rows))


@_formula(Focal, FLSD, InverseFocal)
def focal(loss: Focal | FLSD | InverseFocal, rows: Rows) -> Smoothing:
    """(1 − g)(1 − p_y) at the label, (1 − g) p_j elsewhere, since the gradient is g(p_y) times cross-entropy's.

    Table 2 treats these as constants.
    """
    nll, p = rows.nll, torch.exp(-rows.nll)
    if isinstance(loss, InverseFocal):
        g = (1 + p) ** loss.gamma - loss.gamma * (1 + p) ** (loss.gamma - 1) * p * nll
    else:
        gamma = torch.full_like(p, loss.gamma)
        if isinstance(loss, FLSD):
            gamma = torch.where(p < loss.below, loss.low_gamma, gamma)
        g = (1 - p) ** gamma
        if not (isinstance(loss, Focal) and loss.detach_weight):
            # −p log p / (1 − p), without 0/0 at p = 1 or log 0 at p = 0.
            ratio = torch.where(nll > 0, nll / torch.expm1(nll), 1)
            g = g * (1 + gamma * ratio)
    return Smoothing.of_slope((g - 1)[:, None] * (rows.probs - rows.one_hot), rows.prediction, _everywhere(rows))


@_formula(MDCA)
def mdca(loss: MDCA, rows: Rows) -> Smoothing:
    """λ p_j (a_j − Σ_c a_c p_c), with λ = strength / k and a_c the sign of the batch's surplus of class c.

    If the predicted class is in surplus and the others in deficit, f is 2λ p (1 − p) and 2λ p_j p_top.
    """
    signs = (rows.kept[:, None] * (rows.probs - rows.one_hot)).sum(0).sign()
    slope = loss.strength / rows.k * rows.probs * (signs - rows.probs @ signs[:, None])
    return Smoothing.of_slope(slope, rows.prediction)


def _cpc_parts(rows: Rows) -> tuple[Tensor, Tensor]:
    """p_j / (p_y + p_j) and Σ_{c ≠ y} (p_c − p_j) / (p_c + p_j), both 0 at the label. (n, k) each"""
    z, label = rows.logits, rows.labels[:, None]
    against_label = torch.sigmoid(z - z.gather(1, label))
    tilt = torch.tanh((z[:, None, :] - z[:, :, None]) / 2)
    among_others = tilt.sum(2) - tilt.gather(2, label[:, :, None].expand(-1, rows.k, 1)).squeeze(2)
    return against_label.scatter(1, label, 0), among_others.scatter(1, label, 0)


@_formula(CPC)
def cpc(loss: CPC, rows: Rows) -> Smoothing:
    """−λ1 Σ_{c ≠ y} p_c / (p_y + p_c) at the label; else λ2 Σ_{c ≠ y} (p_c − p_j) / (p_c + p_j) − λ1 p_j / (p_y + p_j).

    Table 2 has the last term with the opposite sign.
    """
    k = rows.k
    weight = loss.discrimination_weight / (k - 1)  # λ1, of each pair with the label
    exclusion = loss.exclusion_weight / (2 * (k - 1) * (k - 2)) if k > 2 else 0.0  # λ2, of each unordered other pair
    against_label, among_others = _cpc_parts(rows)
    label = rows.labels[:, None]
    slope = weight * against_label.scatter(1, label, -against_label.sum(1, keepdim=True)) - exclusion * among_others
    return Smoothing.of_slope(slope, rows.prediction, _everywhere(rows))


def _below_top(rows: Rows) -> Tensor:
    """z_top − z_j; at the predicted class itself the distance to the smallest logit. (n, k)"""
    z = rows.logits
    highest = z.amax(1, keepdim=True)
    return torch.where(_is_top(rows), highest - z.amin(1, keepdim=True), highest - z)


@_formula(MbLS)
def mbls(loss: MbLS, rows: Rows) -> Smoothing:
    """λ = strength / k for each class beyond the margin; the predicted class gets the sum, unless detached."""
    is_top, beyond = _is_top(rows), _below_top(rows) > loss.margin
    active = (beyond & ~is_top).sum(1, keepdim=True) * (0 if loss.detach_max else 1)
    f = loss.strength / rows.k * torch.where(is_top, active, 1).to(rows.probs.dtype)
    return Smoothing(f, torch.where(is_top, active > 0, beyond), rows.prediction)


@_formula(ACLS)
def acls(loss: ACLS, rows: Rows) -> Smoothing:
    """2λ (z_top − min z − M) for the predicted class, 2λ' (z_top − z_j − M) for another: twice Table 2, as is eq. 13.

    That is with `detach=True`. Otherwise what lowers the predicted class also raises the smallest logit, and what
    raises another class also lowers the predicted one.
    """
    if loss.variant != "paper":
        raise InputError('the formula is for ACLS(variant="paper")')
    others = loss.neg_weight / (max(rows.k - 1, 1) if loss.aggregation == "mean" else 1)
    weight = _weights(rows, loss.pos_weight, others)
    distance = _below_top(rows) - loss.margin
    f = weight * (1.0 if loss.terms == "conditional" else 2 * distance)
    found = Smoothing(f, _everywhere(rows) if loss.terms == "adaptive" else distance > 0, rows.prediction)
    if loss.detach:
        return found
    is_top, amount = _is_top(rows), found.amount
    at_top = amount.where(is_top, 0).sum(1, keepdim=True)
    raised = torch.zeros_like(f).scatter(1, rows.logits.argmin(1, keepdim=True), at_top)
    lowered = amount.where(~is_top, 0).sum(1, keepdim=True)
    return Smoothing.of_slope(found.slope - raised + lowered.where(is_top, 0), rows.prediction)


def _of_confidence(slope: Tensor, rows: Rows) -> Tensor:
    """f of a loss with this slope in the confidence (n,): times p (1 − p) at the top, p_top p_j elsewhere. (n, k)"""
    confidence = rows.confidence[:, None]
    return slope[:, None] * confidence * torch.where(_is_top(rows), 1 - confidence, rows.probs)


@_formula(CRL)
def crl(loss: CRL, rows: Rows) -> Smoothing:
    """λ p (1 − p) and λ p_top p_j if the pair asks for less confidence, minus that if it asks for more.

    A sample is in two pairs, with the next one in the batch and with the one before; a pair counts if it is in the
    wrong order or too close.
    """
    if loss.score != "msp":
        raise InputError('the formula is for CRL(score="msp")')
    confidence_gap, correctness_gap = loss._order(rows, rows.confidence)
    active = (ranking_penalty(confidence_gap, correctness_gap, margin=loss.margin) > 0) & rows.kept
    own = torch.where(active, -correctness_gap.sign(), 0)
    slope = own.index_add(0, neighbours(rows.kept), -own)
    f = _of_confidence(loss.strength * torch.where(slope != 0, slope, 1), rows)
    return Smoothing(f, (slope != 0)[:, None].expand_as(f), rows.prediction)
