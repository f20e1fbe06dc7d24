"""A linear map with Gaussian prior and noise, whose posterior is Gaussian in closed form."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lightning_lift.datamodules.simulators.base import SimulatorDataModule


class LinearGaussianDataModule(SimulatorDataModule):
    """Parameters x ~ N(0, prior_variance I), data ~ N(A x, noise_variance I).

    With the defaults it is ``gaussian_linear`` of the sbi benchmark (Lueckmann et al., AISTATS 2021): D = 10, A = I,
    both variances 0.1. The posterior is N(m, C) with C^-1 = I / prior_variance + A^T A / noise_variance and
    m = C A^T data / noise_variance.

    Args:
        dim: Number of parameters D.
        matrix: A, (M, D). None for the identity.
        prior_variance: Of each parameter, positive.
        noise_variance: Of each of the M data, positive.
        **kwargs: Arguments of :class:`SimulatorDataModule`: ``num_simulations``, ``val_fraction``, ``num_test``,
            ``batch_size``, ``cache_folder``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        dim: int = 10,
        matrix: Sequence[Sequence[float]] | None = None,
        prior_variance: float = 0.1,
        noise_variance: float = 0.1,
        **kwargs: Any,
    ) -> None:
        a = torch.eye(dim, dtype=torch.float64) if matrix is None else torch.tensor(matrix, dtype=torch.float64)
        if a.ndim != 2 or a.shape[1] != dim:
            raise ValueError(f"matrix must have {dim} columns, one a parameter, got shape {tuple(a.shape)}.")
        if not (prior_variance > 0.0 and noise_variance > 0.0):
            raise ValueError(
                f"prior_variance {prior_variance} and noise_variance {noise_variance} must both be positive."
            )
        self._matrix, self._variances = a, (prior_variance, noise_variance)
        precision = torch.eye(dim, dtype=torch.float64) / prior_variance + a.T @ a / noise_variance
        self._covariance = torch.linalg.inv(precision)
        super().__init__(prior=self._draw_prior, simulator=self._data_of, **kwargs)
        self.name = "linear_gaussian"
        self.save_hyperparameters(ignore="bounds")

    def _draw_prior(self, num_rows: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(num_rows, self._matrix.shape[1], generator=generator, dtype=torch.float64)
        return math.sqrt(self._variances[0]) * noise

    def _data_of(self, x: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(len(x), len(self._matrix), generator=generator, dtype=torch.float64)
        return x @ self._matrix.T.to(x) + math.sqrt(self._variances[1]) * noise.to(x)

    def log_prior(self, x: Tensor) -> Tensor:
        """Log-density of the prior; see :class:`SimulatorDataModule`."""
        return _normal(x, self._variances[0])

    def log_likelihood(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of the data; see :class:`SimulatorDataModule`."""
        return _normal(context - x @ self._matrix.T.to(x), self._variances[1])

    def posterior(self, context: Tensor) -> MultivariateNormal:
        """The Gaussian posteriors of data (N, M), float64: a batch of N distributions over (D,)."""
        mean = context.double() @ self._matrix @ self._covariance / self._variances[1]
        return MultivariateNormal(mean, self._covariance)

    def log_posterior(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of the posterior; see :class:`SimulatorDataModule`."""
        log_prob: Tensor = self.posterior(context).log_prob(x.double())
        return log_prob.to(x.dtype)

    def reference_draws(self, context: Tensor, num_draws: int, seed: int) -> Tensor:
        """Draw from the exact posterior; see :class:`SimulatorDataModule`."""
        noise = torch.randn(num_draws, self.dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        exact = self.posterior(context.unsqueeze(0))
        draws: Tensor = exact.mean + noise @ torch.linalg.cholesky(self._covariance).T
        return draws


def _normal(residual: Tensor, variance: float) -> Tensor:
    """log N(residual; 0, variance I): (N, D) to (N,)."""
    log_prob: Tensor = -0.5 * (residual.square() / variance + math.log(2.0 * math.pi * variance)).sum(dim=1)
    return log_prob
