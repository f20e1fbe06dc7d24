"""Where the checkpoints of a run lie: whole, at the end of a finished run, or not at all."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FOLDER = "checkpoints"


@contextmanager
def checkpoint_folder(directory: Path, key: str) -> Iterator[Path]:
    """Gives a new folder beside the run's own; what is still there at the end is removed.

    Folders that killed processes left there are removed too.

    Args:
        directory: of the comparison.
        key: of the run.
    """
    folders = directory / FOLDER
    folders.mkdir(parents=True, exist_ok=True)
    for left in folders.glob(f".{key}.*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary = folders / f".{key}.{os.getpid()}"
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def keep(temporary: Path, directory: Path, key: str, checkpoints: Mapping[str, Path]) -> dict[str, str]:
    """Gives a folder of checkpoints its name.

    Args:
        temporary: what ``checkpoint_folder`` gave.
        directory: of the comparison.
        key: of the run.
        checkpoints: files in the folder, by name.

    Returns:
        Their paths relative to the directory, by name, as a record has them.
    """
    folder = directory / FOLDER / key
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed between its folder and its record
    temporary.replace(folder)
    return {name: f"{FOLDER}/{key}/{path.name}" for name, path in sorted(checkpoints.items())}
