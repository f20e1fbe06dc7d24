"""Flow through a rod of unknown permeability: an inverse problem in eight parameters."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.simulators.base import SimulatorDataModule

_MODES, _SENSORS = 8, 15
_CELLS = 512  # of the midpoint rule, a multiple of the sensors' spacing
_INVERSE_LENGTH = 3.0
_NOISE = 0.01


class DarcyDataModule(SimulatorDataModule):
    """Log-permeability a of -(e^a u')' = 1 on (0, 1), u(0) = u(1) = 0, from 15 noisy values of u.

    a(s) = sum over i = 0..7 of sqrt(lambda_i) x_i phi_i(s), x ~ N(0, I): the first eight terms of the Karhunen-Loeve
    expansion of the Gaussian field with the covariance kernel of length 1/tau, tau = 3, reflected at both ends,
    k(s, t) = (cosh(tau (1 - |s - t|)) + cosh(tau (1 - s - t))) / sinh(tau), about exp(-tau |s - t|) inside.
    Its operator is 2 tau (tau^2 - d^2/ds^2)^-1 with a' = 0 at the ends, so that phi_0 = 1, phi_i = sqrt 2 cos(i pi s),
    and lambda_i = 2 tau / (tau^2 + i^2 pi^2).

    Data are the logarithms of u at s = 1/16, ..., 15/16 with 1 % noise: log u + 0.01 N(0, 1). With w = e^-a the
    solution is u(s) = c W(s) - V(s), where W and V are the integrals of w and s w from 0 and c = V(1) / W(1): no
    system of equations, two cumulative sums (midpoint rule of 512 cells, whose error in log u is below 2e-4 for draws
    of the prior).

    Args:
        **kwargs: Arguments of :class:`SimulatorDataModule`: ``num_simulations``, ``val_fraction``, ``num_test``,
            ``batch_size``, ``cache_folder``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(prior=_prior, simulator=simulate, **kwargs)
        self.name = "darcy"
        self.save_hyperparameters(ignore="bounds")

    def log_prior(self, x: Tensor) -> Tensor:
        """Log-density of the prior; see :class:`SimulatorDataModule`."""
        return -0.5 * (x.square() + math.log(2.0 * math.pi)).sum(dim=1)

    def log_likelihood(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of the data, differentiable; see :class:`SimulatorDataModule`."""
        residual = (context - solve(x).log()) / _NOISE
        return -0.5 * (residual.square() + math.log(2.0 * math.pi * _NOISE**2)).sum(dim=1)


def _prior(num_rows: int, generator: torch.Generator) -> Tensor:
    return torch.randn(num_rows, _MODES, generator=generator, dtype=torch.float64)


def simulate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Data (N, 15) of parameters (N, 8)."""
    noise = torch.randn(len(x), _SENSORS, generator=generator, dtype=torch.float64)
    return solve(x).log() + _NOISE * noise.to(x)


def log_permeability(x: Tensor, positions: Tensor) -> Tensor:
    """a at positions (S,) in [0, 1] for parameters (N, 8): (N, S)."""
    order = math.pi * torch.arange(_MODES, dtype=x.dtype)
    modes = torch.cos(order.unsqueeze(1) * positions) * math.sqrt(2.0)
    modes[0] = 1.0
    lengths = torch.sqrt(2.0 * _INVERSE_LENGTH / (_INVERSE_LENGTH**2 + order.square()))
    return (x * lengths) @ modes


def solve(x: Tensor) -> Tensor:
    """u at the sensors, positive: parameters (N, 8) to (N, 15)."""
    middle = (torch.arange(_CELLS, dtype=x.dtype) + 0.5) / _CELLS
    resistance = torch.exp(-log_permeability(x, middle)) / _CELLS
    first, second = resistance.cumsum(dim=1), (middle * resistance).cumsum(dim=1)
    u = second[:, -1:] / first[:, -1:] * first - second
    step = _CELLS // (_SENSORS + 1)
    return u[:, step - 1 : -1 : step]
