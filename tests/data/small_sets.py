"""Small data sets of images, as the official ones lie in their files."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def random_pixels(n: int, h: int = 32, w: int = 32, c: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (n, h, w, c), dtype=np.uint8)


def random_labels(n: int, k: int, seed: int = 0) -> Array:
    """Labels among which every class occurs."""
    return np.random.default_rng(seed).permutation(np.arange(n) % k)


def python2_pickle(value: Any) -> bytes:
    """A pickle as Python 2 wrote it, with which the official files were written: text and bytes are the same."""
    return b"\x80\x02" + _pickled(value) + b"."


def _pickled(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickled(each) for item in value.items() for each in item) + b"u"
    if isinstance(value, list | tuple):
        ends = (b"](", b"e") if isinstance(value, list) else (b"(", b"t")
        return ends[0] + b"".join(map(_pickled, value)) + ends[1]
    if isinstance(value, bool | None):
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, int):
        return b"J" + value.to_bytes(4, "little", signed=True)
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return b"T" + len(data).to_bytes(4, "little") + data
    # An array: made empty by NumPy's own function, then given its version, shape, type, order and bytes.
    kind = b"cnumpy\ndtype\n" + _pickled((value.dtype.str[1:], 0, 1)) + b"R"
    kind += _pickled((3, "|", None, None, None, -1, -1, 0)) + b"b"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _pickled((0,)) + _pickled("b") + b"tR"
    return made + b"(" + _pickled(1) + _pickled(value.shape) + kind + b"\x89" + _pickled(value.tobytes()) + b"tb"


def flat(pixels: Array) -> Array:
    """Colour after colour, row after row, as CIFAR stores images."""
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)


class Cifar:
    """A few images in the official layouts: 50 to train with and 20 to test on for CIFAR-10, 200 and 100 for 100."""

    def __init__(self, k: int) -> None:
        self.k = k
        n_train, n_test = (50, 20) if k == 10 else (200, 100)
        self.train = random_pixels(n_train, seed=1), random_labels(n_train, k, seed=1)
        self.test = random_pixels(n_test, seed=2), random_labels(n_test, k, seed=2)
        self.names = [f"name{i}" for i in range(k)]

    def python_files(self) -> dict[str, bytes]:
        if self.k == 10:
            files = {
                f"data_batch_{i + 1}": self._batch(*(each[10 * i : 10 * i + 10] for each in self.train))
                for i in range(5)
            }
            meta = {"num_cases_per_batch": 10000, "label_names": self.names, "num_vis": 3072}
            files |= {"test_batch": self._batch(*self.test), "batches.meta": python2_pickle(meta)}
            return files
        meta = {"fine_label_names": self.names, "coarse_label_names": ["a", "b"]}
        return {"train": self._batch(*self.train), "test": self._batch(*self.test), "meta": python2_pickle(meta)}

    def _batch(self, pixels: Array, labels: Array) -> bytes:
        key = "labels" if self.k == 10 else "fine_labels"
        found = {"data": flat(pixels), key: labels.tolist(), "batch_label": "a batch", "filenames": ["x.png"]}
        return python2_pickle(found)

    def binary_files(self) -> dict[str, bytes]:
        names = "".join(f"{name}\n" for name in self.names).encode()
        if self.k == 10:
            files = {
                f"data_batch_{i + 1}.bin": self._rows(*(each[10 * i : 10 * i + 10] for each in self.train))
                for i in range(5)
            }
            return files | {"test_batch.bin": self._rows(*self.test), "batches.meta.txt": names + b"\n"}
        return {
            "train.bin": self._rows(*self.train),
            "test.bin": self._rows(*self.test),
            "fine_label_names.txt": names,
        }

    def _rows(self, pixels: Array, labels: Array) -> bytes:
        coarse = [] if self.k == 10 else [np.full((len(labels), 1), 7, np.uint8)]
        return np.concatenate([*coarse, labels[:, None].astype(np.uint8), flat(pixels)], axis=1).tobytes()

    def files(self, kind: str) -> dict[str, bytes]:
        return self.python_files() if kind == "python" else self.binary_files()

    def folder(self, kind: str) -> str:
        if self.k == 100:
            return f"cifar-100-{kind}"
        return f"cifar-10-batches-{'py' if kind == 'python' else 'bin'}"

    def write_folder(self, root: Path, kind: str) -> Path:
        folder = root / self.folder(kind)
        folder.mkdir(parents=True)
        for name, data in self.files(kind).items():
            (folder / name).write_bytes(data)
        return folder

    def write_archive(self, path: Path, kind: str) -> Path:
        with tarfile.open(path, "w:gz") as archive:
            for name, data in self.files(kind).items():
                info = tarfile.TarInfo(f"{self.folder(kind)}/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return path


def write_image(path: Path, pixels: Array) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.squeeze()).save(path)


def write_tiny_imagenet(root: Path, *, classes: int = 3, per_class: int = 10, tested: int = 6) -> Path:
    """Tiny-ImageNet's layout, lossless where the suffix allows it: a .JPEG is a PNG, which Pillow sees by itself."""
    from PIL import Image

    folder = root / "tiny-imagenet-200"
    wnids = [f"n{i:08d}" for i in range(classes)]
    words = ["goldfish, Carassius auratus", "crane", "crane", *(f"word{i}" for i in range(classes))]
    draw = np.random.default_rng(5)
    for i, wnid in enumerate(wnids):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for j in range(per_class):
            pixels = draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            pixels[0, 0] = i
            Image.fromarray(pixels).save(images / f"{wnid}_{j}.JPEG", format="PNG")
    rows = []
    (folder / "val" / "images").mkdir(parents=True)
    for j in range(tested):
        pixels = draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        pixels[0, 0] = j % classes
        Image.fromarray(pixels).save(folder / "val" / "images" / f"val_{j}.JPEG", format="PNG")
        rows.append(f"val_{j}.JPEG\t{wnids[j % classes]}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    # The official list is not in alphabetical order.
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)))
    lines = (f"{w}\t{word}\n" for w, word in zip(wnids, words, strict=False))
    (folder / "words.txt").write_text("n99999999\tentity\n" + "".join(lines))
    return folder
