"""The shoulder of a readout: latents whose weight hardly moves.

The shoulder is {latent : psi'(latent) <= 0.05}: there the gradient that reaches the latent is at most a twentieth of
the one that reaches the weight (arXiv 2605.24274). Projected weights have no readout, hence no shoulder; their
statistic is the fraction that sits exactly at the floor, a different number that must not share its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_lift.parameterizations.base import Parameterization
from lightning_lift.parameterizations.readouts import Readout

SHOULDER_SLOPE = 0.05


def shoulder_threshold(readout: Readout, slope: float = SHOULDER_SLOPE) -> float:
    """The largest latent on the shoulder, for a readout whose slope does not decrease (psi convex).

    By bisection in float64. For softplus, slope 0.05: -2.9444, a weight of 0.0512933.

    Args:
        readout: psi.
        slope: the shoulder's slope, positive.

    Raises:
        ValueError: the slope is not finite and positive, or the readout's slope never passes it within +-1e6.
    """
    _check_slope(slope)

    def on_shoulder(latent: float) -> bool:
        return bool(readout.slope(torch.tensor(latent, dtype=torch.float64)) <= slope)

    low, high = -1e6, 1e6
    if not on_shoulder(low) or on_shoulder(high):
        raise ValueError(
            f"slope={slope} is not crossed by {type(readout).__name__} between latents {low} and {high}; choose a "
            "slope between its smallest and its largest."
        )
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return low
        low, high = (middle, high) if on_shoulder(middle) else (low, middle)


def shoulder_mask(readout: Readout, latent: Tensor, slope: float = SHOULDER_SLOPE) -> Tensor:
    """Which latents are on the shoulder.

    The slope's size is what counts: a square readout left of zero has a steep negative slope and is no shoulder.

    Args:
        readout: psi.
        latent: any shape.
        slope: the shoulder's slope, positive.

    Returns:
        Boolean, the shape of ``latent``; False where the latent is NaN.

    Raises:
        ValueError: the slope is not finite and positive.
    """
    _check_slope(slope)
    return readout.slope(latent.detach()).abs() <= slope


def floor_mask(weights: Tensor, floor: float = 0.0) -> Tensor:
    """Which projected weights sit exactly at the floor, where the projection put them.

    Args:
        weights: any shape.
        floor: the projection's floor; 0 counts exact zeros.

    Returns:
        Boolean, the shape of ``weights``.
    """
    # In the weights' own dtype: a floor such as 1e-8 is not a float32 number, and the projection stored its rounding.
    return weights.detach() <= torch.tensor(floor, dtype=weights.dtype, device=weights.device)


def inside_mask(parameterization: Parameterization, latent: Tensor, slope: float = SHOULDER_SLOPE) -> Tensor:
    """Which weights are on the shoulder, or, where there is no readout and so no shoulder, at the floor.

    At the floor are the weights of evaluation: those of ADMM are free in training and never exactly there.

    Args:
        parameterization: bound.
        latent: shape (d,), in which the readout's slope is taken.
        slope: the shoulder's slope psi'(latent).

    Returns:
        Boolean, shape (d,).
    """
    if parameterization.readout is None:
        return floor_mask(parameterization.latent(), parameterization_floor(parameterization))
    return shoulder_mask(parameterization.readout, latent, slope)


def parameterization_floor(parameterization: Parameterization) -> float:
    """The smallest weight that a parameterization without readout holds."""
    return float(getattr(parameterization, "floor", 0.0))


def occupancy(mask: Tensor) -> float:
    """The fraction of True in a mask, in [0, 1].

    Raises:
        ValueError: an empty mask.
    """
    if mask.numel() == 0:
        raise ValueError("occupancy of an empty mask is undefined; the parameterization holds no weights.")
    return int(mask.sum()) / mask.numel()


def occupancy_by_tensor(mask: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
    """The fraction of True in each tensor's part of a flat mask.

    Args:
        mask: shape (d,), the tensors one after another in the order of ``shapes``.
        shapes: shape of each tensor by name.

    Raises:
        ValueError: the sizes do not add up to d.
    """
    sizes = [shape.numel() for shape in shapes.values()]
    if mask.ndim != 1 or mask.numel() != sum(sizes):
        raise ValueError(f"mask of shape {tuple(mask.shape)} does not fit tensors of {sum(sizes)} weights together.")
    return {name: occupancy(part) for name, part in zip(shapes, torch.split(mask, sizes), strict=True)}


@dataclass(frozen=True)
class Transitions:
    """What moved between two looks.

    Attributes:
        entries: how many weights came onto the shoulder.
        exits: how many left it.
        entry_rate: entries over the number that were off it before, per interval; NaN if none was.
        exit_rate: exits over the number that were on it before, per interval; NaN if none was.
    """

    entries: int
    exits: int
    entry_rate: float
    exit_rate: float


def transitions(before: Tensor, after: Tensor) -> Transitions:
    """Entries and exits between two looks; a weight that left and came back in between is not seen.

    Args:
        before: mask at the earlier look, shape (d,).
        after: mask at the later look, shape (d,).

    Raises:
        ValueError: the shapes differ.
    """
    if before.shape != after.shape:
        raise ValueError(f"masks of shapes {tuple(before.shape)} and {tuple(after.shape)} are not of one model.")
    before, after = before.bool(), after.bool()
    on = int(before.sum())
    off = before.numel() - on
    entries, exits = int((~before & after).sum()), int((before & ~after).sum())
    nan = float("nan")
    return Transitions(entries, exits, entries / off if off else nan, exits / on if on else nan)


def _check_slope(slope: float) -> None:
    if not 0.0 < slope < float("inf"):
        raise ValueError(f"slope={slope}: the shoulder's slope must be finite and positive (default 0.05).")
