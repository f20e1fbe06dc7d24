"""Uniform priors on a cube."""

import math

import torch
from torch import Tensor


class UniformCube:
    """Uniform on (-half_width, half_width)^D.

    Args:
        dim: Number of parameters D.
        half_width: Half of an edge, positive.
    """

    def __init__(self, dim: int, half_width: float) -> None:
        self.dim, self.half_width = dim, half_width

    def __call__(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw parameters (num_rows, D), float64."""
        uniform = torch.rand(num_rows, self.dim, generator=generator, dtype=torch.float64)
        return self.half_width * (2.0 * uniform - 1.0)

    @property
    def bounds(self) -> list[list[float]]:
        """Lowest and highest values, (2, D)."""
        return [[-self.half_width] * self.dim, [self.half_width] * self.dim]

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density, -inf outside: (N, D) to (N,)."""
        inside = (x.abs() <= self.half_width).all(dim=1)
        return torch.where(inside, -self.dim * math.log(2.0 * self.half_width), -torch.inf).to(x.dtype)
