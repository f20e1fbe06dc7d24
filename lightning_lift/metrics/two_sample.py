"""Distances between two samples: energy distance and maximum mean discrepancy, each with its standard error."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class TwoSample(NamedTuple):
    """An unbiased estimate of a squared distance between two distributions; it may be slightly negative.

    Attributes:
        value: a float.
        standard_error: of the value, over both samples; NaN for fewer than three rows in one of them.
    """

    value: float
    standard_error: float


def energy_distance(samples: Tensor, rows: Tensor) -> TwoSample:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'| with Euclidean norms; zero only for equal distributions.

    Székely & Rizzo (Journal of Statistical Planning and Inference, 2013), as a U-statistic (no pair of a point with
    itself), so that it is zero in the mean for equal distributions. It has the units of the rows. Memory O(N M).

    Args:
        samples: shape (N, D).
        rows: shape (M, D).

    Raises:
        ValueError: shapes that do not fit, or fewer than two rows in a sample.
    """
    x, y = _checked(samples, rows)
    return _two_sample(-_distances(x, x), -_distances(y, y), -_distances(x, y))


def maximum_mean_discrepancy(samples: Tensor, rows: Tensor, bandwidth: float | None = None) -> TwoSample:
    """Squared MMD under the kernel exp(-|x - y|^2 / (2 h^2)), unbiased (Gretton et al., JMLR 2012, lemma 6).

    Args:
        samples: shape (N, D).
        rows: shape (M, D).
        bandwidth: h, in units of the rows; None for the median distance between two of the rows.

    Raises:
        ValueError: shapes that do not fit, fewer than two rows in a sample, or a bandwidth that is not positive.
    """
    x, y = _checked(samples, rows)
    between = _distances(y, y)
    if bandwidth is None:
        first, second = torch.triu_indices(len(y), len(y), 1, device=y.device)
        bandwidth = float(between[first, second].median())
    if not bandwidth > 0.0:
        raise ValueError(f"bandwidth={bandwidth}: must be positive (half of the pairs of rows are equal, if it is 0).")

    def kernel(distances: Tensor) -> Tensor:
        return (-0.5 * (distances / bandwidth).square()).exp()

    return _two_sample(kernel(_distances(x, x)), kernel(between), kernel(_distances(x, y)))


def _two_sample(kxx: Tensor, kyy: Tensor, kxy: Tensor) -> TwoSample:
    """E k(X, X') + E k(Y, Y') - 2 E k(X, Y), and its standard error by Hoeffding's decomposition.

    The statistic is a sum of uncorrelated parts: 2 (k(x, X') - k(x, Y)) averaged over x, the same over y, and the
    doubly centred kernels averaged over pairs. The first two vanish for equal distributions, where the pairs' parts are
    all there is, so both orders are needed. The variance of a projection estimated from finite samples contains that of
    the pairs' parts, which is taken off again.
    """
    n, m = kxx.shape[0], kyy.shape[0]
    mean_xx, mean_yy, mean_xy = _off_diagonal_mean(kxx), _off_diagonal_mean(kyy), kxy.mean()
    value = float(mean_xx + mean_yy - 2.0 * mean_xy)
    if n < 3 or m < 3:
        return TwoSample(value, math.nan)
    of_x, of_y = _row_means(kxx), _row_means(kyy)
    cross_x, cross_y = kxy.mean(1), kxy.mean(0)
    pairs_xx = _off_diagonal_mean((kxx - of_x[:, None] - of_x + mean_xx).square())
    pairs_yy = _off_diagonal_mean((kyy - of_y[:, None] - of_y + mean_yy).square())
    pairs_xy = (kxy - cross_x[:, None] - cross_y + mean_xy).square().mean()
    first_x = ((of_x - cross_x).var() - pairs_xx / n - pairs_xy / m).clamp(min=0.0)
    first_y = ((of_y - cross_y).var() - pairs_yy / m - pairs_xy / n).clamp(min=0.0)
    variance = (
        4.0 * first_x / n
        + 4.0 * first_y / m
        + 2.0 * pairs_xx / (n * (n - 1))
        + 2.0 * pairs_yy / (m * (m - 1))
        + 4.0 * pairs_xy / (n * m)
    )
    return TwoSample(value, float(variance.sqrt()))


def _checked(samples: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    if samples.ndim != 2 or rows.ndim != 2 or samples.shape[1] != rows.shape[1]:
        raise ValueError(
            f"samples of shape {tuple(samples.shape)} and rows of shape {tuple(rows.shape)}: must be (N, D) and (M, D)."
        )
    if len(samples) < 2 or len(rows) < 2:
        raise ValueError(f"{len(samples)} samples and {len(rows)} rows: at least two of each are needed.")
    return samples.detach().double(), rows.detach().double()


def _distances(x: Tensor, y: Tensor) -> Tensor:
    # not through |x|^2 - 2 x y + |y|^2, which loses near neighbours to cancellation
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def _off_diagonal_mean(square: Tensor) -> Tensor:
    size = square.shape[0]
    return (square.sum() - square.diagonal().sum()) / (size * (size - 1))


def _row_means(square: Tensor) -> Tensor:
    return (square.sum(1) - square.diagonal()) / (square.shape[0] - 1)
