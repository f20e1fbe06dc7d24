"""Reading numeric tables: what columns a file has (cheaply), and then their values."""

import csv
import io
import json
import math
import os
import re
import tokenize
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow
import pyarrow.parquet
from pyarrow import types

from lightning_lift.datamodules.unpacking import most_of, open_file

Table = npt.NDArray[np.float64]
Columns = Sequence[str | int]


class TableFile:
    """A numeric table in a file: CSV (also ``.csv.gz``), ``.npy``, ``.npz`` or parquet.

    Making one reads the column names only, and refuses what can be refused without reading the values.
    An ``.npy`` array, a single 2-D array in an ``.npz`` and a CSV file without a header have columns named "0", "1",
    ...; an ``.npz`` of several 1-D arrays has one column an array, named by its key. An index that pandas has written
    into a parquet file is a column only where it is asked for by name.

    Args:
        path: The file.
        columns: The columns wanted, by name or by position from 0, in this order. None for all.
        drop_columns: Columns to leave out, by name or by position from 0.
        header: Whether a CSV file begins with a line of names.

    Attributes:
        names: The names of the columns wanted.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file cannot be read as a table, or lacks a column wanted, or its header does not fit.
    """

    def __init__(
        self, path: str, columns: Columns | None = None, drop_columns: Columns = (), header: bool = True
    ) -> None:
        self.path = path
        file = Path(path)
        if not file.exists():
            raise FileNotFoundError(f"no file {path!r} (looked from the directory {str(Path.cwd())!r})")
        if file.is_dir():
            raise ValueError(f"{path!r} is a directory: give the path of one file")
        suffix = file.suffix.lower()
        suffix = ".csv" if file.name.lower().endswith(".csv.gz") else suffix
        if suffix not in _READERS:
            raise ValueError(f"{path!r} has the extension {suffix!r}; supported are {', '.join(_READERS)}, .csv.gz")
        if file.stat().st_size == 0:
            raise ValueError(f"{path!r} is empty (0 bytes)")
        list_names, self._read = _READERS[suffix]
        if not header:
            if suffix != ".csv":
                raise ValueError(f"header: false belongs to a .csv file, got {path!r}")
            list_names, self._read = partial(_csv_names, header=False), partial(_csv_values, header=False)
        available: list[str] = _guarded(path, list_names, path)
        index = _guarded(path, _parquet_index, path) if suffix == ".parquet" else []
        # at the end, so that no position changes
        available = [name for name in available if name not in index] + index
        self.positions = resolve_columns(columns, available if columns else available[: -len(index) or None], path)
        dropped = resolve_columns(drop_columns, available, path) if drop_columns else []
        self.positions = [position for position in self.positions if position not in dropped]
        self.names = [available[position] for position in self.positions]
        if not self.names:
            raise ValueError(f"{path!r}: drop_columns leaves no columns to use")
        if unnamed := [position for position in self.positions if not available[position].strip()]:
            raise ValueError(
                f"{path!r}: the column(s) at position {unnamed} have no name (an index column written by pandas?); "
                f"leave them out by drop_columns={unnamed}, or list the columns to use: "
                f"columns={[name for name in available if name.strip()]}"
            )

    @property
    def has_names(self) -> bool:
        """Whether the columns have names of their own rather than positions only."""
        return self.names != [str(position) for position in self.positions]

    def read(self) -> Table:
        """Read the columns wanted.

        Returns:
            (rows, columns) float64; missing values are NaN.

        Raises:
            ValueError: If the file is damaged, or a column holds anything but numbers that float64 holds exactly.
        """
        values: Table = _guarded(self.path, self._read, self.path, self.positions, self.names)
        return values


def resolve_columns(columns: Columns | None, available: Sequence[str], source: str) -> list[int]:
    """Find columns by name or position.

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
    counts, places = Counter(available), {name: place for place, name in reversed(list(enumerate(available)))}
    positions = []
    for column in columns:
        if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < len(available):
            positions.append(column)
        elif isinstance(column, str) and column in places:
            positions.append(places[column])
        else:
            raise ValueError(f"{source!r} has no column {column!r}; known columns: {_listed(available)}")
    names = [available[position] for position in positions]
    if len(set(positions)) < len(positions):
        raise ValueError(f"{source!r}: a column is asked for twice: {list(columns)}")
    if repeated := sorted({name for name in names if counts[name] > 1}):
        raise ValueError(f"{source!r}: the column name(s) {repeated} occur more than once; rename them in the file")
    return positions


def _listed(names: Sequence[str], limit: int = 40) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _guarded(path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a reader; what the file libraries raise about a damaged file becomes a ValueError that names the file."""
    try:
        return function(*arguments)
    except TableError as error:
        raise ValueError(f"{path!r}: {error}") from None
    except MemoryError as error:
        raise ValueError(f"{path!r} is too large for this machine's memory") from error
    except (
        *(ValueError, TypeError, AttributeError, EOFError, KeyError, OSError, RecursionError, tokenize.TokenError),
        *(zipfile.BadZipFile, pyarrow.ArrowException, csv.Error),
    ) as error:
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


def _csv_names(path: str, header: bool = True) -> list[str]:
    with _csv_text(path) as file:
        lines = (line for line in csv.reader(file) if line)  # pandas skips blank lines too
        names = [cell.strip() for cell in next(lines, [])]
        first = next(lines, None)
    if not names:
        raise TableError("the file has no header line and no rows" if header else "the file has no rows")
    are_numbers = all(_is_number(cell) for cell in names)
    if header and are_numbers:
        raise TableError(
            f"the first line {_listed(names, 6)} is numbers, not column names: if it is a row, set header: false; if "
            "it numbers the columns, replace it by a line of names"
        )
    if not header and not are_numbers:
        raise TableError(f"header: false, and the first line is {_listed(names, 6)}, no row of numbers")
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        raise TableError(f"the only column is named {names[0]!r}; columns must be separated by commas")
    if first is not None and len(first) != len(names):
        raise TableError(f"the header has {len(names)} names but the first row has {len(first)} values")
    return names if header else [str(i) for i in range(len(names))]


@contextmanager
def _csv_text(path: str) -> Iterator[IO[str]]:
    with open_file(Path(path), most_of(os.stat(path).st_size)) as file:
        yield io.TextIOWrapper(cast(io.BufferedReader, file), encoding="utf-8-sig", newline="")


def _csv_values(path: str, positions: list[int], names: list[str], header: bool = True) -> Table:
    with warnings.catch_warnings(), _csv_text(path) as file:
        # pandas only warns of rows that are longer than the header, and drops their end
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                file, header=0 if header else None, index_col=False, skipinitialspace=True, low_memory=False
            )
        except pd.errors.ParserWarning as warning:
            raise TableError(f"rows with more values than the header has names ({warning})") from warning
    columns = [frame.iloc[:, position] for position in positions]
    # as words where pandas found several types
    columns = [column.astype("string") if column.dtype == object else column for column in columns]
    return _numeric([pyarrow.array(column, from_pandas=True) for column in columns], names)


def _numeric(columns: Sequence[Any], names: list[str]) -> Table:
    """Turn Arrow arrays into float64, and name those that are not numbers or not exact in it, with a bad value each."""
    bad, inexact, exact = [], [], []
    for column, name in zip(columns, names, strict=True):
        kind = column.type
        if not (len(column) == 0 or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)):
            bad.append(f"{name!r} ({_first_bad(column)})")
            continue
        try:
            exact.append(column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False))
        except pyarrow.ArrowInvalid as error:  # an integer beyond 2^53
            inexact.append(f"{name!r} ({error})")
    for faults, what in ((bad, "are not numeric"), (inexact, "have values that float64 does not hold exactly")):
        if faults:
            raise TableError(
                f"{len(columns[0])} rows, and these columns {what}: {', '.join(faults)}; repair them or list other "
                "columns, or leave them out by drop_columns"
            )
    return np.stack(exact, axis=1)


def _first_bad(column: Any) -> str:
    """The first value that is not a number, with its row; of a type whose values only look like numbers, its type."""
    if not (types.is_string(column.type) or types.is_large_string(column.type) or types.is_string_view(column.type)):
        return "true/false" if types.is_boolean(column.type) else str(column.type)
    words = (row for row, value in enumerate(column) if value.is_valid and not _is_number(value.as_py()))
    row = next(words, 0)  # numbers written as words, too
    return f"row {row}: {column[row].as_py()!r}"


# NumPy arrays


def _check_array(shape: tuple[int, ...], dtype: np.dtype[Any], label: str) -> None:
    if dtype.kind not in "fiu" or dtype.itemsize > 8:  # no complex numbers, times, truth values or longer floats
        raise TableError(f"{label} holds {dtype}, not real numbers that float64 holds")
    if len(shape) not in (1, 2):
        raise TableError(f"{label} has shape {shape}; a table is (rows, columns), or (rows,) for one column")
    if min(shape) < 1:
        raise TableError(f"{label} has shape {shape}: no rows or no columns")


def _array_names(shape: tuple[int, ...]) -> list[str]:
    return [str(i) for i in range(shape[1] if len(shape) == 2 else 1)]


def _two_dimensional(array: npt.NDArray[Any], positions: list[int]) -> Table:
    table = array if array.ndim == 2 else array[:, None]
    return _exact(table[:, positions], [str(position) for position in positions])


def _exact(table: npt.NDArray[Any], names: Sequence[str]) -> Table:
    if table.dtype.kind in "iu" and table.size:
        largest = np.maximum(table.max(axis=0), -table.min(axis=0).astype(np.float64))
        if faults := [f"{name!r} ({value:g})" for name, value in zip(names, largest, strict=True) if value > 2**53]:
            raise TableError(f"column(s) with integers that are no exact float64: {', '.join(faults)}")
    return table.astype(np.float64)


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


def _npz_names(path: str) -> list[str]:
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            key = member.filename.removesuffix(".npy")
            _refuse_inflated(member.file_size, member.compress_size)
            with archive.open(member) as file:
                shapes[key] = read_header(file, member.file_size, f"array {key!r}")
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
        return np.concatenate([_exact(archive[name][:, None], [name]) for name in names], axis=1)


def _refuse_inflated(unpacked: int, packed: int) -> None:
    if unpacked > most_of(packed):
        raise TableError(f"it unpacks from {packed:,} to {unpacked:,} bytes: unpack it yourself if you trust it")


# Parquet


def _parquet_names(path: str) -> list[str]:
    # pandas stores an index without a name under such names: no column of the table
    return [name for name in pyarrow.parquet.read_schema(path).names if not re.fullmatch(r"__index_level_\d+__", name)]


def _parquet_index(path: str) -> list[str]:
    """Names of the columns that pandas has written as an index."""
    schema = pyarrow.parquet.read_schema(path)
    written = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    return [name for name in _parquet_names(path) if name in written]


def _parquet_values(path: str, positions: list[int], names: list[str]) -> Table:
    rows = pyarrow.parquet.read_metadata(path).num_rows
    _refuse_inflated(8 * rows * len(names), os.stat(path).st_size)
    table = pyarrow.parquet.read_table(path, columns=names)
    return _numeric([table[name].combine_chunks() for name in names], names)


_READERS: dict[str, tuple[Callable[[str], list[str]], Callable[[str, list[int], list[str]], Table]]] = {
    ".csv": (_csv_names, _csv_values),
    ".npy": (_npy_names, _npy_values),
    ".npz": (_npz_names, _npz_values),
    ".parquet": (_parquet_names, _parquet_values),
}
