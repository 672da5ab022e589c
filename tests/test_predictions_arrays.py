"""Files of named arrays: .npz and .safetensors."""

import io
import json
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conftest import refusal
from programs import Run, runner
from temperance.errors import FileError, InputError
from temperance.predictions import Predictions, read_pair, read_predictions, write_pair

LOGITS = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = np.array([0, 1, 2, 1])
Save = Callable[..., Path]


def save_npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "p.npz", **arrays)
    return folder / "p.npz"


def save_compressed(folder: Path, **arrays: Any) -> Path:
    np.savez_compressed(folder / "p.npz", **arrays)
    return folder / "p.npz"


def save_safetensors(folder: Path, **arrays: Any) -> Path:
    save_file({key: torch.from_numpy(array.copy()) for key, array in arrays.items()}, folder / "p.safetensors")
    return folder / "p.safetensors"


every_format = pytest.mark.parametrize("save", [save_npz, save_compressed, save_safetensors])


# ---------------------------------------------------------------------------------------------------------------- keys


@every_format
def test_one_set_with_keys_that_mean_nothing_here(tmp_path: Path, save: Save) -> None:
    found = read_predictions(save(tmp_path, logits=LOGITS, labels=LABELS, human_counts=np.ones((4, 3))))
    assert (found.split, found.from_logits, found.n, found.k) == (None, True, 4, 3)
    assert np.array_equal(found.scores.numpy(), LOGITS)
    assert found.labels.tolist() == LABELS.tolist()


@every_format
def test_val_and_test_sets(tmp_path: Path, save: Save) -> None:
    path = save(
        tmp_path,
        val_logits=LOGITS,
        val_labels=LABELS,
        val_groups=np.array([5, 6, 5, 6]),
        test_probs=LOGITS[:2],
        test_labels=LABELS[:2],
    )
    val, test = read_pair(path)
    assert (val.split, val.from_logits, val.n, val.has_groups) == ("val", True, 4, True)
    assert (test.split, test.from_logits, test.n, test.has_groups) == ("test", False, 2, False)
    assert val.groups is not None
    assert val.groups.tolist() == ["5", "6", "5", "6"]
    assert read_predictions(path).split == "test"


@every_format
def test_a_val_set_alone(tmp_path: Path, save: Save) -> None:
    path = save(tmp_path, val_logits=LOGITS, val_labels=LABELS)
    assert read_predictions(path).split == "val"
    assert "expected test_logits (or test_probs) and test_labels; found" in refusal(path, "test")
    with pytest.raises(FileError, match="expected test_logits"):
        read_pair(path)


@every_format
def test_missing_keys(tmp_path: Path, save: Save) -> None:
    said = refusal(save(tmp_path, outputs=LOGITS, labels=LABELS))
    assert "expected logits (or probs) and labels, or val_logits" in said
    assert "outputs" in said
    assert "labels" in refusal(save(tmp_path, logits=LOGITS, targets=LABELS))
    assert "expected val_logits (or val_probs) and val_labels" in refusal(
        save(tmp_path, logits=LOGITS, labels=LABELS), "val"
    )


@every_format
def test_logits_and_probs_together(tmp_path: Path, save: Save) -> None:
    path = save(tmp_path, logits=LOGITS, probs=LOGITS, labels=LABELS)
    assert "there is both logits and probs; keep one" in refusal(path)


# ---------------------------------------------------------------------------------------------------- shapes and types


@every_format
@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"labels": LABELS.astype(np.float32) + 0.5},
            "labels must be class numbers, which are integers; row 0 (counting",
        ),
        ({"labels": LABELS[:3]}, "labels must have shape (4,) to fit predictions (4, 3); got (3,)"),
        (
            {"logits": LOGITS.T},
            "got shape (3, 4), and labels (4,) say that rows and columns are swapped: pass logits.T",
        ),
        ({"labels": 0.9 * np.eye(3)[LABELS]}, "row 0 (counting from 0) has shares of several (0.9, 0, 0, …)"),
        ({"labels": np.ones((4, 3))}, "row 0 (counting from 0) has 3 ones"),
        ({"group": LABELS, "groups": LABELS}, "there is both groups and group; keep one"),
        ({"logits": LOGITS[:, 0]}, "stack both columns"),
        (
            {"logits": LOGITS.reshape(4, 3, 1)},
            "labels must have shape (4, 1), a label for each pixel, to fit predictions (4, 3, 1); got (4,)",
        ),
        ({"logits": LOGITS[:0], "labels": LABELS[:0]}, "at least one row"),
        ({"logits": LOGITS[:, :0]}, "at least one row and one column"),
        ({"logits": LOGITS > 3}, "floating-point numbers"),
        ({"groups": LABELS[:2]}, "groups must have shape (4,)"),
        ({"groups": LABELS.astype(np.float64)}, "groups must be text or integers"),
    ],
)
def test_parts_that_are_not_one_set_are_refused(
    tmp_path: Path, save: Save, arrays: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(save(tmp_path, **({"logits": LOGITS, "labels": LABELS} | arrays)))


@every_format
@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint16, np.uint64, np.float32, np.float64]
)
def test_labels_of_any_type_that_are_whole_numbers(tmp_path: Path, save: Save, dtype: type) -> None:
    found = read_predictions(save(tmp_path, logits=LOGITS, labels=LABELS.astype(dtype)))
    assert found.labels.dtype == torch.int64
    assert found.labels.tolist() == LABELS.tolist()


@every_format
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_one_hot_and_boolean_labels(tmp_path: Path, save: Save, dtype: type) -> None:
    found = read_predictions(save(tmp_path, logits=LOGITS, labels=np.eye(3, dtype=dtype)[LABELS]))
    assert torch.cat([labels for _, labels, *_ in found.chunks(3)]).tolist() == LABELS.tolist()
    found = read_predictions(save(tmp_path, logits=LOGITS, labels=LABELS.astype(bool)))
    assert found.labels.tolist() == [0, 1, 1, 1]


@every_format
def test_label_and_group_may_be_singular(tmp_path: Path, save: Save) -> None:
    found = read_predictions(save(tmp_path, logits=LOGITS, label=LABELS, group=LABELS))
    assert found.labels.tolist() == LABELS.tolist()
    assert found.groups is not None and found.groups.tolist() == ["0", "1", "2", "1"]


@every_format
def test_labels_in_a_column_and_whole_numbers_as_scores(tmp_path: Path, save: Save) -> None:
    found = read_predictions(save(tmp_path, logits=LOGITS.astype(np.int32), labels=LABELS[:, None]))
    assert found.scores.dtype == torch.float64
    assert found.labels.tolist() == LABELS.tolist()


@every_format
@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_chunks(tmp_path: Path, save: Save, rows: int) -> None:
    found = read_predictions(save(tmp_path, logits=LOGITS, labels=LABELS))
    chunks = list(found.chunks(rows))
    assert [len(labels) for _, labels, *_ in chunks] == [min(rows, 4 - i) for i in range(0, 4, rows)]
    assert np.array_equal(torch.cat([scores for scores, *_ in chunks]).numpy(), LOGITS)


# ----------------------------------------------------------------------------------------------------------------- npz


@pytest.mark.parametrize("dtype", [">f4", "<f2", ">f8", "longdouble"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_npz_of_other_byte_orders_and_layouts(tmp_path: Path, dtype: str, order: Any, rows: int) -> None:
    path = save_npz(tmp_path, logits=np.array(LOGITS, dtype=dtype, order=order), labels=LABELS.astype(">i2"))
    found = read_predictions(path)
    assert torch.cat([scores for scores, *_ in found.chunks(rows)]).tolist() == LOGITS.tolist()
    assert found.labels.tolist() == LABELS.tolist()


def test_npz_with_text(tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "größte"])
    path = save_npz(tmp_path, probs=LOGITS, labels=names[LABELS], class_names=names, groups=np.array(list("abca")))
    found = read_predictions(path)
    assert found.labels.tolist() == LABELS.tolist()
    assert found.class_names == ("cat", "dog", "größte")
    assert found.groups is not None
    assert found.groups.tolist() == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": np.array(["a", "b", "c", "b"])}, "no class names to match them"),
        (
            {"labels": np.array(["a", "b", "x", "b"]), "class_names": np.array(["a", "b", "c"])},
            "row 2 (counting from 0) has 'x'",
        ),
        ({"class_names": np.array(["a", "b"])}, "class_names must have 3 names"),
        ({"class_names": np.array(["a", "b", "a"])}, "'a' occurs more than once"),
        ({"class_names": np.array([1, 2, 3])}, "class_names must be a list of text"),
        ({"class_names": np.array([b"a", b"b", b"c"])}, "class_names must be a list of text"),
        ({"class_names": np.array("abc")}, "class_names must be a list of text"),
        ({"class_names": np.array([], dtype=str)}, "class_names must be non-empty strings"),
        ({"labels": np.array(["a", 1, 2, 3], dtype=object)}, "labels is an array of Python objects"),
        ({"class_names": np.array(["a", "b", "c"], dtype=object)}, "class_names.astype(str)"),
        ({"groups": np.array(["a", None, "b", "c"], dtype=object)}, "unpickling"),
        ({"logits": LOGITS.astype(complex)}, "floating-point numbers; got complex128"),
    ],
)
def test_npz_text_and_objects_that_are_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(save_npz(tmp_path, **({"logits": LOGITS, "labels": LABELS} | arrays)))


def test_npz_objects_that_are_not_needed_do_not_matter(tmp_path: Path) -> None:
    path = save_npz(tmp_path, logits=LOGITS, labels=LABELS, notes=np.array([{"a": 1}, None], dtype=object))
    assert read_predictions(path).n == 4


def npy(header: str, data: bytes) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def crafted(path: Path, logits: bytes, **options: Any) -> Path:
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("logits.npy", logits)
        archive.writestr("labels.npy", labels.getvalue())
    return path


@pytest.mark.parametrize(
    "shape", ["(1000000000000, 1000000)", "(4, 4)", "(2, 3)", "(-4, -3)", "(4, 3.0)", "4", "(4, 3", "(((((", "[" * 5000]
)
def test_npz_shapes_that_are_not_true(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = refusal(crafted(tmp_path / "p.npz", npy(header, LOGITS.tobytes())))
    assert "damaged" in said


@pytest.mark.parametrize("descr", ["'<f99'", "'<q'", "'|V0'", "'<U0'", "[('a', '<f4')]", "'eval'", "None", "'|O'"])
def test_npz_types_that_are_not_numbers(tmp_path: Path, descr: str) -> None:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4, 3), }}"
    refusal(crafted(tmp_path / "p.npz", npy(header, LOGITS.tobytes())))


def rewritten_sizes(path: Path, size: int) -> Path:
    """The first member's uncompressed size as its archive's directory declares it, replaced."""
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    data[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_npz_that_declares_more_than_it_can_hold(tmp_path: Path, compression: int) -> None:
    shape = (30_000_000, 32)
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    member = npy(header, b"\0" * 1000)
    path = crafted(tmp_path / "p.npz", member, compression=compression)
    said = refusal(rewritten_sizes(path, len(member) - 1000 + 4 * shape[0] * shape[1]))
    assert "more than the file can hold" in said


def test_npz_that_expands_to_more_than_it_declares(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }"
    member = npy(header, LOGITS.tobytes() + b"\0" * 10_000_000)
    path = crafted(tmp_path / "p.npz", member, compression=zipfile.ZIP_DEFLATED)
    assert "damaged" in refusal(rewritten_sizes(path, len(member) - 10_000_000))


def test_npz_header_that_expands_without_end(tmp_path: Path) -> None:
    size = 1 << 26
    member = b"\x93NUMPY\2\0" + struct.pack("<I", size) + b" " * size
    path = crafted(tmp_path / "p.npz", member, compression=zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    try:
        assert "damaged" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < size // 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_compressed_in_another_way(tmp_path: Path, compression: int) -> None:
    member = io.BytesIO()
    np.save(member, LOGITS)
    assert "NumPy does not write" in refusal(crafted(tmp_path / "p.npz", member.getvalue(), compression=compression))


def test_an_npy_file_under_another_name(tmp_path: Path) -> None:
    with (tmp_path / "p.npz").open("wb") as handle:
        np.save(handle, LOGITS)
    assert "damaged, cut short or another kind of file" in refusal(tmp_path / "p.npz")


# --------------------------------------------------------------------------------------------------------- safetensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_safetensors_of_small_floats(tmp_path: Path, dtype: torch.dtype) -> None:
    scores = torch.arange(12.0).reshape(4, 3).to(dtype)
    save_file({"logits": scores, "labels": torch.tensor(LABELS)}, tmp_path / "p.safetensors")
    found = read_predictions(tmp_path / "p.safetensors")
    assert found.scores.tolist() == scores.float().tolist()


def test_safetensors_names_are_in_the_metadata(tmp_path: Path) -> None:
    tensors = {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS), "groups": torch.tensor([1, 0, 1, 0])}
    metadata = {"class_names": json.dumps(["cat", "dog", "owl"]), "group_names": json.dumps(["left", "right"])}
    save_file(tensors, tmp_path / "p.safetensors", metadata=metadata)
    found = read_predictions(tmp_path / "p.safetensors")
    assert found.class_names == ("cat", "dog", "owl")
    assert found.groups is not None
    assert found.groups.tolist() == ["right", "left", "right", "left"]


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"class_names": "cat, dog, owl"}, "class_names in the metadata must be a JSON list of strings"),
        ({"class_names": "[1, 2, 3]"}, "class_names in the metadata must be a JSON list of strings"),
        ({"class_names": "[" * 100_000}, "class_names in the metadata must be a JSON list of strings"),
        ({"class_names": '["cat"]'}, "class_names must have 3 names"),
        ({"group_names": '["left"]'}, "groups must lie in 0 … 0"),
        ({"group_names": "{}"}, "group_names in the metadata must be a JSON list of strings"),
    ],
)
def test_safetensors_metadata_that_is_refused(tmp_path: Path, metadata: dict[str, str], sentence: str) -> None:
    tensors = {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS), "groups": torch.tensor([1, 0, 1, 0])}
    save_file(tensors, tmp_path / "p.safetensors", metadata=metadata)
    assert sentence in refusal(tmp_path / "p.safetensors")


@pytest.mark.parametrize("end", [48, 10**15])
def test_safetensors_that_declare_more_than_there_is(tmp_path: Path, end: int) -> None:
    header = json.dumps({"logits": {"dtype": "F32", "shape": [end // 12, 3], "data_offsets": [0, end]}}).encode()
    (tmp_path / "p.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 20)
    assert "damaged" in refusal(tmp_path / "p.safetensors")
    (tmp_path / "p.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + header)
    assert "damaged" in refusal(tmp_path / "p.safetensors")


# -------------------------------------------------------------------------------------------------------------- memory

# The peak is read from the kernel's own book: what getrusage says of a child includes its parent's size at the start.
MEMORY_PROGRAM = """
from pathlib import Path
from temperance.predictions import read_predictions

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000

found = read_predictions({!r})
before = peak()
total = sum(float(scores[:, 0].sum()) for scores, *_ in found.chunks())
by_chunks = peak() - before
whole = float(found.scores.sum())
print(by_chunks, peak() - before)
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner("import temperance.predictions") as found:
        yield found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
@every_format
def test_a_large_file_is_read_in_little_memory(run: Run, tmp_path: Path, save: Save) -> None:
    n, k = 500_000, 100
    path = save(tmp_path, logits=np.zeros((n, k), np.float32), labels=np.zeros(n, np.int16))
    done = run(MEMORY_PROGRAM.format(str(path)), tmp_path)
    by_chunks, whole = map(float, done.out.split())
    assert by_chunks < 90
    # The measure itself works: loading everything takes the 200 MB that there are.
    assert whole > 170


def test_a_pair_of_sets_comes_back_as_it_was(tmp_path: Path) -> None:
    names = ["cat", "dog"]
    val = Predictions.of([[2.0, 1.0], [0.5, 0.0]], [0, 1], from_logits=True, class_names=names)
    test = Predictions.of([[1.0, 3.0]], [1], from_logits=True, class_names=names)
    write_pair(tmp_path / "both.npz", val, test)
    (tmp_path / "run").mkdir()
    write_pair(tmp_path / "run" / "predictions.npz", val, test)
    assert torch.equal(read_pair(tmp_path / "run")[1].scores, test.scores)
    for found, meant in zip(read_pair(tmp_path / "both.npz"), (val, test), strict=True):
        assert torch.equal(found.scores, meant.scores) and torch.equal(found.labels, meant.labels)
        assert found.class_names == ("cat", "dog") and found.from_logits
    with pytest.raises(FileError, match=r"as \.npz"):
        write_pair(tmp_path / "both.csv", val, test)
    with pytest.raises(InputError, match="same classes"):
        write_pair(tmp_path / "both.npz", val, Predictions.of([[1.0, 3.0]], [1], from_logits=True))
