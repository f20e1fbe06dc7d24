"""ENorm: the scales that minimise the sum of squared weights (the baseline).

Stock, Graham, Gribonval & Jegou, "Equi-normalization of neural networks" (ICLR 2019), by cyclic coordinate descent:
with S_in and S_out the sums of the present squared incoming and outgoing weights of a unit (its bias with the
incoming), and incoming weights multiplied by e^{u/2}, outgoing by e^{-u/2}, the minimum is at
du = (1/2) log(S_out / S_in), where both sums are equal.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lightning_lift.rescaling.block_descent import Block, DescentResult, DescentState, Update, descend
from lightning_lift.rescaling.unit_graph import UnitGraph


def equinormalization(
    graph: UnitGraph,
    squared: Mapping[str, Tensor],
    tolerance: float = 1e-2,
    max_sweeps: int = 10,
    update: Update = "layer",
) -> DescentResult:
    """Minimise the sum of squared weights over the scales, in float64, from u = 0.

    Args:
        graph: the units.
        squared: the squared parameters by name.
        tolerance: stop when sum |du| over a sweep is below it.
        max_sweeps: largest number of sweeps.
        update: ``layer`` moves the units of a layer together (they do not interact), ``unit`` one at a time.

    Raises:
        ValueError: a negative tolerance or number of sweeps.
    """
    state = DescentState(graph, squared, exponent=-1.0, update=update)
    return descend(state, _step, lambda c: c.total, _gradient, tolerance, max_sweeps)


def _gradient(state: DescentState) -> Tensor:
    into, out_of = state.sums()
    return into - out_of


def _step(state: DescentState, block: Block) -> float:
    into, out_of = state.block_sums(block)
    change = 0.5 * torch.log(out_of / into)
    state.move(block, change)
    return float(change.abs().sum())
