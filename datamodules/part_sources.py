"""Where the parts of rows come from: the columns of a table, or arrays in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.batches import UNKNOWN, Batch
from lightning_lift.datamodules.table_checks import refuse_non_finite
from lightning_lift.datamodules.table_files import Columns
from lightning_lift.datamodules.table_rows import TableRows, cut

Parts = tuple[dict[str, Batch], dict[str, Tensor]]
"""Splits in original units, float64, and the numbers of their rows in the file."""


class TableParts:
    """Parts that are columns of a table.

    Args:
        path: See :class:`~lightning_lift.datamodules.PairsDataModule`, as for all arguments.
        table: A shipped table.
        predict_path: Rows to predict.
        x: Columns of x.
        context: Columns of the context.
        target: Columns of the target.
        weight: Column of the weights.
        drop_columns: Columns to leave out.
        header: Whether a .csv file has one.
        drop_missing: Whether incomplete rows are left out.

    Attributes:
        name: Of the source.
        names: Of the columns of each part.
        shapes: Of a row's entry in each part.
    """

    def __init__(
        self,
        path: str | None,
        table: str | None,
        predict_path: str | None,
        x: Columns | None,
        context: Columns | None,
        target: Columns | None,
        weight: str | int | None,
        drop_columns: Columns | None,
        header: bool,
        drop_missing: bool,
    ) -> None:
        known, unknown = list(context or ()), [*(target or ()), *(() if weight is None else (weight,))]
        if x is None:
            only_predicts = table is None and predict_path is not None and not (path and Path(path).exists())
            where = (path, table, predict_path if only_predicts else None)
            rest = TableRows(*where, drop_columns=drop_columns, header=header)
            if only_predicts:  # what is to be predicted need not be there
                there = [*known, *(name for name in unknown if name in rest.names or name in rest.positions)]
            else:
                there = [*known, *unknown]
            taken = TableRows(*where, there, header=header).positions if there else []
            x = [position for position in rest.positions if position not in taken]
            if not x:
                raise ValueError(f"{rest.name}: all columns are context, target, weight or left out: none is x.")
        self._rows = TableRows(
            path, table, predict_path, [*x, *known, *unknown], None, header, drop_missing, len(unknown)
        )
        self.name, self.check_stage = self._rows.name, self._rows.check_stage
        widths = {
            "x": len(x),
            "context": len(known),
            "target": len(target or ()),
            "weight": len(unknown) - len(target or ()),
        }
        widths = {name: width for name, width in widths.items() if width}
        ends = np.cumsum(list(widths.values())).tolist()
        self._places = {name: slice(end - widths[name], end) for name, end in zip(widths, ends, strict=True)}
        self.names = {name: self._rows.names[place] for name, place in self._places.items() if self._rows.names[place]}
        self.shapes = {name: _shape(name, (width,)) for name, width in widths.items()}

    def read(self, fractions: tuple[float, float], data_seed: int) -> Parts:
        """Read, check and cut.

        Args:
            fractions: Of the rows for validation and for the test.
            data_seed: Decides which rows these are.

        Returns:
            ``train``, ``val`` and ``test``, and ``predict`` if there are rows to predict.

        Raises:
            ValueError: If the values cannot be used, or the rows are too few.
        """
        tables, numbers = self._rows.read(fractions, data_seed)
        splits = {}
        for key, table in tables.items():
            there = {name: table[:, place] for name, place in self._places.items() if place.stop <= table.shape[1]}
            splits[key] = Batch(**{name: _entries(name, torch.from_numpy(part)) for name, part in there.items()})
        return splits, numbers


class ArrayParts:
    """Parts that are arrays in memory, each with one entry a row.

    Args:
        **parts: Tensors, arrays or data frames by the names of :class:`~lightning_lift.datamodules.Batch`, or None.

    Attributes:
        name: ``arrays``.
        names: Of the columns of each part of at most two dimensions: those of a data frame, else x1, x2, ..., target.
        shapes: Of a row's entry in each part.

    Raises:
        ValueError: If an array is no numbers, has another length than x, or values that are not finite.
    """

    name = "arrays"

    def __init__(self, **parts: Any) -> None:
        self._parts: dict[str, Tensor] = {}
        self.names: dict[str, list[str]] = {}
        for name, part in parts.items():
            if part is None:
                continue
            array = np.asarray(part.detach().cpu() if isinstance(part, Tensor) else part)
            if array.dtype.kind not in "fiub" or array.ndim < 1:
                raise ValueError(f"{name} of shape {array.shape} holds {array.dtype}, not real numbers of rows.")
            array = array.astype(np.float64)
            if name != "x" and len(array) != len(self._parts["x"]):
                raise ValueError(f"{name} has {len(array)} entries and x {len(self._parts['x'])}: give one a row.")
            if array.ndim == 2 or name in UNKNOWN:
                table = array.reshape(len(array), -1)
                self.names[name] = _column_names(name, part, table.shape[1])
                refuse_non_finite(table, self.names[name], f"{name} of the arrays")
            self._parts[name] = _entries(name, torch.from_numpy(array))
        if self._parts["x"].ndim != 2:
            raise ValueError(f"x must be (rows, D), got {tuple(self._parts['x'].shape)}")
        self.shapes = {name: tuple(part.shape[1:]) for name, part in self._parts.items()}

    def check_stage(self, stage: str | None) -> None:
        """Do nothing: all the rows are there."""

    def read(self, fractions: tuple[float, float], data_seed: int) -> Parts:
        """Cut into splits; see :meth:`TableParts.read`."""
        places = cut(len(self._parts["x"]), fractions, data_seed, self.name)
        splits = {
            key: Batch(**{name: part[place] for name, part in self._parts.items()}) for key, place in places.items()
        }
        return splits, {key: torch.from_numpy(place) for key, place in places.items()}


def _column_names(field: str, part: Any, count: int) -> list[str]:
    """Those of a data frame or series, else the part's own with numbers from 1."""
    named = getattr(part, "columns", [getattr(part, "name", None) or field])
    if len(named) != count or (named[0] == field == "x"):
        named = [f"{field}{i + 1}" for i in range(count)]
    return [str(column) for column in named]


def _shape(name: str, entry: tuple[int, ...]) -> tuple[int, ...]:
    return () if name in UNKNOWN and entry == (1,) else entry


def _entries(name: str, part: Tensor) -> Tensor:
    return part.reshape(len(part), *_shape(name, tuple(part.shape[1:])))
