"""The two moons of the sbi benchmark: a posterior of two thin crescents, known in closed form."""

import math
from typing import Any

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from lightning_lift.datamodules.simulators.base import SimulatorDataModule
from lightning_lift.datamodules.simulators.boxes import UniformCube

_RADIUS, _WIDTH, _SHIFT = 0.1, 0.01, 0.25
_ANGLES, _RADII = 4096, 24  # nodes of the quadrature of the posterior's mass
_PRIOR = UniformCube(2, 1.0)


class TwoMoonsPosteriorDataModule(SimulatorDataModule):
    """``two_moons`` of the sbi benchmark (Lueckmann et al., AISTATS 2021).

    Parameters uniform on (-1, 1)^2; data = p + (-|x1 + x2|, x2 - x1) / sqrt 2 with p = (r cos a + 0.25, r sin a),
    a uniform on (-pi/2, pi/2), r ~ N(0.1, 0.01^2).

    The likelihood is the density of p, N(r; 0.1, 0.01^2) / (pi r). A value of p, with its part beyond data1 on the
    right, belongs to the two parameters with x1 + x2 = +-sqrt 2 (p1 - data1) and x2 - x1 = sqrt 2 (data2 - p2), each
    with a Jacobian of 1: so the posterior's mass is the probability that such parameters are inside the square, which
    is 2 for most data and else a sum over angles and radii of p.

    Args:
        **kwargs: Arguments of :class:`SimulatorDataModule`: ``num_simulations``, ``val_fraction``, ``num_test``,
            ``batch_size``, ``cache_folder``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(prior=_PRIOR, simulator=simulate, bounds=_PRIOR.bounds, **kwargs)
        self.name = "two_moons_posterior"
        self.save_hyperparameters(ignore="bounds")

    def log_prior(self, x: Tensor) -> Tensor:
        """Log-density of the prior; see :class:`SimulatorDataModule`."""
        return _PRIOR.log_prob(x)

    def log_likelihood(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of the data; see :class:`SimulatorDataModule`."""
        p = context - _centre(x)
        right, up = p[:, 0] - _SHIFT, p[:, 1]
        radius = torch.hypot(right, up)
        normal = -0.5 * ((radius - _RADIUS) / _WIDTH) ** 2 - math.log(_WIDTH * math.sqrt(2.0 * math.pi))
        return torch.where(right > 0.0, normal - torch.log(math.pi * radius), -torch.inf)

    def log_posterior(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of the posterior; see :class:`SimulatorDataModule`.

        Its mass is exact where the crescents are inside the square, and within 0.001 elsewhere.
        """
        log_evidence = torch.log(_mass(context.double())) + self.log_prior(torch.zeros_like(x[:1])).double()
        return self.log_prior(x) + self.log_likelihood(x, context) - log_evidence.to(x.dtype)

    def reference_draws(self, context: Tensor, num_draws: int, seed: int) -> Tensor:
        """Draw from the exact posterior, by rejection; see :class:`SimulatorDataModule`.

        Raises:
            ValueError: If no parameters inside the square give such data.
        """
        data = context.double()
        if not float(_mass(data.unsqueeze(0))) > 0.0:
            raise ValueError(f"no parameters inside the square give the data {context.tolist()}.")
        generator, kept = torch.Generator().manual_seed(seed), torch.empty(0, 2, dtype=torch.float64)
        while len(kept) < num_draws:
            sign = 2.0 * torch.randint(2, (2 * num_draws,), generator=generator).double() - 1.0
            x, valid = _parameters(_noise(2 * num_draws, generator), data, sign)
            kept = torch.cat([kept, x[valid]])
        return kept[:num_draws]


def simulate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Data (N, 2) of parameters (N, 2)."""
    return _noise(len(x), generator).to(x) + _centre(x)


def _noise(num_rows: int, generator: torch.Generator) -> Tensor:
    """p, (N, 2)."""
    angle = math.pi * (torch.rand(num_rows, generator=generator, dtype=torch.float64) - 0.5)
    return _crescent(angle, _RADIUS + _WIDTH * torch.randn(num_rows, generator=generator, dtype=torch.float64))


def _crescent(angle: Tensor, radius: Tensor) -> Tensor:
    return torch.stack([radius * angle.cos() + _SHIFT, radius * angle.sin()], dim=-1)


def _centre(x: Tensor) -> Tensor:
    return torch.stack([-(x[:, 0] + x[:, 1]).abs(), x[:, 1] - x[:, 0]], dim=1) / math.sqrt(2.0)


def _parameters(p: Tensor, data: Tensor, sign: Tensor | float) -> tuple[Tensor, Tensor]:
    """The parameters (..., 2) that give the data with noise p (..., 2), and whether they exist inside the square."""
    total, difference = math.sqrt(2.0) * (p - data).unbind(-1)[0], math.sqrt(2.0) * (data - p).unbind(-1)[1]
    x = 0.5 * torch.stack([sign * total - difference, sign * total + difference], dim=-1)
    return x, (total > 0.0) & (x.abs() <= _PRIOR.half_width).all(dim=-1)


def _mass(data: Tensor) -> Tensor:
    """Integral of the likelihood over the square, (N,): expected number of parameters that belong to a value of p."""
    nodes, weights = (torch.from_numpy(part) for part in hermegauss(_RADII))
    angle = math.pi * ((torch.arange(_ANGLES, dtype=torch.float64) + 0.5) / _ANGLES - 0.5)
    p = _crescent(angle.unsqueeze(1), _RADIUS + _WIDTH * nodes)
    mass = []
    for row in data:
        valid = _parameters(p, row, 1.0)[1].double() + _parameters(p, row, -1.0)[1].double()
        mass.append((valid.mean(dim=0) * weights / weights.sum()).sum())
    return torch.stack(mass)
