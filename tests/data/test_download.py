"""Fetching official archives, from a server of our own."""

import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from data.small_sets import Cifar, write_tiny_imagenet
from temperance.data import download, read_images
from temperance.data.download import ARCHIVES, default_cache, fetch
from temperance.errors import FileError

NAME = "cifar-10-python.tar.gz"


@dataclass
class Server:
    """Serves one file; told so, it breaks off after some bytes, a number of times."""

    data: bytes
    site: str = ""
    ranges: bool = True
    breaks: int = 0
    break_after: int = 0
    requests: list[str | None] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.requests.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if start and start >= len(self.data):
            handler.send_error(416)
            return
        body = self.data[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if self.breaks:
            self.breaks -= 1
            body = body[: self.break_after]
        handler.wfile.write(body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    data = Cifar(10).write_archive(tmp_path / NAME, "python").read_bytes()
    found = Server(data)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.answer(self)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        found.site = f"http://127.0.0.1:{served.server_port}"
        md5 = download._md5(tmp_path / NAME)
        monkeypatch.setitem(ARCHIVES, NAME, replace(ARCHIVES[NAME], site=found.site, md5=md5))
        yield found
        served.shutdown()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_set_is_fetched_once(server: Server, cache: Path) -> None:
    told: list[tuple[int, int, str]] = []
    data = read_images("cifar10", download=True, cache=cache, progress=lambda *said: told.append(said))
    assert len(data.test) == 20
    assert told[0] == (len(server.data), len(server.data), f"fetching {NAME}")
    assert [path.name for path in cache.iterdir()] == [NAME]
    read_images("cifar10", cache=cache)
    assert server.requests == [None]


def test_nothing_is_fetched_without_permission(server: Server, cache: Path) -> None:
    with pytest.raises(
        FileError, match=rf"cifar10 is not in .*; pass download=True to fetch {NAME} \(163 MB\) from http"
    ) as refused:
        read_images("cifar10", cache=cache)
    assert refused.value.flags == {"pass download=True": "add --download"}
    assert server.requests == []
    assert not cache.exists()


def test_a_broken_connection_is_resumed(server: Server, cache: Path) -> None:
    server.breaks, server.break_after = 2, 1000
    fetch(ARCHIVES[NAME], cache)
    assert server.requests == [None, "bytes=1000-", "bytes=2000-"]
    assert (cache / NAME).read_bytes() == server.data


def test_a_part_file_outlives_the_program(server: Server, cache: Path) -> None:
    server.breaks, server.break_after = download.ATTEMPTS, 500
    with pytest.raises(FileError, match=r"cannot be fetched from .* \(the connection broke after 2000 of \d+ bytes\)"):
        fetch(ARCHIVES[NAME], cache)
    assert not (cache / NAME).exists()
    assert (cache / f"{NAME}.part").stat().st_size == 2000
    fetch(ARCHIVES[NAME], cache)
    assert server.requests[-1] == "bytes=2000-"
    assert (cache / NAME).read_bytes() == server.data


def test_a_server_without_ranges_sends_the_whole_file(server: Server, cache: Path) -> None:
    server.ranges, server.breaks, server.break_after = False, 1, 1000
    fetch(ARCHIVES[NAME], cache)
    assert (cache / NAME).read_bytes() == server.data


def test_a_complete_part_file_is_only_verified(server: Server, cache: Path) -> None:
    cache.mkdir()
    (cache / f"{NAME}.part").write_bytes(server.data)
    fetch(ARCHIVES[NAME], cache)
    assert server.requests == [f"bytes={len(server.data)}-"]
    assert [path.name for path in cache.iterdir()] == [NAME]


def test_a_wrong_file_is_deleted(server: Server, cache: Path) -> None:
    server.data = b"an error page"
    with pytest.raises(FileError, match=r"is not the official archive: its MD5 sum is .*; it was deleted, so try"):
        fetch(ARCHIVES[NAME], cache)
    assert list(cache.iterdir()) == []


def test_no_network_is_a_sentence(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for site, reason in (
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://no-such-host.invalid", "."),
        (server.site.replace("http", "gopher"), "unknown url type"),
    ):
        monkeypatch.setitem(ARCHIVES, NAME, replace(ARCHIVES[NAME], site=site))
        with pytest.raises(FileError, match=f"{NAME} cannot be fetched from .*{reason}.*or put the file at") as error:
            read_images("cifar10", download=True, cache=cache)
        assert "\n" not in str(error.value)


def test_a_server_error_is_a_sentence(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "answer", lambda self, handler: handler.send_error(404))
    with pytest.raises(FileError, match=r"cannot be fetched from .* \(Not Found\)"):
        fetch(ARCHIVES[NAME], cache)


def test_a_cache_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=r"cannot be fetched .*(File exists|Not a directory)"):
        read_images("cifar10", download=True, cache=tmp_path / "file" / "cache")


def test_zip_archives_are_unpacked_in_the_cache(
    server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_imagenet(tmp_path)
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(tmp_path))
    server.data = packed.getvalue()
    (tmp_path / "x.zip").write_bytes(server.data)
    name = "tiny-imagenet-200.zip"
    md5 = download._md5(tmp_path / "x.zip")
    monkeypatch.setitem(ARCHIVES, name, replace(ARCHIVES[name], site=server.site, md5=md5))
    assert len(read_images("tiny-imagenet", download=True, cache=cache).test) == 6
    assert [path.name for path in cache.iterdir()] == ["tiny-imagenet-200"]
    assert len(read_images("tiny-imagenet", cache=cache).test) == 6
    assert len(server.requests) == 1


def test_a_zip_in_the_cache_is_verified(cache: Path) -> None:
    cache.mkdir()
    (cache / "tiny-imagenet-200.zip").write_bytes(b"cut short")
    with pytest.raises(FileError, match=r"tiny-imagenet-200.zip is not the official archive"):
        read_images("tiny-imagenet", cache=cache)


def test_where_archives_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "temperance"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "temperance"
