"""The features of images, extracted once from a network's body, so that training a head takes seconds.

A feature file is a .npz or .safetensors with `train_features` (n, d), `train_labels` (n,), the same for `val` and
`test` where there are such parts, and optionally the network's classifier as `classifier_weight` (k, d) and
`classifier_bias` (k,). Networks of any framework can write one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from temperance.arrays import ArrayLike, as_labels, shape_of, to_tensor
from temperance.errors import InputError
from temperance.files import PathLike, atomic_write, read_tensors, reading, write_tensors
from temperance.metrics.familiarity import as_features
from temperance.settings import Count, CountOrZero, of_kind

if TYPE_CHECKING:
    from temperance.data.images import Device, Part
    from temperance.data.sets import ImageData
    from temperance.heads.splitting import Split

PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of one part of a data set, with their labels."""

    features: Tensor  # float32 (n, d)
    labels: Tensor  # int64 (n,)

    def __len__(self) -> int:
        return len(self.features)

    def to(self, device: Device) -> FeatureSet:
        """The same on this device."""
        return FeatureSet(self.features.to(device), self.labels.to(device))

    def blocks(self, rows: int = 1 << 14) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels in blocks of rows."""
        for start in range(0, len(self), rows):
            yield self.features[start : start + rows], self.labels[start : start + rows]


@dataclass(frozen=True, eq=False)
class Features:
    """The features of a data set, which heads are trained on. `Features.of` makes them from arrays.

    classifier  weight (k, d) and bias (k,) of the network's linear classifier
    copies      (c, n, d): c more versions of the training samples, from cropped and flipped images; each epoch then
                draws the original or one of its copies for every sample
    """

    train: FeatureSet
    val: FeatureSet | None
    test: FeatureSet | None
    k: int
    class_names: tuple[str, ...] | None = None
    classifier: tuple[Tensor, Tensor] | None = None
    copies: Tensor | None = None

    @classmethod
    def of(
        cls,
        train_features: ArrayLike,
        train_labels: ArrayLike,
        *,
        val_features: ArrayLike | None = None,
        val_labels: ArrayLike | None = None,
        test_features: ArrayLike | None = None,
        test_labels: ArrayLike | None = None,
        classifier_weight: ArrayLike | None = None,
        classifier_bias: ArrayLike | None = None,
        train_copies: ArrayLike | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> Features:
        """Features from arrays of any kind, with the names that they have in a file.

        The number of classes is that of the class names or of the classifier; without either, the largest label plus 1.

        >>> Features.of([[0.0, 1.0], [1.0, 0.0]], [0, 1]).k
        2
        """
        given = {"val": (val_features, val_labels), "test": (test_features, test_labels)}
        for part, pair in given.items():
            if (pair[0] is None) != (pair[1] is None):
                raise InputError(f"{part}_features and {part}_labels belong together; one of them is missing")
        rows = {"train": _as_rows(train_features, "train_features")}
        rows |= {part: _as_rows(x, f"{part}_features") for part, (x, _) in given.items() if x is not None}
        d = rows["train"].shape[1]
        for part, x in rows.items():
            if x.shape[1] != d:
                raise InputError(f"{part}_features must have {d} columns, like train_features; got {x.shape[1]}")
        classifier = _as_classifier(classifier_weight, classifier_bias, d, rows["train"].device)
        truth = {"train": train_labels} | {part: y for part, (_, y) in given.items() if y is not None}
        k = _count_classes(class_names, classifier, truth)
        sets = {part: FeatureSet(x, _as_numbers(truth[part], x, k, part)) for part, x in rows.items()}
        missing = torch.bincount(sets["train"].labels, minlength=k) == 0
        if bool(missing.any()):
            which = int(missing.nonzero()[0])
            named = f" ({class_names[which]})" if class_names else ""
            raise InputError(f"train_labels must have samples of all {k} classes; class {which}{named} has none")
        copies = None if train_copies is None else _as_copies(train_copies, rows["train"])
        return cls(sets["train"], sets.get("val"), sets.get("test"), k, class_names, classifier, copies)

    @property
    def d(self) -> int:
        """The number of features of a sample."""
        return self.train.features.shape[1]

    @property
    def device(self) -> torch.device:
        return self.train.features.device

    def to(self, device: Device) -> Features:
        """The same on this device."""
        parts = {name: getattr(self, name) for name in (*PARTS, "copies")}
        moved: dict[str, Any] = {name: part.to(device) for name, part in parts.items() if part is not None}
        if self.classifier is not None:
            moved["classifier"] = tuple(tensor.to(device) for tensor in self.classifier)
        return replace(self, **moved)

    def arrays(self) -> dict[str, Tensor]:
        """All tensors, with the names that they have in a file."""
        found: dict[str, Tensor] = {}
        for name, part in zip(PARTS, (self.train, self.val, self.test), strict=True):
            if part is not None:
                found |= {f"{name}_features": part.features, f"{name}_labels": part.labels}
        if self.classifier is not None:
            found |= {"classifier_weight": self.classifier[0], "classifier_bias": self.classifier[1]}
        if self.copies is not None:
            found["train_copies"] = self.copies
        return found


# -------------------------------------------------------------------------------------------------------------- files


def read_features(path: PathLike) -> Features:
    """Read features from a .npz or .safetensors file."""
    found = Path(path)
    if found.suffix == ".safetensors":
        tensors, header = read_tensors(found)
        arrays: dict[str, Any] = dict(tensors)
        with reading(path):
            names = json.loads(header["class_names"]) if "class_names" in header else None
    else:
        with reading(path):
            if found.suffix != ".npz":
                raise InputError("features are read from .npz or .safetensors")
        with reading(path), np.load(found, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            names = arrays.pop("class_names", np.array([])).tolist() or None
    with reading(path):
        known = [f"{part}_{kind}" for part in PARTS for kind in ("features", "labels")]
        if "train_features" not in arrays or "train_labels" not in arrays:
            raise InputError(
                f"a feature file must have train_features and train_labels, and may have {', '.join(known[2:])}; "
                f"this one has {', '.join(arrays) or 'nothing'}"
            )
        known += ["classifier_weight", "classifier_bias", "train_copies"]
        return Features.of(
            **{name: array for name, array in arrays.items() if name in known},
            class_names=None if names is None else tuple(str(name) for name in names),
        )


def write_features(path: PathLike, features: Features) -> None:
    """Write features to a .npz or .safetensors file, whole or not at all."""
    found = Path(path)
    arrays = {name: tensor.cpu() for name, tensor in features.arrays().items()}
    if found.suffix == ".safetensors":
        names = {"class_names": json.dumps(features.class_names)} if features.class_names else {}
        write_tensors(found, arrays, names)
    elif found.suffix == ".npz":
        written: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
        if features.class_names:
            written["class_names"] = np.array(features.class_names)
        with atomic_write(path) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **written)
    else:
        raise InputError(f"features are written to .npz or .safetensors; got {found.name}")


# --------------------------------------------------------------------------------------------------------- extraction


def extract_features(
    network: nn.Module | Split,
    data: ImageData,
    *,
    device: Device = "cpu",
    batch_size: int = 1000,
    copies: int = 0,
    pad: int = 4,
    flip: bool = True,
    seed: int = 0,
) -> Features:
    """The features of every image of a data set, extracted on the device.

    The body is in evaluation mode, so that BatchNorm is frozen too, and the images are not augmented. `copies` more
    versions of the training images are cropped at random, after adding a border of `pad` pixels, and flipped.
    """
    from temperance.data import draw_moves, normalised
    from temperance.heads.splitting import Split, evaluating, split

    of_kind("batch_size", batch_size, Count)
    of_kind("copies", copies, CountOrZero)
    parts = network if isinstance(network, Split) else split(network)
    mean, std = (torch.tensor(values, device=device) for values in (data.mean, data.std))
    body = parts.body.to(device)

    def seen(part: Part, moves: Any = None) -> Tensor:
        batches = part.batches(torch.arange(len(part)), batch_size, device=device, moves=moves)
        return torch.cat([body(normalised(batch.pixels, mean, std)).float() for batch in batches])

    with torch.no_grad(), evaluating(body):
        train, val, test = (seen(part) for part in (data.train, data.val, data.test))
        moved = []
        for copy in range(copies):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + copy)
            moves = draw_moves(len(data.train), pad=pad, flip=flip, generator=generator)
            moved.append(seen(data.train, moves))
    return Features.of(
        train,
        data.train.labels,
        val_features=val,
        val_labels=data.val.labels,
        test_features=test,
        test_labels=data.test.labels,
        classifier_weight=parts.classifier.weight,
        classifier_bias=parts.classifier.bias,
        train_copies=torch.stack(moved) if moved else None,
        class_names=data.class_names,
    )


# -------------------------------------------------------------------------------------------------------------- checks


def check_features(features: object) -> None:
    """Refuse anything but features, and say how to make them."""
    if not isinstance(features, Features):
        raise InputError(
            "features must be made by extract_features(network, data), read_features(file) or Features.of(arrays); got "
            f"{type(features).__name__}"
        )


def _as_rows(values: ArrayLike, name: str) -> Tensor:
    return as_features(values, name, dtype=torch.float32).contiguous()


def _as_numbers(labels: ArrayLike, rows: Tensor, k: int, part: str) -> Tensor:
    given = to_tensor(labels, f"{part}_labels")
    if given.shape[:1] != rows.shape[:1]:
        raise InputError(
            f"{part}_labels must have one number for each of the {len(rows)} rows of {part}_features; "
            f"got {shape_of(given)}"
        )
    try:
        return as_labels(given, rows[:, :1].expand(-1, k))
    except InputError as error:
        raise InputError(f"{part}_{error}") from None


def _as_classifier(
    weight: ArrayLike | None, bias: ArrayLike | None, d: int, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    if weight is None:
        return None
    w = _as_rows(weight, "classifier_weight").to(device)
    if w.shape[1] != d:
        raise InputError(f"classifier_weight must have shape (k, {d}) to fit the features; got {shape_of(w)}")
    b = w.new_zeros(len(w)) if bias is None else to_tensor(bias, "classifier_bias").float().to(device)
    if b.shape != (len(w),):
        raise InputError(f"classifier_bias must have one number for each of {len(w)} classes; got {shape_of(b)}")
    return w, b


def _as_copies(values: ArrayLike, train: Tensor) -> Tensor:
    found = to_tensor(values, "train_copies")
    if found.ndim != 3 or found.shape[1:] != train.shape:
        raise InputError(f"train_copies must have shape (c, {len(train)}, {train.shape[1]}); got {shape_of(found)}")
    return _as_rows(found.flatten(0, 1), "train_copies").reshape(found.shape)


def _count_classes(
    names: tuple[str, ...] | None, classifier: tuple[Tensor, Tensor] | None, labels: dict[str, ArrayLike]
) -> int:
    counts = ({"class_names": len(names)} if names else {}) | (
        {"the classifier": len(classifier[0])} if classifier else {}
    )
    if len(set(counts.values())) > 1:
        raise InputError(" and ".join(f"{what} has {k} classes" for what, k in counts.items()) + "; they must agree")
    if counts:
        return next(iter(counts.values()))
    given = {f"{part}_labels": to_tensor(y, f"{part}_labels") for part, y in labels.items()}
    for name, numbers in given.items():
        if not numbers.numel():
            raise InputError(f"{name} must have a label for each sample; got none")
    return 1 + max(int(numbers.max()) for numbers in given.values())
