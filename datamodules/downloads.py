"""Downloads that are whole or absent, and checked."""

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

_CHUNK = 1 << 20


def md5_of(path: Path) -> str:
    """Gives the MD5 of a file's content, in hexadecimal.

    Args:
        path: The file.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(url: str, path: Path, md5: str, timeout: float = 60.0) -> None:
    """Downloads a file unless it is there already, under a temporary name that becomes ``path`` once it is checked.

    Args:
        url: Where from.
        path: Where to; its folder is made.
        md5: Expected MD5.
        timeout: Seconds without an answer after which to give up.

    Raises:
        ValueError: If the file, there before or downloaded, has another checksum. A file that was there stays.
        FileNotFoundError: If the download fails.
    """
    if path.exists():
        if (found := md5_of(path)) != md5:
            raise ValueError(
                f"{str(path)!r} has MD5 {found}, expected {md5}: damaged or cut off; delete it and try again"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with urllib.request.urlopen(url, timeout=timeout) as answer, temporary.open("wb") as file:
                shutil.copyfileobj(answer, file, _CHUNK)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise FileNotFoundError(
                f"{url} could not be downloaded ({error}); fetch it by other means to {str(path)!r}"
            ) from error
        if (found := md5_of(temporary)) != md5:
            raise ValueError(
                f"{url} gave a file of MD5 {found}, expected {md5}: cut off, or another file; nothing kept"
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
