"""Parameter entries grouped by the pair of units they belong to.

Entries that feed the same unit and read the same unit (the taps of a convolution kernel, the pixels of a flattened
channel) always move together, so they are added up once. What is left of a weight is a matrix M over (units it feeds)
x (units it reads), whose present values are M_ij s_j / s_i with s = e^{exponent u}. The sums that the descent needs are
then matrix-vector products, and no entry is ever rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_lift.rescaling.unit_graph import NO_UNIT, ParameterUse


@dataclass(frozen=True)
class Table:
    """The grouped entries of one parameter.

    Attributes:
        incoming: unit fed by each row (dense) or cell (flat), or -1.
        outgoing: unit read by each column (dense) or cell (flat), or -1.
        values: sums of the starting values, shape (rows, columns) if dense, (cells,) if flat.
        counts: numbers of entries in each sum, same shape.
    """

    incoming: Tensor
    outgoing: Tensor
    values: Tensor
    counts: Tensor

    @property
    def dense(self) -> bool:
        """Whether rows and columns have one unit each."""
        return self.values.ndim == 2

    def by_unit(self, values: Tensor, num_units: int) -> tuple[Tensor, Tensor]:
        """Add a number for each cell up over the units fed and the units read.

        Args:
            values: of the shape of ``values``.
            num_units: H.

        Returns:
            Two tensors of shape (H,).
        """
        into, out_of = (values.sum(1), values.sum(0)) if self.dense else (values, values)
        return _scatter(self.incoming, into, num_units), _scatter(self.outgoing, out_of, num_units)

    def present(self, scale: Tensor) -> Tensor:
        """The present values.

        Args:
            scale: s by unit, with a 1 appended, which the index -1 reads; shape (H + 1,).
        """
        if self.dense:
            return self.values * scale[self.outgoing] / scale[self.incoming].unsqueeze(1)
        return self.values * scale[self.outgoing] / scale[self.incoming]


def make_table(use: ParameterUse, values: Tensor) -> Table:
    """Group the entries of one parameter; those without a unit, or from a unit to itself, are dropped.

    Args:
        use: the units of its entries.
        values: a number for each entry, float64.
    """
    cell_shape = (use.incoming + use.outgoing).shape
    total = values.sum_to_size(cell_shape)
    repeats = values.numel() / max(total.numel(), 1)
    rows = [d for d, size in enumerate(use.incoming.shape) if size > 1]
    columns = [d for d, size in enumerate(use.outgoing.shape) if size > 1]
    if set(rows) & set(columns):
        first, second = (t.expand(cell_shape).reshape(-1) for t in (use.incoming, use.outgoing))
        keep = first != second
        flat = total.reshape(-1)[keep]
        return Table(first[keep], second[keep], flat, torch.full_like(flat, repeats))
    others = [d for d in range(len(cell_shape)) if d not in rows + columns]
    incoming, outgoing = use.incoming.reshape(-1), use.outgoing.reshape(-1)
    matrix = total.permute(*rows, *columns, *others).reshape(len(incoming), len(outgoing))
    counts = torch.full_like(matrix, repeats)
    still = incoming.unsqueeze(1) == outgoing
    if bool(still.any()):
        matrix, counts = matrix.masked_fill(still, 0.0), counts.masked_fill(still, 0.0)
    row_units, row_of = torch.unique(incoming, return_inverse=True)
    column_units, column_of = torch.unique(outgoing, return_inverse=True)

    def grouped(cells: Tensor) -> Tensor:
        if len(row_units) < len(incoming):
            cells = torch.zeros(len(row_units), cells.shape[1], dtype=cells.dtype).index_add(0, row_of, cells)
        else:
            cells = cells[torch.argsort(row_of)]
        if len(column_units) < len(outgoing):
            return torch.zeros(len(row_units), len(column_units), dtype=cells.dtype).index_add(1, column_of, cells)
        return cells[:, torch.argsort(column_of)]

    return Table(row_units, column_units, grouped(matrix), grouped(counts))


def _scatter(units: Tensor, values: Tensor, num_units: int) -> Tensor:
    padded = torch.zeros(num_units + 1, dtype=torch.float64)  # the last place collects NO_UNIT
    return padded.index_add(0, torch.where(units == NO_UNIT, num_units, units), values)[:-1]


@dataclass(frozen=True)
class Side:
    """The cells of one table on one side of a block of units.

    Attributes:
        values: shape (rows, columns), rows belonging to the block's units; or (cells,).
        owner: position in the block of the unit of each row or cell.
        other: unit on the other side of each column or cell, or -1.
    """

    values: Tensor
    owner: Tensor
    other: Tensor

    def add_to(self, sums: Tensor, scale: Tensor) -> None:
        """Add the sums over the other side, weighted by its scale, to ``sums`` (one place a unit of the block)."""
        weight = scale[self.other]
        sums.index_add_(0, self.owner, self.values @ weight if self.values.ndim == 2 else self.values * weight)


def sides_of(table: Table, position: Tensor) -> tuple[Side | None, Side | None]:
    """What a table holds of a block: where it feeds the block's units, and where it reads them.

    Args:
        table: the cells.
        position: place of each unit in the block, or -1; shape (H + 1,) with -1 appended.
    """
    found: list[Side | None] = []
    for mine, other, transpose in (
        (table.incoming, table.outgoing, False),
        (table.outgoing, table.incoming, True),
    ):
        owner = position[mine]
        inside = owner >= 0
        if not bool(inside.any()):
            found.append(None)
            continue
        if table.dense:
            values = table.values.T if transpose else table.values
            values = values if bool(inside.all()) else values[inside]
            found.append(Side(values, owner[inside], other))
        else:
            found.append(Side(table.values[inside], owner[inside], other[inside]))
    return found[0], found[1]
