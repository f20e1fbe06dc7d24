"""The mean of importance weights with its error, draws in their proportion, and whether they can be trusted."""

import math

import torch
from torch import Tensor

_PRIOR_WEIGHT, _PRIOR_SHAPE = 10.0, 0.5  # the weak prior of Vehtari et al. (2024), appendix C
_FEWEST = 5  # points of a tail that can be fitted


def log_mean(log_weights: Tensor) -> tuple[float, float, float]:
    """log mean w, its standard error by the delta method, and the effective sample size (sum w)^2 / sum w^2.

    Args:
        log_weights: of independent chains, shape (C,), float64.
    """
    count = len(log_weights)
    weights = (log_weights - log_weights.max()).exp()
    mean = float(weights.mean())
    value = math.log(mean) + float(log_weights.max()) if mean > 0.0 else -math.inf
    error = float(weights.std()) / mean / math.sqrt(count) if mean > 0.0 else math.inf
    return value, error, float(weights.sum().square() / weights.square().sum())


def systematic(log_weights: Tensor, num_draws: int, generator: torch.Generator) -> Tensor:
    """Positions drawn in proportion to the weights by systematic resampling, shape (num_draws,).

    Args:
        log_weights: shape (C,), float64, on the CPU.
        num_draws: how many positions.
        generator: on the CPU.
    """
    weights = (log_weights - log_weights.max()).exp().nan_to_num(nan=0.0)
    cumulative = weights.cumsum(0) / weights.sum()
    offset = float(torch.rand((), generator=generator, dtype=torch.float64))
    levels = (torch.arange(num_draws, dtype=torch.float64) + offset) / num_draws
    return torch.searchsorted(cumulative, levels).clamp(max=len(weights) - 1)


def pareto_shape(log_weights: Tensor) -> float:
    """Shape k of a generalised Pareto distribution fitted to the largest weights (Vehtari et al., JMLR 2024).

    Weights have 1/k moments: above 0.5 their variance is infinite, and above 0.7 a mean over any affordable number of
    them, and the standard error stated for it, mislead. The tail are the min(M/5, 3 sqrt(M)) largest weights.

    Args:
        log_weights: of M draws, shape (M,), -inf where a draw weighs nothing.

    Returns:
        k; 0 where all weights are equal, infinity where too few draws weigh anything.
    """
    ordered = log_weights.detach().double().cpu()
    total = len(ordered)
    ordered = ordered[ordered > -torch.inf].sort().values
    size = math.ceil(min(0.2 * total, 3.0 * math.sqrt(total)))
    if len(ordered) <= size or size < _FEWEST or not bool(torch.isfinite(ordered).all()):
        return math.inf
    ordered = ordered - ordered[-1]
    excess = ordered[-size:].exp() - ordered[-size - 1].exp()
    if float(excess[-1]) <= 1e-6:  # weights between 1 - 1e-6 and 1
        return 0.0
    shape = _fitted_shape(excess.clamp(min=1e-300))
    return (size * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (size + _PRIOR_WEIGHT)


def _fitted_shape(excess: Tensor) -> float:
    """k by the quasi-Bayesian estimate of Zhang & Stephens (Technometrics, 2009): excesses, ascending, shape (n,)."""
    n = len(excess)
    grid = 30 + int(math.sqrt(n))
    quartile = excess[int(n / 4 + 0.5) - 1]
    rank = torch.arange(1, grid + 1, dtype=excess.dtype)
    theta = 1.0 / excess[-1] + (1.0 - (grid / (rank - 0.5)).sqrt()) / (3.0 * quartile)
    shapes = torch.log1p(-theta.unsqueeze(1) * excess).mean(1)  # k given theta = -k / scale
    log_likelihood = n * ((-theta / shapes).log() - shapes - 1.0)
    posterior = torch.softmax(log_likelihood.nan_to_num(nan=-torch.inf), 0)
    return float(torch.log1p(-(posterior * theta).sum() * excess).mean())
