"""A table to fit on and one to predict: read, freed of missing values, cut into splits."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.shipped_tables import ShippedTable, known_tables
from lightning_lift.datamodules.table_checks import refuse_non_finite
from lightning_lift.datamodules.table_files import Columns, Table, TableFile


class TableRows:
    """Rows of a table, in a file or of scikit-learn's, and rows of another file to predict.

    With ``predict_path`` alone, or where there is no file ``path``, there are only rows to predict.

    Args:
        path: A file of :class:`~lightning_lift.datamodules.table_files.TableFile`. Not together with table.
        table: A table that scikit-learn ships. Not together with path.
        predict_path: A file with rows to predict. None for none.
        columns: The columns wanted, by name or by position from 0, in this order. None for all.
        drop_columns: Columns to leave out, by name or by position from 0.
        header: Whether a .csv file begins with a line of names.
        drop_missing: Whether rows with a missing value in a column used are left out.
        num_unknown: How many of the columns, the last ones, are not asked for in the file to predict.

    Attributes:
        name: Of the source, without folder and ending.
        names: Of the columns wanted.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If neither or both of path and table are given, or a table cannot be used, as the header tells.
    """

    def __init__(
        self,
        path: str | None,
        table: str | None,
        predict_path: str | None,
        columns: Columns | None = None,
        drop_columns: Columns | None = None,
        header: bool = True,
        drop_missing: bool = False,
        num_unknown: int = 0,
    ) -> None:
        if (path is not None and table is not None) or (path is None and table is None and predict_path is None):
            given = "neither" if path is None else f"path={path!r} and table={table!r}"
            raise ValueError(f"give exactly one of path (a file) and table (one of {known_tables()}), got {given}")
        dropped = drop_columns or ()
        only_predicts = table is None and predict_path is not None
        self._missing = path if only_predicts and path is not None and not Path(path).exists() else None
        self._fitted: TableFile | ShippedTable | None = None
        self._predicted: TableFile | None = None
        if table is not None:
            self._fitted = ShippedTable(table, columns, dropped)
        elif path is not None and self._missing is None:
            self._fitted = TableFile(path, columns, dropped, header)
        if predict_path is not None and self._fitted is None:
            known = None if columns is None else columns[: len(columns) - num_unknown]
            self._predicted = TableFile(predict_path, known, dropped, header)
        elif predict_path is not None and self._fitted is not None:
            # by name where the table has names; arrays have positions only
            wanted: list[str] | list[int] = self._fitted.names if self._fitted.has_names else self._fitted.positions
            self._predicted = TableFile(predict_path, wanted[: len(wanted) - num_unknown], header=header)
        source = self._fitted or self._predicted
        assert source is not None
        self.names, self.positions = list(source.names), source.positions
        name = str(table).removeprefix("load_") if table is not None else Path(path or str(predict_path)).name
        self.name = re.sub(r"\.csv\.gz$|\.\w+$", "", name)
        self._drop_missing = drop_missing

    @property
    def only_predicts(self) -> bool:
        """Whether there are no rows to fit on."""
        return self._fitted is None

    def check_stage(self, stage: str | None) -> None:
        """Refuse a stage that needs rows which are not there.

        Args:
            stage: Lightning's stage.

        Raises:
            FileNotFoundError: If the training table is needed and does not exist.
            ValueError: If it is needed and not given.
        """
        if stage in (None, "predict") or not self.only_predicts:
            return
        if self._missing is not None:
            raise FileNotFoundError(f"no file {self._missing!r} (looked from the directory {str(Path.cwd())!r})")
        raise ValueError(f"{self.name} has rows to predict only: give the training table as path to {stage}")

    def read(self, fractions: tuple[float, float], data_seed: int) -> tuple[dict[str, Table], dict[str, Tensor]]:
        """Read, check and cut.

        Args:
            fractions: Of the rows for validation and for the test.
            data_seed: Decides which rows these are.

        Returns:
            The splits ``train``, ``val`` and ``test``, and ``predict`` if there is such a file, (rows, columns); and
            the numbers of their rows in the file, from 0, (rows,).

        Raises:
            ValueError: If the values cannot be used, or the rows are too few for the splits.
        """
        splits: dict[str, Table] = {}
        numbers: dict[str, Tensor] = {}
        if self._fitted is not None:
            values, places = self._complete(self._fitted.read(), self.name)
            for key, part in cut(len(values), fractions, data_seed, self.name).items():
                splits[key], numbers[key] = values[part], torch.from_numpy(places[part])
        if self._predicted is not None:
            splits["predict"], places = self._complete(self._predicted.read(), self._predicted.path)
            numbers["predict"] = torch.from_numpy(places)
            if len(places) == 0:
                raise ValueError(f"{self._predicted.path!r} has no rows to predict")
        return splits, numbers

    def _complete(self, values: Table, source: str) -> tuple[Table, npt.NDArray[np.int64]]:
        """Leave rows with missing values out, if asked to; rows and their numbers in the file."""
        numbers = np.arange(len(values))
        if self._drop_missing and (missing := np.isnan(values).any(axis=1)).any():
            rank_zero_warn(f"{source}: {missing.sum()} of {len(values)} rows left out, with missing values.")
            values, numbers = values[~missing], numbers[~missing]
        refuse_non_finite(values, self.names[: values.shape[1]], source)
        return values, numbers


def cut(count: int, fractions: tuple[float, float], data_seed: int, source: str) -> dict[str, npt.NDArray[np.int64]]:
    """Shuffle rows and cut them into splits.

    Args:
        count: Number of rows.
        fractions: Of the rows for validation and for the test.
        data_seed: Decides the order.
        source: What the rows are called in error messages.

    Returns:
        Positions of the rows of ``train``, ``val`` and ``test``.

    Raises:
        ValueError: If the rows are too few.
    """
    order = torch.randperm(count, generator=generator_at(stream_seed(data_seed, "split"), 0)).numpy()
    num_val, num_test = (int(fraction * count) for fraction in fractions)
    num_train = count - num_val - num_test
    if num_val < 1 or num_test < 1 or num_train < 2:
        raise ValueError(
            f"{source}: {count} rows are too few for val_fraction {fractions[0]} and test_fraction {fractions[1]} "
            f"({num_train} training, {num_val} validation, {num_test} test rows); give more rows or larger fractions"
        )
    return dict(zip(("train", "val", "test"), np.split(order, [num_train, num_train + num_val]), strict=True))
