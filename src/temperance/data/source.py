"""The result of a reader: the parts of a data set as its files have them, before anything is held out."""

from __future__ import annotations

from dataclasses import dataclass

from temperance.data.images import Part


@dataclass(frozen=True, eq=False)
class Source:
    """The parts of a data set; a part that is None is held out of the training part."""

    name: str
    train: Part
    val: Part | None
    test: Part | None
    class_names: tuple[str, ...]
    split: str = "random"  # how the set is usually split
