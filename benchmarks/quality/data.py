"""Real predictions as pairs of a part to fit on and a part to measure on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from temperance.files import reading

Pair = tuple[Tensor, Tensor, Tensor, Tensor]

# Where a set has probabilities, those below this count as this: a random forest's zeros would decide every mean.
LEAST = 1e-7


def sets(*folders: Path) -> Iterator[tuple[str, Path]]:
    """Every .npz of folders and the folders in them, in a fixed order."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.npz"))):
        with np.load(path) as found:
            names = set(found.files)
            if {"labels", "test_labels"} & names and {"logits", "test_logits", "test_probs"} & names:
                yield path.stem, path


def fit_and_test(path: Path) -> Pair:
    """The file's own val and test parts, or its first and second half after `default_rng(0).permutation`."""
    with reading(path), np.load(path) as found:
        if "val_probs" in found.files:
            fit, test = (np.log(found[name].clip(LEAST)) for name in ("val_probs", "test_probs"))
            arrays = [fit, found["val_labels"], test, found["test_labels"]]
        elif "val_logits" in found.files:
            arrays = [found[name] for name in ("val_logits", "val_labels", "test_logits", "test_labels")]
        else:
            logits, labels = found["logits"], found["labels"]
            order = np.random.default_rng(0).permutation(len(labels))
            first, second = order[: len(order) // 2], order[len(order) // 2 :]
            arrays = [logits[first], labels[first], logits[second], labels[second]]
    fit_z, fit_y, test_z, test_y = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    return fit_z.double(), fit_y.long().reshape(-1), test_z.double(), test_y.long().reshape(-1)
