r"""PathCond: the scales that bring the diagonal of the path kernel closest to a multiple of the identity.

Lebeurrier, Vayer & Gribonval, "Path-conditioned training" (2026). With g the diagonal of the path kernel, p its
length and B in {-1, 0, 1}^{p x H} (-1 for an entry that feeds unit h, +1 for one that h feeds), the objective is

    F(u) = p log sum_i g_i e^{(B u)_i} - sum_i (B u)_i,

a convex function: the LogDet divergence of diag(g e^{Bu}) to the best multiple of the identity, up to a constant.

For one unit, with C_out and C_in the sums of the present g e^{Bu} over its outgoing and incoming entries, R the sum
over the rest and A = |in| - |out|, X = e^{du} is the positive root of

    C_out (A + p) X^2 + R A X + C_in (A - p) = 0.

For all units of a layer at once, when no entry belongs to two of them, they interact only through the total
S = sum_i g_i e^{(Bu)_i}. Given S each unit has the closed form C_out X^2 + d X - C_in = 0 with d = A S / p, and S
solves the scalar equation S = R + sum_h sqrt(d_h^2 + 4 C_out,h C_in,h), whose right-hand side is convex in S with
slope below 1: Newton's method converges to its only root from any start. The step is the exact minimum over the
whole layer, so it lowers the objective at least as much as a pass over its units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lightning_lift.rescaling.block_descent import Block, DescentResult, DescentState, Update, descend
from lightning_lift.rescaling.unit_graph import UnitGraph

_NEWTON_STEPS = 60


def path_conditioning(
    graph: UnitGraph,
    diagonal: Mapping[str, Tensor],
    tolerance: float = 1e-2,
    max_sweeps: int = 10,
    update: Update = "layer",
) -> DescentResult:
    """Minimise the objective by closed-form coordinate descent, in float64, from u = 0.

    Args:
        graph: the units.
        diagonal: g, from ``path_kernel_diagonal``.
        tolerance: stop when sum |du| over a sweep is below it.
        max_sweeps: largest number of sweeps. After the usual 10 the objective may still stand above its minimum;
            1e-10 takes about 100.
        update: ``layer`` minimises over a whole layer at once, ``unit`` over one unit at a time.

    Raises:
        ValueError: a negative tolerance or number of sweeps.
    """
    steps = _Steps(sum(g.numel() for g in diagonal.values()))
    state = DescentState(graph, diagonal, exponent=1.0, update=update)
    step = steps.unit if update == "unit" else steps.layer
    return descend(state, step, steps.objective, steps.gradient, tolerance, max_sweeps)


class _Steps:
    """The closed forms, for p parameters."""

    def __init__(self, count: int) -> None:
        self.count = count

    def objective(self, state: DescentState) -> float:
        """F(u): - sum_i (Bu)_i = sum_h A_h u_h."""
        if state.total <= 0.0:  # no path at all: nothing to balance
            return 0.0
        return self.count * math.log(state.total) + float(state.balance @ state.log_scales)

    def gradient(self, state: DescentState) -> Tensor:
        """p (C_out - C_in) / S + A, shape (H,)."""
        into, out_of = state.sums()
        if state.total <= 0.0:
            return torch.zeros_like(into)
        return self.count * (out_of - into) / state.total + state.balance

    def unit(self, state: DescentState, block: Block) -> float:
        """The paper's step for one unit."""
        c_in, c_out = (float(s) for s in state.block_sums(block))
        rest = max(state.total - c_in - c_out, 0.0)
        balance, p = float(state.balance[block.units[0]]), self.count
        change = math.log(_positive_root(c_out * (balance + p), rest * balance, c_in * (p - balance)))
        state.move(block, torch.tensor([change], dtype=torch.float64))
        state.total = rest + c_out * math.exp(change) + c_in * math.exp(-change)
        return abs(change)

    def layer(self, state: DescentState, block: Block) -> float:
        """The exact minimum over all units of the block."""
        if len(block.units) == 1:
            return self.unit(state, block)
        c_in, c_out = state.block_sums(block)
        rest = max(state.total - float(c_in.sum() + c_out.sum()), 0.0)
        slope = state.balance[block.units] / self.count
        product = 4.0 * c_in * c_out
        total = self._solve_total(state.total, rest, slope, product)
        linear = slope * total
        root = torch.sqrt(linear.square() + product)
        # Of the two forms of the root, the one without cancellation.
        scale = torch.where(linear >= 0, 2.0 * c_in / (linear + root), (root - linear) / (2.0 * c_out))
        change = torch.log(scale)
        state.move(block, change)
        state.total = rest + float((c_out * scale + c_in / scale).sum())
        return float(change.abs().sum())

    @staticmethod
    def _solve_total(start: float, rest: float, slope: Tensor, product: Tensor) -> float:
        total, squared = start, slope.square()
        for _ in range(_NEWTON_STEPS):
            roots = torch.sqrt(squared * total**2 + product)
            excess = total - rest - float(roots.sum())
            rate = 1.0 - total * float((squared / roots).sum())
            move = -excess / rate
            total += move
            if abs(move) <= 1e-15 * total:
                break
        return total


def _positive_root(a: float, b: float, c: float) -> float:
    """The positive root of a X^2 + b X - c = 0 with a, c > 0."""
    root = math.sqrt(b * b + 4.0 * a * c)
    return 2.0 * c / (b + root) if b >= 0.0 else (root - b) / (2.0 * a)
