"""What the tables of the MAF archive share as data modules: finding, downloading, caching, standardising."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lightning_lift.datamodules.array_cache import Arrays, cached, fingerprint
from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.maf_archive import (
    ARCHIVE,
    Form,
    TableSource,
    check_archive,
    fetch_archive,
    find_table,
    how_to_get,
)
from lightning_lift.datamodules.row_marks import row_marks

Floats = npt.NDArray[np.floating]

_FILE_SUFFIXES = (".csv", ".gz", ".tgz", ".tar", ".zip", ".npy", ".pickle", ".parquet", ".hdf5")
_SPLITS = ("train", "val", "test")


class PublishedTable(DensityDataModule):
    """Base of data modules of tables with a published preparation: splits and training units as published.

    Subclass requirements:
        ``read(source)`` gives the rows of the splits in original units; ``statistics(splits)`` the location and scale
        that make training units. ``forms``, ``counts`` and ``name`` are given to ``__init__``, which the subclass ends
        with ``save_hyperparameters()``.

    Args:
        dim: Number of columns D.
        name: Name of the source, as it appears in results.
        folder: Name of the table's folder in the archive.
        forms: The published forms of its files.
        path: Where the files are, see :func:`find_table`.
        download: Whether to download the archive into the folder ``path`` if no files are found there.
        benchmark: Whether the splits must have the published numbers of rows, and the archive its published checksum.
        counts: Published numbers of training, validation and test rows.
        cache_folder: Where the rows are kept once they are read. None to read them each time.
        settings: What else decides the rows that ``read`` gives, with the version of the reader.
        zip_name: Name of a zip archive that holds the files too.
        **kwargs: Arguments of :class:`DensityDataModule`: ``batch_size``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        dim: int,
        name: str,
        folder: str,
        forms: tuple[Form, ...],
        path: str,
        download: bool,
        benchmark: bool,
        counts: tuple[int, int, int],
        cache_folder: str | None,
        settings: tuple[object, ...],
        zip_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dim=dim, name=name, **kwargs)
        if download and self.path_is_file(path):
            raise ValueError(f"download: true puts the archive into a folder: give one as path, got {path!r}")
        self.path, self.download, self.benchmark = os.fspath(path), download, benchmark
        self.cache_folder = cache_folder
        self._folder, self._forms, self._counts = folder, forms, counts
        self._settings, self._zip_name = settings, zip_name
        self._standardization = None  # known when the rows are

    def read(self, source: TableSource) -> Arrays:
        """Read the rows of the splits ``train``, ``val`` and ``test`` in original units, each (rows, D).

        Args:
            source: The files found.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement read()")

    def statistics(self, splits: Arrays) -> tuple[Floats, Floats]:
        """Return location (D,) and scale (D,) of the published standardisation.

        Args:
            splits: What :meth:`read` gave.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement statistics()")

    @staticmethod
    def path_is_file(path: str) -> bool:
        """Return whether a path names a file, there or not, and not a folder."""
        return Path(path).is_file() or Path(path).suffix in _FILE_SUFFIXES

    def missing(self) -> str:
        """Return the words of the error when no files are found: what was looked for, and where to get it."""
        names = " or ".join(" and ".join(form.values()) for form in self._forms)
        return (
            f"no files of {self.name} at {self.path!r}: looked for {names} (plain or .gz) in that folder, in "
            f"{self._folder!r} and in 'data/{self._folder}' below it, and for {ARCHIVE!r}; {how_to_get(self.path)}"
        )

    def prepare_data(self) -> None:
        """Download the archive if it is asked for and missing, and fills the cache; on one process of each machine."""
        if self.download and self._find() is None:
            fetch_archive(self.path)
        if self.cache_folder is not None:
            self._rows()

    def load(self) -> dict[str, Tensor]:
        """Read and standardise the rows.

        Returns:
            The splits ``train``, ``val`` and ``test``.

        Raises:
            FileNotFoundError: If the files are not there; the message says where to get them.
            ValueError: If they are damaged or are not the published ones.
        """
        splits = self._rows()
        location, scale = self.statistics(splits)
        if not (scale > 0).all():
            raise ValueError(f"{self.name}: constant column(s) at position {np.flatnonzero(~(scale > 0)).tolist()}")
        names = [str(column) for column in range(self.dim)]
        self.row_marks = {key: row_marks(rows, names) for key, rows in splits.items()}
        return self.to_training_units(splits, location, scale)

    def _find(self) -> TableSource | None:
        return find_table(self.path, self._folder, self._forms, self._zip_name)

    def _rows(self) -> Arrays:
        source = self._find()
        if source is None:
            raise FileNotFoundError(self.missing())

        def make() -> Arrays:
            if self.benchmark and source.archive is not None:
                check_archive(source.archive)
            return self.read(source)

        # with benchmark, as rows of an archive that nobody checked must not pass for checked ones
        mark = fingerprint(source.paths, self._folder, dict(source.names), self.benchmark, *self._settings)
        splits = cached(self.cache_folder, self._folder, mark, _SPLITS, make)
        found = tuple(len(splits[key]) for key in _SPLITS)
        if self.benchmark and found != self._counts:
            raise ValueError(
                f"{self.name} in {self.path!r} has {found} training, validation and test rows, the published table "
                f"{self._counts}: cut off, or other files; set benchmark: false to use them as they are"
            )
        return splits


def cut_off_last(rows: Floats, fraction: float = 0.1) -> tuple[Floats, Floats]:
    """Cut the last ``int(fraction * N)`` rows off, the way the published splits are made.

    Args:
        rows: (N, D).
        fraction: Fraction of the rows to cut off.

    Returns:
        The rows before and the rows cut off.

    Raises:
        ValueError: If that leaves no rows on one side.
    """
    count = int(fraction * len(rows))
    if count < 1:
        raise ValueError(f"{len(rows)} rows are too few to cut a split of {fraction} off")
    return rows[:-count], rows[-count:]
