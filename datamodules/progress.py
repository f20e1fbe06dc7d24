"""A progress bar over bytes, for long reading and downloads."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from tqdm import tqdm


@contextmanager
def byte_progress(description: str, total: int | None, start: int = 0) -> Iterator[Callable[[int], None]]:
    """Shows a bar while its block runs, on a terminal; elsewhere (a log file) nothing.

    Args:
        description: What is being read.
        total: Bytes in all, None if unknown.
        start: Bytes done before.

    Yields:
        A function that is told of further bytes done.
    """
    with tqdm(
        desc=description,
        total=total,
        initial=start,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=not sys.stderr.isatty(),
        file=sys.stderr,
    ) as bar:
        yield bar.update


class CountedFile(io.RawIOBase):
    """A file opened for reading that tells how many bytes were read from it; closing it closes the file.

    Args:
        file: The file.
        advance: Called with the number of bytes of each read.
    """

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._advance = advance

    def readable(self) -> bool:
        """Gives True."""
        return True

    def seekable(self) -> bool:
        """Gives whether the file can be moved in."""
        return self._file.seekable()

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer and gives the number of bytes put there."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._advance(len(data))
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves within the file, uncounted."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Gives the place in the file."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file too."""
        self._file.close()
        super().close()
