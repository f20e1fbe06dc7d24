"""Calibration of a posterior over many simulations: ranks of the true parameters, and coverage of credible regions."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chisquare
from torch import Tensor

_MOST_BINS = 20
_EXPECTED = 5.0  # ranks a bin at least: fewer, and the statistic has no chi-square distribution


class RankStatistics(NamedTuple):
    """Simulation-based calibration (Talts et al., arXiv 1804.06788, 2018).

    Attributes:
        ranks: of the truth among the draws, 0 to ``num_draws``, shape (N, D), integer; uniform where the posterior is
            that of the simulator and the prior.
        num_draws: L, draws of each posterior.
        p_values: of the chi-square test for uniform ranks, coordinate by coordinate, shape (D,), float64.
    """

    ranks: Tensor
    num_draws: int
    p_values: Tensor

    @property
    def p_value(self) -> float:
        """Of all coordinates together, by Bonferroni: the smallest one times their number, at most 1."""
        return min(1.0, len(self.p_values) * float(self.p_values.min()))


class ExpectedCoverage(NamedTuple):
    """How often the regions of highest posterior density hold the truth (Hermans et al., TMLR 2022).

    Attributes:
        levels: credible levels from 0 to 1, shape (M,), float64.
        coverage: share of the simulations whose region of this level holds the truth, shape (M,): equal to ``levels``
            for the right posterior, below them for one that is too sure of itself.
        standard_error: of the coverage, shape (M,).
        p_value: of the chi-square test for uniform levels.
    """

    levels: Tensor
    coverage: Tensor
    standard_error: Tensor
    p_value: float


def rank_statistics(truths: Tensor, draws: Tensor) -> RankStatistics:
    """Ranks of true parameters among draws of the posterior given what was simulated from them.

    The test counts ranks in up to 20 bins of nearly equal width, fewer where a bin would expect under five.

    Args:
        truths: parameters drawn from the prior, shape (N, D).
        draws: for each of them L independent draws of the posterior at its simulation, shape (L, N, D), as
            ``sample(L, context)`` gives them.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, or fewer than 10 simulations.
    """
    if truths.ndim != 2 or draws.ndim != 3 or draws.shape[1:] != truths.shape or not len(draws):
        raise ValueError(
            f"truths of shape {tuple(truths.shape)} and draws of shape {tuple(draws.shape)}: must be (N, D) and "
            "(L, N, D), as sample(L, context) gives them."
        )
    if not (truths.isfinite().all() and draws.isfinite().all()):
        raise ValueError("truths or draws are not finite: such numbers have no rank.")
    ranks = (draws < truths.to(draws)).sum(0).cpu()
    p_values = [_uniform_p_value(column.numpy(), len(draws)) for column in ranks.T]
    return RankStatistics(ranks, len(draws), torch.tensor(p_values, dtype=torch.float64))


def expected_coverage(truth_log_prob: Tensor, draws_log_prob: Tensor, num_levels: int = 21) -> ExpectedCoverage:
    """Coverage of the regions of highest density, from log-densities of truths and of draws.

    A constant factor of the density, such as that of a rejection of draws outside the prior, changes nothing.

    Args:
        truth_log_prob: log q of the true parameters at their simulation, shape (N,).
        draws_log_prob: log q of L draws at the same simulations, shape (L, N).
        num_levels: equally spaced levels, both ends among them.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, or fewer than 10 simulations or two levels.
    """
    if num_levels < 2:
        raise ValueError(f"num_levels={num_levels}: at least 0 and 1.")
    ranks, num_draws, p_values = rank_statistics(truth_log_prob.unsqueeze(-1), draws_log_prob.unsqueeze(-1))
    above = num_draws - ranks.squeeze(1)  # draws of higher density: the truth is at the edge of a region of their share
    levels = torch.linspace(0.0, 1.0, num_levels, dtype=torch.float64)
    # Each of the L + 1 ranks stands for an interval of levels; where a level falls into it, the truth counts in part,
    # so that the mean is the level itself for the right posterior, whatever L.
    held = (levels[:, None] * (num_draws + 1) - above).clamp(0.0, 1.0)
    coverage = held.mean(1)
    error = (coverage * (1.0 - coverage) / len(above)).sqrt()
    return ExpectedCoverage(levels, coverage, error, float(p_values[0]))


def rank_bins(num_simulations: int, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the bins in which ranks 0 to L are counted, and the counts that uniform ranks give on average.

    Args:
        num_simulations: N.
        num_draws: L.

    Returns:
        Edges between ranks, shape (B + 1,), and expected counts, shape (B,).

    Raises:
        ValueError: too few simulations for two bins.
    """
    # L + 1 need not be a multiple of B: bins differ by one rank at most, and each is compared with its own count.
    for bins in range(min(_MOST_BINS, num_draws + 1), 1, -1):
        edges = np.round(np.linspace(0, num_draws + 1, bins + 1))
        expected = num_simulations * np.diff(edges) / (num_draws + 1)
        if expected.min() >= _EXPECTED:
            return edges - 0.5, expected
    raise ValueError(
        f"{num_simulations} simulations are too few to judge ranks among {num_draws} draws: each of at least two bins "
        f"must expect {_EXPECTED:.0f} of them; simulate more."
    )


def _uniform_p_value(ranks: np.ndarray, num_draws: int) -> float:
    edges, expected = rank_bins(len(ranks), num_draws)
    return float(chisquare(np.histogram(ranks, edges)[0], expected).pvalue)
