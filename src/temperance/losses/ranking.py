"""Losses that rank samples: confidence should be higher where the network was right more often during training."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.losses.base import PenaltyOptions, Regulariser, Used, Variant, loss
from temperance.losses.distributed import BatchLevel
from temperance.losses.margin import Aggregation, acls_penalty, detach_remedy, distances
from temperance.losses.rows import Rows
from temperance.losses.selective import SCORES, ScoreName
from temperance.settings import Count, NonNegative


def ranking_penalty(confidence_gap: Tensor, correctness_gap: Tensor, *, margin: bool = True) -> Tensor:
    """max(0, |c| − sgn(c) s), and 0 where c is 0: see `CRL`. (n,), (n,) → (n,)

    s is how much more confident a sample is than its neighbour, and c how much more often it was right. Without the
    margin it is max(0, −sgn(c) s): only the order counts.
    """
    least = correctness_gap.abs() if margin else 0
    return F.relu(least - correctness_gap.sign() * confidence_gap) * (correctness_gap != 0)


def neighbours(kept: Tensor) -> Tensor:
    """For each row, the index of the next one that is kept; the last is followed by the first. (n,) bool → (n,)"""
    n = len(kept)
    places = torch.arange(n, device=kept.device)
    counted = F.pad(places.masked_fill(~kept, n), (0, 1), value=n)
    after = counted[1:].flip(0).cummin(0).values.flip(0)
    return torch.where(after < n, after, counted.amin()).clamp_max(n - 1)


class Record(nn.Module):
    """How often each training sample was classified correctly."""

    times_right: Tensor
    epochs: Tensor

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        self.register_buffer("times_right", torch.zeros(n_samples, dtype=torch.int64))
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))

    def add(self, indices: Tensor, correct: Tensor) -> None:
        """Count one more prediction of each of these samples. (n,), (n,) bool"""
        self._of(indices)  # refuses indices out of range before anything is counted
        self.times_right.index_add_(0, indices, correct.long())

    def correctness(self, indices: Tensor) -> Tensor:
        """(h − min h) / (epochs − min h) of each sample, h how often it was right; 0/0 counts as 1. (n,) → (n,)

        It is at most 1, also for a sample that was drawn several times in an epoch.
        """
        least = self.times_right.amin()
        span = self.epochs.clamp_min(1) - least
        share = (self._of(indices) - least).float() / span.clamp_min(1)
        return share.where(span > 0, 1).clamp_max(1)

    def _of(self, indices: Tensor) -> Tensor:
        """How often each of these samples was right. (n,)"""
        try:
            return self.times_right.index_select(0, indices)
        except (IndexError, RuntimeError):
            n = len(self.times_right)
            wrong = indices[(indices < 0) | (indices >= n)]
            if not len(wrong):
                raise
            raise InputError(f"indices must lie in 0 … {n - 1}, as n_samples={n}; found {int(wrong[0])}") from None


class RankingLoss(BatchLevel, Regulariser):
    """A penalty that depends on how often samples were classified correctly."""

    def __init__(self, *, n_samples: int, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(**options)
        self.record = Record(n_samples)

    @property
    def n_samples(self) -> int:
        return len(self.record.times_right)

    def _order(self, rows: Rows, score: Tensor) -> tuple[Tensor, Tensor]:
        """How much more confident each sample is than its neighbour, and how much more often right. (n,), (n,)"""
        assert rows.indices is not None
        correctness = self.record.correctness(rows.indices).to(score.dtype)
        # The neighbour of the last sample is the first one on the next process.
        own, (score, correctness, kept) = self._all_rows(score, correctness, rows.kept)
        neighbour = neighbours(kept)
        return (score - score[neighbour])[own], (correctness - correctness[neighbour])[own]

    def _update(self, rows: Rows) -> None:
        super()._update(rows)
        assert rows.indices is not None
        # Samples that another process has in this epoch may be on this one in the next.
        _, (indices, right) = self._all_rows(rows.indices, rows.correct & rows.kept)
        self.record.add(indices, right)

    def end_epoch(self) -> None:
        super().end_epoch()
        self.record.epochs += 1


@loss(
    name="crl",
    paper="Moon et al., Confidence-aware learning for deep neural networks, ICML 2020",
    per_sample=False,
    learns_from="training",
    needs_indices=True,
    equals_cross_entropy_at={"strength": 0.0},
    hyper_parameters=(
        Used("CIFAR-10, CIFAR-100, Tiny-ImageNet, ImageNet", {"strength": 1.0, "score": "msp"}, "CRL program"),
    ),
)
class CRL(RankingLoss):
    """Correctness ranking: a sample that was right more often than its neighbour should be more confident, by as much.

    base + strength · max(0, |c_i − c_j| − sgn(c_i − c_j)(s_i − s_j)) with s the confidence score, j the next sample in
    the batch and c the share of epochs in which a sample was classified correctly, scaled to 0 … 1.

    Call it with the indices of the samples, `loss(logits, labels, indices)`; after each batch
    `loss.update(logits, labels, indices)`, after each epoch `loss.end_epoch()`. Before the first update all c are equal
    and there is no penalty.

    strength   weight of the penalty
    n_samples  size of the training set
    score      how confidence is measured: "msp", "margin" or "negative-entropy" (scaled to 0 … 1)
    margin     require confidence to differ by at least |c_i − c_j|; False omits this, as eq. 18 of the ACLS
               supplement does, so that only the order counts
    """

    def __init__(
        self,
        *,
        n_samples: Count,
        strength: NonNegative = 1.0,
        score: ScoreName = "msp",
        margin: bool = True,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(n_samples=n_samples, **options)
        self.strength = strength
        self.score = score
        self.margin = margin

    def _penalty(self, rows: Rows) -> Tensor:
        return self.strength * ranking_penalty(*self._order(rows, SCORES[self.score](rows.probs)), margin=self.margin)


@loss(
    name="acls-ranking",
    paper="Park et al., ACLS, ICCV 2023, Table 6: ACLS with CRL's ranking condition in place of the margin",
    per_sample=False,
    learns_from="training",
    needs_indices=True,
    equals_cross_entropy_at={"pos_weight": 0.0, "neg_weight": 0.0},
)
class ACLSRanking(RankingLoss):
    """ACLS only for samples in the wrong order: an ablation of the ACLS paper.

    The adaptive penalty of `ACLS`, without its margin condition, for a sample i that was right more often than its
    neighbour j but is less confident, or vice versa: where (c_i − c_j)(conf_i − conf_j) < 0. The condition carries no
    gradient. It pulls the logit distances of such a sample towards the margin, from both sides. The record is kept as
    for `CRL`; `aggregation`, `variant` and `detach` are those of `ACLS`.

    margin                        distance to which logits are pulled
    pos_weight, neg_weight        weights of the two terms, as in `ACLS`
    n_samples                     size of the training set
    aggregation, variant, detach  as in `ACLS`
    """

    def __init__(
        self,
        *,
        n_samples: Count,
        margin: NonNegative = 6.0,
        pos_weight: NonNegative = 0.1,
        neg_weight: NonNegative = 0.01,
        aggregation: Aggregation = "mean",
        variant: Variant = "paper",
        detach: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(n_samples=n_samples, **options)
        self.remedy = detach_remedy(self.name, detach, variant)
        self.margin = margin
        self.pos_weight = pos_weight
        self.neg_weight = neg_weight
        self.aggregation = aggregation
        self.variant = variant
        self.detach = detach

    def _penalty(self, rows: Rows) -> Tensor:
        confidence_gap, correctness_gap = self._order(rows, rows.confidence.detach())
        disordered = confidence_gap * correctness_gap < 0
        return acls_penalty(rows.logits, self, "adaptive").where(disordered, 0)


@loss(
    name="crl-margin",
    paper="Park et al., ACLS, ICCV 2023, Table 6: CRL with a margin condition in place of the ranking",
    exact_gradient=False,
    equals_cross_entropy_at={"strength": 0.0},
)
class CRLMargin(Regulariser):
    """CRL's gradient only for logits farther apart than `margin`: an ablation of the ACLS paper.

    A force of strength · p_top (1 − p_top) pulls z_top and the smallest logit together if they are at least `margin`
    apart, and one of strength · p_top p_j pulls z_top and z_j together if they are (eq. 20 of the supplement with
    eq. 11, on the distances of eq. 13). No function has this gradient, so the value of the penalty is 0, and the loss
    is the base's.

    `aggregation`, `variant` and `detach` are those of `ACLS`; with `detach=True` each force acts on one side only, as
    printed in eq. 20 of the supplement.

    margin                        distance between logits from which the pull applies
    strength                      strength of the pull
    aggregation, variant, detach  as in `ACLS`
    """

    def __init__(
        self,
        *,
        margin: NonNegative = 6.0,
        strength: NonNegative = 1.0,
        aggregation: Aggregation = "sum",
        variant: Variant = "paper",
        detach: bool = False,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(**options)
        self.remedy = detach_remedy(self.name, detach, variant)
        self.margin = margin
        self.strength = strength
        self.aggregation = aggregation
        self.variant = variant
        self.detach = detach

    def _penalty(self, rows: Rows) -> Tensor:
        to_lowest, to_others = distances(rows.logits, variant=self.variant, detach=self.detach)
        top = rows.confidence.detach()
        others = rows.probs.detach().scatter(1, rows.prediction[:, None], 0)
        at_top = top * (1 - top) * (to_lowest >= self.margin)
        elsewhere = top[:, None] * others * (to_others >= self.margin)
        if self.aggregation == "mean":
            elsewhere = elsewhere / max(rows.k - 1, 1)
        # A distance minus itself is 0 and has the gradient of the distance.
        moves = at_top * (to_lowest - to_lowest.detach()) + (elsewhere * (to_others - to_others.detach())).sum(1)
        return self.strength * moves
