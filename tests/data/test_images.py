"""Images in memory and in files: batches, crops, flips."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.small_sets import random_labels, random_pixels, write_image
from temperance.data import Files, Images, Moves, Part, as_images, draw_moves, normalised
from temperance.data import images as images_module
from temperance.errors import FileError, InputError, MissingExtraError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(n: int = 50, h: int = 9, w: int = 12, c: int = 3) -> Images:
    return as_images(random_pixels(n, h, w, c), random_labels(n, 4))


def slowly_moved(image: Any, top: int, left: int, flip: bool, pad: int) -> Any:
    """One image: border, crop, flip."""
    h, w, _ = image.shape
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    cropped = padded[top : top + h, left : left + w]
    return cropped[:, ::-1] if flip else cropped


# --------------------------------------------------------------------------------------------------------------- moves


def test_moves_cover_every_place_and_both_sides() -> None:
    moves = draw_moves(2000, pad=2, generator=generator())
    for drawn in (moves.top, moves.left):
        assert drawn.dtype == torch.int64
        assert set(drawn.tolist()) == {0, 1, 2, 3, 4}
    assert 0.45 < moves.flip.float().mean() < 0.55
    assert moves.pad == 2


def test_without_flips_the_crops_are_the_same() -> None:
    with_flips, without = (draw_moves(20, flip=flip, generator=generator(3)) for flip in (True, False))
    assert torch.equal(with_flips.top, without.top)
    assert torch.equal(with_flips.left, without.left)
    assert not without.flip.any()


def test_moves_come_from_the_generator() -> None:
    first, again, other = (draw_moves(50, generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.top, again.top)
    assert not torch.equal(first.top, other.top)


def test_a_negative_border_is_refused() -> None:
    with pytest.raises(InputError, match="pad must be a whole number of at least 0; got -1"):
        draw_moves(5, pad=-1, generator=generator())


@given(
    h=st.integers(1, 9), w=st.integers(1, 9), c=st.sampled_from([1, 3]), pad=st.integers(0, 5), size=st.integers(1, 9)
)
def test_each_sample_is_cropped_and_flipped_by_its_own_move(h: int, w: int, c: int, pad: int, size: int) -> None:
    images = some_images(12, h, w, c)
    moves = draw_moves(12, pad=pad, generator=generator(h + w))
    order = torch.randperm(12, generator=generator(1))
    for batch in images.batches(order, size, device="cpu", moves=moves):
        for pixels, i in zip(batch.pixels, batch.indices.tolist(), strict=True):
            move = int(moves.top[i]), int(moves.left[i]), bool(moves.flip[i])
            assert np.array_equal(pixels, slowly_moved(images.pixels[i].numpy(), *move, pad))


# -------------------------------------------------------------------------------------------------------------- parts


@pytest.fixture
def as_files(tmp_path: Path) -> Callable[[Images, int], Files]:
    def write(images: Images, workers: int) -> Files:
        paths = [tmp_path / f"{i}.png" for i in range(len(images))]
        for path, pixels in zip(paths, images.pixels.numpy(), strict=True):
            write_image(path, pixels)
        return Files(tuple(map(str, paths)), images.labels, images.shape[:2], False, workers)

    return write


@pytest.fixture(params=["memory", "files", "threads"])
def part(request: pytest.FixtureRequest, as_files: Callable[[Images, int], Files]) -> Part:
    if request.param == "memory":
        return some_images()
    return as_files(some_images(), 0 if request.param == "files" else 3)


def test_batches_are_the_samples_in_order(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "BYTES_AT_ONCE", 2 * 7 * 9 * 12 * 3)
    whole = some_images()
    order = torch.randperm(50, generator=generator())[:45]
    batches = list(part.batches(order, 7, device="cpu"))
    assert [len(batch.labels) for batch in batches] == [7] * 6 + [3]
    pixels, labels, indices = map(torch.cat, zip(*batches, strict=True))
    assert torch.equal(indices, order)
    assert torch.equal(pixels, whole.pixels[order])
    assert torch.equal(labels, whole.labels[order])
    assert (pixels.dtype, labels.dtype, indices.dtype) == (torch.uint8, torch.int64, torch.int64)


def test_moves_go_with_the_sample_not_with_its_place(part: Part) -> None:
    moves = draw_moves(50, generator=generator())
    found = []
    for order, size in ((torch.arange(50), 8), (torch.arange(50).flip(0), 50)):
        batches = list(part.batches(order, size, device="cpu", moves=moves))
        pixels, _, indices = map(torch.cat, zip(*batches, strict=True))
        found.append(pixels[indices.argsort()])
    assert torch.equal(*found)
    whole = next(some_images().batches(torch.arange(50), 50, device="cpu", moves=moves))
    assert torch.equal(found[0], whole.pixels)


def test_an_empty_order_gives_no_batches(part: Part) -> None:
    assert list(part.batches(torch.arange(0), 4, device="cpu")) == []


def test_moves_for_another_part_are_refused(part: Part) -> None:
    with pytest.raises(InputError, match="drawn for the 50 samples of the part; these are for 40"):
        next(part.batches(torch.arange(50), 4, device="cpu", moves=draw_moves(40, generator=generator())))


def test_taking_samples(part: Part) -> None:
    index = torch.tensor([4, 4, 0])
    some = part.take(index)
    assert (len(some), some.shape, len(part)) == (3, part.shape, 50)
    batch = next(some.to("cpu").batches(torch.arange(3), 3, device="cpu"))
    assert torch.equal(batch.pixels, some_images().pixels[index])
    assert torch.equal(batch.labels, some.labels)


# ------------------------------------------------------------------------------------------------------------- memory


def test_grey_images_get_a_channel() -> None:
    images = as_images(random_pixels(3, 5, 6, 1)[..., 0], [[0], [1], [2]])
    assert images.shape == (5, 6, 1)
    assert images.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("pixels", "labels", "sentence"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), [0, 1], r"uint8 \(n, height, width, channels\); got torch.float32"),
        (np.zeros((2, 4), np.uint8), [0, 1], r"got torch.uint8 \(2, 4\)"),
        (np.zeros((2, 4, 4), np.uint8), [0, 1, 2], r"labels must be int64 \(2,\) to fit 2 images; got .*\(3,\)"),
        (np.zeros((2, 4, 4), np.uint8), [0.0, 1.0], "labels must be class numbers; got torch.float64"),
    ],
)
def test_arrays_that_are_not_images_are_refused(pixels: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        as_images(pixels, labels)


def test_normalised() -> None:
    pixels = torch.from_numpy(random_pixels(4, 5, 7))
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    found = normalised(pixels, mean, std)
    expected = (pixels.double() / 255 - torch.tensor(mean)) / torch.tensor(std)
    assert found.shape == (4, 3, 5, 7)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.permute(0, 2, 3, 1).double(), expected, atol=1e-5)
    assert torch.equal(found, normalised(pixels, torch.tensor(mean), torch.tensor(std)))


# -------------------------------------------------------------------------------------------------------------- files


def files(*paths: Path, size: tuple[int, int] = (8, 8), resize: bool = True, workers: int = 2) -> Files:
    return Files(tuple(map(str, paths)), torch.zeros(len(paths), dtype=torch.int64), size, resize, workers)


def decoded(path: Path, size: tuple[int, int] = (8, 8), resize: bool = True) -> torch.Tensor:
    return files(path, size=size, resize=resize).in_memory().pixels[0]


def test_the_middle_of_a_resized_image_is_kept(tmp_path: Path) -> None:
    pixels = np.zeros((16, 48, 3), np.uint8)
    pixels[:, 16:32] = 200
    write_image(tmp_path / "wide.png", pixels)
    write_image(tmp_path / "tall.png", pixels.transpose(1, 0, 2))
    assert (decoded(tmp_path / "wide.png")[:, 1:-1] == 200).all()
    assert (decoded(tmp_path / "tall.png")[1:-1] == 200).all()
    assert decoded(tmp_path / "wide.png", size=(4, 12)).shape == (4, 12, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "I"])
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    from PIL import Image

    grey = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
    if mode.startswith("I"):
        kind = np.uint16 if mode == "I;16" else np.int32
        image = Image.fromarray(grey.astype(kind) * 257)
    else:
        image = Image.fromarray(grey).convert(mode)
    if mode == "P":
        image.info["transparency"] = bytes(range(256))
    path = tmp_path / ("x.tif" if mode in ("CMYK", "I") else "x.png")
    image.save(path)
    tolerance = 255 if mode == "1" else 1
    found = decoded(path).numpy().astype(int)
    assert found.shape == (8, 8, 3)
    assert np.abs(found - grey[..., None]).max() <= tolerance


def test_floating_point_images_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(FileError, match=r"x.tif: the image holds floating-point numbers; save it with 8 bits"):
        decoded(tmp_path / "x.tif")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named(tmp_path: Path, workers: int) -> None:
    write_image(tmp_path / "good.png", random_pixels(1, 8, 8)[0])
    write_image(tmp_path / "cut.png", random_pixels(1, 8, 8)[0])
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:100])
    part = files(tmp_path / "good.png", tmp_path / "cut.png", tmp_path / "good.png", workers=workers)
    with pytest.raises(FileError, match=r"cut.png cannot be read as .png: it is damaged") as error:
        list(part.batches(torch.arange(3), 1, device="cpu"))
    assert "\n" not in str(error.value)
    with pytest.raises(FileError, match=r"gone.png does not exist"):
        decoded(tmp_path / "gone.png")


def test_another_size_is_refused_unless_resized(tmp_path: Path) -> None:
    write_image(tmp_path / "x.png", random_pixels(1, 10, 20)[0])
    with pytest.raises(
        FileError, match=r"x.png: the image is 20 × 10 pixels and the first one is 8 × 8; give one size"
    ):
        decoded(tmp_path / "x.png", resize=False)


def test_stopping_early_leaves_no_thread_behind(tmp_path: Path) -> None:
    import threading

    paths = [tmp_path / f"{i}.png" for i in range(40)]
    for path in paths:
        write_image(path, random_pixels(1, 8, 8)[0])
    batches = files(*paths).batches(torch.arange(40), 2, device="cpu")
    next(batches)
    assert any(thread.name.startswith("decode") for thread in threading.enumerate())
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


def test_progress_while_decoding(tmp_path: Path) -> None:
    write_image(tmp_path / "x.png", random_pixels(1, 8, 8)[0])
    told: list[tuple[int, int, str]] = []
    files(*[tmp_path / "x.png"] * 501).in_memory(lambda *said: told.append(said))
    assert told == [(500, 501, "decoding images"), (501, 501, "decoding images")]


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    write_image(tmp_path / "x.png", random_pixels(1, 8, 8)[0])
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"needs Pillow: pip install 'temperance\[images\]'"):
        decoded(tmp_path / "x.png")


def test_moves_can_be_taken() -> None:
    moves = draw_moves(9, generator=generator())
    some = moves.take(torch.tensor([3, 1]))
    assert isinstance(some, Moves)
    assert some.top.tolist() == [int(moves.top[3]), int(moves.top[1])]
    assert some.pad == moves.pad
