"""What a rescaling did, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_lift.rescaling.unit_graph import LeftAlone, UnitGraph


@dataclass(frozen=True)
class DiagonalCondition:
    """How far the diagonal of the path kernel is from a multiple of the identity; all ratios are 1 at best.

    Attributes:
        largest_over_smallest: of the positive entries.
        arithmetic_over_geometric: ratio of the means of the positive entries; its logarithm times their number is
            what PathCond lowers.
        zeros: entries that no path gives a derivative (excluded above).
    """

    largest_over_smallest: float
    arithmetic_over_geometric: float
    zeros: int

    @classmethod
    def of(cls, diagonal: Mapping[str, Tensor]) -> DiagonalCondition:
        """Measure a diagonal.

        Args:
            diagonal: by parameter name.
        """
        flat = torch.cat([torch.zeros(0, dtype=torch.float64), *(g.reshape(-1) for g in diagonal.values())])
        positive = flat[flat > 0]
        if not len(positive):
            return cls(math.nan, math.nan, len(flat))
        mean = float(positive.mean())
        ratio = math.exp(min(math.log(mean) - float(positive.log().mean()), 700.0))
        return cls(float(positive.max() / positive.min()), ratio, len(flat) - len(positive))


def rescale_diagonal(diagonal: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The diagonal of the path kernel after the parameters were multiplied: g / factor^2.

    Args:
        diagonal: before, by parameter name.
        factors: of the parameters that were multiplied.
    """
    return {name: g / factors[name].square() if name in factors else g for name, g in diagonal.items()}


@dataclass(frozen=True)
class RescalingReport:
    """The outcome of ``rescale_``.

    Attributes:
        method: ``pathcond`` or ``enorm``.
        objective_trace: PathCond: F(u); ENorm: the sum of squared parameters; at the start and after each sweep.
        sweeps: sweeps done.
        converged: whether the last one moved less than the tolerance.
        largest_gradient: largest absolute partial derivative of the objective at the end.
        condition_before: of the diagonal of the path kernel.
        condition_after: the same, afterwards.
        log_scales: u by unit, shape (H,).
        units: number of units rescaled, by layer.
        left_alone: hidden channels that kept their scale, with the reasons.
        factors: what each parameter was multiplied by (broadcasts to it).
        function_change: largest absolute change of the output over its largest absolute value, on the example input,
            by mode (``eval``, and ``train`` if the model was in training mode); empty if not measured.
        smooth: activations rescaled only approximately.
        seconds: wall-clock time by stage, and the ``total`` without the measurement of the function change.
    """

    method: str
    objective_trace: list[float]
    sweeps: int
    converged: bool
    largest_gradient: float
    condition_before: DiagonalCondition
    condition_after: DiagonalCondition
    log_scales: Tensor
    units: dict[str, int]
    left_alone: list[LeftAlone]
    factors: dict[str, Tensor] = field(repr=False)
    function_change: dict[str, float]
    smooth: tuple[str, ...]
    seconds: dict[str, float]

    @property
    def objective_before(self) -> float:
        """The objective before the first sweep."""
        return self.objective_trace[0]

    @property
    def objective_after(self) -> float:
        """The objective after the last sweep."""
        return self.objective_trace[-1]

    @property
    def num_units(self) -> int:
        """Number of units rescaled."""
        return sum(self.units.values())

    def __str__(self) -> str:
        """A few lines for a terminal."""
        before, after = self.condition_before, self.condition_after
        state = "converged" if self.converged else "stopped at max_sweeps"
        lines = [
            f"{self.method}: {self.num_units} units in {len(self.units)} layers rescaled, "
            f"{self.sweeps} sweeps ({state}), {self.seconds['total']:.3f} s",
            f"  objective {self.objective_before:.6g} -> {self.objective_after:.6g}, "
            f"largest gradient left {self.largest_gradient:.2g}",
            f"  path-kernel diagonal, arithmetic over geometric mean {before.arithmetic_over_geometric:.4g} -> "
            f"{after.arithmetic_over_geometric:.4g}, largest over smallest {before.largest_over_smallest:.3g} -> "
            f"{after.largest_over_smallest:.3g}, {before.zeros} zeros",
        ]
        if len(self.log_scales):
            u = self.log_scales
            low, middle, high = (float(torch.quantile(u, q)) for q in (0.05, 0.5, 0.95))
            lines.append(
                f"  log-scales u: smallest {float(u.min()):.3g}, 5 % {low:.3g}, median {middle:.3g}, 95 % {high:.3g}, "
                f"largest {float(u.max()):.3g}"
            )
        if self.function_change:
            kind = f"approximate through {', '.join(self.smooth)}" if self.smooth else "exact"
            changes = ", ".join(f"{mode} {change:.2g}" for mode, change in self.function_change.items())
            lines.append(f"  function change ({kind}), relative to the largest output: {changes}")
        lines += [f"  left alone: {a.label} ({a.count}): {a.reason}" for a in self.left_alone]
        return "\n".join(lines)


def units_by_layer(graph: UnitGraph, inactive: Tensor) -> tuple[dict[str, int], list[LeftAlone]]:
    """Count what was rescaled and what was not.

    Args:
        graph: the units.
        inactive: units that could have been rescaled but have no weight on one side.
    """
    idle = set(inactive.tolist())
    units: dict[str, int] = {}
    left = list(graph.left_alone)
    for block in graph.blocks:
        still = sum(unit in idle for unit in block.units.tolist())
        if still < len(block.units):
            units[block.label] = units.get(block.label, 0) + len(block.units) - still
        if still:
            left.append(LeftAlone(block.label, still, "no path: all incoming or all outgoing weights are zero"))
    return units, left
