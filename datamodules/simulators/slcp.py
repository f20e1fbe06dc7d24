"""Simple likelihood, complex posterior: the hard five-parameter task of the sbi benchmark."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.simulators.base import SimulatorDataModule
from lightning_lift.datamodules.simulators.boxes import UniformCube

_POINTS = 4
_JITTER = 1e-6  # on the diagonal of the covariance, as in the benchmark
_PRIOR = UniformCube(5, 3.0)


class SLCPDataModule(SimulatorDataModule):
    """``slcp`` of the sbi benchmark (Papamakarios, Sterratt & Murray, AISTATS 2019; Lueckmann et al., AISTATS 2021).

    Parameters uniform on (-3, 3)^5; data (8,) are four points of N((x1, x2), S) with S11 = x3^4, S22 = x4^4 and
    S12 = tanh(x5) x3^2 x4^2. The posterior has four modes, since only x3^2 and x4^2 matter, and sharp edges.

    Args:
        **kwargs: Arguments of :class:`SimulatorDataModule`: ``num_simulations``, ``val_fraction``, ``num_test``,
            ``batch_size``, ``cache_folder``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(prior=_PRIOR, simulator=simulate, bounds=_PRIOR.bounds, **kwargs)
        self.name = "slcp"
        self.save_hyperparameters(ignore="bounds")

    def log_prior(self, x: Tensor) -> Tensor:
        """Log-density of the prior; see :class:`SimulatorDataModule`."""
        return _PRIOR.log_prob(x)

    def log_likelihood(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of the data; see :class:`SimulatorDataModule`."""
        factor = _factor(x)
        centred = context.reshape(len(context), _POINTS, 2) - x[:, None, :2]
        white = torch.linalg.solve_triangular(factor, centred.transpose(1, 2), upper=False)
        log_norm = _POINTS * (factor.diagonal(dim1=1, dim2=2).log().sum(dim=1) + math.log(2.0 * math.pi))
        log_likelihood: Tensor = -0.5 * white.square().sum(dim=(1, 2)) - log_norm
        return log_likelihood


def simulate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Data (N, 8) of parameters (N, 5)."""
    noise = torch.randn(len(x), _POINTS, 2, generator=generator, dtype=torch.float64).to(x)
    return (x[:, None, :2] + noise @ _factor(x).transpose(1, 2)).flatten(1)


def _factor(x: Tensor) -> Tensor:
    """Cholesky factors (N, 2, 2) of the covariances of parameters (N, 5)."""
    first, second = x[:, 2].square(), x[:, 3].square()
    top = torch.sqrt(first.square() + _JITTER)
    left = torch.tanh(x[:, 4]) * first * second / top
    zero = torch.zeros_like(top)
    # first^2 second^2 (1 - tanh^2), of which a difference would lose the digits
    bottom = torch.sqrt(
        second.square() * (1.0 / torch.cosh(x[:, 4]).square() + torch.tanh(x[:, 4]).square() * _JITTER / top.square())
        + _JITTER
    )
    return torch.stack([top, zero, left, bottom], dim=1).view(-1, 2, 2)
