"""A Gaussian with correlated columns, in any dimension."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.planar import check_positive
from lightning_lift.datamodules.sampled import SampledDataModule
from lightning_lift.datamodules.seeding import generator_at, stream_seed

_BASIS_STREAM = 100  # apart from the streams of the splits


class CorrelatedGaussianDataModule(SampledDataModule):
    """Gaussian of mean 0 whose principal axes are random and whose condition number is given.

    The axes are a uniformly random orthogonal basis, made from ``data_seed``. The variances along them are evenly
    spaced on the logarithmic scale from 1 / sqrt(condition_number) to sqrt(condition_number): the covariance has
    determinant 1, and the entropy is that of the standard Gaussian, dim (1 + log 2 pi) / 2.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

    Args:
        dim: Number of columns, at least 2.
        condition_number: Largest variance over smallest, at least 1.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        dim: int = 8,
        condition_number: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dim=dim,
            name="correlated_gaussian",
            **kwargs,
        )
        if dim < 2:
            raise ValueError(f"dim must be at least 2, got {dim}: one column has nothing to be correlated with")
        check_positive(condition_number=condition_number)
        if condition_number < 1.0:
            raise ValueError(f"condition_number must be at least 1, got {condition_number}")
        exponents = torch.linspace(-0.25, 0.25, dim, dtype=torch.float64)
        self._std = condition_number**exponents
        self._axes = _random_basis(dim, generator_at(stream_seed(self.data_seed, "split", _BASIS_STREAM), 0))
        end = 6.0 * (self._axes * self._std).square().sum(dim=1).sqrt()
        self.set_range(torch.tensor([[-math.inf], [math.inf]]).expand(2, dim), torch.stack([-end, end]))
        self.save_hyperparameters()

    @property
    def covariance(self) -> Tensor:
        """Covariance matrix (D, D), float64."""
        return (self._axes * self._std.square()) @ self._axes.T

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows (num_rows, D) float32; see the base class."""
        noise = torch.randn(num_rows, self.dim, generator=generator, dtype=torch.float64)
        return ((noise * self._std) @ self._axes.T).to(torch.float32)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the true log-density of points (N, D), computed in float64 and returned in their dtype: (N,)."""
        squares = ((x.double() @ self._axes) / self._std).square().sum(dim=1)
        value = -0.5 * squares - 0.5 * self.dim * math.log(2.0 * math.pi)
        # an infinite coordinate makes NaN of inf - inf
        infinite = torch.isinf(x).any(dim=1) & ~torch.isnan(x).any(dim=1)
        result: Tensor = value.masked_fill(infinite, -math.inf).to(x.dtype)
        return result

    @property
    def entropy(self) -> float:
        """Differential entropy in nats, in closed form."""
        return 0.5 * self.dim * (1.0 + math.log(2.0 * math.pi))


def _random_basis(dim: int, generator: torch.Generator) -> Tensor:
    """Return an orthogonal matrix (dim, dim), uniformly distributed (Mezzadri 2007: the signs of R matter)."""
    basis, triangle = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    signed: Tensor = basis * triangle.diagonal().sign()
    return signed
