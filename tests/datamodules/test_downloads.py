"""Downloads: whole or absent, checked, never twice, continued where they were cut off."""

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lightning_lift.datamodules import downloads
from lightning_lift.datamodules.downloads import fetch, part_of

CONTENT = bytes(range(256)) * 1200  # 307,200 bytes: several pieces of 64 KiB
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content`` with the faults that it is told to have, and writes down what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"one"'
        self.ranges = True
        self.cut_after: int | None = None  # bytes of an answer after which the connection is closed
        self.status: int | None = None
        self.length = True  # whether an answer states its size
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status is not None:
            self.send_error(server.status)
            return
        start = 0
        same = self.headers.get("If-Range") in (None, server.etag)
        if wanted and server.ranges and same:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        else:
            self.send_response(200)
        body = server.content[start:]
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        self.wfile.write(body[: server.cut_after])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(downloads, "_PAUSE", 0.0)
    with Server() as result:
        thread = threading.Thread(target=result.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield result
        result.shutdown()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_whole_or_absent(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"content" * 1000)
    md5 = hashlib.md5(source.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="nothing kept"):
        fetch(source.as_uri(), target, "0" * 32)
    assert list(target.parent.iterdir()) == []
    fetch(source.as_uri(), target, md5)
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    fetch("file:///nowhere", target, md5)  # there already: not fetched again
    target.write_bytes(b"cut")
    with pytest.raises(ValueError, match="delete it"):
        fetch(source.as_uri(), target, md5)
    with pytest.raises(FileNotFoundError, match="could not be downloaded"):
        fetch("file:///nowhere", tmp_path / "other", md5)
    assert names(tmp_path) == {"source", "folder"}


def test_one_request_and_nothing_left_beside_the_file(server: Server, tmp_path: Path) -> None:
    fetch(server.url, tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert names(tmp_path) == {"file"}
    assert server.asked == [None]


def test_a_cut_connection_is_continued_within_one_call(server: Server, tmp_path: Path) -> None:
    server.cut_after = 131_072  # of 307,200: three answers
    fetch(server.url, tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=131072-", "bytes=262144-"]
    assert names(tmp_path) == {"file"}


def test_an_interrupted_download_is_continued_by_the_next_call(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_ATTEMPTS", 1)
    server.cut_after = 100_000
    with pytest.raises(FileNotFoundError, match=r"of 307,200 bytes arrived\); [\d,]+ bytes are kept, start again"):
        fetch(server.url, tmp_path / "file", MD5)
    assert not (tmp_path / "file").exists()
    kept = part_of(tmp_path / "file").read_bytes()
    assert 0 < len(kept) <= 100_000 and CONTENT.startswith(kept)
    server.cut_after = None
    fetch(server.url, tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={len(kept)}-"]
    assert names(tmp_path) == {"file"}


def test_the_user_interrupts(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, calls = downloads._append, []

    def interrupted(*arguments: object) -> None:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(*arguments)

    monkeypatch.setattr(downloads, "_append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(server.url, tmp_path / "file", MD5)
    assert not (tmp_path / "file").exists() and part_of(tmp_path / "file").stat().st_size == 131_072
    fetch(server.url, tmp_path / "file", MD5)
    assert server.asked == [None, "bytes=131072-"] and (tmp_path / "file").read_bytes() == CONTENT


def leave_a_part(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as context:
        context.setattr(downloads, "_ATTEMPTS", 1)
        server.cut_after = 131_072
        with pytest.raises(FileNotFoundError):
            fetch(server.url, target, MD5)
        server.cut_after = None
    return part_of(target).stat().st_size


def test_a_server_that_ignores_ranges_sends_all(server: Server, tmp_path: Path, monkeypatch) -> None:
    leave_a_part(server, tmp_path / "file", monkeypatch)
    server.ranges = False
    fetch(server.url, tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("etag", ['"two"', None])
def test_a_changed_file_is_begun_anew(server: Server, tmp_path: Path, monkeypatch, etag: str | None) -> None:
    server.etag = '"one"' if etag else None  # without a validator the size alone tells
    leave_a_part(server, tmp_path / "file", monkeypatch)
    server.etag, server.content = etag, CONTENT[::-1] + b"more"
    fetch(server.url, tmp_path / "file", hashlib.md5(server.content).hexdigest())
    assert (tmp_path / "file").read_bytes() == server.content


def test_a_wrong_beginning_is_found_by_the_checksum_and_not_kept(server: Server, tmp_path: Path, monkeypatch) -> None:
    size = leave_a_part(server, tmp_path / "file", monkeypatch)
    part_of(tmp_path / "file").write_bytes(bytes(size))
    with pytest.raises(ValueError, match="nothing kept"):
        fetch(server.url, tmp_path / "file", MD5)
    assert names(tmp_path) == set()
    fetch(server.url, tmp_path / "file", MD5)
    assert names(tmp_path) == {"file"}


def test_a_part_of_unknown_origin_is_not_used(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path / "file").write_bytes(b"leftover")
    fetch(server.url, tmp_path / "file", MD5)
    assert server.asked == [None] and (tmp_path / "file").read_bytes() == CONTENT


def test_a_whole_part_only_needs_its_check(server: Server, tmp_path: Path, monkeypatch) -> None:
    leave_a_part(server, tmp_path / "file", monkeypatch)
    part_of(tmp_path / "file").write_bytes(CONTENT)
    fetch(server.url, tmp_path / "file", MD5)
    assert names(tmp_path) == {"file"}


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 4)])
def test_refusals(server: Server, tmp_path: Path, status: int, requests: int) -> None:
    server.status = status
    with pytest.raises(FileNotFoundError, match=f"{status}.*fetch it by other means"):
        fetch(server.url, tmp_path / "file", MD5)
    assert len(server.asked) == requests
    assert names(tmp_path) == set()


def test_wrong_content(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>log in first</html>"
    with pytest.raises(ValueError, match=f"expected {MD5}: cut off, or another file; nothing kept"):
        fetch(server.url, tmp_path / "file", MD5)
    assert names(tmp_path) == set()


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_PAUSE", 0.0)
    with pytest.raises(FileNotFoundError, match="refused"):
        fetch("http://127.0.0.1:1/file", tmp_path / "file", MD5)
    assert names(tmp_path) == set()


def test_too_small_a_disk_is_found_before_the_download(server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(OSError, match=r"needs 307,200 more bytes .* has 1,000 free") as caught:
        fetch(server.url, tmp_path / "file", MD5)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == set()


def test_a_disk_that_fills_up(server: Server, tmp_path: Path, monkeypatch) -> None:
    class Full:
        """A file on a disk that takes 200,000 bytes."""

        def __init__(self, file) -> None:
            self.file = file

        def write(self, data) -> int:
            room = 200_000 - os.fstat(self.file.fileno()).st_size
            if room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data[:room])

    append = downloads._append
    with monkeypatch.context() as context:
        context.setattr(downloads, "_append", lambda file, chunk, path: append(Full(file), chunk, path))
        with pytest.raises(OSError, match=r"became full .* start again to continue") as caught:
            fetch(server.url, tmp_path / "file", MD5)
    assert caught.value.errno == errno.ENOSPC
    assert part_of(tmp_path / "file").read_bytes() == CONTENT[:200_000]
    assert not (tmp_path / "file").exists()
    fetch(server.url, tmp_path / "file", MD5)  # space was made
    assert server.asked == [None, "bytes=200000-"] and (tmp_path / "file").read_bytes() == CONTENT


def test_two_downloads_of_one_file(server: Server, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with part_of(tmp_path / "file").open("ab") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="another process is downloading"):
            fetch(server.url, tmp_path / "file", MD5)
    fetch(server.url, tmp_path / "file", MD5)
    assert names(tmp_path) == {"file"}


@pytest.mark.parametrize("length", [True, False])
def test_a_download_stops_at_the_largest_size_of_the_file(server: Server, tmp_path: Path, length: bool) -> None:
    """With a size in the answer before anything arrives, without one as soon as it is exceeded."""
    server.length = length
    with pytest.raises(ValueError, match=r"gives more than 200,000 bytes, the most that this file has; nothing kept"):
        fetch(server.url, tmp_path / "file", MD5, largest=200_000)
    assert names(tmp_path) == set() and server.asked == [None]
    fetch(server.url, tmp_path / "file", MD5, largest=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_an_endless_answer_is_left(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(10_000):  # 655 MB, if nobody stops it
                handler.wfile.write(bytes(65_536))
                sent.append(65_536)
        except OSError:
            pass

    monkeypatch.setattr(Handler, "do_GET", endless)
    with pytest.raises(ValueError, match="more than 1,000,000 bytes"):
        fetch(server.url, tmp_path / "file", MD5, largest=1_000_000)
    assert names(tmp_path) == set() and sum(sent) < 100_000_000
