"""What holds for all four formats: exact round trips, damaged files, full disks."""

import random
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from temperance.errors import FileError, InputError
from temperance.predictions import Predictions, read_predictions, write_predictions
from temperance.predictions.checks import is_whole_number

SUFFIXES = [".npz", ".safetensors", ".parquet", ".csv"]

# NumPy's text ends at the last character that is not NUL, and files hold Unicode, which has no lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@st.composite
def predictions(draw: st.DrawFn) -> Predictions:
    """Any predictions that there can be, odd names and values included."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    values = draw(st.lists(st.floats(allow_nan=False), min_size=n * k, max_size=n * k))
    names = draw(st.none() | st.lists(TEXT.filter(bool), min_size=k, max_size=k, unique=True))
    return Predictions.of(
        torch.tensor(values, dtype=torch.float64).reshape(n, k).to(dtype),
        draw(st.none() | st.lists(st.integers(0, k - 1), min_size=n, max_size=n)),
        from_logits=draw(st.booleans()),
        class_names=names,
        groups=draw(st.none() | st.lists(TEXT, min_size=n, max_size=n)),
        weights=draw(st.none() | st.lists(st.floats(0, 1e9), min_size=n, max_size=n)),
    )


def assert_same(found: Predictions, expected: Predictions) -> None:
    assert (found.n, found.k, found.from_logits) == (expected.n, expected.k, expected.from_logits)
    assert torch.equal(found.scores.double(), expected.scores.double())
    assert found.has_labels == expected.has_labels
    if found.has_labels:
        assert torch.equal(found.labels, expected.labels)
    assert found.class_names == expected.class_names
    assert (found.groups is None) == (expected.groups is None) == (not found.has_groups)
    if found.groups is not None and expected.groups is not None:
        assert found.groups.tolist() == expected.groups.tolist()
    assert (found.weights is None) == (expected.weights is None) == (not found.has_weights)
    if found.weights is not None and expected.weights is not None:
        assert found.weights.tolist() == expected.weights.tolist()
    assert found.fingerprint == expected.fingerprint


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expected=predictions(), rows=st.integers(1, 6))
def test_round_trips_are_exact(tmp_path: Path, suffix: str, expected: Predictions, rows: int) -> None:
    if suffix == ".csv":
        assume(not any(map(is_whole_number, expected.class_names or ())))
    path = tmp_path / f"predictions{suffix}"
    write_predictions(path, expected)
    found = read_predictions(path, labels="optional")
    assert (found.source, found.split) == (str(path), None)
    chunks = list(found.chunks(rows))
    assert all(1 <= len(labels) <= rows for _, labels, *_ in chunks)
    assert torch.equal(torch.cat([scores for scores, *_ in chunks]).double(), expected.scores.double())
    assert_same(found, expected)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_labels_are_needed_unless_the_reader_says_otherwise(tmp_path: Path, suffix: str) -> None:
    known, new = tmp_path / f"known{suffix}", tmp_path / f"new{suffix}"
    scores = torch.arange(12.0).reshape(4, 3)
    write_predictions(known, Predictions.of(scores, [0, 1, 2, 0], from_logits=True))
    write_predictions(new, Predictions.of(scores, from_logits=True, groups=["a", "b", "c", "d"]))
    with pytest.raises(FileError, match=r"the column label|labels beside logits; found .* Name yours with columns=."):
        read_predictions(new)
    found = read_predictions(new, labels="optional")
    assert not found.has_labels and found.groups is not None and torch.equal(found.scores.float(), scores)
    assert [len(chunk.scores) for chunk in found.chunks(3)] == [3, 1]
    with pytest.raises(InputError, match="have no labels, but labels are needed here"):
        _ = found.labels
    assert read_predictions(known, labels="optional").labels.tolist() == [0, 1, 2, 0]
    assert not read_predictions(known, labels="ignored").has_labels
    with pytest.raises(InputError, match="labels must be one of required, optional, ignored"):
        read_predictions(known, labels="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("has_pyarrow", [True, False])
def test_labels_that_are_ignored_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pyarrow: bool
) -> None:
    table, arrays = tmp_path / "p.csv", tmp_path / "p.npz"
    table.write_text("logits_0,logits_1,label\n0,1,a street\n2,3,\n")
    np.savez(arrays, logits=[[0.0, 1.0], [2.0, 3.0]], labels=np.array([None, "a street"]))
    if not has_pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    for path in (table, arrays):
        assert read_predictions(path, labels="ignored").scores.tolist() == [[0, 1], [2, 3]]
        with pytest.raises(FileError):
            _ = read_predictions(path, labels="optional").labels


def test_labels_that_are_ignored_may_be_there_twice(tmp_path: Path) -> None:
    table, arrays = tmp_path / "p.csv", tmp_path / "p.npz"
    table.write_text("logits_0,logits_1,label,labels\n0,1,0,1\n")
    np.savez(arrays, logits=[[0.0, 1.0]], label=[0], labels=[1])
    for path in (table, arrays):
        assert not read_predictions(path, labels="ignored").has_labels


def test_labels_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    table, arrays = tmp_path / "p.csv", tmp_path / "p.npz"
    table.write_text("a,b\n1,2\n")
    np.savez(arrays, a=[1])
    for path in (table, arrays):
        with pytest.raises(FileError, match=r"expected (the columns )?logits") as error:
            read_predictions(path, labels="optional")
        assert "label" not in str(error.value).removeprefix(str(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_widen_only_where_a_format_lacks_them(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path = tmp_path / f"predictions{suffix}"
    write_predictions(path, Predictions.of(torch.rand(5, 3).to(dtype), [0, 1, 2, 0, 1], from_logits=True))
    wider = torch.float32 if dtype == torch.bfloat16 and suffix in (".npz", ".parquet") else dtype
    assert read_predictions(path).scores.dtype == (torch.float64 if suffix == ".csv" else wider)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_layouts_in_memory(tmp_path: Path, suffix: str) -> None:
    rows = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    expected = Predictions.of(rows.T[::2], torch.tensor([0, 9, 3, 9, 1, 9])[::2], from_logits=True)
    write_predictions(tmp_path / f"p{suffix}", expected)
    assert_same(read_predictions(tmp_path / f"p{suffix}"), expected)


@pytest.mark.parametrize("source", SUFFIXES)
@pytest.mark.parametrize("target", SUFFIXES)
def test_a_file_that_is_still_on_disk_can_be_written_as_another(tmp_path: Path, source: str, target: str) -> None:
    expected = sample()
    write_predictions(tmp_path / f"a{source}", expected)
    write_predictions(tmp_path / f"b{target}", read_predictions(tmp_path / f"a{source}"))
    assert_same(read_predictions(tmp_path / f"b{target}"), expected)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_may_replace_its_own_source(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    write_predictions(path, sample())
    write_predictions(path, read_predictions(path))
    assert_same(read_predictions(path), sample())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_loses_rows_after_it_was_opened(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    write_predictions(path, sample())
    opened = read_predictions(path)
    write_predictions(path, sample().select(range(10)))
    with pytest.raises(FileError, match="gave 10 rows instead of 60"):
        list(opened.chunks(7))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_an_array_whose_name_a_table_gives_to_scores_is_refused(tmp_path: Path, suffix: str) -> None:
    np.savez(tmp_path / "in.npz", probs=[[0.5, 0.5]], labels=[0], probs_0=[1.0])
    with pytest.raises(InputError, match="probs_0 would be read as a column of scores"):
        write_predictions(tmp_path / f"out{suffix}", read_predictions(tmp_path / "in.npz"))


@pytest.mark.parametrize("suffix", [".safetensors", ".parquet", ".csv"])
def test_names_that_are_not_unicode(tmp_path: Path, suffix: str) -> None:
    lone = Predictions.of([[0.5, 0.5]], [0], class_names=["a", "\ud800"], groups=["\ud800"])
    path = tmp_path / f"p{suffix}"
    try:
        write_predictions(path, lone)
    except InputError as error:
        assert "not valid Unicode" in str(error)
        assert list(tmp_path.iterdir()) == []
    else:
        assert_same(read_predictions(path), lone)


# -------------------------------------------------------------------------------------------------------------- damage


def sample() -> Predictions:
    generator = np.random.default_rng(0)
    return Predictions.of(
        generator.normal(size=(60, 3)).astype(np.float32),
        generator.integers(0, 3, 60),
        from_logits=True,
        class_names=["cat", "dog", "größte"],
        groups=generator.choice(["left", "right"], 60),
    )


def read_all(path: Path) -> Predictions | None:
    """All that can be read, or None after the one kind of error that there may be, told in one printable line."""
    try:
        found = read_predictions(path)
        assert found.scores.shape == (found.n, found.k)
        assert found.fingerprint
    except FileError as error:
        assert str(path) in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 600
        return None
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_cut_files(tmp_path: Path, suffix: str, share: float) -> None:
    path = tmp_path / f"p{suffix}"
    write_predictions(path, sample())
    whole = path.read_bytes()
    # In a .csv a cut between two lines cannot be seen; this one is within a line, in the middle of a number.
    end = whole.index(b".", int(len(whole) * share)) if suffix == ".csv" else int(len(whole) * share)
    path.write_bytes(whole[:end])
    assert read_all(path) is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    write_predictions(path, sample())
    whole, chance, refused = path.read_bytes(), random.Random(0), 0
    for turn in range(150):
        damaged = bytearray(whole)
        # In turn at the beginning, at the end, where the formats keep their headers, and anywhere.
        low, high = [(0, 300), (len(whole) - 300, len(whole)), (0, len(whole))][turn % 3]
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(low, high)] = chance.randrange(256)
        path.write_bytes(damaged)
        found = read_all(path)
        refused += found is None
        if found is not None and suffix in (".npz", ".parquet"):
            # These two carry checksums: what can be read is what was written.
            assert torch.equal(found.scores, sample().scores)
            assert torch.equal(found.labels, sample().labels)
    assert refused > 50


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content", [b"hello, this is text\n", b"\0" * 1000, b"\x89PNG\r\n\x1a\n" + b"\xff" * 99, b"PK\5\6"]
)
def test_other_files_under_this_name(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"p{suffix}"
    path.write_bytes(content)
    assert read_all(path) is None


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    data = Predictions.of(np.random.default_rng(0).random((5000, 10)), np.zeros(5000, dtype=int))
    paths = [tmp_path / f"out{suffix}" for suffix in SUFFIXES]
    for path in paths:  # so that everything that writes is imported
        write_predictions(path, data)
        path.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As a disk with 20 kB left: what is larger can no longer be written.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        for path in paths:
            with pytest.raises(FileError, match=r"cannot be written.*too large"):
                write_predictions(path, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
