"""A number that is equal for equal predictions, whatever the file format or the float type."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

from temperance.predictions.rows import Chunk

if TYPE_CHECKING:
    from temperance.predictions.core import Predictions

# Scores that are hashed at a time, in float64.
HASHED_VALUES = 1 << 17


class Fingerprint:
    """SHA-256 of all values, chunk by chunk."""

    def __init__(self) -> None:
        self._scores, self._labels, self._groups, self._weights = (hashlib.sha256() for _ in range(4))

    def update(self, chunk: Chunk) -> None:
        """Add the next rows."""
        for rows in torch.split(chunk.scores, max(1, HASHED_VALUES // chunk.scores.shape[1])):
            self._scores.update(rows.cpu().double().contiguous().numpy().astype("<f8", copy=False).data)
        self._labels.update(chunk.labels.cpu().contiguous().numpy().astype("<i8", copy=False).data)
        if chunk.groups is not None:
            # The length in front tells "a", "bc" from "ab", "c".
            text = "".join(f"{len(name)}:{name}" for name in chunk.groups.tolist())
            self._groups.update(text.encode("utf-8", "surrogatepass"))
        if chunk.weights is not None:
            self._weights.update(chunk.weights.cpu().contiguous().numpy().astype("<f8", copy=False).data)

    def of(self, data: Predictions) -> str:
        """The fingerprint of these predictions, all of whose chunks were added."""
        content = {
            "shape": [data.n, data.k],
            "scores": data.kind,
            "sha256": [
                self._scores.hexdigest(),
                self._labels.hexdigest() if data.has_labels else None,
                self._groups.hexdigest() if data.has_groups else None,
                *([self._weights.hexdigest()] if data.has_weights else []),
            ],
        }
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()
