"""Where a density of one or two columns lives: a box in coordinates that follow its correlation, with a graded grid."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lightning_lift.partition.grids import grid_points, trapezoid_log_weights

_GRADING = 15.0  # widths of the window in one of the hyperbolic sine: points are 2.8 times denser in the middle
_PAD = 0.12  # of the level set's extent, left free around it
_FEWEST = {1: 8, 2: 32}  # points in the level set below which the grid cannot tell its shape
_LARGEST_CORRELATION = 0.5  # of the level set in the region's coordinates
_TOO_WIDE = 0.6


@dataclass(frozen=True)
class Region:
    """The part of a box ``window`` in y_1 = x_1, y_2 = x_2 - shear x_1 that lies in the support.

    All in float64 on the CPU.

    Attributes:
        window: low and high corner in y, shape (2, D), D = 1 or 2; it may reach beyond the support.
        support: low and high row in x, shape (2, D), infinite where open.
        centre: y about which the grid is densest, shape (D,).
        shear: slope of the region's axis; 0 in one dimension.
    """

    window: Tensor
    support: Tensor
    centre: Tensor
    shear: float = 0.0

    def straightened(self, x: Tensor) -> Tensor:
        """y(x), shape (N, D) to (N, D)."""
        return x if x.shape[1] == 1 else torch.stack([x[:, 0], x[:, 1] - self.shear * x[:, 0]], 1)

    def place(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """The points x of a unit box's points, and log |dx / du|: shape (N, D) to (N, D) and (N,)."""
        low, high = torch.maximum(self.window[0], self.support[0]), torch.minimum(self.window[1], self.support[1])
        first, log_slope = _graded(unit[:, 0], low[0], high[0], self.centre[0])
        if unit.shape[1] == 1:
            return first.unsqueeze(1), log_slope
        offset = self.shear * first
        ends = self.support[:, 1:] - offset  # of each line of constant x_1
        low, high = torch.maximum(self.window[0, 1], ends[0]), torch.minimum(self.window[1, 1], ends[1])
        second, more = _graded(unit[:, 1], low, high, self.centre[1])
        second = (second + offset).clamp(*self.support[:, 1].tolist())
        return torch.stack([first, second], 1), log_slope + more

    def free_edges(self, num_points: int) -> Tensor:
        """Points along each edge of the region in the plane beyond which the support goes on, shape (K, num_points, 2).

        Args:
            num_points: equally spaced on the part of each edge that lies in the support.
        """
        low, high = self.support.tolist()
        ends = self.window[:, 0].clamp(low[0], high[0]).tolist()
        steps = torch.linspace(0.0, 1.0, num_points, dtype=torch.float64)
        edges = []
        for x, y in self.window.tolist():
            bottom, top = (float(self.window[side, 1]) + self.shear * x for side in range(2))
            bottom, top = max(bottom, low[1]), min(top, high[1])
            if low[0] < x < high[0] and bottom < top:
                edges.append(torch.stack([torch.full_like(steps, x), bottom + (top - bottom) * steps], 1))
            if self.shear:
                left, right = sorted(((low[1] - y) / self.shear, (high[1] - y) / self.shear))
            else:
                left, right = (-math.inf, math.inf) if low[1] < y < high[1] else (math.inf, -math.inf)
            left, right = max(left, ends[0]), min(right, ends[1])
            if left < right:
                along = left + (right - left) * steps
                edges.append(torch.stack([along, y + self.shear * along], 1))
        return torch.stack(edges) if edges else torch.empty(0, num_points, 2, dtype=torch.float64)

    def followed(self, grid: "Grid", energies: Tensor, level: float, covered: bool) -> "Region | None":
        """Another region where this one does not fit the density's level set, or None where it does.

        The set {E <= min E + level} is seen on the grid. Sides that it touches move outwards; a window much wider than
        it shrinks; where it is oblique the shear follows. A set of too few points is first replaced by the lowest ones,
        whose set contains it.

        Args:
            grid: on this region.
            energies: E there, shape (size^D,), float64.
            level: nats above the least energy.
            covered: whether the mass outside is known to be small enough.
        """
        dim, size = self.window.shape[1], grid.size
        inside = energies - energies.min() <= level
        fewest = min(_FEWEST[dim], size**dim // 8)
        few = int(inside.sum()) < fewest
        if few:
            inside = energies <= energies.kthvalue(fewest).values
        inside &= torch.isfinite(energies)
        x = grid.points[inside]
        all_y, y = grid.straight, grid.straight[inside]
        width = self.window[1] - self.window[0]
        touched = torch.stack([y.amin(0) <= self.window[0] + 1e-9 * width, y.amax(0) >= self.window[1] - 1e-9 * width])
        cut = bool((touched[0] ^ touched[1]).any())  # at one end: its least point, and its shape, may lie outside
        slope = 0.0 if dim == 1 or cut else _slope(y, grid.log_weights[inside].exp())
        moved = replace(self, shear=self.shear + slope)
        y = moved.straightened(x)
        low, high = y.amin(0), y.amax(0)
        pad = torch.maximum(_PAD * (high - low), 2.0 * width / size)
        proposal = torch.stack([low - pad, high + pad])
        outwards = torch.stack([self.window[0] - 0.5 * width, self.window[1] + 0.5 * width])
        if slope:  # the second axis is another one now
            reach = torch.maximum(high - low, pad)
            outwards[:, 1] = torch.stack([low - reach, high + reach])[:, 1]
        proposal = torch.where(touched, outwards, proposal)
        ends = torch.stack([all_y.amin(0), all_y.amax(0)])
        wide = torch.minimum(proposal[1], ends[1]) - torch.maximum(proposal[0], ends[0]) < _TOO_WIDE * (
            ends[1] - ends[0]
        )
        if slope:
            keep = touched.any(0) & torch.tensor([True, False])
        elif few:
            keep = touched.any(0) | cut
        elif covered and not bool(wide.any()):
            return None
        else:
            keep = torch.tensor(not covered)  # outwards only, or the window could swing
        hull = torch.stack([torch.minimum(proposal[0], self.window[0]), torch.maximum(proposal[1], self.window[1])])
        window = torch.where(keep, hull, proposal)
        if torch.equal(window, self.window):  # the level set fits already: the bound needs the room
            window = torch.stack([window[0] - 0.25 * width, window[1] + 0.25 * width])
        least = moved.straightened(grid.points[energies.argmin()].unsqueeze(0))[0]
        return replace(moved, window=window, centre=least)


class Grid:
    """A graded trapezoidal grid on a region.

    Args:
        region: where.
        size: points along each dimension.

    Attributes:
        points: x, shape (size^D, D), float64; the last dimension runs fastest.
        log_jacobian: of x in the coordinates of the unit box, shape (size^D,).
        log_weights: of the trapezoidal rule, shape (size^D,).
    """

    def __init__(self, region: Region, size: int) -> None:
        unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, region.window.shape[1])
        self.region, self.size = region, size
        self.points, self.log_jacobian = region.place(grid_points(unit, size))
        self.log_weights = self.log_jacobian + trapezoid_log_weights(unit, size)

    @cached_property
    def relative_step(self) -> float:
        """The smallest mean step along an axis of the region, relative to the largest coordinate."""
        extent = self.straight.amax(0) - self.straight.amin(0)
        return float(extent.min() / (self.size - 1) / self.points.abs().max().clamp(min=1e-300))

    @cached_property
    def straight(self) -> Tensor:
        """The points in the region's own coordinates, shape (size^D, D)."""
        return self.region.straightened(self.points)


def _graded(unit: Tensor, low: Tensor, high: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """From [0, 1] onto [low, high], densest at the centre, by a hyperbolic sine; with the logarithm of the slope."""
    high = torch.maximum(low, high)  # a line outside the support has no length, and so no weight
    centre = torch.minimum(torch.maximum(centre, low), high)
    scale = (high - low).clamp(min=1e-300) / _GRADING
    left, right = torch.asinh((centre - low) / scale), torch.asinh((high - centre) / scale)
    t = (left + right) * unit - left
    y = torch.minimum(torch.maximum(centre + scale * torch.sinh(t), low), high)
    return y, (scale * torch.cosh(t) * (left + right).clamp(min=1e-8)).log()


def _slope(y: Tensor, weights: Tensor) -> float:
    """Slope of the regression of y_2 on y_1 where they are well correlated, else 0."""
    centred = y - (weights.unsqueeze(1) * y).sum(0) / weights.sum()
    (first, both), (_, second) = ((weights.unsqueeze(1) * centred).T @ centred).tolist()
    if not first * second > 0.0 or both * both <= _LARGEST_CORRELATION**2 * first * second:
        return 0.0
    return float(both / first)
