"""Losses turn logits into gradients: drop-in replacements for cross-entropy that keep confidence honest in training."""

from temperance.losses.adafocal import AdaFocal, adafocal
from temperance.losses.base import LOSSES, Loss, Regulariser, make_loss
from temperance.losses.cross_entropy import Brier, CrossEntropy, LabelSmoothing, brier, cross_entropy, label_smoothing
from temperance.losses.entropy import EntropyPenalty
from temperance.losses.focal import FLSD, DualFocal, Focal, InverseFocal, dual_focal, flsd, focal, inverse_focal
from temperance.losses.kernel import KDEXE, MMCE
from temperance.losses.margin import ACLS, MbLS, acls_penalty, mbls_penalty
from temperance.losses.marginal import MDCA
from temperance.losses.mixup import MIT, CutMix, Mixup
from temperance.losses.pairwise import CPC, cpc_penalty
from temperance.losses.ranking import CRL, ACLSRanking, CRLMargin, ranking_penalty
from temperance.losses.selective import AU, AURC
from temperance.losses.soft import SoftAvUC, SoftECE

__all__ = [
    "ACLS",
    "AU",
    "AURC",
    "CPC",
    "CRL",
    "FLSD",
    "KDEXE",
    "LOSSES",
    "MDCA",
    "MIT",
    "MMCE",
    "ACLSRanking",
    "AdaFocal",
    "Brier",
    "CRLMargin",
    "CrossEntropy",
    "CutMix",
    "DualFocal",
    "EntropyPenalty",
    "Focal",
    "InverseFocal",
    "LabelSmoothing",
    "Loss",
    "MbLS",
    "Mixup",
    "Regulariser",
    "SoftAvUC",
    "SoftECE",
    "acls_penalty",
    "adafocal",
    "brier",
    "cpc_penalty",
    "cross_entropy",
    "dual_focal",
    "flsd",
    "focal",
    "inverse_focal",
    "label_smoothing",
    "make_loss",
    "mbls_penalty",
    "ranking_penalty",
]
