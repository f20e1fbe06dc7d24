"""A user's table, or one that scikit-learn ships."""

import os
import re
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities import rank_zero_warn
from sklearn import datasets
from torch import Tensor

from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.in_memory import check_fractions
from lightning_lift.datamodules.row_marks import row_marks
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.table_checks import (
    refuse_constant,
    refuse_lost_digits,
    refuse_non_finite,
    standard_units,
    warn_of_degenerate,
    warn_of_outliers,
    whitening_units,
)
from lightning_lift.datamodules.table_files import Table, TableFile, resolve_columns

_BATCH_SIZE = 256
# those that scikit-learn carries in its own package: nothing is downloaded
ShippedTable = Literal["load_breast_cancer", "load_diabetes", "load_digits", "load_iris", "load_linnerud", "load_wine"]


class TabularDataModule(DensityDataModule):
    """Rows of a numeric table, held in memory.

    The rows are shuffled by ``data_seed`` and cut into training, validation and test splits; standardisation uses the
    training rows alone. An epoch is the training split. The density is unknown and the support the whole space.
    Refused, by column name: missing, infinite and non-numeric values, integers that float64 does not hold, constant
    columns, values that float32 cannot tell apart in training units. Warned of, by name: discrete columns, linearly
    dependent ones, and values far from all others.

    With ``predict_path`` alone, or where there is no file ``path``, there are only rows to predict.

    Args:
        path: A .csv or .csv.gz file, or a .npy, .npz or .parquet file. Not together with table.
        table: A table that scikit-learn ships; its features, not its target. Not together with path.
        columns: The columns to use, by name or by position from 0, in this order. None for all.
        drop_columns: Columns to leave out, by name or by position from 0.
        drop_missing: Whether rows with a missing value in a column used are left out.
        header: Whether a .csv file begins with a line of names.
        batch_size: Rows of one process's training batch. None for 256, or all training rows where they are fewer.
        val_fraction: Fraction of the rows for validation.
        test_fraction: Fraction of the rows for the test.
        standardize: Training units. ``whiten``: mean 0 and the unit covariance over the training rows. ``columns`` or
            true: each column for itself, to mean 0 and standard deviation 1. false: the table's own.
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
        drop_columns: list[str | int] | None = None,
        drop_missing: bool = False,
        header: bool = True,
        batch_size: int | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        standardize: Literal["whiten", "columns"] | bool = "whiten",
        predict_path: str | None = None,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        # plain hyperparameters: a pathlib.Path would make checkpoints unreadable with weights_only=True
        path = None if path is None else os.fspath(path)
        predict_path = None if predict_path is None else os.fspath(predict_path)
        columns = None if columns is None else list(columns)
        drop_columns = None if drop_columns is None else list(drop_columns)
        if (path is not None and table is not None) or (path is None and table is None and predict_path is None):
            given = "neither" if path is None else f"path={path!r} and table={table!r}"
            raise ValueError(f"give exactly one of path (a file) and table (one of {_known_tables()}), got {given}")
        if standardize not in ("whiten", "columns", True, False):
            raise ValueError(f"standardize={standardize!r}: choose 'whiten', 'columns' or false.")
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        dropped, only_rows = drop_columns or [], table is None and predict_path is not None
        self._missing = path if only_rows and path is not None and not Path(path).exists() else None
        self._file: TableFile | None = None
        self._shipped: tuple[list[str], Table] | None = None
        if table is not None:
            self._shipped = _shipped_table(table, columns, dropped)
            self.columns = list(self._shipped[0])
        elif path is not None and self._missing is None:
            self._file = TableFile(path, columns, dropped, header)
            self.columns = list(self._file.names)
        self._predict_file = None
        if predict_path is not None and self._file is None and self._shipped is None:
            self._predict_file = TableFile(predict_path, columns, dropped, header)
            self.columns = list(self._predict_file.names)
        elif predict_path is not None:
            # by name where the table has names; arrays have positions only
            wanted = self._file.positions if self._file and not self._file.has_names else self.columns
            self._predict_file = TableFile(predict_path, wanted, header=header)
        source = str(table).removeprefix("load_") if table is not None else Path(path or str(predict_path)).name
        super().__init__(
            dim=len(self.columns),
            name=re.sub(r"\.csv\.gz$|\.\w+$", "", source),
            batch_size=_BATCH_SIZE if batch_size is None else batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self._fractions = val_fraction, test_fraction
        self._standardize, self._drop_missing = standardize, drop_missing
        self._fit_batch = batch_size is None
        if standardize:
            self._standardization = None  # known when the training rows are
        self.save_hyperparameters()

    def setup(self, stage: str | None = None) -> None:
        """Read, check, split and standardise the table, once.

        Args:
            stage: Lightning's stage; ``predict`` alone needs no training table.

        Raises:
            FileNotFoundError: If the training table is needed and does not exist.
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        if stage not in (None, "predict") and self._file is None and self._shipped is None:
            if self._missing is not None:
                raise FileNotFoundError(f"no file {self._missing!r} (looked from the directory {str(Path.cwd())!r})")
            raise ValueError(f"{self.name} has rows to predict only: give the training table as path to {stage}")
        super().setup(stage)

    def load(self) -> dict[str, Tensor]:
        """Read, check, split and standardise the table.

        Returns:
            The splits ``train``, ``val``, ``test``, and ``predict`` if ``predict_path`` is given.

        Raises:
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        splits: dict[str, Table] = {}
        self.row_numbers = {}
        if self._file is not None or self._shipped is not None:
            values = self._file.read() if self._file else self._shipped_values()
            splits = self._cut(*self._complete(values, self.name))
            refuse_constant(splits["train"], self.columns, self.name)
            warn_of_degenerate(splits["train"], self.columns, self.name)
        if self._predict_file is not None:
            rows, numbers = self._complete(self._predict_file.read(), self._predict_file.path)
            if len(rows) == 0:
                raise ValueError(f"{self._predict_file.path!r} has no rows to predict")
            splits["predict"], self.row_numbers["predict"] = rows, torch.from_numpy(numbers)
        warn_of_outliers(splits, self.columns, self.name)
        # rows to predict may be those of the fit
        self.row_marks = {key: row_marks(rows, self.columns) for key, rows in splits.items() if key != "predict"}
        served = splits
        fitted = splits.get("train", splits.get("predict"))
        assert fitted is not None
        if self._standardize:
            location, scale = (standard_units if "train" in splits else _units_of_predictions)(fitted)
            served = {key: (rows - location) / scale for key, rows in splits.items()}
            self.set_standardization(torch.from_numpy(location), torch.from_numpy(scale))
        refuse_lost_digits(splits, served, self.columns, self.name)  # before mixing, which hides what a column has lost
        if self._standardize == "whiten" and "train" in splits:
            location, scale = whitening_units(fitted)
            self.set_standardization(torch.from_numpy(location), torch.from_numpy(scale))
            served = {key: self.units.apply(torch.from_numpy(rows)).numpy() for key, rows in splits.items()}
        tensors = {key: torch.from_numpy(rows.astype(np.float32)) for key, rows in served.items()}
        if self._fit_batch and "train" in tensors:
            self.batch_size = min(_BATCH_SIZE, len(tensors["train"]))
        self.set_open_range(tensors.get("train", tensors.get("predict", torch.empty(0))))
        return tensors

    def _complete(self, values: Table, source: str) -> tuple[Table, npt.NDArray[np.int64]]:
        """Leave rows with missing values out, if asked to; rows and their numbers in the file."""
        numbers = np.arange(len(values))
        if self._drop_missing and (missing := np.isnan(values).any(axis=1)).any():
            rank_zero_warn(f"{source}: {missing.sum()} of {len(values)} rows left out, with missing values.")
            values, numbers = values[~missing], numbers[~missing]
        refuse_non_finite(values, self.columns, source)
        return values, numbers

    def _cut(self, values: Table, numbers: npt.NDArray[np.int64]) -> dict[str, Table]:
        order = torch.randperm(len(values), generator=generator_at(stream_seed(self.data_seed, "split"), 0)).numpy()
        num_val, num_test = (int(fraction * len(values)) for fraction in self._fractions)
        num_train = len(values) - num_val - num_test
        if num_val < 1 or num_test < 1 or num_train < 2:
            raise ValueError(
                f"{self.name}: {len(values)} rows are too few for val_fraction {self._fractions[0]} and test_fraction "
                f"{self._fractions[1]} ({num_train} training, {num_val} validation, {num_test} test rows); give more "
                "rows or larger fractions"
            )
        parts = dict(zip(("train", "val", "test"), np.split(order, [num_train, num_train + num_val]), strict=True))
        self.row_numbers = {key: torch.from_numpy(numbers[part]) for key, part in parts.items()}
        return {key: values[part] for key, part in parts.items()}

    def _shipped_values(self) -> Table:
        assert self._shipped is not None
        return self._shipped[1]


def _units_of_predictions(rows: Table) -> tuple[Table, Table]:
    """Median and interquartile range (D,): one far row must not cost the others their digits in float32."""
    low, median, high = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
    return median, np.where(high > low, high - low, 1.0)


def _known_tables() -> str:
    return ", ".join(get_args(ShippedTable))


def _shipped_table(table: str, columns: list[str | int] | None, dropped: list[str | int]) -> tuple[list[str], Table]:
    """Load one of scikit-learn's tables: names and values of the columns wanted."""
    if table not in get_args(ShippedTable):
        raise ValueError(f"unknown table {table!r}; scikit-learn ships {_known_tables()}")
    bunch = getattr(datasets, table)()
    names = list(bunch.feature_names)
    positions = resolve_columns(columns, names, table)
    left_out = resolve_columns(dropped, names, table) if dropped else []
    positions = [position for position in positions if position not in left_out]
    values = np.asarray(bunch.data, dtype=np.float64)[:, positions]
    return [str(bunch.feature_names[position]) for position in positions], values
