"""Files are written whole or not at all, and a file that cannot be read is refused with a sentence."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.errors import FileError, InputError, TemperanceError

if TYPE_CHECKING:
    from torch import Tensor

PathLike = str | os.PathLike[str]

# Local copies of remote files, with the URLs that errors name instead.
COPIES: dict[Path, str] = {}

# The system's errors for a full disk, a file that is too large and a used-up quota.
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """A temporary path to write to, which takes the place of `path` in one step when the block ends without an error.

    Until then, and after any error or a killed process, what was at `path` before is still there, untouched. The
    temporary file lies in the same folder, since only there can it be moved in one step, and keeps the suffix, by
    which some writers choose their format.

        with atomic_write("numbers.txt") as temporary:
            temporary.write_text("1 2 3")
    """
    with _replacing(path) as (target, temporary):
        kept_mode = _mode_of_replaceable(path, target)
        temporary.touch(exist_ok=False)
        new_mode = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary
        # Some writers replace the file with one that only its owner may read.
        temporary.chmod(new_mode if kept_mode is None else kept_mode)


def write_text(path: PathLike, text: str) -> None:
    """Write a text file, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(path: PathLike) -> Iterator[Path]:
    """A temporary folder, which becomes the new folder `path` when the block ends without an error."""
    with _replacing(path) as (_, temporary):
        check_new_folder(path)
        temporary.mkdir()
        yield temporary


@contextmanager
def _replacing(path: PathLike) -> Iterator[tuple[Path, Path]]:
    """The target, and a name beside it; the file or folder that the block makes there takes the target's place."""
    # A symbolic link stays; the file behind it is replaced.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{secrets.token_hex(8)}{''.join(target.suffixes[-2:])}")
    try:
        yield target, temporary
        for file in (temporary, *temporary.rglob("*")):
            if file.is_file():
                with file.open("r+b") as handle:
                    os.fsync(handle.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {reason(error)}") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink()


def check_new_folder(path: PathLike) -> None:
    """Refuse a folder that has files already, or that cannot be made."""
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileError(f"{path} exists already; name a new folder")
    _check_parent(path, target)


def check_writable(path: PathLike) -> None:
    """Refuse a path that cannot be written, before any work is done for it."""
    _mode_of_replaceable(path, Path(os.path.realpath(path)))


def refuse_overwriting(path: PathLike, inputs: Iterable[PathLike]) -> None:
    """Refuse an output that is one of the inputs, under whatever name: another path, a link, the folder it is in."""
    for given in inputs:
        for read in (Path(given), Path(given) / "predictions.npz"):
            if read.is_file() and Path(path).exists() and read.samefile(path):
                raise FileError(f"{path} is an input and would be overwritten; choose another name for the output")


def check_folder(path: PathLike) -> None:
    """Refuse a folder for results that cannot be made, before any work is done for it."""
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.exists():
        raise FileError(f"{path} is a file; name a folder")
    check_writable(folder)


def make_folder(path: PathLike) -> None:
    """Make a folder for results, unless it is there already."""
    check_folder(path)
    Path(path).mkdir(exist_ok=True)


def _check_parent(path: PathLike, target: Path) -> None:
    if not target.parent.is_dir():
        raise FileError(f"{path} cannot be written: there is no folder {target.parent}; create it first")
    if not os.access(target.parent, os.W_OK):
        raise FileError(f"{path} cannot be written: no permission in the folder {target.parent}")


def _mode_of_replaceable(path: PathLike, target: Path) -> int | None:
    """The permissions of the file at the target, if there is one; refuses a target that cannot be replaced."""
    if target.is_dir():
        raise FileError(f"{path} cannot be written: it is a folder; name a file inside it")
    if target.exists() and not target.is_file():
        raise FileError(f"{path} cannot be written: it is a device or a pipe; name an ordinary file")
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(f"{path} cannot be written: it is write-protected; allow writing or choose another name")
    _check_parent(path, target)
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure, on systems that can open a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def reading(path: PathLike) -> Iterator[None]:
    """Read and parse a file inside this block: whatever goes wrong in it becomes one sentence that names the file.

    An InputError about what the file holds gets its name in front. Parsers raise almost anything on broken bytes;
    every other error here is therefore taken to mean that the file is damaged, and stays attached as the cause.
    """
    found = Path(path)
    path = COPIES.get(found, path)
    try:
        if found.is_dir():
            raise FileError(f"{path} is a folder; name a file inside it")
        if not found.exists():
            raise FileError(f"{path} does not exist; check the name and the folder")
        if not found.is_file():
            raise FileError(f"{path} is a device or a pipe; name an ordinary file")
        if found.stat().st_size == 0:
            raise FileError(f"{path} is empty (0 bytes); write it again")
        yield
    except InputError as error:
        raise FileError(f"{path}: {_printable(str(error))}", flags=error.flags) from error
    except TemperanceError:
        raise
    except MemoryError as error:
        raise FileError(f"{path} does not fit in memory; read it in chunks, or take fewer rows") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            # Reading never runs out of space: this block copies the file, and the copy cannot be written.
            raise
        # A broken archive can make its reader seek to an impossible offset, which the system calls an invalid argument.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise FileError(f"{path} cannot be read: {reason(error)}") from error
        raise FileError(
            f"{path} cannot be read as {found.suffix or 'a file of this kind'}: it is damaged, cut short or another "
            f"kind of file ({reason(error)}); write it again"
        ) from error


def write_tensors(path: PathLike, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors and a header of text to one .safetensors file, whole or not at all."""
    # A copy of each, because the format refuses tensors that share memory, as tied weights do.
    held = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_tensors(temporary, held, header)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors, which must not share memory, and a header of text to one .safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata=dict(header))
    except SafetensorError as error:
        # The library wraps the system's errors, a full disk among them, in its own kind.
        raise OSError(str(error)) from error


def read_tensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a .safetensors file. Nothing is ever unpickled."""
    from safetensors import safe_open

    with reading(path), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def reason(error: object) -> str:
    """What the system or a parser says, as part of a sentence: on one line, not too long."""
    said = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    line = _printable(" ".join(str(said).split())).rstrip(".")
    return line if len(line) <= 160 else f"{line[:160]} …"


def _printable(text: str) -> str:
    """Text from a file, with line breaks and terminal control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
