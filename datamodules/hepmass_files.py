"""Reading HEPMASS (Baldi et al., 2016; UCI data set 347) from its published files, by position."""

import io
from collections.abc import Mapping
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.csv

Rows = npt.NDArray[np.float64]

FORMS: tuple[Mapping[str, str], ...] = (
    {"train": "1000_train.csv", "test": "1000_test.csv"},
    {"train": "all_train.csv", "test": "all_test.csv"},
)
"""File names: the benchmark's (a tenth of the rows, or all of them, of the mass 1000), and those of all masses."""

FEATURES = 27
"""Features f0 to f26 of a row. A labelled row has the label before them; a row of all masses has the mass after
them."""

USED = 26
"""Features that are looked at: f26 is left out."""

FIRST_ROWS: Mapping[str, int] = {"train": 700_000, "test": 350_000}
"""Rows of each file that belong to the benchmark, signal and background."""

LARGEST = 8_000_000_000
"""Bytes of the largest file that is read, uncompressed: UCI's of all masses."""

DISCRETE = (5, 9, 13, 17, 21)
"""The features with repeated smallest values: the number of jets and the four b-tags."""

_MASS, _MASS_TOLERANCE = 1000.0, 1.0
_MAX_REPEATS = 5
_BLOCK = 1 << 24
_LONGEST = 1 << 16  # bytes of the first two lines

_NAMES = [
    *("lepton_pt", "lepton_eta", "lepton_phi", "missing_energy", "missing_energy_phi", "num_jets"),
    *(f"jet{jet}_{what}" for jet in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "btag")),
    *("m_jj", "m_jjj", "m_lv", "m_jlv"),
]
COLUMNS = [name for position, name in enumerate(_NAMES) if position not in DISCRETE]
"""Names of the 21 columns that are kept."""


def read_features(file: IO[bytes], source: str, labelled: bool, max_rows: int | None = None) -> Rows:
    """Read the features of a file, of its signal rows if it is labelled.

    Values are taken by position and the header is passed over: the published training file has 27 names over rows of 28
    values, the published test file 28. Of rows with a mass at their end (29 values) those of mass 1000 count.

    Args:
        file: The content, uncompressed; buffered, at its beginning.
        source: What the file is called in error messages.
        labelled: Whether the first value is a label, 1 for signal.
        max_rows: Rows to look at, signal or not (of mass 1000); None for all.

    Returns:
        (rows, 26) float64.

    Raises:
        ValueError: If rows have a wrong number of values, labels are not 0 or 1, or values are not finite numbers.
    """
    header, _, rest = cast(io.BufferedReader, file).peek(_LONGEST)[:_LONGEST].partition(b"\n")
    first = rest.partition(b"\n")[0]
    width = len(first.rstrip(b"\r\n").split(b","))
    _check_width(header, first, width, source, labelled)
    parts: list[Rows] = []
    read = seen = 0
    for rows in _blocks(file, width, source):
        _check_values(rows, read, source, labelled)
        read += len(rows)
        if width == FEATURES + 2:
            rows = rows[np.abs(rows[:, -1] - _MASS) <= _MASS_TOLERANCE]
        if max_rows is not None:
            rows = rows[: max_rows - seen]
        seen += len(rows)
        parts.append(rows[rows[:, 0] == 1.0, 1 : 1 + USED] if labelled else rows[:, :USED])
        if seen == max_rows:
            break
    return np.concatenate(parts)


def kept_columns(train: Rows) -> list[int]:
    """Return the columns whose smallest value occurs at most 5 times, the rule of the published preprocessing.

    Args:
        train: (rows, columns).
    """
    repeats = (train == train.min(axis=0)).sum(axis=0)
    return [int(column) for column in np.flatnonzero(repeats <= _MAX_REPEATS)]


def check_columns(train: Rows, source: str) -> list[int]:
    """Apply the rule and compare with the columns that it leaves in the published files.

    Args:
        train: Training rows (rows, 26).
        source: What the rows are called in error messages.

    Returns:
        Positions of the 21 columns.

    Raises:
        ValueError: If the rule leaves other columns.
    """
    kept = kept_columns(train)
    if kept != [column for column in range(USED) if column not in DISCRETE]:
        dropped = [f"f{column}" for column in range(USED) if column not in kept]
        raise ValueError(
            f"{source}: the smallest value occurs more than {_MAX_REPEATS} times in {len(train)} rows of {dropped}, "
            f"expected of {[f'f{column}' for column in DISCRETE]}: too few rows, or no HEPMASS data"
        )
    return kept


def _check_width(header: bytes, first: bytes, width: int, source: str, labelled: bool) -> None:
    if not first.strip():
        raise ValueError(f"{source!r} has no rows under its first line")
    try:
        float(header.split(b",")[-1])
    except ValueError:
        pass
    else:
        raise ValueError(f"{source!r} begins with numbers; expected a line of names, which is passed over")
    expected = (FEATURES + 1, FEATURES + 2) if labelled else (FEATURES,)
    if width not in expected:
        other = (FEATURES,) if labelled else (FEATURES + 1, FEATURES + 2)
        hint = f"; set labelled: {str(not labelled).lower()}" if width in other else ""
        raise ValueError(
            f"{source!r} has {width} values in its first row, expected {' or '.join(map(str, expected))} "
            f"({'a label, ' if labelled else ''}{FEATURES} features{', possibly a mass' if labelled else ''}){hint}"
        )


def _blocks(file: IO[bytes], width: int, source: str) -> Any:
    """Parse the rows block by block."""
    # every value as float64: left to itself the parser guesses whole numbers from the first block
    names = [str(i) for i in range(width)]
    try:
        reader = pyarrow.csv.open_csv(
            cast(Any, file),
            read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=1, block_size=_BLOCK),
            convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.float64())),
        )
        for batch in reader:
            yield np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{source!r} is damaged or cut off: {' '.join(str(error).split())}") from error


def _check_values(rows: Rows, before: int, source: str, labelled: bool) -> None:
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise ValueError(f"{source!r}: the value {column + 1} of row {before + row + 1} is {rows[row, column]}")
    if labelled and not np.isin(rows[:, 0], (0.0, 1.0)).all():
        found = rows[~np.isin(rows[:, 0], (0.0, 1.0)), 0][0]
        raise ValueError(f"{source!r}: the first value of each row must be a label, 0 or 1, found {found}")
