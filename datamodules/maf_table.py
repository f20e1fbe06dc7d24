"""POWER, GAS, MINIBOONE and BSDS300 from the archive of tables for density estimation."""

import os
from pathlib import Path
from typing import get_args

from lightning_lift.datamodules.array_cache import Arrays
from lightning_lift.datamodules.maf_archive import TableSource, open_parts
from lightning_lift.datamodules.maf_tables import LARGEST, TABLES, TableName, check_dim
from lightning_lift.datamodules.published import Floats, PublishedTable

_VERSION = 1  # of the reader: a change of what it gives makes old caches useless


class MAFTableDataModule(PublishedTable):
    """A table of the archive of Papamakarios et al. (NeurIPS 2017, Zenodo record 1161203), prepared as published there.

    POWER (6 columns), GAS (8), MINIBOONE (43) and BSDS300 (63); HEPMASS has a data module of its own. Splits are fixed;
    the density is unknown and the support the whole space.

    Args:
        table: Which table. BSDS300 needs the package h5py (extra ``bsds300``). GAS is published as a pickle, of which
            the numbers are read and nothing is executed; ``ethylene_CO.parquet`` of the same frame is taken too.
        path: A folder with the archive ``data.tar.gz``, or with its ``data`` unpacked, or the table's own folder or
            file.
        download: Whether to download the archive (857 MB, continued if interrupted, MD5 checked) into the folder
            ``path`` if the files are not there.
        benchmark: Whether the file must be the published one (checksum of the archive, numbers of rows).
        cache_folder: Where the rows are kept once they are read. None to read them each time.
        batch_size: Rows of one process's training batch.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        table: TableName,
        path: str = "data/maf",
        download: bool = False,
        benchmark: bool = True,
        cache_folder: str | None = "data/cache",
        batch_size: int = 256,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        path = os.fspath(path)
        if table not in TABLES:
            raise ValueError(f"unknown table {table!r}; known are {', '.join(get_args(TableName))}")
        self._table = TABLES[table]
        super().__init__(
            dim=self._table.dim,
            name=table.upper() if benchmark else f"{table.upper()} (not the published splits)",
            folder=self._table.folder,
            forms=self._table.forms,
            path=path,
            download=download,
            benchmark=benchmark,
            counts=self._table.counts,
            cache_folder=cache_folder,
            settings=(_VERSION,),
            batch_size=batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self.save_hyperparameters()

    def read(self, source: TableSource) -> Arrays:
        """Read the splits."""
        label = str(source.archive or source.paths[0])
        splits: Arrays = {}
        with open_parts(source, LARGEST) as contents:
            for part, content in contents:
                splits = self._table.read(content, Path(source.names[part]).name)
        check_dim(splits, self._table, label)
        return splits

    def statistics(self, splits: Arrays) -> tuple[Floats, Floats]:
        """Return the published location and scale."""
        return self._table.statistics(splits)
