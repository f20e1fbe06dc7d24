"""Certified bounds on the mass of exp(-E) outside a window, from the convexity of E."""

import math

import torch
from torch import Tensor

from lightning_lift.potential import Potential


def log_tails_from_grid(energies: Tensor, step: float) -> tuple[float, float]:
    """Logarithms of bounds on the mass left and right of a grid on the line.

    Beyond the last point b the convex E lies above the line through its last two points, so the mass there is at most
    exp(-E(b)) / s with s = (E(b) - E(b - h)) / h > 0; likewise on the left.

    Args:
        energies: E on equally spaced points, shape (n,), n >= 2.
        step: their distance h.

    Returns:
        The bounds for left and right; +inf where the slope does not point outwards.
    """
    left, second, before_last, right = energies[[0, 1, -2, -1]].double().tolist()
    return _log_tail(left, (left - second) / step), _log_tail(right, (right - before_last) / step)


def _log_tail(energy: float, slope: float) -> float:
    return -energy - math.log(slope) if slope > 0.0 else math.inf


@torch.no_grad()
def log_tail_outside_ellipse(potential: Potential, window: Tensor, num_rays: int = 128) -> float:
    r"""Logarithm of a bound on the mass outside the ellipse inscribed in a box, in the plane.

    In the coordinates that make the ellipse the unit circle, the convex E lies above its tangent plane at each of M
    points u_i of the circle. In the sector of half-angle delta = pi / M around u_i, with s_i the smallest of
    g_i . u(phi_i - delta) and g_i . u(phi_i + delta) (the slope along a ray is concave in its angle where positive),
    E(r u) >= E_i - g_i . u_i + r s_i, hence a mass of at most
    |H| 2 delta exp(-E_i + g_i . u_i) exp(-s_i) (1 / s_i + 1 / s_i^2), |H| the ellipse's Jacobian.

    Args:
        potential: a convex energy in two dimensions.
        window: low and high corner of the box, shape (2, 2).
        num_rays: M, the number of sectors.

    Returns:
        The bound's logarithm, +inf where some slope does not point outwards.
    """
    centre, half_widths = window.mean(0), (window[1] - window[0]) / 2.0
    angles = torch.arange(num_rays, device=window.device) * (2.0 * math.pi / num_rays)
    delta = math.pi / num_rays
    rays = _directions(angles).to(window)
    energy, gradient = potential.value_gradient(centre + half_widths * rays)
    gradient = gradient.double() * half_widths.double()
    radial = (gradient * rays.double()).sum(1)
    slopes = torch.minimum(
        (gradient * _directions(angles - delta).to(gradient)).sum(1),
        (gradient * _directions(angles + delta).to(gradient)).sum(1),
    )
    if not bool((slopes > 0).all()):  # also true of NaN
        return math.inf
    log_sector = radial - energy.double() - slopes + (1.0 / slopes + 1.0 / slopes.square()).log()
    return float(torch.logsumexp(log_sector, 0) + math.log(2.0 * delta) + half_widths.double().log().sum())


def _directions(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], 1)
