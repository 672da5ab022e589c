"""Features: the edge, files, and what a network's body makes of images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from temperance.data import Images, draw_moves, normalised
from temperance.data.images import moved
from temperance.data.sets import ImageData
from temperance.errors import FileError, InputError
from temperance.heads.features import Features, extract_features, read_features, write_features


def arrays() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for part, n in (("train", 12), ("val", 5), ("test", 4)):
        found[f"{part}_features"] = generator.normal(size=(n, 3)).astype(np.float32)
        found[f"{part}_labels"] = np.arange(n) % 4
    return found | {"classifier_weight": generator.normal(size=(4, 3)), "classifier_bias": np.arange(4.0)}


def made(**changes: Any) -> Features:
    given = {**arrays(), **changes}
    return Features.of(given.pop("train_features"), given.pop("train_labels"), **given)


def same(a: Features, b: Features) -> bool:
    one, two = a.arrays(), b.arrays()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_arrays_of_any_kind() -> None:
    found = made()
    assert (found.k, found.d, len(found.train)) == (4, 3, 12)
    assert found.train.features.dtype == torch.float32 and found.train.labels.dtype == torch.int64
    given = arrays()
    for convert in (
        torch.from_numpy,
        np.ndarray.tolist,
        lambda x: x.astype(np.float64 if x.dtype.kind == "f" else "u1"),
    ):
        assert same(made(**{name: convert(array) for name, array in given.items()}), found)
    half = made(train_features=given["train_features"].astype(np.float16))
    assert half.train.features.dtype == torch.float32


def test_number_of_classes() -> None:
    bare = {"classifier_weight": None, "classifier_bias": None}
    assert made(**bare).k == 4
    assert made(**bare, class_names=("a", "b", "c", "d")).k == 4
    assert made(classifier_bias=None).classifier is not None


def test_blocks_are_all_rows_in_order() -> None:
    found = made().train
    rows, labels = zip(*found.blocks(5), strict=True)
    assert [len(x) for x in rows] == [5, 5, 2]
    assert torch.equal(torch.cat(rows), found.features) and torch.equal(torch.cat(labels), found.labels)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("full", [True, False])
def test_files_give_back_what_was_written(tmp_path: Path, suffix: str, full: bool) -> None:
    extra = {"class_names": ("ä", "b", "c", "d"), "train_copies": np.ones((2, 12, 3))}
    found = made(**extra) if full else Features.of(arrays()["train_features"], arrays()["train_labels"])
    path = tmp_path / f"features{suffix}"
    write_features(path, found)
    back = read_features(path)
    assert same(back, found)
    assert (back.k, back.class_names) == (found.k, found.class_names)


def test_a_file_of_any_framework(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", note=np.zeros(2), **arrays())
    assert same(read_features(tmp_path / "mine.npz"), made())


def test_moves_to_a_device() -> None:
    found = made(train_copies=np.ones((2, 12, 3)))
    there = found.to("meta")
    assert all(tensor.is_meta for tensor in there.arrays().values())
    assert there.device.type == "meta" and there.arrays().keys() == found.arrays().keys()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train_features": np.zeros(12)}, r"train_features must have shape \(n, d\).*got \(12,\)"),
        ({"train_features": np.zeros((0, 3))}, r"train_features must have shape \(n, d\)"),
        ({"train_features": np.full((12, 3), np.nan)}, "train_features must be finite; row 0, column 0 is nan"),
        ({"val_features": np.zeros((5, 2))}, "val_features must have 3 columns, like train_features; got 2"),
        ({"val_labels": None}, "val_features and val_labels belong together"),
        ({"test_features": None}, "test_features and test_labels belong together"),
        ({"train_labels": np.arange(12)}, "train_labels must lie in 0 … 3 for 4 classes; row 4 has 4"),
        (
            {"test_labels": np.zeros(3, int)},
            r"test_labels must have one number for each of the \d+ rows of test_features; got \(3,\)",
        ),
        ({"train_labels": [], "classifier_weight": None, "classifier_bias": None}, "train_labels must have a label"),
        ({"train_labels": np.full(12, 0.5)}, "train_labels must be class numbers, which are integers; row 0 has 0.5"),
        ({"train_labels": np.arange(12) % 3}, "train_labels must have samples of all 4 classes; class 3 has none"),
        (
            {"train_labels": np.arange(12) % 3, "class_names": ("a", "b", "c", "dog")},
            r"class 3 \(dog\) has none",
        ),
        ({"class_names": ("a", "b", "c")}, "class_names has 3 classes and the classifier has 4 classes; they must"),
        ({"classifier_weight": np.zeros((4, 2))}, r"classifier_weight must have shape \(k, 3\)"),
        ({"classifier_bias": np.zeros(5)}, "classifier_bias must have one number for each of 4 classes"),
        ({"train_copies": np.zeros((2, 11, 3))}, r"train_copies must have shape \(c, 12, 3\); got \(2, 11, 3\)"),
    ],
)
def test_wrong_arrays_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(**changes)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        read_features(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", logits=np.zeros((3, 2)))
    with pytest.raises(FileError, match=r"other.npz: a feature file must have train_features.*this one has logits"):
        read_features(tmp_path / "other.npz")
    np.savez(tmp_path / "wrong.npz", **(arrays() | {"val_features": np.zeros((5, 2))}))
    with pytest.raises(FileError, match=r"wrong.npz: val_features must have 3 columns"):
        read_features(tmp_path / "wrong.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK and then nothing")
    with pytest.raises(FileError, match=r"broken.npz cannot be read"):
        read_features(tmp_path / "broken.npz")
    np.savez(tmp_path / "pickled.npz", **(arrays() | {"train_features": np.array([{}, {}], dtype=object)}))
    with pytest.raises(FileError, match=r"pickled.npz"):
        read_features(tmp_path / "pickled.npz")
    with pytest.raises(InputError, match=r"written to .npz or .safetensors; got features.csv"):
        write_features(tmp_path / "features.csv", made())


# ---------------------------------------------------------------------------------------------------------- extraction


class Network(nn.Module):
    """One convolution with batch normalisation, pooled, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.classifier = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.norm(self.conv(images)).relu().mean((2, 3)))
        return found


@pytest.fixture
def pictures() -> ImageData:
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> Images:
        pixels = torch.randint(256, (n, 8, 8, 3), generator=generator, dtype=torch.uint8)
        return Images(pixels, torch.arange(n) % 4)

    return ImageData("noise", part(20), part(8), part(6), ("a", "b", "c", "d"), (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


def test_extracted_features_give_the_networks_logits(pictures: ImageData) -> None:
    torch.manual_seed(0)
    network = Network().train()
    found = extract_features(network, pictures, batch_size=7)
    assert network.training and not bool(network.norm.num_batches_tracked)
    network.eval()
    assert found.classifier is not None and found.class_names == pictures.class_names
    for part, images in ((found.train, pictures.train), (found.val, pictures.val), (found.test, pictures.test)):
        assert part is not None and isinstance(images, Images)
        logits = nn.functional.linear(part.features, *found.classifier)
        assert torch.allclose(logits, network(normalised(images.pixels, (0.5,) * 3, (0.3,) * 3)), atol=1e-5)
        assert torch.equal(part.labels, images.labels)
        assert not part.features.is_inference() and not part.features.requires_grad


def test_copies_are_cropped_and_flipped(pictures: ImageData) -> None:
    network = Network().eval()
    found = extract_features(network, pictures, copies=2, pad=2, seed=3)
    again = extract_features(network, pictures, copies=2, pad=2, seed=3, batch_size=3)
    assert found.copies is not None and again.copies is not None
    assert found.copies.shape == (2, 20, 6)
    assert torch.allclose(found.copies, again.copies, atol=1e-6)
    assert isinstance(pictures.train, Images)
    moves = draw_moves(20, pad=2, generator=torch.Generator().manual_seed(3 * 1_000_003))
    images = normalised(moved(pictures.train.pixels, moves), pictures.mean, pictures.std)
    expected = network.norm(network.conv(images)).relu().mean((2, 3))
    assert torch.allclose(found.copies[0], expected, atol=1e-5)
    assert not torch.allclose(found.copies[0], found.copies[1])
