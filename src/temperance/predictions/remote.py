"""Files on other machines, such as s3://bucket/part-0.parquet, through fsspec where it is installed.

A file is copied into a temporary folder when it is opened, so that every format and every pass can read it. The copy is
made again if the file has changed, and removed when the process ends.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from temperance.errors import FileError, optional
from temperance.files import COPIES, PathLike, reason

# Path turns s3://bucket into s3:/bucket. A single letter would be a Windows drive.
URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)", re.IGNORECASE)


def as_url(path: PathLike) -> str | None:
    """The path as a URL, if it is one."""
    found = URL.fullmatch(str(path))
    return None if found is None else f"{found[1]}://{'/' if found[1] in ('file', 'local') else ''}{found[2]}"


def remote_paths(url: str) -> list[Path] | None:
    """The files of a remote folder, or those that match a pattern, as URLs; None if this is one file."""
    system, inside = _opened(url)
    with _reaching(url):
        if system.isdir(inside):
            found = [name for name in system.find(inside) if not is_hidden(Path(name.removeprefix(inside).lstrip("/")))]
        elif any(sign in inside for sign in "*?["):
            found = system.glob(inside)
        else:
            return None
    return [Path(system.unstrip_protocol(name)) for name in sorted(found)]


def is_hidden(inside: Path) -> bool:
    """Does the name of a file in a folder, or of a folder on the way to it, begin with a dot or an underscore?

    Other programs leave such files for their own use.
    """
    return any(part[0] in "._" for part in inside.parts)


def local_copy(url: str) -> Path:
    """A copy of a remote file on this machine."""
    system, inside = _opened(url)
    with _reaching(url):
        copy = Path(_folder().name) / str(system.ukey(inside)) / Path(inside).name
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            system.get_file(inside, str(copy))
    COPIES[copy] = url
    return copy


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Ask another machine in this block: whatever goes wrong becomes one sentence that names the URL."""
    try:
        yield
    except FileNotFoundError:
        raise FileError(f"{url} does not exist; check the name and the folder") from None
    except Exception as error:  # each file system has its own errors
        raise FileError(f"{url} cannot be read: {reason(error)}") from error


def _opened(url: str) -> tuple[Any, str]:
    with optional("fsspec", "remote", f"reading {url}"):
        from fsspec.core import url_to_fs
    try:
        system, inside = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise FileError(f"{url} cannot be read: {error}") from None
    return system, inside


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="temperance-")
