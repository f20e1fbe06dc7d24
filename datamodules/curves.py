"""Curves in the plane with Gaussian noise around them, as mixtures over quadrature nodes along the curve."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Curve = Callable[[Tensor], Tensor]
"""Parameters (K,) to points (K, 2)."""

_NODES = 32  # of one Gauss-Legendre panel
_PANEL = 15.0  # longest panel, in standard deviations of the noise: 2 nodes a standard deviation


def curve_nodes(
    curve: Curve, density: Callable[[Tensor], Tensor], start: float, stop: float, std: float
) -> tuple[Tensor, Tensor]:
    """Replace a density along a curve by weighted points, fine enough for Gaussian noise of a given width.

    Gauss-Legendre panels of equal parameter length. Their nodes crowd towards the ends of the curve, where the
    integrand of a far point falls fast.

    Args:
        curve: The curve.
        density: Density of the parameter, (K,) to (K,), of integral 1 between the ends.
        start: First parameter.
        stop: Last parameter.
        std: Standard deviation of the noise to come.

    Returns:
        Points (K, 2) and their weights (K,), of sum 1, float64.
    """
    line = torch.linspace(start, stop, 2049, dtype=torch.float64)
    longest = float(curve(line).diff(dim=0).norm(dim=1).max()) * (line.shape[0] - 1)  # at the greatest speed
    panels = max(1, math.ceil(longest / (_PANEL * std)))
    parameter, weights = panel_rule(start, stop, panels)
    mass = weights * density(parameter)
    return curve(parameter), mass / mass.sum()


def panel_rule(start: float, stop: float, panels: int) -> tuple[Tensor, Tensor]:
    """Return the nodes and weights of Gauss-Legendre quadrature on equal panels.

    Args:
        start: Lower end.
        stop: Upper end.
        panels: How many panels of 32 nodes.

    Returns:
        Nodes and weights (32 panels,), float64.
    """
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(_NODES))
    half = 0.5 * (stop - start) / panels
    middles = start + half * (2.0 * torch.arange(panels, dtype=torch.float64) + 1.0)
    return (middles[:, None] + half * nodes).reshape(-1), (half * weights).repeat(panels)
