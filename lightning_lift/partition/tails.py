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
    energy, gradient = potential.value_gradient(ellipse_points(window, num_rays))
    return float(log_tails_from_ellipse(energy, gradient, window))


def ellipse_points(window: Tensor, num_rays: int = 128) -> Tensor:
    """Equally spaced points u_i of the ellipse inscribed in a box, in the plane: shape (num_rays, 2).

    Args:
        window: low and high corner of the box, shape (2, 2).
        num_rays: how many.
    """
    angles = torch.arange(num_rays, device=window.device) * (2.0 * math.pi / num_rays)
    centre, half_widths = window.mean(0), (window[1] - window[0]) / 2.0
    return centre + half_widths * _directions(angles).to(window)


def log_tails_from_ellipse(energy: Tensor, gradient: Tensor, window: Tensor) -> Tensor:
    """What ``log_tail_outside_ellipse`` gives, for any number of windows at once.

    Args:
        energy: E at each window's ``ellipse_points``, shape (..., M).
        gradient: grad E there, shape (..., M, 2).
        window: low and high corner of each box, shape (..., 2, 2).

    Returns:
        Shape (...), float64; +inf where some slope does not point outwards.
    """
    num_rays = energy.shape[-1]
    delta = math.pi / num_rays
    half_widths = (window[..., 1, :] - window[..., 0, :]) / 2.0
    angles = torch.arange(num_rays, device=window.device) * (2.0 * math.pi / num_rays)
    gradient = gradient.double() * half_widths.double().unsqueeze(-2)
    radial = (gradient * _directions(angles).to(window).double()).sum(-1)
    slopes = torch.minimum(
        (gradient * _directions(angles - delta).to(gradient)).sum(-1),
        (gradient * _directions(angles + delta).to(gradient)).sum(-1),
    )
    log_sector = radial - energy.double() - slopes + (1.0 / slopes + 1.0 / slopes.square()).log()
    log_tail = torch.logsumexp(log_sector, -1) + math.log(2.0 * delta) + half_widths.double().log().sum(-1)
    return torch.where((slopes > 0).all(-1), log_tail, torch.inf)  # NaN is not above 0 either


def _directions(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], 1)
