"""The official archives of data sets: where they are, how to recognise them, and how to download them to a cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from zipfile import ZipFile

from temperance.errors import FileError
from temperance.files import reading, reason
from temperance.progress import Progress, no_progress

CHUNK = 1 << 20
TIMEOUT_S = 30
ATTEMPTS = 4  # a broken connection is resumed where it broke
TORONTO, STANFORD = "https://www.cs.toronto.edu/~kriz", "http://cs231n.stanford.edu"


@dataclass(frozen=True)
class Archive:
    """An official archive of a data set."""

    name: str  # of the file
    site: str
    md5: str
    megabytes: int
    folder: str  # that it unpacks to

    @property
    def url(self) -> str:
        return f"{self.site}/{self.name}"


ARCHIVES = {
    archive.name: archive
    for archive in (
        Archive("cifar-10-python.tar.gz", TORONTO, "c58f30108f718f92721af3b95e74349a", 163, "cifar-10-batches-py"),
        Archive("cifar-100-python.tar.gz", TORONTO, "eb9058c3a382ffc7106e4002c42a8d85", 161, "cifar-100-python"),
        Archive("cifar-10-binary.tar.gz", TORONTO, "c32a1d4ab5d03f1284b67883e8d87530", 162, "cifar-10-batches-bin"),
        Archive("cifar-100-binary.tar.gz", TORONTO, "03b5dce01913d631647c71ecec9e9cb8", 161, "cifar-100-binary"),
        Archive("tiny-imagenet-200.zip", STANFORD, "90528d7ca1a48142e341f4ef8d21d0de", 237, "tiny-imagenet-200"),
    )
}

# The archive of each set that has a name.
NAMED = {
    "cifar10": "cifar-10-python.tar.gz",
    "cifar100": "cifar-100-python.tar.gz",
    "tiny-imagenet": "tiny-imagenet-200.zip",
}


def default_cache() -> Path:
    """Where archives are kept: $XDG_CACHE_HOME/temperance, or ~/.cache/temperance."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "temperance"


def find_set(name: str, cache: Path, *, download: bool, progress: Progress = no_progress) -> Path:
    """The path of a named set in the cache folder; if it is not there, it is downloaded."""
    archive = ARCHIVES[NAMED[name]]
    packed, unpacked = cache / archive.name, cache / archive.folder
    if unpacked.exists():
        return unpacked
    if not packed.exists():
        if not download:
            raise FileError(
                f"{name} is not in {cache}; pass download=True to fetch {archive.name} ({archive.megabytes} MB) from "
                f"{archive.url}, or name the folder that holds it",
                flags={"pass download=True": "add --download"},
            )
        fetch(archive, cache, progress)
    return _unpacked(packed, unpacked, progress) if packed.suffix == ".zip" else packed


def check_md5(path: Path, progress: Progress = no_progress) -> Archive:
    """The official archive that a file is, recognised by its MD5 sum."""
    with reading(path):
        found = _md5(path, progress)
    for archive in ARCHIVES.values():
        if archive.md5 == found:
            return archive
    official = ARCHIVES.get(path.name)
    if official is None:
        raise FileError(
            f"{path} is none of the official archives {', '.join(ARCHIVES)} (its MD5 sum is {found}); unpack it and "
            "name the folder"
        )
    raise FileError(
        f"{path} is not the official archive: its MD5 sum is {found}, not {official.md5}; it is damaged or cut short, "
        f"so fetch it again from {official.url}"
    )


def fetch(archive: Archive, folder: Path, progress: Progress = no_progress) -> Path:
    """Download an archive into a folder, verify it, and only then give it its name.

    If the connection breaks, the part that has arrived stays in a .part file, and the next call continues from there.
    """
    target, part = folder / archive.name, folder / f"{archive.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                _fetch_rest(archive.url, part, lambda done, size: progress(done, size, f"fetching {archive.name}"))
                break
            except (ConnectionError, TimeoutError, HTTPException):
                if not attempts_left:
                    raise
    except (OSError, HTTPException) as error:
        why = reason(getattr(error, "reason", None) or error)  # urllib wraps what went wrong
        raise FileError(
            f"{archive.name} cannot be fetched from {archive.url} ({why}); check the network and try again, "
            f"which continues where this stopped, or put the file at {target} yourself"
        ) from error
    found = _md5(part, progress)
    if found != archive.md5:
        part.unlink()
        raise FileError(
            f"what {archive.url} sent is not the official archive: its MD5 sum is {found}, not {archive.md5}; it was "
            "deleted, so try again later"
        )
    part.replace(target)
    return target


def _fetch_rest(url: str, part: Path, progress: Callable[[int, int], None]) -> None:
    """Fetch the missing rest of a file; a server that cannot send only a part sends all of it again."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if have and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # it was all there
        raise
    with response:
        continues = response.status == HTTPStatus.PARTIAL_CONTENT
        done = have if continues else 0
        size = done + int(response.headers.get("Content-Length") or 0)
        with part.open("ab" if continues else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(done, max(size, done))
    if done < size:
        raise ConnectionError(f"the connection broke after {done} of {size} bytes")


def _unpacked(packed: Path, target: Path, progress: Progress) -> Path:
    """Unpack a .zip into its own folder, whole or not at all, and remove it."""
    check_md5(packed, progress)
    try:
        with tempfile.TemporaryDirectory(dir=packed.parent) as temporary, reading(packed), ZipFile(packed) as archive:
            members = archive.infolist()
            for i, member in enumerate(members):
                archive.extract(member, temporary)
                if i % 500 == 499 or i + 1 == len(members):
                    progress(i + 1, len(members), f"unpacking {packed.name}")
            (Path(temporary) / target.name).rename(target)
        packed.unlink()
    except OSError as error:
        raise FileError(f"{packed} cannot be unpacked: {reason(error)}") from error
    return target


def _md5(path: Path, progress: Progress = no_progress) -> str:
    size, done = path.stat().st_size, 0
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(done, size, f"verifying {path.name}")
    return digest.hexdigest()
