"""Files with a prediction for every pixel: read as rows, measured, fitted, and written back in their shape."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from commands import run
from temperance import Predictions, apply, compare, evaluate, read_predictions, write_predictions
from temperance.calibrators import Temperature, load_calibrator
from temperance.errors import FileError, InputError

VOID = 255
N, K, H, W = 6, 3, 5, 4


def images(n: int = N, void: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are twice as far apart as they should be, and labels of which some are void."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, K, H, W, generator=generator)
    chances = logits.div(2).softmax(1).movedim(1, -1).reshape(-1, K)
    labels = torch.multinomial(chances, 1, generator=generator).reshape(n, H, W)
    if void:
        labels[:, 0] = VOID
        labels[1] = VOID  # an image without any label
    return logits, labels


def rows_of(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = labels.reshape(-1) != VOID
    return logits.movedim(1, -1).reshape(-1, K)[kept], labels.reshape(-1)[kept]


def save(path: Path, **arrays: Any) -> Path:
    tensors = {name: torch.as_tensor(value) for name, value in arrays.items()}
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    elif path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})  # type: ignore[arg-type]
    return path


@pytest.fixture(params=[".npz", ".safetensors", ".pt", ".npy"])
def dense(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """A file of every format, and the options that read it."""
    logits, labels = images()
    if request.param == ".npy":
        np.save(tmp_path / "logits.npy", logits.numpy())
        np.save(tmp_path / "labels.npy", labels.numpy())
        return tmp_path / "logits.npy", ["--labels", str(tmp_path / "labels.npy"), "--ignore-index", str(VOID)]
    return save(tmp_path / f"in{request.param}", logits=logits, labels=labels), ["--ignore-index", str(VOID)]


def test_pixels_are_rows(dense: tuple[Path, list[str]]) -> None:
    path, options = dense
    columns = {"label": options[1]} if path.suffix == ".npy" else None
    found = read_predictions(path, columns=columns, ignore_index=VOID)
    logits, labels = rows_of(*images())
    assert (found.n, found.k) == logits.shape
    assert torch.equal(found.scores, logits) and torch.equal(found.labels, labels)
    for rows in (1, 7, 16, 1000):
        parts = list(found.chunks(rows))
        assert all(len(part.labels) == rows for part in parts[:-1]) and 0 < len(parts[-1].labels) <= rows
        assert torch.equal(torch.cat([part.scores for part in parts]), logits)
    whole = read_predictions(path, columns=columns)
    assert whole.n == N * H * W and found.fingerprint == Predictions.of(logits, labels, from_logits=True).fingerprint


def test_every_command_reads_them(dense: tuple[Path, list[str]], tmp_path: Path) -> None:
    path, options = dense
    flat = save(tmp_path / "flat.npz", **dict(zip(("logits", "labels"), rows_of(*images()), strict=True)))
    both = [run("evaluate", *arguments, "--bootstrap", "20", "--json", "-") for arguments in ([path, *options], [flat])]
    first, second = (said.out.replace(str(source), "") for said, source in zip(both, (path, flat), strict=True))
    assert both[0].code == 0 and '"value"' in first
    assert [line for line in first.splitlines() if '"value"' in line or '"low"' in line] == [
        line for line in second.splitlines() if '"value"' in line or '"low"' in line
    ]
    said = run("evaluate", path, *options, "--bootstrap", "0")
    assert "Every pixel counts as a sample. Pixels of one image are alike" in " ".join(said.out.split())
    for source, more, cal in ((path, options, "dense"), (flat, [], "flat")):
        said = run("fit", "temperature", source, *more, "-o", tmp_path / f"{cal}.safetensors")
        assert said.code == 0, said.err
    learnt = [load_calibrator(tmp_path / f"{cal}.safetensors").learnt["temperature"] for cal in ("dense", "flat")]
    assert torch.equal(*learnt)
    said = run("compare", path, *options, "--methods", "temperature", "--bootstrap", "20")
    assert said.code == 0 and "its images split at random" in said.out, said.err


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_calibrated_pixels_keep_their_shape_and_void_ones_are_calibrated_too(tmp_path: Path, suffix: str) -> None:
    logits, labels = images()
    calibrator = Temperature().fit(logits, labels, ignore_index=VOID)
    calibrator.save(tmp_path / "cal.safetensors")
    path = save(tmp_path / f"in{suffix}", logits=logits, labels=labels, names=torch.arange(N))
    for output in (tmp_path / f"same{suffix}", tmp_path / "other.npz", tmp_path / "other.safetensors"):
        said = run("apply", tmp_path / "cal.safetensors", path, "-o", output)
        assert said.code == 0 and f"calibrated {N * H * W} pixels" in said.out, said.err
        written: Any = load_file(output) if output.suffix == ".safetensors" else np.load(output)
        probs = torch.as_tensor(written["probs"])
        assert probs.shape == logits.shape and torch.equal(torch.as_tensor(written["labels"]), labels)
        assert torch.equal(probs, calibrator.predict_proba(logits.double()))
        assert torch.as_tensor(written["names"]).tolist() == list(range(N))
    assert run("evaluate", tmp_path / f"same{suffix}", "--ignore-index", str(VOID)).code == 0


def test_sentences_speak_of_pixels(tmp_path: Path) -> None:
    logits, labels = images(void=False)
    data = Predictions.of(logits, labels, from_logits=True)
    found = evaluate(data, bootstrap=0)
    assert found.title == f"arrays · {N * H * W} pixels · {K} classes" and "sample" not in found.verdict
    ranked = compare(data, methods=["temperature"], bootstrap=20)
    assert f"{N * H * W // 2} test pixels" in ranked.verdict and "sample" not in ranked.verdict
    path = save(tmp_path / "both.npz", val_logits=logits, val_labels=labels, test_logits=logits + 1, test_labels=labels)
    each = f"{N * H * W} {{}} pixels"
    said = compare(path, methods=["temperature"], bootstrap=20).split
    assert said == f"fitted on its {each.format('val')}, measured on its {each.format('test')}"


def test_groups_are_of_images_and_weights_of_pixels(tmp_path: Path) -> None:
    logits, labels = images(void=False)
    places, weights = np.array(["a", "b", "a", "b", "b", "c"]), np.arange(N * H * W).reshape(N, H, W) % 3
    found = Predictions.of(logits, labels, from_logits=True, groups=places, weights=weights)
    assert found.groups is not None and found.groups.tolist() == np.repeat(places, H * W).tolist()
    assert found.weights is not None and found.weights.tolist() == weights.reshape(-1).tolist()
    for suffix in (".npz", ".safetensors"):
        write_predictions(tmp_path / f"out{suffix}", found)
        back = read_predictions(tmp_path / f"out{suffix}")
        assert back.fingerprint == found.fingerprint and back.space == (H, W)


def test_halves_are_halves_of_the_images() -> None:
    logits, labels = images()
    logits[:] = torch.arange(N)[:, None, None, None] + 0.1 * torch.arange(K)[:, None, None]  # the image's number
    found = Predictions.of(logits, labels, from_logits=True, ignore_index=VOID)
    one, other = (set(half.scores[:, 0].tolist()) for half in found.halves(seed=3))
    assert not one & other and one | other == {0, 2, 3, 4, 5} and {len(one), len(other)} == {2, 3}
    with pytest.raises(InputError, match="one image cannot be halved"):
        Predictions.of(logits[:1], labels[:1], from_logits=True, ignore_index=VOID).halves()
    said = compare(*images(20, void=False), from_logits=True, methods=["temperature"], bootstrap=20)
    assert "images split at random: fitted on 200 pixels" in said.split
    assert any("Pixels of one image are alike" in note for note in said.notes)


def test_folders_of_images_of_different_sizes(tmp_path: Path) -> None:
    logits, labels = images()
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.npz", logits=logits[:4], labels=labels[:4])
    save(tmp_path / "in" / "b.npz", logits=logits[4:, :, :3], labels=labels[4:, :3])
    found = read_predictions(tmp_path / "in", ignore_index=VOID)
    assert torch.equal(found.scores[: 3 * 16], rows_of(logits[:4], labels[:4])[0]) and found.n == 3 * 16 + 2 * 8
    assert len(np.unique(found._images())) == 5  # type: ignore[misc]
    save(tmp_path / "in" / "void.npz", logits=logits[1:2], labels=labels[1:2])
    assert read_predictions(tmp_path / "in", ignore_index=VOID).fingerprint == found.fingerprint
    calibrator = Temperature().fit(logits, labels, ignore_index=VOID)
    calibrated = apply(calibrator, tmp_path / "in")
    write_predictions(tmp_path / "out", calibrated)
    assert np.load(tmp_path / "out" / "b.npz")["probs"].shape == (2, K, 3, W)
    with pytest.raises(InputError, match="images of different sizes are not one array; write a folder"):
        write_predictions(tmp_path / "one.npz", calibrated)
    save(tmp_path / "in" / "c.npz", logits=torch.zeros(2, K), labels=torch.tensor([0, 1]))
    with pytest.raises(FileError, match=r"a\.npz has the pixels of images, but .*c\.npz has samples"):
        read_predictions(tmp_path / "in")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": torch.zeros(N, W, H)}, "labels must have shape (6, 5, 4), a label for each pixel, to fit"),
        ({"labels": torch.zeros(N)}, "labels must have shape (6, 5, 4), a label for each pixel, to fit"),
        (
            {"logits": torch.zeros(N, H, W, K)},
            "logits must have shape (n, k, *space), with the classes in the second axis; got (6, 5, 4, 3), and labels "
            "(6, 5, 4) say that the classes are last: store numpy.moveaxis(logits, -1, 1)",
        ),
        ({"weights": torch.zeros(N)}, "weights must have shape (6, 5, 4), one for each pixel of logits"),
        ({"groups": torch.zeros(N, H, W, dtype=torch.int64)}, "groups must have shape (6,)"),
        ({"logits": torch.zeros(N, 1, H, W)}, "logits must have a row for each sample and a column for each class"),
        ({"logits": torch.zeros(N, K, 0, W)}, "at least one row and one column; got shape (6, 3, 0, 4)"),
    ],
)
def test_wrong_shapes_are_refused(tmp_path: Path, suffix: str, arrays: dict[str, Any], sentence: str) -> None:
    logits, labels = images(void=False)
    path = save(tmp_path / f"in{suffix}", **{"logits": logits, "labels": labels} | arrays)
    said = run("evaluate", path)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1


def test_errors_name_the_pixel(tmp_path: Path) -> None:
    logits, labels = images()
    path = save(tmp_path / "in.npz", logits=logits, labels=labels)
    said = run("evaluate", path)
    assert "position (0, 0, 0) has 255. If 255 means no label, add --ignore-index 255" in said.err
    logits[2, 1, 3, 2] = torch.nan
    path = save(tmp_path / "in.npz", logits=logits, labels=labels)
    said = run("evaluate", path, "--ignore-index", str(VOID))
    assert said.code == 2 and "logits must be finite; position (2, 3, 2), class 1 is nan" in said.err
    labels[:] = VOID
    path = save(tmp_path / "in.npz", logits=logits, labels=labels)
    said = run("evaluate", path, "--ignore-index", str(VOID))
    assert (
        said.code == 2
        and f"{path}: every label is 255, which --ignore-index leaves out: there is nothing to measure" in said.err
    )


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    logits, labels = images()
    path = save(tmp_path / "in.npz", logits=logits, labels=labels)
    with pytest.raises(InputError, match="a table has a row for each sample, and these are arrays of pixels"):
        write_predictions(tmp_path / "out.csv", read_predictions(path))
    with pytest.raises(InputError, match=r"rows with the label 255 were left out.*read the file without ignore_index"):
        write_predictions(tmp_path / "out.npz", read_predictions(path, ignore_index=VOID))
    with pytest.raises(InputError, match="labels are not read here"):
        read_predictions(path, labels="ignored", ignore_index=VOID)
    assert list(tmp_path.glob("out*")) == []


def test_compare_leaves_out_ignored_rows_of_predictions_too(tmp_path: Path) -> None:
    logits, labels = images()
    whole = Predictions.of(logits, labels, from_logits=True)
    options: dict[str, Any] = {"methods": ["temperature"], "bootstrap": 20}
    with pytest.raises(InputError, match="pass ignore_index=255"):
        compare(whole, **options)
    halves = compare(whole, ignore_index=VOID, **options)
    assert halves.fit.n + halves.test.n == len(rows_of(logits, labels)[0])
    two = compare(whole.select(range(60)), whole.select(range(60, N * H * W)), ignore_index=VOID, **options)
    assert two.fit.n + two.test.n == len(rows_of(logits, labels)[0])
    write_predictions(tmp_path / "half.csv", halves.test)  # some of the pixels are rows
    assert torch.equal(read_predictions(tmp_path / "half.csv").scores.float(), halves.test.scores)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".jsonl"])
def test_rows_of_tables_can_be_ignored_too(tmp_path: Path, suffix: str) -> None:
    logits, labels = rows_of(*images())
    marked = torch.where(torch.arange(len(labels)) % 4 == 0, -100, labels)
    write_predictions(tmp_path / f"in{suffix}", Predictions.of(logits, marked, from_logits=True))
    found = read_predictions(tmp_path / f"in{suffix}", ignore_index=-100)
    assert torch.equal(found.scores.float(), logits[marked >= 0]) and torch.equal(found.labels, labels[marked >= 0])
    assert found._place(0) == ("line 3" if suffix == ".csv" else "row 1 (counting from 0)")


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.predictions.core.CHUNK_BYTES", 1 << 18)
    peaks = []
    for n in (64, 192):  # evaluate reads 32 of these images at a time
        logits = np.zeros((n, 4, 64, 64), dtype=np.float32)
        np.savez(tmp_path / f"{n}.npz", logits=logits, labels=np.arange(n * 64 * 64).reshape(n, 64, 64) % 4)
        del logits
        tracemalloc.start()
        evaluate(tmp_path / f"{n}.npz", metrics=["ece"], bootstrap=0, ignore_index=3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
