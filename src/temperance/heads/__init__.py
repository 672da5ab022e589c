"""Heads: classifiers trained again on the frozen features of a network, for honest confidence."""

from temperance.heads.balcal import BalCAL
from temperance.heads.base import HEADS, Head, load_head, make_head
from temperance.heads.features import Features, extract_features, read_features, write_features
from temperance.heads.linear import LinearHead
from temperance.heads.maccal import MaCCal
from temperance.heads.masked import MaskedInference, masked_inference
from temperance.heads.retraining import Retrained, open_retrained, retrain
from temperance.heads.splitting import Split, split
from temperance.heads.tst import TST, VTST

__all__ = [
    "HEADS",
    "TST",
    "VTST",
    "BalCAL",
    "Features",
    "Head",
    "LinearHead",
    "MaCCal",
    "MaskedInference",
    "Retrained",
    "Split",
    "extract_features",
    "load_head",
    "make_head",
    "masked_inference",
    "open_retrained",
    "read_features",
    "retrain",
    "split",
    "write_features",
]
