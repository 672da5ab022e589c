"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temperance.errors import FileError


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before any work is done for it."""
    folder = path.parent
    if path.is_dir():
        raise FileError(f"{path}: this is a folder; name a file to write")
    if not folder.is_dir():
        raise FileError(f"{path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise FileError(f"{path}: no permission to write in {folder}")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its place, complete and on disk, when the block ends well.

    On an error, or if the process is killed, whatever was at `path` before is still there, whole.
    """
    check_writable(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp files are private; the result should be as readable as any file this user makes.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path}: could not be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)
