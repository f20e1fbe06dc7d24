"""Pairs and triples from a user's table or arrays: x, and beside it a context, a target, weights."""

import os
from typing import Any, Literal, get_args

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_lift.datamodules.batches import Batch, num_rows, parts_of
from lightning_lift.datamodules.in_memory import check_fractions
from lightning_lift.datamodules.part_sources import ArrayParts, TableParts
from lightning_lift.datamodules.parts import PartsDataModule
from lightning_lift.datamodules.row_marks import row_marks
from lightning_lift.datamodules.shipped_tables import ShippedName
from lightning_lift.datamodules.table_checks import constant_columns, refuse_lost_digits, warn_of_outliers
from lightning_lift.datamodules.table_files import Table

_BATCH_SIZE = 256
Standardized = Literal["x", "context", "target"]


class PairsDataModule(PartsDataModule):
    """Rows of a numeric table of which each column is x, context, target or weight, held in memory.

    The rows are shuffled by ``data_seed`` and cut into training, validation and test splits; standardisation uses the
    training rows alone, each column for itself. An epoch is the training split. What a table is refused for, and what
    it is only warned of, is named by its columns.

    With ``predict_path`` alone, or where there is no file ``path``, there are only rows to predict. :meth:`from_arrays`
    makes one of arrays in memory.

    Args:
        path: A .csv or .csv.gz file, or a .npy, .npz or .parquet file. Not together with table.
        table: A table that scikit-learn ships: its features, and ``target``. Not together with path.
        x: Columns that the network is convex in, by name or by position from 0. None for all that are not named
            elsewhere.
        context: Columns that it may depend on in any way.
        target: Columns to be predicted.
        weight: Column of the rows' weights in the loss.
        drop_columns: Columns to leave out where x is None.
        drop_missing: Whether rows with a missing value in a column used are left out.
        header: Whether a .csv file begins with a line of names.
        batch_size: Rows of one process's training batch. None for 256, or all training rows where they are fewer.
        val_fraction: Fraction of the rows for validation.
        test_fraction: Fraction of the rows for the test.
        standardize: Parts whose columns are brought to mean 0 and standard deviation 1. Classes and counts as targets
            are left as they are by ``[x, context]``.
        predict_path: A file with the columns of x and context, whose rows predict is asked for. None for the test
            split.
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
        x: list[str | int] | str | int | None = None,
        context: list[str | int] | str | int | None = None,
        target: list[str | int] | str | int | None = None,
        weight: str | int | None = None,
        drop_columns: list[str | int] | None = None,
        drop_missing: bool = False,
        header: bool = True,
        batch_size: int | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        standardize: list[Standardized] = ["x", "context", "target"],  # noqa: B006  # a plain hyperparameter, only read
        predict_path: str | None = None,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
        _arrays: ArrayParts | None = None,
    ) -> None:
        # plain hyperparameters: a pathlib.Path would make checkpoints unreadable with weights_only=True
        path = None if path is None else os.fspath(path)
        predict_path = None if predict_path is None else os.fspath(predict_path)
        x, context, target = _listed(x), _listed(context), _listed(target)
        drop_columns = _listed(drop_columns)
        if unknown := set(standardize) - set(get_args(Standardized)):
            raise ValueError(f"standardize: {sorted(unknown)} is none of {', '.join(get_args(Standardized))}.")
        standardize = list(standardize)
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        self._source: ArrayParts | TableParts = _arrays or TableParts(
            path, table, predict_path, x, context, target, weight, drop_columns, header, drop_missing
        )
        shapes = self._source.shapes
        super().__init__(
            dim=shapes["x"][0],
            name=self._source.name,
            batch_size=_BATCH_SIZE if batch_size is None else batch_size,
            context_shape=shapes.get("context"),
            target_dim=(*shapes["target"], 1)[0] if "target" in shapes else None,
            weighted="weight" in shapes,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self.columns = self._source.names["x"]
        self.field_columns = {
            name: named for name, named in self._source.names.items() if name in ("context", "target")
        }
        self._fractions = val_fraction, test_fraction
        self._standardize, self._fit_batch = standardize, batch_size is None
        if "x" in standardize:
            self._standardization = None  # known when the training rows are
        self.save_hyperparameters(ignore=["_arrays"])

    @classmethod
    def from_arrays(
        cls, x: Any, context: Any = None, target: Any = None, weight: Any = None, **settings: Any
    ) -> "PairsDataModule":
        """Make one of tensors, arrays or data frames in memory, which its hyperparameters do not hold.

        Args:
            x: What the network is convex in, (N, D).
            context: What it may depend on in any way, (N, ...).
            target: To be predicted, (N,) or (N, m).
            weight: Of the rows in the loss, (N,).
            **settings: Arguments of the class from ``batch_size`` on.

        Raises:
            ValueError: If an array is not numbers, or of another length.
        """
        return cls(**settings, _arrays=ArrayParts(x=x, context=context, target=target, weight=weight))

    def setup(self, stage: str | None = None) -> None:
        """Read, check, split and standardise the rows, once.

        Args:
            stage: Lightning's stage; ``predict`` alone needs no training table.

        Raises:
            FileNotFoundError: If the training table is needed and does not exist.
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        self._source.check_stage(stage)
        super().setup(stage)

    def load(self) -> dict[str, Batch]:
        """Read, check, split and standardise the rows.

        Returns:
            The splits ``train``, ``val``, ``test``, and ``predict`` if ``predict_path`` is given.

        Raises:
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        splits, self.row_numbers = self._source.read(self._fractions, self.data_seed)
        if "train" in splits:
            self._judge(splits["train"])
        served = self.standardize(splits, self._standardize)
        self.row_marks = {}
        for name, columns in self._source.names.items():
            original, brought = _tables(splits, name), _tables(served, name)
            warn_of_outliers(original, columns, self.name)
            refuse_lost_digits(original, brought, columns, self.name)
            for key in original.keys() - {"predict"}:  # rows to predict may be those of the fit
                marks = row_marks(original[key], columns)
                self.row_marks[key] = self.row_marks[key] + marks if key in self.row_marks else marks
        return served

    def _judge(self, train: Batch) -> None:
        if train.weight is not None and bool((train.weight < 0).any()):
            raise ValueError(f"{self.name}: {int((train.weight < 0).sum())} weights of training rows are negative")
        constant = [self._source.names["x"][place] for place in np.flatnonzero(constant_columns(train.x.numpy()))]
        if constant:
            rank_zero_warn(
                f"{self.name}: constant column(s) of x in the {num_rows(train)} training rows: {', '.join(constant)}; "
                "nothing can be learned of them, and a density of them has no upper bound: leave them out."
            )
        if self._fit_batch:
            self.batch_size = min(_BATCH_SIZE, num_rows(train))


def _listed(columns: Any) -> list[str | int] | None:
    return columns if columns is None else [columns] if isinstance(columns, str | int) else list(columns)


def _tables(splits: dict[str, Batch], name: str) -> dict[str, Table]:
    parts: dict[str, Tensor] = {key: parts_of(rows)[name] for key, rows in splits.items() if name in parts_of(rows)}
    return {key: part.reshape(len(part), -1).numpy() for key, part in parts.items()}
