"""A user's table, or one that scikit-learn ships."""

import os
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from sklearn import datasets
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.row_marks import row_marks
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.table_files import Table, TableFile, resolve_columns

# those that scikit-learn carries in its own package: nothing is downloaded
ShippedTable = Literal["load_breast_cancer", "load_diabetes", "load_digits", "load_iris", "load_linnerud", "load_wine"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_WINDOW_MARGIN = 0.1  # of the range of the training rows, on each side


class TabularDataModule(DensityDataModule):
    """Rows of a numeric table, held in memory.

    The rows are shuffled by ``data_seed`` and cut into training, validation and test splits; standardisation uses the
    training rows alone. An epoch is the training split. The density is unknown and the support the whole space.
    Missing, infinite and non-numeric values and constant columns are refused, by column name.

    Args:
        path: A .csv file with a header line, or a .npy, .npz or .parquet file. Exactly one of path and table is given.
        table: A table that scikit-learn ships; its features, not its target. Exactly one of path and table is given.
        columns: The columns to use, by name or by position from 0, in this order. None for all.
        batch_size: Rows of one process's training batch.
        val_fraction: Fraction of the rows for validation.
        test_fraction: Fraction of the rows for the test.
        standardize: Whether columns are shifted and scaled to mean 0 and standard deviation 1 of the training rows.
        predict_path: A file with these columns whose rows predict is asked for. None for the test split.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If an argument is out of range or the table cannot be used; at construction where the header tells,
            in ``setup`` where the values do.
    """

    def __init__(
        self,
        path: str | None = None,
        table: ShippedTable | None = None,
        columns: list[str | int] | None = None,
        batch_size: int = 256,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        standardize: bool = True,
        predict_path: str | None = None,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        # plain hyperparameters: a pathlib.Path would make checkpoints unreadable with weights_only=True
        path = None if path is None else os.fspath(path)
        predict_path = None if predict_path is None else os.fspath(predict_path)
        columns = None if columns is None else list(columns)
        if (path is None) == (table is None):
            given = "neither" if path is None else f"path={path!r} and table={table!r}"
            raise ValueError(f"give exactly one of path (a file) and table (one of {_known_tables()}), got {given}")
        for label, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
            if not 0 < fraction < 1:
                raise ValueError(f"{label} must be between 0 and 1, exclusive, got {fraction}")
        if val_fraction + test_fraction >= 1:
            raise ValueError(f"val_fraction {val_fraction} + test_fraction {test_fraction} leaves no training rows")
        self._file = None if path is None else TableFile(path, columns)
        self._shipped = None if table is None else _shipped_table(table, columns)
        if self._file is not None:
            self.columns = list(self._file.names)
        elif self._shipped is not None:
            self.columns = list(self._shipped[0])
        self._predict_file = None
        if predict_path is not None:
            # by name where the table has names; arrays have positions only
            self._predict_file = TableFile(
                predict_path, self._file.positions if self._file and not self._file.has_names else self.columns
            )
        name = Path(path).stem if path is not None else str(table).removeprefix("load_")
        super().__init__(
            dim=len(self.columns),
            name=name,
            batch_size=batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self._fractions = val_fraction, test_fraction
        self._standardize = standardize
        if standardize:
            self._standardization = None  # known when the training rows are
        self.save_hyperparameters()

    def load(self) -> dict[str, Tensor]:
        """Reads, checks, splits and standardises the table.

        Returns:
            The splits ``train``, ``val``, ``test``, and ``predict`` if ``predict_path`` is given.

        Raises:
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        values = self._file.read() if self._file else self._shipped_values()
        _refuse_non_finite(values, self.columns, self.name)
        order = torch.randperm(len(values), generator=generator_at(stream_seed(self.data_seed, "split"), 0)).numpy()
        num_val, num_test = (int(fraction * len(values)) for fraction in self._fractions)
        num_train = len(values) - num_val - num_test
        if num_val < 1 or num_test < 1 or num_train < 2:
            raise ValueError(
                f"{self.name}: {len(values)} rows are too few for val_fraction {self._fractions[0]} and test_fraction "
                f"{self._fractions[1]} ({num_train} training, {num_val} validation, {num_test} test rows); give more "
                "rows or larger fractions"
            )
        parts = np.split(values[order], [num_train, num_train + num_val])
        splits = dict(zip(("train", "val", "test"), parts, strict=True))
        _refuse_constant(splits["train"], self.columns, self.name)
        self.row_marks = {key: row_marks(rows, self.columns) for key, rows in splits.items()}
        if self._predict_file is not None:
            rows = self._predict_file.read()
            if len(rows) == 0:
                raise ValueError(f"{self._predict_file.path!r} has no rows to predict")
            _refuse_non_finite(rows, self.columns, self._predict_file.path)
            splits["predict"] = rows
        if self._standardize:
            scaler = StandardScaler().fit(splits["train"])
            self.set_standardization(torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_))
            splits = {key: scaler.transform(rows) for key, rows in splits.items()}
        _refuse_overflow(splits, self.columns, self.name)
        tensors = {key: torch.from_numpy(rows.astype(np.float32)) for key, rows in splits.items()}
        low, high = tensors["train"].amin(dim=0), tensors["train"].amax(dim=0)
        margin = _WINDOW_MARGIN * (high - low)
        infinite = torch.full((self.dim,), torch.inf)
        self.set_range(torch.stack([-infinite, infinite]), torch.stack([low - margin, high + margin]))
        return tensors

    def _shipped_values(self) -> Table:
        assert self._shipped is not None
        return self._shipped[1]


def _known_tables() -> str:
    return ", ".join(get_args(ShippedTable))


def _shipped_table(table: str, columns: list[str | int] | None) -> tuple[list[str], Table]:
    """Loads one of scikit-learn's tables: names and values of the columns wanted."""
    if table not in get_args(ShippedTable):
        raise ValueError(f"unknown table {table!r}; scikit-learn ships {_known_tables()}")
    bunch = getattr(datasets, table)()
    positions = resolve_columns(columns, list(bunch.feature_names), table)
    values = np.asarray(bunch.data, dtype=np.float64)[:, positions]
    return [str(bunch.feature_names[position]) for position in positions], values


def _refuse_non_finite(values: Table, columns: list[str], source: str) -> None:
    missing, infinite = np.isnan(values).sum(axis=0), np.isinf(values).sum(axis=0)
    faults = [
        f"{name!r} ({nan} missing or NaN, {inf} infinite)"
        for name, nan, inf in zip(columns, missing, infinite, strict=True)
        if nan or inf
    ]
    if faults:
        raise ValueError(
            f"{source}: {len(values)} rows, with values that are not finite in column(s) {', '.join(faults)}; "
            "drop or fill those rows, or list other columns"
        )


def _refuse_overflow(splits: dict[str, Table], columns: list[str], source: str) -> None:
    largest = np.max([np.abs(rows).max(axis=0) for rows in splits.values()], axis=0)
    faults = [f"{name!r} ({value:g})" for name, value in zip(columns, largest, strict=True) if value > _FLOAT32_MAX]
    if faults:
        raise ValueError(f"{source}: column(s) too large for float32: {', '.join(faults)}; rescale them or standardize")


def _refuse_constant(train: Table, columns: list[str], source: str) -> None:
    # a spread at the level of float64 rounding is no spread
    spread = np.ptp(train, axis=0)
    constant = spread <= 1e-14 * np.abs(train).max(axis=0)
    if constant.any():
        faults = [f"{name!r} ({value:g})" for name, value in zip(columns, train[0], strict=True)]
        named = ", ".join(fault for fault, is_constant in zip(faults, constant, strict=True) if is_constant)
        raise ValueError(
            f"{source}: constant column(s) in the {len(train)} training rows: {named}; they have no density, list the "
            "other columns"
        )
