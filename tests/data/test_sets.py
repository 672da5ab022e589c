"""Reading data sets: every kind of source, and every way in which one can be wrong."""

import io
import os
import pickle
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.small_sets import (
    Cifar,
    python2_pickle,
    random_labels,
    random_pixels,
    write_image,
    write_tiny_imagenet,
)
from temperance.data import Files, ImageData, Images, Part, hold_out, long_tail_counts, read_images
from temperance.data import sets as sets_module
from temperance.data.download import ARCHIVES, _md5
from temperance.demo import demo_predictions
from temperance.errors import FileError, InputError, MissingExtraError


def pixels_of(part: Part) -> torch.Tensor:
    return next(part.batches(torch.arange(len(part)), len(part), device="cpu")).pixels


def write_npz(path: Path, **changes: Any) -> Path:
    """A set of 40 training and 20 test images of four classes; a change of None leaves an array out."""
    arrays = {
        "train_images": random_pixels(40, 8, 10),
        "train_labels": random_labels(40, 4),
        "test_images": random_pixels(20, 8, 10, seed=1),
        "test_labels": random_labels(20, 4, seed=1),
    }
    np.savez(path, **{key: value for key, value in (arrays | changes).items() if value is not None})
    return path


def test_one_part_is_tested_on_and_one_validates(tmp_path: Path) -> None:
    data = read_images(write_npz(tmp_path / "set.npz"))
    assert (data.name, data.k, data.class_names) == ("set", 4, ("0", "1", "2", "3"))
    assert [len(part) for part in (data.train, data.val, data.test)] == [36, 4, 20]
    kept, held = hold_out(random_labels(40, 4), 0.1)
    whole = torch.from_numpy(random_pixels(40, 8, 10))
    assert torch.equal(pixels_of(data.train), whole[kept])
    assert torch.equal(pixels_of(data.val), whole[held])
    assert torch.equal(data.val.labels, torch.from_numpy(random_labels(40, 4))[held])
    assert torch.equal(pixels_of(data.test), torch.from_numpy(random_pixels(20, 8, 10, seed=1)))


def test_mean_and_deviation_are_those_of_the_training_part(tmp_path: Path) -> None:
    data = read_images(write_npz(tmp_path / "set.npz"))
    training = pixels_of(data.train).double().reshape(-1, 3) / 255
    assert data.mean == pytest.approx(training.mean(0).tolist(), abs=1e-12)
    assert data.std == pytest.approx(training.std(0, correction=0).tolist(), abs=1e-12)


def test_a_constant_channel_has_a_deviation(tmp_path: Path) -> None:
    data = read_images(write_npz(tmp_path / "set.npz", train_images=np.full((40, 8, 10, 3), 9, np.uint8)))
    assert data.std == pytest.approx([1 / 255] * 3)


def test_validation_may_come_from_the_test_part(tmp_path: Path) -> None:
    data = read_images(write_npz(tmp_path / "set.npz"), val_from="test", split="stratified", split_seed=4)
    assert [len(part) for part in (data.train, data.val, data.test)] == [40, 10, 10]
    assert sorted(torch.bincount(data.val.labels).tolist()) == [2, 2, 3, 3]
    quarter = read_images(tmp_path / "set.npz", val_from="test", val_fraction=0.25)
    assert len(quarter.val) == 5


def test_existing_parts_are_used(tmp_path: Path) -> None:
    own = random_pixels(6, 8, 10, seed=5)
    data = read_images(write_npz(tmp_path / "set.npz", val_images=own, val_labels=np.zeros(6, int)))
    assert [len(part) for part in (data.train, data.val, data.test)] == [40, 6, 20]
    assert torch.equal(pixels_of(data.val), torch.from_numpy(own))


def test_a_test_part_can_be_held_out(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "set.npz", test_images=None, test_labels=None)
    with pytest.raises(InputError, match=r"set.npz has no test part; give test_fraction, for instance 0.2"):
        read_images(path)
    first, other = (read_images(path, test_fraction=0.25, split_seed=seed) for seed in (0, 1))
    assert [len(part) for part in (first.train, first.val, first.test)] == [27, 3, 10]
    assert torch.equal(pixels_of(first.test), pixels_of(other.test))
    assert not torch.equal(pixels_of(first.val), pixels_of(other.val))
    with pytest.raises(InputError, match="has a test part of its own; leave test_fraction out"):
        read_images(write_npz(tmp_path / "whole.npz"), test_fraction=0.2)


def test_long_tails(tmp_path: Path) -> None:
    data = read_images(write_npz(tmp_path / "set.npz"), long_tail=0.2, val_fraction=0.5, split="stratified")
    whole = torch.cat([data.train.labels, data.val.labels])
    assert torch.bincount(whole).tolist() == long_tail_counts(10, 4, 0.2)
    assert len(data.test) == 20


def test_grey_images_and_named_classes(tmp_path: Path) -> None:
    names = np.array(["ant", "bee", "cat", "dog"])
    path = write_npz(
        tmp_path / "set.npz",
        train_images=random_pixels(40, 8, 10)[..., 0],
        test_images=random_pixels(20, 8, 10)[..., 0],
        train_labels=names[random_labels(40, 4)],
        class_names=names,
    )
    data = read_images(path)
    assert data.train.shape == (8, 10, 1)
    assert data.class_names == ("ant", "bee", "cat", "dog")
    assert len(data.mean) == len(data.std) == 1
    assert torch.equal(
        data.train.labels, torch.from_numpy(random_labels(40, 4))[hold_out(random_labels(40, 4), 0.1)[0]]
    )


@pytest.mark.parametrize(("size", "scale"), [(4, 0.5), (16, 2)])
def test_images_in_memory_are_resized_as_files_are(tmp_path: Path, size: int, scale: float) -> None:
    smooth = np.linspace(0, 255, 8 * 12).reshape(8, 12, 1).repeat(3, 2).astype(np.uint8)[None].repeat(40, 0)
    found = read_images(write_npz(tmp_path / "s.npz", train_images=smooth, test_images=smooth[:20]), size=size)
    assert found.train.shape == found.test.shape == (size, size, 3)
    resized = Image.fromarray(smooth[0]).resize((int(12 * scale), int(8 * scale)), Image.Resampling.BILINEAR)
    left = int(2 * scale)
    expected = np.asarray(resized).astype(int)[:, left : left + size]
    assert np.abs(pixels_of(found.train)[0].numpy() - expected).max() <= 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"train_images": None, "train_labels": None},
            "must hold train_images and train_labels; it has test_images, te",
        ),
        ({"train_labels": None}, "train_images needs train_labels, too"),
        ({"test_images": None}, "test_labels needs test_images, too"),
        (
            {"train_images": np.zeros((40, 8, 10, 3))},
            r"must be uint8 from 0 to 255; got float64\. If its values lie in",
        ),
        ({"train_images": np.zeros((40, 3, 8, 10), np.uint8)}, r"looks like channels first: save images.transpose"),
        ({"train_images": np.zeros((40, 8), np.uint8)}, r"uint8 \(n, height, width, channels\); got .* \(40, 8\)"),
        ({"train_labels": random_labels(39, 4)}, r"labels must be int64 \(40,\) to fit 40 images; got .* \(39,\)"),
        ({"train_labels": random_labels(40, 4) + 0.5}, "labels must be class numbers; got torch.float64"),
        ({"train_labels": random_labels(40, 4) + 1}, "no training image is of class '0'; do the labels begin at 1?"),
        ({"test_labels": random_labels(20, 5)}, "labels must lie in 0 … 3 for 4 classes; the test part has 4"),
        ({"test_labels": random_labels(20, 4) - 1}, "the test part has -1"),
        ({"test_images": random_pixels(20, 9, 9)}, r"one shape; the training part has \(8, 10, 3\), the test part \(9"),
        ({"test_images": random_pixels(0, 8, 10), "test_labels": np.zeros(0, int)}, "test_images is empty"),
        ({"class_names": np.array(["a", "b", "c"])}, "labels must lie in 0 … 2 for 3 classes; the training part has 3"),
        ({"class_names": np.array(list("abcde"))}, "no training image is of class 'e'"),
        ({"class_names": np.array(list("abca"))}, "class_names must be distinct"),
        ({"train_labels": np.array(["a"] * 40)}, "labels must be class numbers, since the classes have no names"),
        ({"train_labels": np.array([None] * 40)}, "cannot be read as .npz: .*Object arrays cannot be loaded"),
    ],
)
def test_a_wrong_npz_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises((FileError, InputError), match=sentence) as error:
        read_images(write_npz(tmp_path / "set.npz", **changes))
    assert str(tmp_path / "set.npz") in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "set.npz")
    for settings, sentence in (
        ({"split": "halves"}, "split must be one of random, stratified"),
        ({"val_from": "both"}, "val_from must be one of train, test"),
        ({"size": 0}, "size must be a whole number from 1 to 100000; got 0"),
        ({"workers": -1}, "workers must be a whole number of at least 0; got -1"),
        ({"val_fraction": 1.5}, "the part held out must be a fraction between 0 and 1"),
        ({"long_tail": 2}, "long_tail must be a number above 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_images(path, **settings)


def test_sources_that_are_not_data_sets(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cifar99 does not exist; name a file or folder, or one of cifar10, cifar100"):
        read_images("cifar99")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileError, match=r"holds no known data set: .* it has notes.txt"):
        read_images(tmp_path)
    with pytest.raises(FileError, match=r"notes.txt is not a known data set: expected a folder, an .npz or"):
        read_images(tmp_path / "notes.txt")
    (tmp_path / "set.npz").write_bytes(b"no archive")
    with pytest.raises(FileError, match=r"set.npz cannot be read as .npz: it is damaged"):
        read_images(tmp_path / "set.npz")


# -------------------------------------------------------------------------------------------------------------- digits


def test_digits_are_a_set_of_their_own() -> None:
    pytest.importorskip("sklearn")
    data, other = read_images("digits"), read_images("digits", split_seed=1)
    assert [len(part) for part in (data.train, data.val, data.test)] == [1293, 144, 360]
    assert data.train.shape == (8, 8, 1)
    assert torch.equal(pixels_of(data.test), pixels_of(other.test))
    assert not torch.equal(data.val.labels, other.val.labels)
    assert pixels_of(data.train).max() == 255


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match="the set digits needs scikit-learn"):
        read_images("digits")


# --------------------------------------------------------------------------------------------------------------- CIFAR

each_version = pytest.mark.parametrize(("k", "kind"), [(k, kind) for k in (10, 100) for kind in ("python", "binary")])


def check_cifar(data: ImageData, cifar: Cifar) -> None:
    assert data.name == f"cifar{cifar.k}"
    assert data.class_names == tuple(cifar.names)
    pixels, labels = cifar.train
    kept, held = hold_out(labels, 0.1)
    assert torch.equal(pixels_of(data.train), torch.from_numpy(pixels)[kept])
    assert torch.equal(data.val.labels, torch.from_numpy(labels)[held])
    assert torch.equal(pixels_of(data.test), torch.from_numpy(cifar.test[0]))
    assert data.test.labels.tolist() == cifar.test[1].tolist()


@each_version
def test_official_folders(tmp_path: Path, k: int, kind: str) -> None:
    cifar = Cifar(k)
    folder = cifar.write_folder(tmp_path, kind)
    check_cifar(read_images(folder), cifar)
    check_cifar(read_images(tmp_path), cifar)


@each_version
def test_official_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int, kind: str) -> None:
    cifar = Cifar(k)
    name = f"cifar-{k}-{kind}.tar.gz"
    path = cifar.write_archive(tmp_path / name, kind)
    with pytest.raises(
        FileError, match=rf"is not the official archive: .*, not {ARCHIVES[name].md5}; .* fetch it again"
    ):
        read_images(path)
    monkeypatch.setitem(ARCHIVES, name, replace(ARCHIVES[name], md5=_md5(path)))
    told: list[str] = []
    check_cifar(read_images(path, progress=lambda done, steps, what: told.append(what)), cifar)
    assert told == [f"verifying {name}"]
    renamed = path.rename(tmp_path / "renamed.tgz")
    check_cifar(read_images(renamed), cifar)


def test_unofficial_archives_are_refused(tmp_path: Path) -> None:
    path = Cifar(10).write_archive(tmp_path / "mine.tar.gz", "python")
    with pytest.raises(
        FileError, match=r"mine.tar.gz is none of the official archives .*; unpack it and name the folder"
    ):
        read_images(path)


def test_an_archive_that_lacks_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("cifar-10-batches-py/test_batch"), io.BytesIO())
    monkeypatch.setitem(ARCHIVES, path.name, replace(ARCHIVES[path.name], md5=_md5(path)))
    with pytest.raises(FileError, match=r"the archive has no batches.meta, data_batch_1, .* in cifar-10-batches-py"):
        read_images(path)


class Payload:
    """What a hostile pickle would call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("harm",))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (pickle.dumps(Payload(), protocol=2), r"test: it asks for \w+\.mkdir, which no official file does"),
        (pickle.dumps([1, 2]), "test: it must hold a dictionary; it holds a list"),
        (python2_pickle({"data": 1}), "it must hold data and fine_labels; it has b'data'"),
        (python2_pickle({"data": np.zeros((2, 3072)), "fine_labels": [0, 1]}), "must hold bytes; got the type b'f8'"),
        (python2_pickle({"data": np.zeros((2, 5), np.uint8), "fine_labels": [0]}), "test cannot be read"),
        (python2_pickle({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 100]}), "the test part has 100"),
        (python2_pickle({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0]}), "to fit 2 images"),
        (b"\x80\x02}(", "test cannot be read"),
        (b"", r"test is empty \(0 bytes\)"),
    ],
)
def test_broken_and_hostile_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Cifar(100).write_folder(tmp_path, "python")
    (folder / "test").write_bytes(data)
    with pytest.raises((FileError, InputError), match=sentence) as error:
        read_images(folder)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "harm").exists()


def test_broken_binary_files(tmp_path: Path) -> None:
    folder = Cifar(10).write_folder(tmp_path, "binary")
    whole = (folder / "data_batch_2.bin").read_bytes()
    (folder / "data_batch_2.bin").write_bytes(whole[:-1])
    with pytest.raises(FileError, match=r"data_batch_2.bin: its 30729 bytes are not a whole number of images of 3073"):
        read_images(folder)
    (folder / "data_batch_2.bin").write_bytes(whole)
    (folder / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(FileError, match=r"batches.meta.txt: it must hold 10 class names; it has 2"):
        read_images(folder)


@pytest.mark.shared
def test_the_demos_validation_images_are_held_out(shared_data: Path, tmp_path: Path) -> None:
    with np.load(shared_data / "images" / "cifar100-labels.npz") as labels:
        blank: dict[str, Any] = {part: np.zeros((len(labels[part]), 1, 1, 1), np.uint8) for part in ("train", "test")}
        arrays: dict[str, Any] = {f"{part}_labels": labels[part] for part in blank}
    np.savez(tmp_path / "set.npz", **arrays, **{f"{part}_images": pixels for part, pixels in blank.items()})
    data = read_images(tmp_path / "set.npz")
    val, test = demo_predictions()
    assert torch.equal(data.val.labels, val.labels.long())
    assert torch.equal(data.test.labels, test.labels.long())


# ------------------------------------------------------------------------------------------------------- Tiny-ImageNet


def test_tiny_imagenet(tmp_path: Path) -> None:
    folder = write_tiny_imagenet(tmp_path)
    told: list[str] = []
    data = read_images(folder, progress=lambda done, steps, what: told.append(what))
    assert (data.name, data.class_names) == ("tiny-imagenet", ("goldfish", "crane (n00000001)", "crane (n00000002)"))
    assert [torch.bincount(part.labels).tolist() for part in (data.train, data.val, data.test)] == [
        [9, 9, 9],
        [1, 1, 1],
        [2, 2, 2],
    ]
    for part in (data.train, data.val, data.test):
        assert isinstance(part, Images)
        assert torch.equal(part.pixels[:, 0, 0, 0].long(), part.labels)
    assert set(told) == {"decoding images"}
    assert len(read_images(tmp_path).test) == 6
    halved = read_images(folder, val_from="test")
    assert [len(part) for part in (halved.train, halved.val, halved.test)] == [30, 3, 3]


def test_tiny_imagenet_can_stay_in_files(tmp_path: Path) -> None:
    folder = write_tiny_imagenet(tmp_path)
    inside, outside = (read_images(folder, in_memory=in_memory, workers=1) for in_memory in (True, False))
    assert isinstance(outside.train, Files)
    assert torch.equal(pixels_of(inside.train), pixels_of(outside.train))
    assert (inside.mean, inside.std) == (outside.mean, outside.std)


def test_many_images_stay_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_imagenet(tmp_path)
    monkeypatch.setattr(sets_module, "MEMORY_BYTES", 36 * 64 * 64 * 3)
    assert isinstance(read_images(folder).train, Images)
    monkeypatch.setattr(sets_module, "MEMORY_BYTES", 36 * 64 * 64 * 3 - 1)
    assert isinstance(read_images(folder).train, Files)


def test_tiny_imagenets_labels_must_fit(tmp_path: Path) -> None:
    folder = write_tiny_imagenet(tmp_path)
    with (folder / "val" / "val_annotations.txt").open("a") as file:
        file.write("val_9.JPEG\tn77777777\t0\t0\t63\t63\n")
    with pytest.raises(FileError, match=r"val_annotations.txt: the class n77777777 has no folder in"):
        read_images(folder)


# ------------------------------------------------------------------------------------------------------- image folders


def write_folder(root: Path, *parts: str, size: tuple[int, int] = (8, 8)) -> Path:
    for part in parts:
        for name in ("cat", "dog"):
            for i in range(5):
                write_image(root / part / name / f"{i}.png", random_pixels(1, *size, seed=i)[0])
    return root


def test_image_folders(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", "train", "test")
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    (root / "train" / ".cache").mkdir()
    write_image(root / "train" / "dog" / "more" / "deep.PNG", random_pixels(1, 8, 8)[0])
    data = read_images(root, val_fraction=2)
    assert (data.name, data.class_names) == ("pets", ("cat", "dog"))
    assert [len(part) for part in (data.train, data.val, data.test)] == [9, 2, 10]
    assert data.test.labels.tolist() == [0] * 5 + [1] * 5
    write_folder(root, "val")
    assert [len(part) for part in (lambda d: (d.train, d.val, d.test))(read_images(root))] == [11, 10, 10]


def test_a_folder_without_test_images(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", "train", "val")
    with pytest.raises(InputError, match="or rename the validation part to test, to test on it"):
        read_images(root)
    assert len(read_images(root, test_fraction=0.2).test) == 2


def test_sizes_of_image_files(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", "train", "test")
    write_image(root / "test" / "cat" / "odd.png", random_pixels(1, 10, 20)[0])
    with pytest.raises(FileError, match=r"odd.png: the image is 20 × 10 pixels and the first one is 8 × 8; give"):
        read_images(root)
    assert read_images(root, size=6).test.shape == (6, 6, 3)
    wide = write_folder(tmp_path / "wide", "train", "test", size=(8, 12))
    assert read_images(wide).train.shape == (8, 12, 3)


def test_wrong_image_folders(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", "train", "test")
    (root / "train" / "emu").mkdir()
    with pytest.raises(FileError, match=r"emu has no images in it \(.bmp, .*\); add some or remove the folder"):
        read_images(root)
    (root / "train" / "emu").rmdir()
    write_image(root / "test" / "fox" / "0.png", random_pixels(1, 8, 8)[0])
    with pytest.raises(FileError, match=r"test has a folder 'fox', but .*train has none of that name"):
        read_images(root)
    (tmp_path / "bare" / "train").mkdir(parents=True)
    with pytest.raises(FileError, match="train has no folders in it; put the images of each class into a folder"):
        read_images(tmp_path / "bare")
