"""A user's table, or one that scikit-learn ships."""

import os
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.in_memory import check_fractions
from lightning_lift.datamodules.row_marks import row_marks
from lightning_lift.datamodules.shipped_tables import ShippedName
from lightning_lift.datamodules.table_checks import (
    refuse_constant,
    refuse_lost_digits,
    robust_units,
    standard_units,
    warn_of_degenerate,
    warn_of_outliers,
    whitening_units,
)
from lightning_lift.datamodules.table_rows import TableRows

_BATCH_SIZE = 256


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
        table: A table that scikit-learn ships: its features, and ``target`` where columns names it. Not together with
            path.
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
        table: ShippedName | None = None,
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
        if standardize not in ("whiten", "columns", True, False):
            raise ValueError(f"standardize={standardize!r}: choose 'whiten', 'columns' or false.")
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        self._rows = TableRows(path, table, predict_path, columns, drop_columns, header, drop_missing)
        self.columns = self._rows.names
        super().__init__(
            dim=len(self.columns),
            name=self._rows.name,
            batch_size=_BATCH_SIZE if batch_size is None else batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self._fractions = val_fraction, test_fraction
        self._standardize = standardize
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
        self._rows.check_stage(stage)
        super().setup(stage)

    def load(self) -> dict[str, Tensor]:
        """Read, check, split and standardise the table.

        Returns:
            The splits ``train``, ``val``, ``test``, and ``predict`` if ``predict_path`` is given.

        Raises:
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        splits, self.row_numbers = self._rows.read(self._fractions, self.data_seed)
        if "train" in splits:
            refuse_constant(splits["train"], self.columns, self.name)
            warn_of_degenerate(splits["train"], self.columns, self.name)
        warn_of_outliers(splits, self.columns, self.name)
        # rows to predict may be those of the fit
        self.row_marks = {key: row_marks(rows, self.columns) for key, rows in splits.items() if key != "predict"}
        served = splits
        fitted = splits.get("train", splits.get("predict"))
        assert fitted is not None
        if self._standardize:
            location, scale = (standard_units if "train" in splits else robust_units)(fitted)
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
