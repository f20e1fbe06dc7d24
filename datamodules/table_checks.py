"""What a table is refused for, and what it is only warned of, with the names of the columns."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_warn

from lightning_lift.datamodules.table_files import Table

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FAR = 1e4  # interquartile ranges from the median
_REPEATS, _INTEGER_REPEATS = 10, 2  # rows a value, on average, from which a column counts as discrete
_SHARE = 0.1  # of the rows, held by one value
_LISTED = 10  # columns named in a warning
_LEAST_VARIANCE = 1e-6  # of a whitened combination, relative to that of the columns
_DEPENDENT = 1e-10  # variance, relative to that of the columns, of a combination that is a constant but for rounding


def constant_columns(rows: Table) -> npt.NDArray[np.bool_]:
    """Return which columns (D,) of (N, D) have one value: a spread at the level of float64 rounding is no spread."""
    constant: npt.NDArray[np.bool_] = np.ptp(rows, axis=0) <= 1e-14 * np.abs(rows).max(axis=0)
    return constant


def standard_units(rows: Table, weight: Table | None = None) -> tuple[Table, Table]:
    """Return mean and standard deviation, from distances to the median: a sum of large numbers loses a small spread.

    Args:
        rows: (N, D).
        weight: Of each row, (N,): a row of weight 2 is the row twice. None for 1.

    Returns:
        Both (D,), the deviation of a constant column as 1.
    """
    median = np.median(rows, axis=0)
    constant = constant_columns(rows)
    width = np.where(constant, 1.0, np.ptp(rows, axis=0))  # whose square need not be a number
    parts = (rows - median) / width
    mean = np.average(parts, axis=0, weights=weight)
    spread = np.sqrt(np.average((parts - mean) ** 2, axis=0, weights=weight))
    return median + width * mean, np.where(constant, 1.0, width * spread)


def robust_units(rows: Table) -> tuple[Table, Table]:
    """Return median and interquartile range (1 where it is 0): one far row must not cost the others their digits.

    Args:
        rows: (N, D).

    Returns:
        Both (D,).
    """
    low, median, high = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
    return median, np.where(high > low, high - low, 1.0)


def whitening_units(rows: Table) -> tuple[Table, Table]:
    """Return mean and the matrix M with ``rows = mean + M z``, where z has the unit covariance.

    M = diag(sd) R^(1/2) with R the correlation matrix, so that z stays as close to the standardised columns as it can
    (Kessy, Lewin & Strimmer, Optimal whitening and decorrelation, 2018). The eigenvalues of R, whose mean is 1, are
    floored at 1e-6: along a combination of columns that (nearly) does not vary z then varies less than 1, instead of
    being round-off that is blown up.

    Args:
        rows: (N, D), no column constant.

    Returns:
        (D,) and (D, D).
    """
    location, scale = standard_units(rows)
    standard = (rows - location) / scale
    variances, directions = np.linalg.eigh(standard.T @ standard / len(rows))
    root = (directions * np.sqrt(np.maximum(variances, _LEAST_VARIANCE))) @ directions.T
    return location, scale[:, None] * root


def refuse_non_finite(values: Table, columns: Sequence[str], source: str) -> None:
    """Refuse missing and infinite values.

    Args:
        values: (rows, columns).
        columns: Names of the columns.
        source: What the table is called in error messages.

    Raises:
        ValueError: Naming the columns, with counts.
    """
    missing, infinite = np.isnan(values).sum(axis=0), np.isinf(values).sum(axis=0)
    faults = [
        f"{name!r} ({nan} missing or NaN, {inf} infinite)"
        for name, nan, inf in zip(columns, missing, infinite, strict=True)
        if nan or inf
    ]
    if faults:
        raise ValueError(
            f"{source}: {len(values)} rows, with values that are not finite in column(s) {', '.join(faults)}; drop the "
            "rows of missing values by drop_missing: true, or columns by drop_columns, or repair the file"
        )


def refuse_constant(train: Table, columns: Sequence[str], source: str) -> None:
    """Refuse columns without a density: of one value.

    Args:
        train: Training rows (rows, columns).
        columns: Names of the columns.
        source: What the table is called in error messages.

    Raises:
        ValueError: Naming the columns, with their value.
    """
    constant = constant_columns(train)
    faults = [f"{columns[i]!r} ({train[0, i]:g})" for i in np.flatnonzero(constant).tolist()]
    if faults:
        raise ValueError(
            f"{source}: constant column(s) in the {len(train)} training rows: {', '.join(faults)}; they have no "
            "density: leave them out by drop_columns"
        )


def refuse_lost_digits(
    original: Mapping[str, Table], served: Mapping[str, Table], columns: Sequence[str], source: str
) -> None:
    """Refuse columns that float32 cannot hold: too large, or with rows that it cannot tell apart.

    Args:
        original: The splits as read.
        served: The splits in training units.
        columns: Names of the columns.
        source: What the table is called in error messages.

    Raises:
        ValueError: Naming the columns, with the value at fault.
    """
    largest = np.max([np.abs(rows).max(axis=0) for rows in served.values()], axis=0)
    faults = [f"{name!r} ({value:g})" for name, value in zip(columns, largest, strict=True) if value > _FLOAT32_MAX]
    if faults:
        raise ValueError(f"{source}: column(s) too large for float32: {', '.join(faults)}; rescale them or standardize")
    if "train" not in original:
        return
    for name, before, after in zip(columns, original["train"].T, served["train"].T, strict=True):
        distinct, left = len(np.unique(before)), len(np.unique(after.astype(np.float32)))
        if left <= distinct // 2:
            extreme = before[np.argmax(np.abs(before - np.median(before)))]
            raise ValueError(
                f"{source}: of the {distinct} values of column {name!r} float32 tells {left} apart beside "
                f"{extreme:g}, the farthest from the median; repair or drop that row, take logarithms, or set "
                "standardize: true where it is false"
            )


def warn_of_degenerate(train: Table, columns: Sequence[str], source: str) -> None:
    """Warn of columns beside which the likelihood has no upper bound: discrete ones, and linearly dependent ones.

    Args:
        train: Training rows (rows, columns), no column constant.
        columns: Names of the columns.
        source: What the table is called in the warning.
    """
    discrete = []
    for name, column in zip(columns, train.T, strict=True):
        counts = np.unique(column, return_counts=True)[1]
        repeats = _INTEGER_REPEATS if (column == np.floor(column)).all() else _REPEATS
        if len(counts) * repeats <= len(column) or counts.max() > max(2, _SHARE * len(column)):
            discrete.append(f"{name!r} ({len(counts)} values in {len(column)} rows, one {counts.max()} times)")
    if discrete:
        rank_zero_warn(
            f"{source}: {len(discrete)} discrete column(s), {', '.join(discrete[:_LISTED])}: the likelihood of a "
            "density has no upper bound at values that repeat. Add noise of the size of a step to them, or leave them "
            "out by drop_columns."
        )
    location, scale = standard_units(train)
    standard = (train - location) / scale
    variances, directions = np.linalg.eigh(standard.T @ standard / len(train))
    null = directions[:, variances < _DEPENDENT]
    if null.size:
        named = [repr(name) for name, part in zip(columns, np.abs(null).max(axis=1), strict=True) if part > 1e-4]
        rank_zero_warn(
            f"{source}: the columns {', '.join(named)} are linearly dependent in the {len(train)} training rows "
            f"({null.shape[1]} too many): the likelihood of a density has no upper bound there. Leave as many out by "
            "drop_columns."
        )


def warn_of_outliers(splits: Mapping[str, Table], columns: Sequence[str], source: str) -> None:
    """Warn of values that are ten thousand interquartile ranges away from the median of the training rows.

    Args:
        splits: The splits as read.
        columns: Names of the columns.
        source: What the table is called in the warning.
    """
    if "train" not in splits:
        return
    low, median, high = np.quantile(splits["train"], [0.25, 0.5, 0.75], axis=0)
    faults = []
    for key, rows in splits.items():
        distance = np.abs(rows - median) - _FAR * (high - low)
        for column in np.flatnonzero((distance > 0).any(axis=0) & (high > low)).tolist():
            faults.append(f"{rows[np.argmax(distance[:, column]), column]:g} in {columns[column]!r} ({key} split)")
    if faults:
        rank_zero_warn(
            f"{source}: values more than {_FAR:g} interquartile ranges away from the median: {', '.join(faults)}. "
            "Mean, standard deviation and likelihood will be theirs; repair or drop their rows, or take logarithms."
        )
