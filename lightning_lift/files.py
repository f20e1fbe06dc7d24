"""Files that are whole or absent, and locks on them. A leaf of the package: every other part may import it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder, renamed at the end: readers see the old file or the new one.

    Args:
        path: of the final file; its folder is made. After an error it is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file against other processes, until it is closed or this process ends.

    Args:
        file: open for writing.
        shared: allow others that ask for a shared lock too.

    Returns:
        Whether it is locked: False where the platform or the file system knows no locks.

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        import fcntl  # not there on Windows

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        return False
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
