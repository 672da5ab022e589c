"""Heads turn frozen features into honest logits: classifiers that are trained again on what a network sees."""

from temperance.training.heads.balcal import BalCAL
from temperance.training.heads.base import HEADS, Head, load_head, make_head
from temperance.training.heads.linear import LinearHead
from temperance.training.heads.maccal import MaCCal
from temperance.training.heads.masked import MaskedInference, masked_inference
from temperance.training.heads.tst import TST, VTST

__all__ = [
    "HEADS",
    "TST",
    "VTST",
    "BalCAL",
    "Head",
    "LinearHead",
    "MaCCal",
    "MaskedInference",
    "load_head",
    "make_head",
    "masked_inference",
]
