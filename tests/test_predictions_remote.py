"""Files on other machines are read by their URL, and sentences name it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import run
from conftest import random_predictions
from temperance import Predictions, evaluate, read_predictions
from temperance.calibrators import Temperature
from temperance.errors import FileError, MissingExtraError
from temperance.predictions import write_predictions
from temperance.predictions.remote import as_url

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'temperance[remote]'")

LOGITS, LABELS = random_predictions(300, 3)
SUFFIXES = (".npz", ".safetensors", ".parquet", ".csv", ".csv.gz", ".jsonl")


@pytest.fixture
def memory() -> Iterator[Any]:
    """A file system in memory."""
    found = fsspec.filesystem("memory")
    yield found
    found.store.clear()
    found.pseudo_dirs[:] = [""]


def put(memory: Any, folder: Path, url: str, logits: torch.Tensor, labels: torch.Tensor) -> None:
    local = folder / Path(url).name
    write_predictions(local, Predictions.of(logits, labels, from_logits=True))
    memory.put_file(str(local), url)


def test_what_is_a_url() -> None:
    assert as_url(Path("s3://bucket/a.npz")) == as_url("s3://bucket/a.npz") == "s3://bucket/a.npz"
    assert as_url("memory://a/b-*.npz") == "memory://a/b-*.npz"
    assert as_url(Path("file:///data/a.npz")) == "file:///data/a.npz"
    assert as_url("data/a.npz") is None and as_url("C:/data/a.npz") is None and as_url("/data/a.npz") is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format(suffix: str, memory: Any, tmp_path: Path) -> None:
    put(memory, tmp_path, f"memory://bucket/a{suffix}", LOGITS, LABELS)
    found = read_predictions(f"memory://bucket/a{suffix}")
    torch.testing.assert_close(found.scores.double(), LOGITS)
    assert found.source == f"memory://bucket/a{suffix}"


def test_folders_and_patterns(memory: Any, tmp_path: Path) -> None:
    for i, (logits, labels) in enumerate(zip(LOGITS.chunk(3), LABELS.chunk(3), strict=True)):
        put(memory, tmp_path, f"memory://bucket/part-{i}.npz", logits, labels)
    for note in ("notes.txt", "_SUCCESS.npz", ".part-0.npz", "_delta_log/0.json"):
        memory.pipe_file(f"memory://bucket/{note}", b"nothing")
    expected = evaluate(LOGITS, LABELS, from_logits=True, bootstrap=0).row("nll").value
    for url in ("memory://bucket", "memory://bucket/", "memory://bucket/part-*.npz"):
        assert evaluate(url, bootstrap=0).row("nll").value == pytest.approx(expected, abs=1e-12)


def test_the_command_line(memory: Any, tmp_path: Path) -> None:
    put(memory, tmp_path, "memory://bucket/a.npz", LOGITS, LABELS)
    Temperature().fit(LOGITS, LABELS).save(tmp_path / "cal.safetensors")
    assert run("evaluate", "memory://bucket/a.npz", "--bootstrap", "0").code == 0
    said = run("apply", tmp_path / "cal.safetensors", "memory://bucket/a.npz", "-o", tmp_path / "out.npz")
    assert said.code == 0, said.err
    assert read_predictions(tmp_path / "out.npz").calibrated_by == "temperature"


def test_a_file_that_changes_is_copied_again(memory: Any, tmp_path: Path) -> None:
    put(memory, tmp_path, "memory://bucket/a.npz", LOGITS, LABELS)
    assert read_predictions("memory://bucket/a.npz").n == 300
    put(memory, tmp_path, "memory://bucket/a.npz", LOGITS[:200], LABELS[:200])
    assert read_predictions("memory://bucket/a.npz").n == 200


def test_sentences_name_the_url(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = LOGITS.clone()
    bad[17, 1] = np.nan
    put(memory, tmp_path, "memory://bucket/bad.npz", bad, LABELS)
    with pytest.raises(FileError, match=r"^memory://bucket/bad.npz: logits must be finite; row 17 "):
        evaluate("memory://bucket/bad.npz")
    memory.pipe_file("memory://bucket/broken.npz", b"not an archive")
    with pytest.raises(FileError, match=r"^memory://bucket/broken.npz cannot be read as .npz: it is damaged"):
        evaluate("memory://bucket/broken.npz")
    with pytest.raises(FileError, match=r"memory://bucket/none\.npz does not exist"):
        evaluate("memory://bucket/none.npz")
    with pytest.raises(FileError, match="matches no file"):
        evaluate("memory://bucket/*.parquet")
    with pytest.raises(FileError, match=r"nosuch://a\.npz cannot be read: Protocol not known"):
        evaluate("nosuch://a.npz")
    with monkeypatch.context() as context:

        def no_answer(*_: Any) -> None:
            raise ConnectionRefusedError("nobody answers")

        for question in ("isdir", "ukey"):
            context.setattr(type(memory), question, no_answer)
            said = run("evaluate", "memory://bucket/a.npz")
            assert said == (2, "", "temperance: memory://bucket/a.npz cannot be read: nobody answers\n")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match=r"reading memory://bucket/bad.npz needs fsspec: pip install 'temp"):
        evaluate("memory://bucket/bad.npz")
