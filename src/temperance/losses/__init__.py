"""Losses turn logits into gradients: drop-in replacements for cross-entropy that keep confidence honest in training."""

from temperance.losses.adafocal import AdaFocal
from temperance.losses.base import LOSSES, Loss, Regulariser, make_loss
from temperance.losses.batch import KDEXE, MDCA, MMCE, SoftAvUC, SoftECE
from temperance.losses.focal import FLSD, DualFocal, Focal, InverseFocal
from temperance.losses.margin import ACLS, MbLS
from temperance.losses.mixup import MIT, CutMix, Mixup
from temperance.losses.pairwise import CPC
from temperance.losses.proper import Brier, CrossEntropy, EntropyPenalty, LabelSmoothing
from temperance.losses.ranking import CRL, ACLSRanking, CRLMargin
from temperance.losses.selective import AU, AURC

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
    "make_loss",
]
