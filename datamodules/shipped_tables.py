"""Tables that scikit-learn carries in its own package: nothing is downloaded."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from sklearn import datasets

from lightning_lift.datamodules.table_files import Columns, Table, resolve_columns

ShippedName = Literal["load_breast_cancer", "load_diabetes", "load_digits", "load_iris", "load_linnerud", "load_wine"]


class ShippedTable:
    """One of these tables, with the interface of :class:`~lightning_lift.datamodules.table_files.TableFile`.

    Args:
        name: Of scikit-learn's loader.
        columns: The columns wanted, by name or by position from 0, in this order. None for all features.
        drop_columns: Columns to leave out, by name or by position from 0.

    Attributes:
        path: What the table is called in error messages.
        names: The names of the columns wanted.
        positions: Where they stand: features, then what is to be predicted (``target`` where it has no name).

    Raises:
        ValueError: If there is no such table or column.
    """

    has_names = True

    def __init__(self, name: str, columns: Columns | None = None, drop_columns: Columns = ()) -> None:
        if name not in get_args(ShippedName):
            raise ValueError(f"unknown table {name!r}; scikit-learn ships {known_tables()}")
        bunch = getattr(datasets, name)()
        targets: Sequence[str] = bunch.target_names if bunch.target.ndim == 2 else ["target"]
        features = [str(feature) for feature in bunch.feature_names]
        available = features + [str(target) for target in targets]
        dropped = resolve_columns(drop_columns, available, name) if drop_columns else []
        positions = resolve_columns(columns, features if columns is None else available, name)
        self.path = name
        self.positions = [position for position in positions if position not in dropped]
        self.names = [available[position] for position in self.positions]
        self._values = np.column_stack([bunch.data, bunch.target]).astype(np.float64)[:, self.positions]

    def read(self) -> Table:
        """Return the columns wanted, (rows, columns) float64."""
        return self._values


def known_tables() -> str:
    """The names of these tables, for error messages."""
    return ", ".join(get_args(ShippedName))
