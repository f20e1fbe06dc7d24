"""Reading compressed files: with a progress bar, and no further than a stated number of bytes."""

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import wrap_file

_BUFFER = 1 << 20
_FREE, _RATIO = 1 << 26, 250  # a table of numbers is hardly ever packed more tightly


def most_of(packed: int) -> int:
    """Return how many bytes a user's compressed table of numbers may unpack to.

    Args:
        packed: Bytes of the file.
    """
    return _FREE + _RATIO * packed


class Bounded(io.RawIOBase):
    """A file opened for reading that ends in an error where it is longer than stated.

    It has no ``fileno``: NumPy would read an array behind the back of what unpacks it.

    Args:
        file: The file; closing this one leaves it open.
        largest: Bytes that may come.
        label: What the file is called in error messages.
    """

    def __init__(self, file: IO[bytes], largest: int, label: str) -> None:
        super().__init__()
        self._file, self._left, self._largest, self._label = file, largest, largest, label

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer and return the number of bytes put there.

        Args:
            buffer: Where to.

        Raises:
            ValueError: If more bytes came than may.
        """
        data = self._file.read(min(len(buffer), self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(
                f"{self._label} unpacks to more than {self._largest:,} bytes, the most that it should have: damaged, "
                "or another file"
            )
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_packed(file: IO[bytes], largest: int, label: str) -> Iterator[IO[bytes]]:
    """Open what is in a file, looking through gzip, which the content tells, not the name.

    Args:
        file: The file, open for reading; it stays open.
        largest: Bytes that may be in it, unpacked.
        label: What it is called in error messages.

    Yields:
        The content; reading it raises ValueError where it has more than ``largest`` bytes.
    """
    buffered = io.BufferedReader(cast(io.RawIOBase, file), _BUFFER)
    packed = buffered.peek(2)[:2] == b"\x1f\x8b"
    content = gzip.GzipFile(fileobj=buffered) if packed else buffered
    try:
        yield io.BufferedReader(Bounded(cast(IO[bytes], content), largest, label), _BUFFER)
    finally:
        buffered.detach()


@contextmanager
def open_file(path: Path, largest: int) -> Iterator[IO[bytes]]:
    """Open what is in a file on disk, with a progress bar on a terminal.

    Args:
        path: The file, plain or compressed by gzip.
        largest: Bytes that may be in it, unpacked.

    Yields:
        The content; see :func:`open_packed`.
    """
    console = Console(stderr=True)
    with (
        path.open("rb", buffering=0) as raw,
        wrap_file(
            cast(Any, raw),
            path.stat().st_size,
            description=f"reading {path.name}",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as file,
        open_packed(file, largest, repr(str(path))) as content,
    ):
        yield content


@contextmanager
def open_tar(path: Path, largest: int) -> Iterator[tarfile.TarFile]:
    """Open a tar archive to be read once from its beginning to its end.

    Args:
        path: The archive, plain or compressed by gzip.
        largest: Bytes that may be in it, unpacked.

    Yields:
        The archive; reading it raises ValueError where it has more than ``largest`` bytes.
    """
    with open_file(path, largest) as content, tarfile.open(fileobj=content, mode="r|") as tar:
        yield tar
