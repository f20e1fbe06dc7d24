"""Starts for the nonnegative weights of an ICNN, stated for the *effective* weights (those that multiply the units)."""

import math
from typing import Literal

import torch
from torch import Tensor

WeightInit = Literal["scaled", "folded_normal", "principled", "constant"]

_LOG_NORMS = (-0.5, 1.5)  # decades of the rows' norms times sqrt(D) under the scaled start


def folded_normal_(weight: Tensor, fan_in: int) -> Tensor:
    """Fill with |N(0, pi / (2 fan_in))|, whose mean is 1 / sqrt(fan_in).

    Args:
        weight: filled in place, any shape.
        fan_in: number of units that each output sums over.
    """
    with torch.no_grad():
        return weight.normal_(0.0, math.sqrt(math.pi / (2.0 * fan_in))).abs_()


def principled_moments(fan_in: int) -> tuple[float, float, float]:
    """Mean and variance of the weights, and the bias, of Hoedt & Klambauer (NeurIPS 2023), for correlation 1/2.

    Principled Weight Initialisation for Input-Convex Neural Networks: with n = fan_in and
    D = 6 (pi - 1) + (n - 1)(3 sqrt 3 + 2 pi - 6), mean sqrt(6 pi / (n D)), variance 1/n, bias -sqrt(3 n / D).

    Args:
        fan_in: number of units n that each output sums over, at least 1.
    """
    n = fan_in
    denominator = 6.0 * (math.pi - 1.0) + (n - 1.0) * (3.0 * math.sqrt(3.0) + 2.0 * math.pi - 6.0)
    return math.sqrt(6.0 * math.pi / (n * denominator)), 1.0 / n, -math.sqrt(3.0 * n / denominator)


def log_normal_(weight: Tensor, mean: float, variance: float) -> Tensor:
    """Fill with log-normal numbers of the given mean and variance.

    Args:
        weight: filled in place, any shape.
        mean: mean of the numbers, positive.
        variance: variance of the numbers, positive.
    """
    log_variance = math.log1p(variance / mean**2)
    with torch.no_grad():
        return weight.normal_(math.log(mean) - 0.5 * log_variance, math.sqrt(log_variance)).exp_()


def initialize_nonnegative_(weight: Tensor, fan_in: int, how: WeightInit, value: float) -> float:
    """Fill effective weights in place and return the bias that belongs to them (0 except for ``principled``).

    Args:
        weight: effective weights, filled in place.
        fan_in: number of units that each output sums over.
        how: ``folded_normal``, ``principled``, or ``constant`` and ``scaled`` (every weight is value / fan_in).
        value: only for the last two: the sum of the weights of one output, nonnegative.

    Raises:
        ValueError: ``how`` is unknown, or ``value`` is negative.
    """
    if how == "folded_normal":
        folded_normal_(weight, fan_in)
        return 0.0
    if how == "principled":
        mean, variance, bias = principled_moments(fan_in)
        log_normal_(weight, mean, variance)
        return bias
    if how in ("constant", "scaled"):
        if not value >= 0.0:
            raise ValueError(f"weight_init_value={value}: nonnegative weights cannot start below 0.")
        with torch.no_grad():
            weight.fill_(value / fan_in)
        return 0.0
    raise ValueError(f"weight_init={how!r} is not known; choose 'scaled', 'folded_normal', 'principled' or 'constant'.")


@torch.no_grad()
def log_spaced_rows_(weight: Tensor) -> Tensor:
    """Fill with rows in random directions, their norms evenly spaced in the logarithm: units of every slope.

    The norms run from 10^-0.5 / sqrt(D) to 10^1.5 / sqrt(D), in random order. With softplus units of slope m the
    function bends over a length 1/m, so one layer has lengths from a thirtieth of a standard deviation to three. Ours.
    Over x ~ N(0, I) the units' mean square of A x is the mean of the squared norms, 109 / D for many units.

    Args:
        weight: filled in place, shape (h, D).
    """
    units, dim = weight.shape
    low, high = _LOG_NORMS
    norms = torch.logspace(low, high, units)[torch.randperm(units)] / math.sqrt(dim)
    directions = torch.nn.functional.normalize(torch.randn(units, dim), dim=1)
    return weight.copy_(norms.unsqueeze(1) * directions)
