"""The preparation of POWER, GAS, MINIBOONE and BSDS300 for density estimation, table by table.

Each as published with "Masked autoregressive flow for density estimation" (Papamakarios, Pavlakou and Murray, NeurIPS
2017; data: Zenodo record 1161203): which columns and rows are used, what noise is added, how the splits are cut and
which rows the standardisation is computed from. Results are comparable with published figures only under the same
preparation.
"""

import importlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from lightning_lift.datamodules.array_cache import Arrays
from lightning_lift.datamodules.frame_pickle import read_frame
from lightning_lift.datamodules.maf_archive import Form
from lightning_lift.datamodules.published import Floats, cut_off_last
from lightning_lift.datamodules.table_files import TableError, read_header

LARGEST = 1_000_000_000
"""Bytes of the largest file that is read, uncompressed; the published ones have up to about 650 million."""

TableName = Literal["power", "gas", "miniboone", "bsds300"]

_MAX_CORRELATION = 0.98
_NOT_SENSORS = ("Meth", "Eth", "Time")


@dataclass(frozen=True)
class Table:
    """How a table is prepared.

    Attributes:
        dim: Number of columns D.
        folder: Its folder in the archive.
        forms: Its file, and files that may stand for it.
        counts: Published numbers of training, validation and test rows.
        read: Reads the splits from the file's content and name.
        statistics: Gives location and scale of the standardisation from the splits.
    """

    dim: int
    folder: str
    forms: tuple[Form, ...]
    counts: tuple[int, int, int]
    read: Callable[[IO[bytes], str], Arrays]
    statistics: Callable[[Arrays], tuple[Floats, Floats]]


def read_power(file: IO[bytes], name: str) -> Arrays:
    """Household power use: 8 columns, of which reactive power (1) and intensity (3) are left out.

    The rows are shuffled and uniform noise is added at the resolution of each meter, by NumPy's legacy generator with
    the seed 42, drawn in the published order: then the rows equal the published ones bit for bit.
    """
    rows = _array(file, name, 8)
    generator = np.random.RandomState(42)
    generator.shuffle(rows)
    rows = np.delete(rows, (1, 3), axis=1)
    voltage, active, meters = (generator.rand(len(rows), columns) for columns in (1, 1, 3))
    rows[:, 0:1] += 0.001 * active
    rows[:, 1:2] += 0.01 * voltage
    rows[:, 2:5] += meters
    return _splits(rows)


def read_gas(file: IO[bytes], name: str) -> Arrays:
    """Gas sensors: of columns correlated above 0.98 with another the first is left out until there are none."""
    frame = pd.read_parquet(io.BytesIO(file.read())) if name.endswith(".parquet") else read_frame(file, name)
    frame = frame.drop(columns=[column for column in _NOT_SENSORS if column in frame.columns])
    rows = frame.to_numpy(dtype=np.float64)
    close = np.corrcoef(rows, rowvar=False) > _MAX_CORRELATION
    kept = list(range(rows.shape[1]))
    while (repeated := close[np.ix_(kept, kept)].sum(axis=1) > 1).any():
        kept.pop(int(np.argmax(repeated)))
    return _splits(rows[:, kept])


def read_miniboone(file: IO[bytes], name: str) -> Arrays:
    """Neutrino events, published with outliers and columns of repeated values already left out."""
    return _splits(_array(file, name, 43))


def read_bsds300(file: IO[bytes], name: str) -> Arrays:
    """Patches of natural images, 8 x 8 less one pixel, dequantised and centred, in published splits."""
    try:
        h5py = importlib.import_module("h5py")
    except ImportError as error:
        raise ValueError(
            f"{name} is an HDF5 file, which needs the package h5py: pip install h5py (or lightning-lift[bsds300])"
        ) from error
    try:
        with h5py.File(io.BytesIO(file.read()), "r") as content:
            return {key: content[part][:] for key, part in _BSDS_PARTS.items()}
    except (OSError, KeyError) as error:
        raise ValueError(f"{name!r} is damaged, cut off or another file ({error}); get it again") from error


_BSDS_PARTS: Mapping[str, str] = {"train": "train", "val": "validation", "test": "test"}


def _array(file: IO[bytes], name: str, columns: int) -> npt.NDArray[np.float64]:
    try:
        content = file.read()
        read_header(io.BytesIO(content), len(content), "the array")  # or room is made for whatever it states
        rows = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except (ValueError, TableError) as error:
        raise ValueError(f"{name!r} is damaged, cut off or no array of numbers ({error}); get it again") from error
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise ValueError(f"{name!r} has shape {rows.shape}, expected (rows, {columns}): another table's file?")
    return rows.astype(np.float64)


def _splits(rows: npt.NDArray[np.float64]) -> Arrays:
    rest, test = cut_off_last(rows)
    train, val = cut_off_last(rest)
    return {"train": train, "val": val, "test": test}


def _of_train_and_val(splits: Arrays) -> tuple[Floats, Floats]:
    rows = np.concatenate([splits["train"], splits["val"]])
    return rows.mean(axis=0), rows.std(axis=0)


def _of_all(splits: Arrays) -> tuple[Floats, Floats]:
    rows = np.concatenate([splits["train"], splits["val"], splits["test"]])
    return rows.mean(axis=0), rows.std(axis=0, ddof=1)


def _none(splits: Arrays) -> tuple[Floats, Floats]:
    dim = splits["train"].shape[1]
    return np.zeros(dim), np.ones(dim)


_GAS_FORMS = ({"data": "ethylene_CO.pickle"}, {"data": "ethylene_CO.parquet"})

TABLES: Mapping[TableName, Table] = {
    "power": Table(6, "power", ({"data": "data.npy"},), (1_659_917, 184_435, 204_928), read_power, _of_train_and_val),
    "gas": Table(8, "gas", _GAS_FORMS, (852_174, 94_685, 105_206), read_gas, _of_all),
    "miniboone": Table(
        43, "miniboone", ({"data": "data.npy"},), (29_556, 3_284, 3_648), read_miniboone, _of_train_and_val
    ),
    "bsds300": Table(63, "BSDS300", ({"data": "BSDS300.hdf5"},), (1_000_000, 50_000, 250_000), read_bsds300, _none),
}
"""The tables by name."""


def check_dim(splits: Mapping[str, npt.NDArray[Any]], table: Table, source: Path | str) -> None:
    """Refuse rows of another width than the published.

    Args:
        splits: The rows.
        table: The table.
        source: What the file is called in error messages.

    Raises:
        ValueError: If a split has another number of columns.
    """
    for key, rows in splits.items():
        if rows.ndim != 2 or rows.shape[1] != table.dim:
            raise ValueError(
                f"{str(source)!r}: {key} has shape {rows.shape}, expected (rows, {table.dim}): another table?"
            )
