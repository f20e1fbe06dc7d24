"""Pure functions behind the metrics: moments that merge exactly, and distances between densities on a grid."""

import torch
from torch import Tensor


def moments(values: Tensor) -> Tensor:
    """Count, mean and sum of squared deviations.

    Args:
        values: shape (N,), N >= 0.

    Returns:
        Shape (3,): N, the mean, sum (value - mean)^2. Zeros for N = 0. Infinite values give an infinite mean and a
        NaN spread; NaN values give NaN.
    """
    if values.numel() == 0:
        return values.new_zeros(3)
    mean = values.mean()
    return torch.stack([mean.new_tensor(float(values.numel())), mean, (values - mean).square().sum()])


def merge_moments(parts: Tensor) -> Tensor:
    """Moments of the union of samples, from the moments of each.

    The pairwise update of Chan, Golub & LeVeque (1983), equation 2.1: deviations are taken from the running mean, so
    nothing is lost to cancellation in float32, as it would be with sums of squares.

    Args:
        parts: shape (K, 3), one row of ``moments`` each.

    Returns:
        Shape (3,).
    """
    total = parts[0]
    for part in parts[1:]:
        count = total[0] + part[0]
        share = part[0] / count.clamp(min=1.0)
        shift = part[1] - total[1]
        # With an infinite mean the shift would be inf - inf; a weighted mean keeps the infinity.
        weighted = _times(1.0 - share, total[1]) + _times(share, part[1])
        mean = torch.where(shift.isfinite(), total[1] + shift * share, weighted)
        spread = total[2] + part[2] + _times(total[0] * share, shift.square())
        total = torch.stack([count, mean, spread])
    return total


def mean_standard_error(parts: Tensor) -> Tensor:
    """Standard error of the mean, s / sqrt(N), with the sample variance s^2 (N - 1 in the denominator).

    Args:
        parts: shape (3,), as ``moments`` gives them.

    Returns:
        Scalar; NaN for fewer than two values.
    """
    count, _, spread = parts
    return torch.where(count > 1, (spread / (count - 1).clamp(min=1.0) / count.clamp(min=1.0)).sqrt(), torch.nan)


def normalize_on_grid(log_density: Tensor, quadrature_weights: Tensor) -> Tensor:
    """Shift a log-density so that it integrates to one under the quadrature.

    Args:
        log_density: shape (M,), -inf where the density is zero.
        quadrature_weights: shape (M,), nonnegative.

    Returns:
        Shape (M,); NaN throughout when there is no mass, or a value is NaN or +inf.

    Raises:
        ValueError: shapes that differ, or negative or non-finite quadrature weights.
    """
    if log_density.ndim != 1 or log_density.shape != quadrature_weights.shape:
        raise ValueError(
            f"log-density of shape {tuple(log_density.shape)} and quadrature weights of shape "
            f"{tuple(quadrature_weights.shape)}: both must be (M,), one entry a grid point."
        )
    if not bool(((quadrature_weights >= 0) & quadrature_weights.isfinite()).all()):
        raise ValueError("quadrature weights must be finite and nonnegative (trapezoid, Simpson and Gauss rules are).")
    return log_density - torch.logsumexp(log_density + quadrature_weights.log(), 0)


def total_variation(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
    """TV(p, q) = 1/2 int |p - q|, both densities renormalised on the grid.

    Args:
        log_p: log-density of p on the grid, shape (M,).
        log_q: log-density of q on the grid, shape (M,).
        quadrature_weights: shape (M,).

    Returns:
        Scalar in [0, 1]; NaN when a density has no mass on the grid or is not a density.

    Raises:
        ValueError: see ``normalize_on_grid``.
    """
    p, q = (normalize_on_grid(log, quadrature_weights).exp() for log in (log_p, log_q))
    return 0.5 * (quadrature_weights * (p - q).abs()).sum()


def kl_divergence(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
    """KL(p || q) = int p log(p / q) in nats, both densities renormalised on the grid; 0 log 0 is 0.

    Args:
        log_p: log-density of p on the grid, shape (M,).
        log_q: log-density of q on the grid, shape (M,).
        quadrature_weights: shape (M,).

    Returns:
        Scalar >= 0; inf where p has mass and q has none; NaN when a density has no mass or is not a density.

    Raises:
        ValueError: see ``normalize_on_grid``.
    """
    log_p, log_q = (normalize_on_grid(log, quadrature_weights) for log in (log_p, log_q))
    mass = quadrature_weights * log_p.exp()
    # p (log p - log q) - p + q is nonnegative pointwise and has the same integral: small divergences stay accurate.
    integrand = _times(mass, log_p - log_q) - mass + quadrature_weights * log_q.exp()
    return integrand.sum().clamp(min=0.0)


def hellinger_distance(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
    """H(p, q) = sqrt(1/2 int (sqrt p - sqrt q)^2), both densities renormalised on the grid.

    Args:
        log_p: log-density of p on the grid, shape (M,).
        log_q: log-density of q on the grid, shape (M,).
        quadrature_weights: shape (M,).

    Returns:
        Scalar in [0, 1]; NaN when a density has no mass on the grid or is not a density.

    Raises:
        ValueError: see ``normalize_on_grid``.
    """
    root_p, root_q = ((0.5 * normalize_on_grid(log, quadrature_weights)).exp() for log in (log_p, log_q))
    return (0.5 * (quadrature_weights * (root_p - root_q).square()).sum()).sqrt()


def _times(factor: Tensor, value: Tensor) -> Tensor:
    """factor * value, and exactly 0 where the factor is 0, whatever the value (0 log 0)."""
    return torch.where(factor == 0, torch.zeros_like(factor), factor * value)
