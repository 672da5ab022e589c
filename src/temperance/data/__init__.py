"""Images to train and test on: reading data sets, long-tailed subsets, corruptions."""

from temperance.data.corruptions import CORRUPTIONS, corrupt
from temperance.data.files import Files
from temperance.data.images import ImageBatch, Images, Moves, Part, as_images, draw_moves, normalised
from temperance.data.longtail import long_tail_counts, long_tailed
from temperance.data.sets import ImageData, read_images
from temperance.data.splits import hold_out

__all__ = [
    "CORRUPTIONS",
    "Files",
    "ImageBatch",
    "ImageData",
    "Images",
    "Moves",
    "Part",
    "as_images",
    "corrupt",
    "draw_moves",
    "hold_out",
    "long_tail_counts",
    "long_tailed",
    "normalised",
    "read_images",
]
