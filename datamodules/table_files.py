"""Reading numeric tables: what columns a file has (cheaply), and then their values."""

import csv
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow
import pyarrow.parquet

Table = npt.NDArray[np.float64]
Columns = Sequence[str | int]


class TableFile:
    """A numeric table in a file: CSV with a header line, ``.npy``, ``.npz`` or parquet.

    Making one reads the column names only, and refuses what can be refused without reading the values.
    An ``.npy`` array, and a single 2-D array in an ``.npz``, has columns named "0", "1", ...; an ``.npz`` of several
    1-D arrays has one column an array, named by its key.

    Args:
        path: The file.
        columns: The columns wanted, by name or by position from 0, in this order. None for all.

    Attributes:
        names: The names of the columns wanted.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file cannot be read as a table, or lacks a column wanted, or has no header line.
    """

    def __init__(self, path: str, columns: Columns | None = None) -> None:
        self.path = path
        file = Path(path)
        if not file.exists():
            raise FileNotFoundError(f"no file {path!r} (looked from the directory {str(Path.cwd())!r})")
        if file.is_dir():
            raise ValueError(f"{path!r} is a directory: give the path of one file")
        suffix = file.suffix.lower()
        if suffix not in _READERS:
            raise ValueError(f"{path!r} has the extension {suffix!r}; supported are {', '.join(_READERS)}")
        if file.stat().st_size == 0:
            raise ValueError(f"{path!r} is empty (0 bytes)")
        list_names, self._read = _READERS[suffix]
        available = _guarded(path, list_names, path)
        if columns is None and (unnamed := [i for i, name in enumerate(available) if not name.strip()]):
            raise ValueError(
                f"{path!r}: the column(s) at position {unnamed} have no name (an index column written by pandas?); "
                f"list the columns to use: columns={[name for name in available if name.strip()]}"
            )
        self.positions = resolve_columns(columns, available, path)
        self.names = [available[position] for position in self.positions]

    @property
    def has_names(self) -> bool:
        """Whether the columns have names of their own rather than positions only."""
        return self.names != [str(position) for position in self.positions]

    def read(self) -> Table:
        """Reads the columns wanted.

        Returns:
            (rows, columns) float64; missing values are NaN.

        Raises:
            ValueError: If the file is damaged or a column is not numeric.
        """
        values: Table = _guarded(self.path, self._read, self.path, self.positions, self.names)
        return values


def resolve_columns(columns: Columns | None, available: Sequence[str], source: str) -> list[int]:
    """Finds columns by name or position.

    Args:
        columns: Names, or positions from 0. None for all.
        available: The names there are.
        source: What the table is called in error messages.

    Returns:
        Positions, in the order of ``columns``.

    Raises:
        ValueError: If there is no such column, one is asked for twice, the list is empty, or a name is not unique.
    """
    if columns is None:
        columns = list(range(len(available)))
    if len(columns) == 0:
        raise ValueError(f"{source!r}: no columns to use; known columns: {_listed(available)}")
    positions = []
    for column in columns:
        if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < len(available):
            positions.append(column)
        elif isinstance(column, str) and column in available:
            positions.append(list(available).index(column))
        else:
            raise ValueError(f"{source!r} has no column {column!r}; known columns: {_listed(available)}")
    names = [available[position] for position in positions]
    if len(set(positions)) < len(positions):
        raise ValueError(f"{source!r}: a column is asked for twice: {list(columns)}")
    if repeated := sorted({name for name in names if list(available).count(name) > 1}):
        raise ValueError(f"{source!r}: the column name(s) {repeated} occur more than once; rename them in the file")
    return positions


def _listed(names: Sequence[str], limit: int = 40) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _guarded(path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a reader; what the file libraries raise about a damaged file becomes a ValueError that names the file."""
    try:
        return function(*arguments)
    except TableError as error:
        raise ValueError(f"{path!r}: {error}") from None
    except (ValueError, EOFError, KeyError, OSError, zipfile.BadZipFile, pyarrow.ArrowException, csv.Error) as error:
        if isinstance(error, PermissionError):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path!r} cannot be read as a {Path(path).suffix} table (damaged or cut off?): {reason}"
        ) from error


class TableError(Exception):
    """A fault of a table, in words to which the name of the file is to be added."""


# CSV


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv_names(path: str) -> list[str]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = (line for line in csv.reader(file) if line)  # pandas skips blank lines too
        header = [cell.strip() for cell in next(lines, [])]
        first = next(lines, None)
    if not header:
        raise TableError("the file has no header line and no rows")
    if all(_is_number(cell) for cell in header):
        raise TableError(
            f"the first line {_listed(header, 6)} is numbers, not column names; put a header line on top, such as "
            f"'{','.join(f'x{i}' for i in range(min(len(header), 3)))}{',...' if len(header) > 3 else ''}'"
        )
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise TableError(f"the only column is named {header[0]!r}; columns must be separated by commas")
    if first is not None and len(first) != len(header):
        raise TableError(f"the header has {len(header)} names but the first row has {len(first)} values")
    return header


def _csv_values(path: str, positions: list[int], names: list[str]) -> Table:
    with warnings.catch_warnings():
        # pandas only warns of rows that are longer than the header, and drops their end
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                path, header=0, index_col=False, encoding="utf-8-sig", skipinitialspace=True, low_memory=False
            )
        except pd.errors.ParserWarning as warning:
            raise TableError(f"rows with more values than the header has names ({warning})") from warning
    return _numeric(frame.iloc[:, positions], names)


def _numeric(frame: pd.DataFrame, names: list[str]) -> Table:
    """Turns columns into float64, and names those that are not numbers, with the first bad value of each."""
    if len(frame) == 0:
        return np.empty((0, len(names)))  # without values pandas knows no types
    bad = []
    for position, name in enumerate(names):
        column = frame.iloc[:, position]
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
            if not pd.api.types.is_bool_dtype(column):
                continue
            bad.append(f"{name!r} (true/false)")
            continue
        failed = pd.to_numeric(column.astype("object"), errors="coerce").isna() & column.notna()
        row = int(np.argmax(failed.to_numpy())) if failed.any() else 0
        bad.append(f"{name!r} (row {row}: {column.iloc[row]!r})")
    if bad:
        raise TableError(
            f"{len(frame)} rows, and these columns are not numeric: {', '.join(bad)}; repair them or list other columns"
        )
    values: Table = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


# NumPy arrays


def _check_array(shape: tuple[int, ...], dtype: np.dtype[Any], label: str) -> None:
    if not (np.issubdtype(dtype, np.floating) or np.issubdtype(dtype, np.integer)):
        raise TableError(f"{label} holds {dtype}, not real numbers")
    if len(shape) not in (1, 2):
        raise TableError(f"{label} has shape {shape}; a table is (rows, columns), or (rows,) for one column")


def _array_names(shape: tuple[int, ...]) -> list[str]:
    return [str(i) for i in range(shape[1] if len(shape) == 2 else 1)]


def _two_dimensional(array: npt.NDArray[Any], positions: list[int]) -> Table:
    table = array if array.ndim == 2 else array[:, None]
    return np.asarray(table[:, positions], dtype=np.float64)


def read_header(file: IO[bytes], size: int, label: str) -> tuple[int, ...]:
    """Read an array's shape, and check it, its type and the size of its file, without reading the array.

    Args:
        file: In NumPy's format, at its beginning.
        size: Bytes of the file.
        label: What the array is called in error messages.

    Returns:
        The shape, of one or two dimensions.

    Raises:
        TableError: If the array is no table of real numbers.
        ValueError: If it is larger than its file.
    """
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    _check_array(shape, dtype, label)
    if math.prod(shape) * dtype.itemsize > size - file.tell():
        raise ValueError(f"{label} states the shape {shape}, for which its file is too small")
    return tuple(shape)


def _npy_names(path: str) -> list[str]:
    with open(path, "rb") as file:
        return _array_names(read_header(file, os.stat(path).st_size, "the array"))


def _npy_values(path: str, positions: list[int], names: list[str]) -> Table:
    return _two_dimensional(np.load(path, allow_pickle=False), positions)


def _npz_shapes(path: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            key = member.removesuffix(".npy")
            with archive.open(member) as file:
                shapes[key] = read_header(file, archive.getinfo(member).file_size, f"array {key!r}")
    return shapes


def _npz_names(path: str) -> list[str]:
    shapes = _npz_shapes(path)
    if len(shapes) == 1:
        return _array_names(next(iter(shapes.values())))
    if not shapes or any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1:
        raise TableError(
            "the archive must hold one 2-D array, or several 1-D arrays of equal length (one a column); "
            f"it holds {shapes}"
        )
    return list(shapes)


def _npz_values(path: str, positions: list[int], names: list[str]) -> Table:
    with np.load(path, allow_pickle=False) as archive:
        if len(archive.files) == 1:
            return _two_dimensional(archive[archive.files[0]], positions)
        return np.stack([archive[name].astype(np.float64) for name in names], axis=1)


# Parquet


def _parquet_names(path: str) -> list[str]:
    names = list(pyarrow.parquet.read_schema(path).names)
    # pandas stores a meaningful index under such names: not a column of the table
    return [name for name in names if not re.fullmatch(r"__index_level_\d+__", name)]


def _parquet_values(path: str, positions: list[int], names: list[str]) -> Table:
    return _numeric(pyarrow.parquet.read_table(path, columns=names).to_pandas()[names], names)


_READERS: dict[str, tuple[Callable[[str], list[str]], Callable[[str, list[int], list[str]], Table]]] = {
    ".csv": (_csv_names, _csv_values),
    ".npy": (_npy_names, _npy_values),
    ".npz": (_npz_names, _npz_values),
    ".parquet": (_parquet_names, _parquet_values),
}
