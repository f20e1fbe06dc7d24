"""Convergence of Markov chains: split R-hat and effective sample size. Pure functions on the chains' history."""

import torch
from torch import Tensor


def split_r_hat(history: Tensor) -> Tensor:
    """Potential scale reduction of chains that are each cut in half (Gelman et al., 2013, section 11.4).

    sqrt(((n - 1) / n W + B / n) / W) with W the mean of the halves' variances and B / n the variance of their means;
    1 where all halves tell the same. Not rank-normalised.

    Args:
        history: states of each chain in order, shape (steps, chains, quantities); at least 4 steps.

    Returns:
        Shape (quantities,), float64; infinite where the halves differ and none of them moves, 1 where nothing does.

    Raises:
        ValueError: another shape or too few steps.
    """
    halves = _halves(history)
    steps = halves.shape[0]
    within = halves.var(0).mean(0)
    between = halves.mean(0).var(0)
    ratio = (steps - 1) / steps + torch.where(between > 0.0, between, 0.0) / within
    return torch.where(between > 0.0, ratio, 1.0).sqrt()


def effective_sample_size(history: Tensor) -> Tensor:
    """Independent draws that the chains are worth in estimating a mean.

    Chains times steps over the autocorrelation time 1 + 2 sum rho_t. rho_t joins all halves of chains through W and
    the total variance (Vehtari et al., 2021, equations 10 and 11), and the sum is Geyer's initial monotone sequence.

    Args:
        history: states of each chain in order, shape (steps, chains, quantities); at least 4 steps.

    Returns:
        Shape (quantities,), float64, at most chains * steps * log10(chains * steps); NaN where nothing moves.

    Raises:
        ValueError: another shape or too few steps.
    """
    halves = _halves(history)
    steps, chains, _ = halves.shape
    centred = halves - halves.mean(0)
    spectrum = torch.fft.rfft(centred, n=2 * steps, dim=0)
    covariances = torch.fft.irfft(spectrum.abs().square(), n=2 * steps, dim=0)[:steps] / steps  # (steps, chains, K)
    within = covariances[0].mean(0) * steps / (steps - 1)
    total = within * (steps - 1) / steps + halves.mean(0).var(0)
    correlations = 1.0 - (within - covariances.mean(1) * steps / (steps - 1)) / total
    correlations[0] = 1.0
    pairs = correlations[: steps - steps % 2].reshape(steps // 2, 2, -1).sum(1)
    positive = (pairs > 0.0).to(pairs).cumprod(0)
    time = -1.0 + 2.0 * (pairs.clamp(min=0.0).cummin(0).values * positive).sum(0)
    number = torch.tensor(float(steps * chains), dtype=time.dtype)
    return number / torch.maximum(time, 1.0 / number.log10())


def _halves(history: Tensor) -> Tensor:
    if history.ndim != 3 or history.shape[0] < 4:
        raise ValueError(
            f"history of shape {tuple(history.shape)}: give (steps, chains, quantities), and at least 4 steps."
        )
    half = history.shape[0] // 2
    return torch.cat([history[:half], history[-half:]], 1).double()
