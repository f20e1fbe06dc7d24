"""Draws from a density known up to its constant on a grid over the unit box, in one and two dimensions."""

from collections.abc import Callable

import torch
from torch import Tensor

_CORRECTIONS = 24  # Metropolis steps; with over 90 % accepted, the chance that a draw never moved is below 1e-24


def sample_line(log_density: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Draws by the exact inverse distribution function of the piecewise linear density on the grid.

    Args:
        log_density: up to a constant, on n equally spaced points of [0, 1], shape (n,), float64, on the CPU.
        num_samples: how many.
        generator: on the CPU.

    Returns:
        Shape (num_samples, 1), in [0, 1].
    """
    density = (log_density - log_density.max()).exp()
    step = 1.0 / (len(density) - 1)
    cumulative = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, dx=step)])
    target = torch.rand(num_samples, generator=generator, dtype=torch.float64) * cumulative[-1]
    cell = torch.searchsorted(cumulative, target, right=True).clamp(1, len(density) - 1) - 1
    rest = target - cumulative[cell]
    start, slope = density[cell], (density[cell + 1] - density[cell]) / step
    # The root of start t + slope t^2 / 2 = rest in the form without cancellation; slope may be zero.
    root = (start.square() + 2.0 * slope * rest).clamp(min=0.0).sqrt()
    offset = 2.0 * rest / (start + root).clamp(min=torch.finfo(torch.float64).tiny)
    return (step * cell + offset.clamp(0.0, step)).unsqueeze(1)


def sample_plane(
    grid_log_density: Tensor,
    log_density: Callable[[Tensor], Tensor],
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Draws grid cells by their mass, uniform inside, corrected by independence Metropolis steps.

    Args:
        grid_log_density: up to a constant, on n x n equally spaced points of the unit box, shape (n^2,), float64, on
            the CPU.
        log_density: the same function at any points, (N, 2) to (N,).
        num_samples: how many.
        generator: on the CPU.

    Returns:
        Shape (num_samples, 2), in the unit box.
    """
    size = round(len(grid_log_density) ** 0.5)
    shift = grid_log_density.max()
    grid = (grid_log_density - shift).exp().view(size, size)
    mass = (grid[:-1, :-1] + grid[1:, :-1] + grid[:-1, 1:] + grid[1:, 1:]).reshape(-1)
    # Inverse distribution function over cells: torch.multinomial has a limit of 2^24 categories.
    cumulative = mass.cumsum(0)

    def propose() -> tuple[Tensor, Tensor]:
        target = torch.rand(num_samples, generator=generator, dtype=torch.float64) * cumulative[-1]
        cell = torch.searchsorted(cumulative, target).clamp(max=len(mass) - 1)
        corner = torch.stack([cell // (size - 1), cell % (size - 1)], 1)
        unit = (corner + torch.rand(num_samples, 2, generator=generator, dtype=torch.float64)) / (size - 1)
        return unit, log_density(unit) - shift - mass[cell].log()

    unit, log_ratio = propose()
    for _ in range(_CORRECTIONS):
        candidate, candidate_log_ratio = propose()
        uniform = torch.rand(num_samples, generator=generator, dtype=torch.float64)
        accept = uniform.log() < candidate_log_ratio - log_ratio
        unit = torch.where(accept.unsqueeze(1), candidate, unit)
        log_ratio = torch.where(accept, candidate_log_ratio, log_ratio)
    return unit
