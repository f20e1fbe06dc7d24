"""The directory of a comparison: its settings, one command at a time in it, and whole folders of checkpoints."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_lift.compare.records import without_modules
from lightning_lift.files import lock, whole_file

SETTINGS = "comparison.json"
CHECKPOINTS = "checkpoints"
_FORMAT = 1
_MAY_GROW = ("seeds", "arms")


@contextmanager
def sole_user(directory: Path, *, shared: bool = False) -> Iterator[None]:
    """Keep other commands off a directory while this one works in it, and clear away what killed ones left.

    Args:
        directory: of the comparison; made if it is not there.
        shared: only keeps off those that want it alone, and clears nothing: the elements of a job array.

    Raises:
        ValueError: another command works in it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a+") as file:
        try:
            locked = lock(file, shared=shared)
        except BlockingIOError as error:
            raise ValueError(
                f"{directory}: another compare command is at work there: wait for its end, or give another --output."
            ) from error
        if locked and not shared:
            for left in (directory / "records").glob(".*.json"):
                left.unlink()
            for left in (directory / "checkpoints").glob(".*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def read_settings(directory: Path) -> dict[str, Any]:
    """What ``open`` wrote: ``name``, ``settings`` (see ``Settings.plain``), ``metrics`` and ``notes``.

    Args:
        directory: of the comparison.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    path = directory / SETTINGS
    if not path.is_file():
        raise ValueError(f"{directory} holds no comparison (there is no {SETTINGS} in it).")
    try:
        content = json.loads(path.read_text())
        parts = {"name": str, "settings": dict, "metrics": list, "notes": list}
        if not isinstance(content, dict) or content.get("format", _FORMAT) != _FORMAT:
            stated = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"its format is {stated!r} and this version reads {_FORMAT}")
        if wrong := [name for name, kind in parts.items() if not isinstance(content.get(name), kind)]:
            raise ValueError(f"its {wrong[0]} is {content.get(wrong[0])!r:.60}")
    except ValueError as error:  # of JSON and of text that is none, too
        raise ValueError(f"{path} cannot be read ({error}): give another --output, or delete it.") from error
    return content


def write_settings(directory: Path, content: Mapping[str, Any]) -> None:
    """Write what ``read_settings`` reads.

    Args:
        directory: of the comparison.
        content: the mapping that ``read_settings`` is to return.
    """
    with whole_file(directory / SETTINGS) as temporary:
        temporary.write_text(json.dumps({"format": _FORMAT, **content}, indent=1) + "\n")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What is not the same, one text a setting; seeds and arms may have been added.

    Args:
        old: settings that the directory has.
        new: settings that it would get.
    """
    grown = {key: _without_added(old.get(key), value) if key in _MAY_GROW else value for key, value in new.items()}
    if new.get("budget") == "seconds" and new.get("seconds") is None:
        grown["arms"] = new["arms"]  # a faster arm would change the budget of all
    one, two = (_flat(json.loads(without_modules(json.dumps(settings)))) for settings in (old, grown))
    return [
        f"{key} is {_shown(one, key)} there and {_shown(two, key)} now"
        for key in dict.fromkeys([*one, *two])
        if one.get(key, "absent") != two.get(key, "absent")
    ]


@contextmanager
def checkpoint_folder(directory: Path, key: str) -> Iterator[Path]:
    """Yield a new folder beside the run's own; what is still there at the end is removed.

    Folders that killed processes left there are removed too.

    Args:
        directory: of the comparison.
        key: of the run.
    """
    folders = directory / CHECKPOINTS
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
    """Give a folder of checkpoints its name.

    Args:
        temporary: what ``checkpoint_folder`` gave.
        directory: of the comparison.
        key: of the run.
        checkpoints: files in the folder, by name.

    Returns:
        Their paths relative to the directory, by name, as a record has them.
    """
    folder = directory / CHECKPOINTS / key
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed between its folder and its record
    temporary.replace(folder)
    return {name: f"{CHECKPOINTS}/{key}/{path.name}" for name, path in sorted(checkpoints.items())}


def _without_added(old: Any, new: Any) -> Any:
    """The new list without what the old one lacks, in the old order, if that leaves the old one."""
    return old if isinstance(old, list) and all(item in new for item in old) else new


def _shown(flat: Mapping[str, Any], key: str) -> str:
    text = json.dumps(flat[key]) if key in flat else "absent"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{prefix}{key}.").items()}
    return {prefix.removesuffix("."): value}
