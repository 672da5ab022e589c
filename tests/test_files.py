"""Files are written whole or not at all, and bad ones are answered with one sentence."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from temperance.errors import FileError, InputError
from temperance.files import atomic_write, check_writable, make_folder, read_tensors, reading, write_tensors


def hidden_files(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


# ------------------------------------------------------------------------------------------------------------- writing


def test_the_file_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    with atomic_write(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert hidden_files(tmp_path) == []


def test_a_plain_string_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with atomic_write("out.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "out.txt").read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError("stopped"), KeyboardInterrupt(), InputError("bad value")])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(type(error)), atomic_write(target) as temporary:
        temporary.write_text("half of it")
        raise error
    assert target.read_text() == "old"
    assert hidden_files(tmp_path) == []


def test_permissions_are_those_of_an_ordinary_new_file(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    with atomic_write(tmp_path / "ours") as temporary:
        temporary.write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_permissions_of_a_replaced_file_stay(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    target.chmod(0o640)
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "real" / "out.txt")
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "out.txt").read_text() == "new"


def refused_write(path: Path) -> str:
    with pytest.raises(FileError) as caught, atomic_write(path) as temporary:
        temporary.write_text("new")
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_what_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.txt")
    assert list(tmp_path.iterdir()) == []
    for path in (tmp_path, tmp_path / "nowhere" / "out.txt", Path(os.devnull)):
        with pytest.raises(FileError) as early:
            check_writable(path)
        assert str(early.value) == refused_write(path)


def test_a_missing_folder(tmp_path: Path) -> None:
    assert "create it first" in refused_write(tmp_path / "nowhere" / "out.txt")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "there is no folder" in refused_write(tmp_path / "file" / "out.txt")


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    assert "it is a folder" in refused_write(tmp_path)


def test_a_device_is_never_replaced() -> None:
    assert "device" in refused_write(Path(os.devnull))
    assert not Path(os.devnull).is_file()


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    refused_write(tmp_path / ("a" * 300))
    assert hidden_files(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert "ermission" in refused_write(tmp_path / "out.txt")
    finally:
        tmp_path.chmod(0o700)


def test_a_write_protected_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    target.chmod(0o400)
    # For root nothing is write-protected, so the system's answer is given here.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "write-protected" in refused_write(target)
    assert target.read_text() == "old"


def test_a_full_disk(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(FileError, match="cannot be written: No space left"), atomic_write(target) as temporary:
        temporary.write_text("half of it")
        raise OSError(28, "No space left on device")
    assert target.read_text() == "old"
    assert hidden_files(tmp_path) == []


@pytest.mark.parametrize("old", [None, "old"])
def test_a_killed_process_leaves_the_final_name_alone(tmp_path: Path, old: str | None) -> None:
    target = tmp_path / "out.txt"
    if old is not None:
        target.write_text(old)
    program = (
        "import sys, time\n"
        "from temperance.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as temporary, temporary.open('w') as handle:\n"
        "    handle.write('half of it')\n"
        "    handle.flush()\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert (target.read_text() if target.exists() else None) == old


# ------------------------------------------------------------------------------------------------------------- reading


def refused_read(path: Path, error: Exception | None = None) -> str:
    with pytest.raises(FileError) as caught, reading(path):
        if error is not None:
            raise error
    message = str(caught.value)
    assert str(path) in message
    assert message.isprintable()
    return message


def test_what_is_not_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "pipe")
    assert "does not exist" in refused_read(tmp_path / "missing")
    assert "is a folder" in refused_read(tmp_path)
    assert "is empty (0 bytes)" in refused_read(tmp_path / "empty")
    assert "pipe" in refused_read(tmp_path / "pipe")


def test_errors_while_reading_become_sentences(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    path.write_text("something")
    assert refused_read(path, InputError("labels are missing")) == f"{path}: labels are missing"
    assert "damaged, cut short or another kind of file (ZeroDivisionError)" in refused_read(path, ZeroDivisionError())
    assert "cannot be read: Permission denied" in refused_read(path, PermissionError(13, "Permission denied"))
    assert "does not fit in memory" in refused_read(path, MemoryError())
    assert refused_read(path, FileError(f"{path} is odd")) == f"{path} is odd"


def test_text_out_of_a_file_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    path.write_text("something")
    assert "\\x1b[2J\\n" in refused_read(path, InputError("found the key \x1b[2J\n"))
    assert "\\x1b[2J" in refused_read(path, ValueError("found the key \x1b[2J\n\ud800"))


def test_the_cause_stays_attached(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    path.write_text("something")
    cause = ZeroDivisionError("deep inside")
    with pytest.raises(FileError) as caught, reading(path):
        raise cause
    assert caught.value.__cause__ is cause


def test_tensors_may_be_read_by_those_who_may_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_tensors(tmp_path / "one.safetensors", {"x": torch.ones(2)}, {"said": "so"})
    assert (tmp_path / "one.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    tensors, header = read_tensors(tmp_path / "one.safetensors")
    assert torch.equal(tensors["x"], torch.ones(2)) and header == {"said": "so"}


def test_a_folder_is_made_once_and_a_file_is_none(tmp_path: Path) -> None:
    make_folder(tmp_path / "new")
    make_folder(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="is a file; name a folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(FileError, match="create it first"):
        make_folder(tmp_path / "nowhere" / "new")
