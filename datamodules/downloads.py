"""Downloads that are whole or absent, checked, and continued where they were cut off."""

import errno
import hashlib
import http.client
import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from lightning_lift.files import lock, whole_file

_ARRIVING = 1 << 16  # small, because the piece being read when a connection breaks is lost
_ATTEMPTS = 4  # a long download over a bad line goes on by itself, each attempt from where the last one ended
LARGEST = 1_000_000_000  # bytes of a download of which nothing else is known
_PAUSE = 1.0  # seconds before the second attempt, doubled before each further one


def md5_of(path: Path) -> str:
    """Return the MD5 of a file's content, in hexadecimal.

    Args:
        path: The file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def part_of(path: Path) -> Path:
    """Return where the beginning of a file is kept while the file is not whole.

    Args:
        path: The file wanted.
    """
    return path.with_name(f".{path.name}.part")


def fetch(url: str, path: Path, md5: str, timeout: float = 60.0, largest: int = LARGEST) -> None:
    """Download a file unless it is there already, under a temporary name that becomes ``path`` once it is checked.

    What has arrived when a download is cut off stays under :func:`part_of`, and the next call asks for the rest only
    (HTTP ``Range``, RFC 9110 section 14) if the server says that its file is still the same; otherwise it begins anew.

    Args:
        url: Where from.
        path: Where to; its folder is made.
        md5: Expected MD5.
        timeout: Seconds without an answer after which to give up.
        largest: Bytes that the file may have; the download stops there.

    Raises:
        ValueError: If the file, there before or downloaded, has another checksum, or the server gives more than
            ``largest`` bytes. A file that was there stays; a downloaded one does not.
        FileNotFoundError: If the download fails or is cut off.
        OSError: If the disk is too small or full (``errno.ENOSPC``); found before the download begins where the server
            states the size.
        RuntimeError: If another process is downloading the same file.
    """
    if path.exists():
        if (found := md5_of(path)) != md5:
            raise ValueError(
                f"{str(path)!r} has MD5 {found}, expected {md5}: damaged or cut off; delete it and try again"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part, notes = part_of(path), _notes_of(path)
    with part.open("ab", buffering=0) as file:  # unbuffered: what is in the file is what has arrived, at any moment
        _lock(file, part)
        try:
            _transfer_all(url, file, path, timeout, largest)
            found = md5_of(part)
            if found != md5:
                _empty(file)
                raise ValueError(
                    f"{url} gave a file of MD5 {found}, expected {md5}: cut off, or another file; nothing kept, start "
                    "again"
                )
            part.replace(path)
            notes.unlink(missing_ok=True)
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()
                notes.unlink(missing_ok=True)


def _transfer_all(url: str, file: IO[bytes], path: Path, timeout: float, largest: int) -> None:
    """Fill the part, in several attempts if need be."""
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE * 2 ** (attempt - 1) if attempt else 0.0)
        try:
            _transfer(url, file, path, timeout, largest)
        except _CutOffError as error:
            if attempt == _ATTEMPTS - 1 or error.final:
                kept = f"; {error.kept:,} bytes are kept, start again to continue from there" if error.kept else ""
                raise FileNotFoundError(
                    f"{url} could not be downloaded ({error}){kept}; or fetch it by other means to {str(path)!r}"
                ) from error
        else:
            os.fsync(file.fileno())
            return


class _CutOffError(Exception):
    """The server did not give the whole file.

    Args:
        message: Why.
        kept: Bytes that have arrived.
        final: Whether asking again is of no use.
    """

    def __init__(self, message: str, kept: int, final: bool = False) -> None:
        super().__init__(message)
        self.kept, self.final = kept, final


def _transfer(url: str, file: IO[bytes], path: Path, timeout: float, largest: int) -> None:
    """Append what is missing to the part; raises _CutOffError if it is not whole afterwards."""
    notes_path = _notes_of(path)
    notes = _read_notes(notes_path, url)
    have = os.fstat(file.fileno()).st_size
    if have and not notes:
        have = _empty(file)  # nobody knows what it is the beginning of
    headers = {"Accept-Encoding": "identity", "User-Agent": "lightning-lift"}
    if have:
        headers["Range"] = f"bytes={have}-"
        # An unchanged file gives its rest, a changed one all of it. A weak ETag may not be used here (RFC 9110,
        # 13.1.5).
        if validator := _validator(notes):
            headers["If-Range"] = validator
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
            have, total = _place(answer, file, have, notes)
            fresh = {"url": url, "length": total, **_identity(answer.headers)}
            if have == 0:
                _write_notes(notes_path, fresh)
            _check_size(url, file, total or 0, largest)
            _check_space(path, None if total is None else total - have)
            with tqdm(
                desc=f"downloading {path.name}",
                total=total,
                initial=have,
                unit="B",
                unit_scale=True,
                leave=False,
                disable=None,  # where there is no terminal
            ) as bar:
                while chunk := answer.read(_ARRIVING):
                    _check_size(url, file, have + len(chunk), largest)
                    _append(file, chunk, path)
                    have += len(chunk)
                    bar.update(len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == 416 and have and have == notes.get("length"):
            return  # nothing is missing: the last run ended between the last byte and the check
        if error.code == 416 and have:
            _empty(file)
            raise _CutOffError("the part kept does not fit the server's file", 0) from error
        raise _CutOffError(str(error), have, final=400 <= error.code < 500 and error.code not in (408, 429)) from error
    except (urllib.error.URLError, TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException) as error:
        final = isinstance(getattr(error, "reason", None), FileNotFoundError | PermissionError)
        raise _CutOffError(str(error) or type(error).__name__, have, final=final) from error
    if total is not None and have != total:
        raise _CutOffError(f"{have:,} of {total:,} bytes arrived", have)


def _place(answer: Any, file: IO[bytes], have: int, notes: Mapping[str, Any]) -> tuple[int, int | None]:
    """Read from the answer's head where its bytes belong: offset and size of the whole file."""
    length = answer.headers.get("Content-Length")
    if getattr(answer, "status", None) == 206:
        # "bytes 100-999/1000"
        place, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        total = int(size) if size.isdigit() else None
        same = all(notes.get(key) in (None, value) for key, value in _identity(answer.headers).items())
        if place.partition("-")[0] == str(have) and total == notes.get("length") and same:
            return have, total
        _empty(file)
        raise _CutOffError("the server's file has changed since the part kept", 0)
    return _empty(file), int(length) if length is not None and length.isdigit() else None


def _empty(file: IO[bytes]) -> int:
    file.truncate(0)
    return 0


def _append(file: IO[bytes], chunk: bytes, path: Path) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[file.write(view) :]  # an unbuffered file may take less than asked
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    errno.ENOSPC,
                    f"the disk of {str(path.parent)!r} became full while {path.name!r} was downloaded; what arrived is "
                    "kept: free some space and start again to continue",
                ) from error
            raise


def _check_size(url: str, file: IO[bytes], size: int, largest: int) -> None:
    if size > largest:
        _empty(file)
        raise ValueError(f"{url} gives more than {largest:,} bytes, the most that this file has; nothing kept")


def _check_space(path: Path, needed: int | None) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed is not None and needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{path.name!r} needs {needed:,} more bytes on the disk of {str(path.parent)!r}, which has {free:,} free; "
            "free some space or give another folder",
        )


def _lock(file: IO[bytes], part: Path) -> None:
    try:
        lock(file)
        alone = part.exists() and os.path.samestat(os.fstat(file.fileno()), part.stat())  # or it was just completed
    except BlockingIOError:
        alone = False
    if not alone:
        raise RuntimeError(f"another process is downloading to {str(part)!r}: wait until it has finished")


def _notes_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part.json")


def _read_notes(notes: Path, url: str) -> dict[str, Any]:
    try:
        content = json.loads(notes.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("url") == url else {}


def _write_notes(notes: Path, content: dict[str, Any]) -> None:
    with whole_file(notes) as temporary:
        temporary.write_text(json.dumps(content))


def _identity(headers: Any) -> dict[str, str]:
    """What tells one version of the server's file from another."""
    return {key: headers[key] for key in ("ETag", "Last-Modified") if headers.get(key)}


def _validator(notes: Mapping[str, Any]) -> str | None:
    etag = notes.get("ETag")
    if isinstance(etag, str) and not etag.startswith("W/"):
        return etag
    modified = notes.get("Last-Modified")
    return modified if isinstance(modified, str) else None
