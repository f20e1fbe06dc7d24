"""Uniform and exponential numbers that are safe to take logarithms of."""

import torch
from torch import Tensor

_HALF_STEP = 2.0**-54  # half the spacing of the 53-bit uniform grid


def open_uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw uniform numbers strictly between 0 and 1.

    Args:
        shape: Shape of the result.
        generator: The only source of randomness.

    Returns:
        Float64 numbers on the midpoints of the 53-bit grid (rounded), so that neither u nor 1 - u is 0.
    """
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64) + _HALF_STEP
    return uniform.clamp(max=1.0 - 2.0 * _HALF_STEP)


def standard_exponential(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw standard exponential numbers by the inverse distribution function, -log U.

    Args:
        shape: Shape of the result.
        generator: The only source of randomness.

    Returns:
        Float64 numbers, positive and at most 37.5.
    """
    return -torch.log(open_uniform(shape, generator))
