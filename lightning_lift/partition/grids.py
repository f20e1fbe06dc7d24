"""Trapezoidal grids on boxes in one and two dimensions."""

import math

import torch
from torch import Tensor


def grid_points(window: Tensor, num_points: int) -> Tensor:
    """Points of an equally spaced product grid, the last dimension running fastest.

    Args:
        window: low and high corner, shape (2, D), D = 1 or 2.
        num_points: points along each dimension.

    Returns:
        Shape (num_points^D, D).
    """
    axes = [
        torch.linspace(float(low), float(high), num_points, dtype=window.dtype, device=window.device)
        for low, high in window.T
    ]
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def trapezoid_log_weights(window: Tensor, num_points: int) -> Tensor:
    """Logarithms of the trapezoidal weights of ``grid_points``, shape (num_points^D,)."""
    one_axis = torch.zeros(num_points, dtype=window.dtype, device=window.device)
    one_axis[0] = one_axis[-1] = -math.log(2.0)
    total = one_axis
    for _ in range(window.shape[1] - 1):
        total = (total[:, None] + one_axis[None, :]).reshape(-1)
    return total + ((window[1] - window[0]) / (num_points - 1)).log().sum()


def log_integral(log_values: Tensor, window: Tensor, num_points: int) -> Tensor:
    """log of the integral of exp(log_values) over the box by the trapezoidal rule, a 0-d tensor.

    Args:
        log_values: on ``grid_points(window, num_points)``, shape (num_points^D,).
        window: low and high corner, shape (2, D).
        num_points: points along each dimension.
    """
    return torch.logsumexp(log_values + trapezoid_log_weights(window, num_points), 0)


def halved(values: Tensor, num_points: int, dim: int) -> Tensor:
    """Every second point along each dimension of values on a grid of an odd number of points, flat again."""
    grid = values.view([num_points] * dim)
    return grid[(slice(None, None, 2),) * dim].reshape(-1)
