"""Certified bounds on the mass of exp(-E) outside a region, from the convexity of E."""

import math

import torch
from torch import Tensor


def log_tail_on_line(points: Tensor, energies: Tensor, support: Tensor) -> float:
    """Logarithm of a bound on the mass left and right of a grid on the line.

    Beyond the last point b the convex E lies above the line through its last two points, so the mass there is at most
    exp(-E(b)) / s with s = (E(b) - E(b - h)) / h > 0; likewise on the left.

    Args:
        points: ascending, shape (n,), n >= 2.
        energies: E there, shape (n,), float64.
        support: its low and high end, shape (2,); a point at an end has no mass beyond it.

    Returns:
        -inf without any mass outside, +inf where a slope does not point outwards.
    """
    log_tails = [-math.inf]
    for end, edge, inner in ((0, 0, 1), (1, -1, -2)):
        if float(points[edge]) != float(support[end]):
            slope = float((energies[edge] - energies[inner]) / (points[edge] - points[inner]).abs())
            log_tails.append(-float(energies[edge]) - math.log(slope) if slope > 0.0 else math.inf)
    return float(torch.tensor(log_tails, dtype=torch.float64).logsumexp(0))


def log_tail_in_plane(edges: Tensor, least: float, log_area: float) -> float:
    r"""Logarithm of a bound on the mass outside a convex region in the plane.

    Let p lie in the region, R(phi) be the way from p to its edge, and E at least E(p) + l on the edge. Along a ray the
    convex E is then at least E(p) + l r / R beyond it, hence a mass of at most
    \int \int_R^\infty exp(-E(p) - l r / R) r dr dphi = exp(-E(p) - l) (1 / l + 1 / l^2) \int R^2 dphi, and the last
    integral is twice the area. Rays that leave the support on the edge have no mass beyond it: such edges are left out.

    Args:
        edges: E at equally spaced points of straight edges, shape (K, n), n >= 4, float64.
        least: E(p).
        log_area: logarithm of the region's area, or of more.

    Returns:
        -inf without edges, +inf where the energy does not rise.
    """
    if not edges.numel():
        return -math.inf
    # Between two points a convex E lies above the line through the two before them, and that through the two behind.
    before = torch.minimum(edges[:, 1:-1], 2.0 * edges[:, 1:-1] - edges[:, :-2])
    behind = torch.minimum(edges[:, 1:-1], 2.0 * edges[:, 1:-1] - edges[:, 2:])
    between = torch.cat([behind[:, :1], torch.maximum(before[:, :-1], behind[:, 1:]), before[:, -1:]], 1)
    rise = float(between.min()) - least
    if not rise > 0.0:
        return math.inf
    return math.log(2.0) + log_area - least - rise + math.log(1.0 / rise + 1.0 / rise**2)
