"""Pictures to train and test on: reading data sets, long-tailed subsets, corruptions."""

from temperance.data.images import Batch, Images, Moves, Part, as_images, draw_moves, normalised

__all__ = ["Batch", "Images", "Moves", "Part", "as_images", "draw_moves", "normalised"]
