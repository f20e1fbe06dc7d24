"""Draws from a density known up to its constant on a grid, in one and two dimensions."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_lift.partition.grids import grid_points

_CORRECTIONS = 24  # Metropolis steps; with over 90 % accepted, the chance that a draw never moved is below 1e-24


def sample_line(log_density: Tensor, window: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Draws by the exact inverse distribution function of the piecewise linear density on the grid.

    Args:
        log_density: up to a constant, on n equally spaced points of the window, shape (n,).
        window: low and high end, shape (2, 1).
        num_samples: how many.
        generator: on the CPU.

    Returns:
        Shape (num_samples, 1), in the dtype of ``log_density``.
    """
    density = (log_density - log_density.max()).double().cpu().exp()
    low, high = window.double().cpu().flatten().tolist()
    step = (high - low) / (len(density) - 1)
    cumulative = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, dx=step)])
    target = torch.rand(num_samples, generator=generator, dtype=torch.float64) * cumulative[-1]
    cell = torch.searchsorted(cumulative, target, right=True).clamp(1, len(density) - 1) - 1
    rest = target - cumulative[cell]
    start, slope = density[cell], (density[cell + 1] - density[cell]) / step
    # The root of start t + slope t^2 / 2 = rest in the form without cancellation; slope may be zero.
    root = (start.square() + 2.0 * slope * rest).clamp(min=0.0).sqrt()
    offset = 2.0 * rest / (start + root).clamp(min=torch.finfo(torch.float64).tiny)
    points: Tensor = low + step * cell + offset.clamp(0.0, step)
    return points.unsqueeze(1).to(log_density)


def sample_plane(
    grid_log_density: Tensor,
    log_density: Callable[[Tensor], Tensor],
    window: Tensor,
    num_points: int,
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Draws grid cells by their mass, uniform inside, corrected by independence Metropolis steps.

    Args:
        grid_log_density: up to a constant, on ``grid_points(window, num_points)``, shape (n^2,).
        log_density: the same function at any points, (N, 2) to (N,).
        window: low and high corner, shape (2, 2).
        num_points: n, along each dimension.
        num_samples: how many.
        generator: on the CPU.

    Returns:
        Shape (num_samples, 2).
    """
    grid = (grid_log_density - grid_log_density.max()).exp().view(num_points, num_points)
    mass = (grid[:-1, :-1] + grid[1:, :-1] + grid[:-1, 1:] + grid[1:, 1:]).reshape(-1).cpu()
    corners = grid_points(window, num_points).view(num_points, num_points, 2)[:-1, :-1].reshape(-1, 2)
    step = (window[1] - window[0]) / (num_points - 1)

    def propose() -> tuple[Tensor, Tensor]:
        # Inverse distribution function over cells: torch.multinomial has a limit of 2^24 categories.
        cumulative = mass.double().cumsum(0)
        target = torch.rand(num_samples, generator=generator, dtype=torch.float64) * cumulative[-1]
        cell = torch.searchsorted(cumulative, target).clamp(max=len(mass) - 1)
        inside = torch.rand(num_samples, 2, generator=generator).to(window)
        x = corners[cell.to(window.device)] + step * inside
        return x, log_density(x) - mass[cell].to(window).log()

    x, log_ratio = propose()
    for _ in range(_CORRECTIONS):
        candidate, candidate_log_ratio = propose()
        accept = torch.rand(num_samples, generator=generator).to(window).log() < candidate_log_ratio - log_ratio
        x = torch.where(accept.unsqueeze(1), candidate, x)
        log_ratio = torch.where(accept, candidate_log_ratio, log_ratio)
    return x
