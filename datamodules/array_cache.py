"""Arrays that took long to read, kept as ``.npy`` files under a fingerprint of where they came from."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_lift.files import whole_file

Arrays = dict[str, npt.NDArray[Any]]


def fingerprint(paths: Iterable[Path], *settings: object) -> str:
    """Return a short text that changes with the files and with how they are read.

    Files are told by place, size and time of last change: reading hundreds of megabytes to hash them would take longer
    than the cache saves.

    Args:
        paths: The files.
        *settings: What else decides the arrays, the version of the reader among it; its ``repr`` counts.
    """
    digest = hashlib.sha256(repr(settings).encode())
    for path in sorted(path.resolve() for path in paths):
        status = path.stat()
        digest.update(f"{path}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def cached(
    folder: str | None, name: str, mark: str, keys: Sequence[str], make: Callable[[], Mapping[str, Any]]
) -> Arrays:
    """Return arrays from the cache, or make them and put them there.

    Each file appears whole or not at all. A cache that cannot be written (read-only, disk full) is a warning.

    Args:
        folder: Where the cache is, None for none.
        name: First part of the files' names.
        mark: What :func:`fingerprint` gave.
        keys: The names of the arrays.
        make: Makes the arrays.

    Returns:
        The arrays.
    """
    if folder is None:
        return dict(make())
    paths = {key: Path(folder) / f"{name}-{mark}-{key}.npy" for key in keys}
    try:
        return {key: np.load(path, allow_pickle=False) for key, path in paths.items()}
    except (OSError, ValueError, EOFError):
        pass  # absent, or not what was written there: made anew
    arrays = dict(make())
    try:
        for key, path in paths.items():
            with whole_file(path) as temporary:
                np.save(temporary, arrays[key], allow_pickle=False)
    except OSError as error:
        warnings.warn(
            f"the parsed {name} could not be kept in {folder!r} ({error}): it will be read from its source again next "
            "time; free some space or set another cache_folder",
            stacklevel=2,
        )
    return arrays
