"""The archive of tables that density estimators are compared on, and finding and opening the files of a table.

POWER, GAS, HEPMASS, MINIBOONE and BSDS300 were prepared for masked autoregressive flows (Papamakarios, Pavlakou and
Murray, "Masked autoregressive flow for density estimation", NeurIPS 2017) and are published together, Zenodo record
1161203.
"""

import gzip
import shlex
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lightning_lift.datamodules.downloads import fetch, md5_of
from lightning_lift.datamodules.unpacking import open_file, open_packed, open_tar

URL = "https://zenodo.org/records/1161203/files/data.tar.gz"
MD5 = "9b9c9b0375315ad270eba4ce80c093ab"
ARCHIVE = "data.tar.gz"
LARGEST = 900_000_000  # bytes of the archive, which has about 857 million
_LARGEST_UNPACKED = 10_000_000_000  # bytes of all that is in it

Form = Mapping[str, str]
"""The files of a table in one published form: what each is, and its name."""


@dataclass(frozen=True)
class TableSource:
    """The files of a table that were found.

    Attributes:
        paths: The files on disk: the archive, or the table's own files.
        names: For each part of the table (``train``, ``test``, ``data``) its file or its member of the archive.
        archive: The archive, or None if the files lie unpacked.
    """

    paths: tuple[Path, ...]
    names: Mapping[str, str]
    archive: Path | None


def find_table(path: str, folder: str, forms: Sequence[Form], zip_name: str | None = None) -> TableSource | None:
    """Look for the files of a table: unpacked (each as named or with ``.gz``), else in an archive.

    Args:
        path: A folder with the files, or with the table's folder, or with ``data``, as the archive unpacks, or with the
            archive; or an archive; or one of the files, with the others beside it.
        folder: Name of the table's folder in the archive.
        forms: The published forms, in order of preference.
        zip_name: Name of a zip archive that holds the files too.

    Returns:
        The source, None if there is none.
    """
    place = Path(path)
    if place.is_file() and (place.name.endswith((".tar.gz", ".tgz", ".tar")) or place.suffix == ".zip"):
        return _in_archive(place, folder, forms)
    start = place.parent if place.is_file() else place
    for files in forms:
        for base in (start / folder, start / "data" / folder, start):
            found = {part: _either(base, name) for part, name in files.items()}
            paths = tuple(file for file in found.values() if file is not None)
            if len(paths) == len(files) and (not place.is_file() or place in paths):
                return TableSource(paths, {part: str(file) for part, file in found.items()}, None)
    if place.is_dir():
        for name in (ARCHIVE, zip_name):
            if name and (place / name).is_file():
                return _in_archive(place / name, folder, forms)
    return None


def fetch_archive(folder: str) -> None:
    """Download the archive into a folder (857 MB), if it is not there; see :func:`fetch` for what can go wrong."""
    fetch(URL, Path(folder) / ARCHIVE, MD5, largest=LARGEST)


def check_archive(archive: Path) -> None:
    """Compare an archive in the published form with the published checksum.

    Args:
        archive: The file; a zip archive has no published checksum and passes.

    Raises:
        ValueError: If it is another file, or damaged.
    """
    if archive.suffix != ".zip" and (found := md5_of(archive)) != MD5:
        raise ValueError(
            f"{str(archive)!r} has MD5 {found}, the published archive {MD5}: damaged, cut off or another file; delete "
            "it and download it again, or set benchmark: false to read it as it is"
        )


def how_to_get(path: str) -> str:
    """Return the words for an error about missing files: where they are, and the command.

    Args:
        path: Where they were looked for.
    """
    folder = Path(path) if not Path(path).suffix else Path(path).parent
    target = shlex.quote(str(folder / ARCHIVE))
    return (
        "set download: true (857 MB, continued if interrupted, MD5 checked), or run\n"
        f"  curl -L -C - --create-dirs -o {target} {URL}\n"
        f"and check that `md5sum {target}` gives {MD5}; the archive need not be unpacked"
    )


@contextmanager
def open_parts(source: TableSource, largest: int) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Open the parts of a table one after the other, uncompressed, with a progress bar.

    Args:
        source: What :func:`find_table` found.
        largest: Bytes that a part may have, uncompressed.

    Yields:
        An iterator of the part's key and its content; each content must be read before the next is asked for. Their
        order is that of the archive.

    Raises:
        ValueError: If a file is damaged, cut off or larger than it may be, or the archive lacks a part; raised while
            reading, too.
    """
    label = str(source.archive) if source.archive else ", ".join(sorted(str(path) for path in source.paths))
    try:
        yield _parts(source, largest)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(f"{label!r} is damaged or cut off ({error}); get it again") from error


def _parts(source: TableSource, largest: int) -> Iterator[tuple[str, IO[bytes]]]:
    if source.archive is None:
        for part, name in source.names.items():
            with open_file(Path(name), largest) as file:
                yield part, file
        return
    wanted = {name: part for part, name in source.names.items()}
    if source.archive.suffix == ".zip":
        with zipfile.ZipFile(source.archive) as container:
            for name, part in wanted.items():
                with container.open(name) as member, open_packed(member, largest, repr(name)) as file:
                    yield part, file
        return
    with open_tar(source.archive, _LARGEST_UNPACKED) as tar:
        for entry in tar:
            # looked at in order and left once all are found: the rest need not be decompressed
            found = next((name for name in wanted if f"/{entry.name}".endswith(f"/{name}")), None)
            content = tar.extractfile(entry) if found is not None and entry.isfile() else None
            if content is not None:
                with open_packed(content, largest, repr(entry.name)) as file:
                    yield wanted.pop(str(found)), file
            if not wanted:
                return
    raise ValueError(f"{str(source.archive)!r} holds no {sorted(wanted)}: another archive, or cut off")


def _either(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def _in_archive(archive: Path, folder: str, forms: Sequence[Form]) -> TableSource | None:
    """Find the form in an archive: a zip lists its members; in a tar only the published form is looked for."""
    if archive.suffix != ".zip":
        return TableSource((archive,), {part: f"{folder}/{name}" for part, name in forms[0].items()}, archive)
    try:
        with zipfile.ZipFile(archive) as container:
            members = {Path(name).name: name for name in container.namelist()}
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{str(archive)!r} is damaged or cut off ({error}); get it again") from error
    for files in forms:
        found = {part: members.get(name, members.get(f"{name}.gz")) for part, name in files.items()}
        if all(found.values()):
            return TableSource((archive,), {part: str(name) for part, name in found.items()}, archive)
    raise ValueError(f"{str(archive)!r} holds none of {[sorted(files.values()) for files in forms]}")
