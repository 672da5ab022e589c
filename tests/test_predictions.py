"""Predictions in memory: what is accepted, rows in chunks, honest splits, and a fingerprint of the content."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import FileError, InputError
from temperance.predictions import Predictions, read_pair, read_predictions, write_predictions

PROBS = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]


def numbered(n: int, k: int = 2) -> Predictions:
    """Predictions in which every row can be told by its values, its label and its group."""
    rows = np.arange(n)
    scores = rows[:, None] + np.arange(k) / k
    return Predictions.of(scores, rows % k, from_logits=True, groups=rows)


# ------------------------------------------------------------------------------------------------------------ accepting


def test_arrays_lists_and_tensors_are_the_same() -> None:
    as_lists = Predictions.of(PROBS, [0, 1, 1], groups=["a", "b", "a"], class_names=["cat", "dog"])
    as_arrays = Predictions.of(np.array(PROBS), np.array([0, 1, 1], dtype=np.int16), groups=np.array(["a", "b", "a"]))
    as_tensors = Predictions.of(
        torch.tensor(PROBS, dtype=torch.float64), torch.tensor([[0], [1], [1]]), groups=["a", "b", "a"]
    )
    for found in (as_lists, as_arrays, as_tensors):
        assert (found.n, found.k, found.from_logits, found.source, found.split) == (3, 2, False, "arrays", None)
        assert found.scores.tolist() == PROBS
        assert found.labels.tolist() == [0, 1, 1]
        assert found.labels.dtype == torch.int64
        assert found.groups is not None
        assert found.groups.tolist() == ["a", "b", "a"]
    assert as_lists.class_names == ("cat", "dog")
    assert as_arrays.class_names is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_float_type_stays(dtype: torch.dtype) -> None:
    given = torch.tensor(PROBS, dtype=dtype)
    found = Predictions.of(given, [0, 1, 1])
    assert found.scores.dtype == dtype
    assert found.scores.data_ptr() == given.data_ptr()


def test_labels_may_be_class_names() -> None:
    found = Predictions.of(PROBS, ["dog", "cat", "dog"], class_names=["cat", "dog"])
    assert found.labels.tolist() == [1, 0, 1]
    column = np.array(["dog", "cat", "dog"], dtype=object)
    assert Predictions.of(PROBS, column, class_names=["cat", "dog"]).labels.tolist() == [1, 0, 1]


def test_groups_are_names() -> None:
    for groups in ([7, 8, 7], np.array([7, 8, 7], dtype=np.uint8), np.array([7, "8", 7], dtype=object)):
        found = Predictions.of(PROBS, [0, 1, 1], groups=groups)
        assert found.groups is not None
        assert found.groups.tolist() == ["7", "8", "7"]
    assert Predictions.of(PROBS, [0, 1, 1]).groups is None


@pytest.mark.parametrize(
    ("probs", "labels", "options", "sentence"),
    [
        ([0.9, 0.8], [0, 1], {}, "stack both columns"),
        ([0, 1], [[0.9, 0.1], [0.2, 0.8]], {}, "got 2 whole numbers, as labels are: give predictions first"),
        (np.ones((2, 3, 4, 4)), [0, 1], {}, r"labels must have shape \(2, 4, 4\), a label for each pixel"),
        (np.ones((0, 3)), [], {}, "at least one row and one column"),
        (np.ones((3, 0)), [0, 1, 1], {}, "at least one row and one column"),
        ([["a", "b"]], [0], {}, "array of numbers"),
        (np.ones((2, 2), dtype=bool), [0, 1], {}, "floating-point"),
        (PROBS, [0, 1], {}, r"labels must have shape \(3,\)"),
        (PROBS, [0.0, 1.0, 1.5], {}, "row 2 has 1.5"),
        (PROBS, [[1, 0], [0, 1], [0.5, 0.5]], {}, "row 2 has shares of several"),
        (PROBS, [0j, 1j, 1], {}, "class numbers; got complex128"),
        (PROBS, [[0], [1, 1], [1]], {}, "differ in length"),
        (PROBS, ["cat", "dog", "dog"], {}, "no class names"),
        (PROBS, ["cat", "cow", "dog"], {"class_names": ["cat", "dog"]}, "row 1 has 'cow'"),
        (PROBS, [0, 1, 1], {"class_names": ["cat"]}, "must have 2 names"),
        (PROBS, [0, 1, 1], {"class_names": ["cat", "cat"]}, "'cat' occurs more than once"),
        (PROBS, [0, 1, 1], {"class_names": ["cat", ""]}, "non-empty strings"),
        (PROBS, [0, 1, 1], {"class_names": [0, 1]}, "non-empty strings"),
        (PROBS, [0, 1, 1], {"class_names": "ab"}, "must have 2 names"),
        (PROBS, [0, 1, 1], {"groups": ["a", "b"]}, r"groups must have shape \(3,\)"),
        (PROBS, [0, 1, 1], {"groups": [0.5, 1.5, 2.5]}, r"groups.astype\(str\)"),
        (PROBS, [0, 1, 1], {"groups": np.array(["a", None, "b"], dtype=object)}, "text or integers"),
    ],
)
def test_what_is_refused(probs: object, labels: object, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Predictions.of(probs, labels, **options)  # type: ignore[arg-type]


def test_labels_of_other_classes_can_be_kept_but_not_used(tmp_path: Path) -> None:
    found = Predictions.of(PROBS, [0, 1, 7])
    write_predictions(tmp_path / "p.npz", found)
    assert [labels.tolist() for _, labels, *_ in found.chunks()] == [[0, 1, 7]]
    with pytest.raises(InputError, match=r"^labels must lie in 0 … 1 for 2 classes; row 2 has 7$"):
        _ = found.labels
    with pytest.raises(FileError, match=r"p.npz: labels must lie in 0 … 1 for 2 classes; row 2 \(counting from 0\)"):
        _ = read_predictions(tmp_path / "p.npz").labels


# --------------------------------------------------------------------------------------------------- chunks and splits


@settings(deadline=None)
@given(n=st.integers(1, 40), rows=st.integers(1, 50))
def test_chunks_are_all_rows_in_order(n: int, rows: int) -> None:
    data = numbered(n)
    chunks = list(data.chunks(rows))
    assert all(1 <= len(labels) <= rows for _, labels, *_ in chunks)
    assert torch.equal(torch.cat([scores for scores, *_ in chunks]), data.scores)
    assert torch.equal(torch.cat([labels for _, labels, *_ in chunks]), data.labels)
    assert [int(g) for _, _, groups, *_ in chunks for g in groups] == list(range(n))  # type: ignore[union-attr]


@pytest.mark.parametrize("rows", [0, -1, 1.5, True])
def test_bad_chunk_sizes(rows: int) -> None:
    with pytest.raises(InputError, match="rows must be a whole number"):
        numbered(3).chunks(rows)


def test_the_default_chunk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.predictions.core.CHUNK_BYTES", 8 * 2 * 4)
    assert [len(labels) for _, labels, *_ in numbered(10).chunks()] == [4, 4, 2]


@settings(deadline=None)
@given(data=st.data(), n=st.integers(1, 30))
def test_select_takes_rows_in_the_given_order(data: st.DataObject, n: int) -> None:
    index = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40))
    whole = numbered(n, k=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temperance.predictions.core.CHUNK_BYTES", 8 * 3 * 7)
        part = whole.select(index)
    assert torch.equal(part.scores, whole.scores[index])
    assert torch.equal(part.labels, whole.labels[index])
    assert part.groups is not None
    assert part.groups.tolist() == [str(i) for i in index]
    assert (part.n, part.k, part.from_logits) == (len(index), 3, True)


def test_select_by_mask_and_names_the_part() -> None:
    part = numbered(4).select(torch.tensor([True, False, False, True]), split="ends")
    assert part.scores[:, 0].tolist() == [0, 3]
    assert part.split == "ends"


@pytest.mark.parametrize("index", [[], [3], [-1], [0.5], [[0, 1]], [True, False], [False, False, False]])
def test_select_refuses(index: list[object]) -> None:
    with pytest.raises(InputError, match="index must"):
        numbered(3).select(index)  # type: ignore[arg-type]


@settings(deadline=None)
@given(n=st.integers(2, 50), seed=st.integers(0, 5))
def test_halves_share_no_row_and_lose_none(n: int, seed: int) -> None:
    first, second = numbered(n).halves(seed)
    assert (first.n, second.n) == (n // 2, n - n // 2)
    rows = [*first.scores[:, 0].tolist(), *second.scores[:, 0].tolist()]
    assert sorted(rows) == list(range(n))
    # The documented draw, so that others can make the same halves.
    assert rows == np.random.default_rng(seed).permutation(n).tolist()
    assert (first.split, second.split) == ("a random half", "the other half")


def test_one_row_cannot_be_halved() -> None:
    with pytest.raises(InputError, match="cannot be halved"):
        numbered(1).halves()


# --------------------------------------------------------------------------------------------------------- fingerprint


def test_the_fingerprint_is_of_the_content() -> None:
    given = np.array(PROBS, dtype=np.float32)
    known = Predictions.of(given, [0, 1, 1]).fingerprint
    assert len(known) == 64
    assert Predictions.of(given.astype(np.float64), np.array([0, 1, 1], dtype=np.uint8)).fingerprint == known
    others = [
        Predictions.of(given, [0, 1, 1], from_logits=True),
        Predictions.of(given, [0, 1, 0]),
        Predictions.of(given[::-1], [0, 1, 1]),
        Predictions.of(np.nextafter(given, 1), [0, 1, 1]),
        Predictions.of(given, [0, 1, 1], groups=["a", "bc", ""]),
        Predictions.of(given, [0, 1, 1], groups=["ab", "c", ""]),
        Predictions.of(given.reshape(2, 3), [0, 1]),
    ]
    assert len({known, *(other.fingerprint for other in others)}) == len(others) + 1


@settings(deadline=None)
@given(size=st.integers(1, 9))
def test_the_fingerprint_has_a_form_that_others_can_compute(size: int) -> None:
    data = numbered(9)
    parts = [
        data.scores.double().numpy().tobytes(),
        data.labels.numpy().tobytes(),
        b"1:01:11:21:31:41:51:61:71:8",
    ]
    content = {"shape": [9, 2], "scores": "logits", "sha256": [hashlib.sha256(part).hexdigest() for part in parts]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temperance.predictions.core.CHUNK_BYTES", 8 * 2 * size)
        assert data.fingerprint == hashlib.sha256(json.dumps(content).encode()).hexdigest()


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["predictions", "predictions.pkl", "predictions.mat"])
def test_unknown_formats(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("something")
    for attempt in (lambda: read_predictions(path), lambda: write_predictions(path, numbered(2))):
        with pytest.raises(FileError, match=r"\.npz, \.safetensors, \.parquet, \.csv"):
            attempt()
    assert path.read_text() == "something"


def test_the_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    write_predictions(tmp_path / "A.NPZ", numbered(2))
    assert read_predictions(str(tmp_path / "A.NPZ")).fingerprint == numbered(2).fingerprint


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet", ".csv"])
def test_paths_that_are_not_files(tmp_path: Path, suffix: str) -> None:
    folder, empty = tmp_path / f"folder{suffix}", tmp_path / f"empty{suffix}"
    folder.mkdir()
    empty.write_text("")
    for path, sentence in ((folder, "is a folder"), (empty, "0 bytes"), (tmp_path / f"no{suffix}", "does not exist")):
        with pytest.raises(FileError, match=sentence):
            read_predictions(path)


def test_a_split_has_one_of_two_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="split must be one of val, test; got 'train'"):
        read_predictions(tmp_path / "any.npz", "train")


@pytest.mark.shared
def test_real_predictions_open(shared_data: Path) -> None:
    paths = sorted(shared_data.glob("l*/*.npz"))
    assert len(paths) > 30
    for path in paths:
        found, expected = read_predictions(path), np.load(path)
        prefix = "test_" if found.split == "test" else ""
        assert found.from_logits
        assert np.array_equal(found.scores.numpy(), expected[f"{prefix}logits"])
        assert np.array_equal(found.labels.numpy(), expected[f"{prefix}labels"])


@pytest.mark.shared
def test_a_real_pair(shared_data: Path) -> None:
    val, test = read_pair(shared_data / "logits" / "c10_densenet40.npz")
    assert (val.split, val.n, test.split, test.n) == ("val", 5000, "test", 10000)
    assert val.fingerprint != test.fingerprint
