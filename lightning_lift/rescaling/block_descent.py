"""Coordinate descent over the scales of the units, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_lift.rescaling.tables import Side, make_table, sides_of
from lightning_lift.rescaling.unit_graph import NO_UNIT, UnitGraph

Update = Literal["layer", "unit"]


@dataclass(frozen=True)
class DescentResult:
    """Where the descent ended.

    Attributes:
        log_scales: u, shape (H,), float64.
        objective: its value at the start and after each sweep.
        sweeps: number of sweeps done.
        converged: the last sweep moved less than the tolerance.
        largest_gradient: largest absolute partial derivative of the objective at the end.
        inactive: units that kept u = 0 because all their incoming, or all their outgoing, entries are zero.
    """

    log_scales: Tensor
    objective: list[float]
    sweeps: int
    converged: bool
    largest_gradient: float
    inactive: Tensor


@dataclass(frozen=True)
class Block:
    """Units that are moved together: no entry belongs to two of them.

    Attributes:
        units: their numbers, shape (n,).
        incoming: cells that feed them.
        outgoing: cells that they feed.
    """

    units: Tensor
    incoming: list[Side]
    outgoing: list[Side]


class DescentState:
    """The scales and the sums that the steps need.

    Args:
        graph: the units.
        values: a nonnegative number for each entry of each parameter, by name; float64.
        exponent: sign with which a value follows u: a value of an entry that the unit feeds (outgoing) is multiplied
            by e^{exponent * u}, of one that feeds the unit (incoming) by e^{-exponent * u}.
        update: ``layer`` for blocks of a whole layer, ``unit`` for one unit at a time.
    """

    def __init__(self, graph: UnitGraph, values: Mapping[str, Tensor], exponent: float, update: Update) -> None:
        self._exponent = exponent
        self._tables = [make_table(use, values[name]) for name, use in graph.uses.items() if name in values]
        num_units = graph.num_units
        self._num_units = num_units
        self.log_scales = torch.zeros(num_units, dtype=torch.float64)
        self._scale = torch.ones(num_units + 1, dtype=torch.float64)  # NO_UNIT reads the last 1
        self.balance = torch.zeros(num_units, dtype=torch.float64)  # |in| - |out|
        moving = 0.0
        for table in self._tables:
            into, out_of = table.by_unit(table.counts, num_units)
            self.balance += into - out_of
            moving += float(table.values.sum())
        self._rest = max(float(sum(float(v.sum()) for v in values.values())) - moving, 0.0)
        into, out_of = self.sums()
        self.active = (into > 0) & (out_of > 0)
        self.blocks = self._make_blocks(graph, update)
        self.refresh()

    def sums(self) -> tuple[Tensor, Tensor]:
        """Sums of the present values over each unit's incoming and outgoing entries, each of shape (H,)."""
        into = torch.zeros(self._num_units, dtype=torch.float64)
        out_of = torch.zeros_like(into)
        for table in self._tables:
            first, second = table.by_unit(table.present(self._scale), self._num_units)
            into += first
            out_of += second
        return into, out_of

    def refresh(self) -> None:
        """Recompute the total of all values from u, so that rounding does not pile up."""
        self._scale[:-1] = torch.exp(self._exponent * self.log_scales)
        self.total = self._rest
        for table in self._tables:
            over_columns = table.values @ self._scale[table.outgoing] if table.dense else None
            if over_columns is None:
                over_columns = table.values * self._scale[table.outgoing]
            self.total += float((over_columns / self._scale[table.incoming]).sum())

    def block_sums(self, block: Block) -> tuple[Tensor, Tensor]:
        """Sums over the incoming and outgoing entries of a block's units, each of shape (n,)."""
        into = torch.zeros(len(block.units), dtype=torch.float64)
        out_of = torch.zeros_like(into)
        for side in block.incoming:
            side.add_to(into, self._scale)
        if block.outgoing:
            inverse = self._scale.reciprocal()
            for side in block.outgoing:
                side.add_to(out_of, inverse)
        mine = self._scale[block.units]
        return into / mine, out_of * mine

    def move(self, block: Block, change: Tensor) -> None:
        """Add ``change`` to u of a block's units; the caller sets ``total``."""
        self.log_scales[block.units] += change
        self._scale[block.units] = torch.exp(self._exponent * self.log_scales[block.units])

    def _make_blocks(self, graph: UnitGraph, update: Update) -> list[Block]:
        block_of = torch.full((self._num_units + 1,), NO_UNIT)
        for index, layer in enumerate(graph.blocks):
            block_of[layer.units] = index
        interacting: set[int] = set()
        for table in self._tables:
            first, second = block_of[table.incoming], block_of[table.outgoing]
            if table.dense:  # units of one layer may sit on both sides, in different rows and columns
                common = set(first.tolist()) & set(second.tolist())
                interacting |= {c for c in common if bool((table.counts[first == c][:, second == c] > 0).any())}
            else:
                interacting |= set(first[(first == second) & (first != NO_UNIT)].tolist())
        groups: list[Tensor] = []
        for index, layer in enumerate(graph.blocks):
            units = layer.units[self.active[layer.units]]
            groups.extend(units.reshape(-1, 1) if update == "unit" or index in interacting else [units])
        return [self._make_block(units) for units in groups if len(units)]

    def _make_block(self, units: Tensor) -> Block:
        position = torch.full((self._num_units + 1,), NO_UNIT)
        position[units] = torch.arange(len(units))
        sides = [sides_of(table, position) for table in self._tables]
        return Block(units, [s for s, _ in sides if s is not None], [s for _, s in sides if s is not None])


def descend(
    state: DescentState,
    step: Callable[[DescentState, Block], float],
    objective: Callable[[DescentState], float],
    gradient: Callable[[DescentState], Tensor],
    tolerance: float,
    max_sweeps: int,
) -> DescentResult:
    """Sweep over the blocks until a sweep moves less than the tolerance.

    Args:
        state: where u stands.
        step: minimises the objective over one block's units and returns sum |du|.
        objective: its value.
        gradient: its gradient, shape (H,).
        tolerance: bound on sum |du| over a sweep, over all units.
        max_sweeps: largest number of sweeps; 0 leaves u as it is.

    Raises:
        ValueError: a negative tolerance or number of sweeps.
    """
    if not tolerance >= 0.0:
        raise ValueError(f"tolerance={tolerance}: must be zero or positive (the paper uses 1e-2).")
    if max_sweeps < 0:
        raise ValueError(f"max_sweeps={max_sweeps}: must not be negative (the paper uses 10).")
    trace = [objective(state)]
    sweeps, converged = 0, not state.blocks
    while sweeps < max_sweeps and not converged:
        moved = sum(step(state, block) for block in state.blocks)
        state.refresh()
        trace.append(objective(state))
        sweeps += 1
        converged = moved < tolerance
    slopes = gradient(state)[state.active]
    return DescentResult(
        log_scales=state.log_scales.clone(),
        objective=trace,
        sweeps=sweeps,
        converged=converged,
        largest_gradient=float(slopes.abs().max()) if len(slopes) else 0.0,
        inactive=torch.nonzero(~state.active).flatten(),
    )
