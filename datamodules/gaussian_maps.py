"""Optimal transport between two Gaussians: map and distance in closed form, and the units that it suggests."""

import torch
from torch import Tensor

from lightning_lift.datamodules.units import Units

_RIDGE = 1e-6  # of each variance, added to it: a sample may lie in a subspace


def gaussian_map(source: Tensor, target: Tensor) -> Tensor:
    """A with A source A = target, symmetric: x -> A x is optimal from N(0, source) to N(0, target).

    A = P^-1/2 (P^1/2 Q P^1/2)^1/2 P^-1/2 (Bhatia, Jain & Lim, On the Bures-Wasserstein distance, 2019, equation 16).

    Args:
        source: covariance P, positive definite, shape (D, D).
        target: covariance Q, positive semidefinite, shape (D, D).
    """
    root = symmetric_root(source)
    inverse = torch.linalg.inv(root)
    found: Tensor = inverse @ symmetric_root(root @ target @ root) @ inverse
    return found


def gaussian_distance(means: tuple[Tensor, Tensor], covariances: tuple[Tensor, Tensor]) -> float:
    """W2^2 between two Gaussians: |m_P - m_Q|^2 + tr(P + Q - 2 (P^1/2 Q P^1/2)^1/2), as above, equation 4.

    Args:
        means: m_P and m_Q, shape (D,) each.
        covariances: P and Q, positive semidefinite, shape (D, D) each.
    """
    source, target = covariances
    root = symmetric_root(source)
    cross = symmetric_root(root @ target @ root)
    return float((means[0] - means[1]).square().sum() + (source + target - 2.0 * cross).trace())


def symmetric_root(matrix: Tensor) -> Tensor:
    """The positive semidefinite square root of a symmetric matrix (D, D); negative round-off counts as 0."""
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
    root: Tensor = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.T
    return root


def balanced_units(source: Tensor, target: Tensor) -> tuple[Units, Units]:
    """Units of the rows of P and of Q in which both have one covariance, of mean variance 1, and mean 0.

    With A the Gaussian map between their moments and B = A^1/2: u = B (x - m_P) / s and v = B^-1 (y - m_Q) / s. Then
    <x - m_P, y - m_Q> = s^2 <u, v>, so an optimal map stays one (standardising each side for itself would change it),
    and the Gaussian map is the identity.

    Args:
        source: rows of P, shape (N, D), finite.
        target: rows of Q, shape (M, D), finite.

    Returns:
        Those of P and of Q, in float64 on the CPU.

    Raises:
        ValueError: fewer than two rows, or all rows of one side are equal.
    """
    means, covariances = [], []
    for name, rows in (("source", source), ("target", target)):
        rows = rows.detach().cpu().double()
        if len(rows) < 2:
            raise ValueError(f"{name} has {len(rows)} rows: their covariance needs two.")
        mean = rows.mean(0)
        covariance = (rows - mean).T @ (rows - mean) / len(rows)
        variances = covariance.diagonal()
        if not variances.max() > 0.0:
            raise ValueError(f"all rows of {name} are equal: between a point and anything else no map need be learned.")
        means.append(mean)
        ridge = torch.where(variances > 0.0, variances, variances.mean())
        covariances.append(covariance + _RIDGE * ridge.diag())
    root = symmetric_root(gaussian_map(covariances[0], covariances[1]))
    inverse = torch.linalg.inv(root)
    scale = (root @ covariances[0] @ root).trace().div(len(root)).sqrt()
    return Units(means[0], scale * inverse), Units(means[1], scale * root)
