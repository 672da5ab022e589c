"""Predictions, with labels where they are known, in memory, in files and in folders of files."""

from temperance.predictions.core import Predictions
from temperance.predictions.disk import (
    check_output,
    each_file,
    read_pair,
    read_predictions,
    write_pair,
    write_predictions,
)
from temperance.predictions.rows import Chunk

__all__ = [
    "Chunk",
    "Predictions",
    "check_output",
    "each_file",
    "read_pair",
    "read_predictions",
    "write_pair",
    "write_predictions",
]
