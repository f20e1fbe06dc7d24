"""The tasks: likelihoods against simulations, posteriors against quadrature, the equation against its solution."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lightning_lift.datamodules import (
    DarcyDataModule,
    LinearGaussianDataModule,
    SimulatorDataModule,
    SLCPDataModule,
    TwoMoonsPosteriorDataModule,
)
from lightning_lift.datamodules.simulators import darcy

MATRIX = [[1.0, 0.5, 0.0], [0.0, -2.0, 0.3], [0.7, 0.0, 0.1], [0.2, 0.2, 0.2]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear() -> LinearGaussianDataModule:
    return LinearGaussianDataModule(3, MATRIX, prior_variance=0.5, noise_variance=0.2)


def test_linear_gaussian_posterior_times_evidence_is_prior_times_likelihood():
    data, a = linear(), torch.tensor(MATRIX, dtype=torch.float64)
    x, context = data.simulations(20, seeded())[:2]
    evidence = MultivariateNormal(torch.zeros(4).double(), 0.2 * torch.eye(4) + 0.5 * a @ a.T).log_prob(context)
    joint = data.log_prior(x) + data.log_likelihood(x, context)
    torch.testing.assert_close(data.log_posterior(x, context) + evidence, joint)
    torch.testing.assert_close(  # an observation beside many parameters
        data.log_posterior(x, context[:1]), data.posterior(context[0]).log_prob(x)
    )


def test_gaussian_linear_is_that_of_the_benchmark():
    data = LinearGaussianDataModule()
    observation = torch.linspace(-0.5, 0.5, 10)
    draws = data.reference_draws(observation, 20_000, seed=1)
    torch.testing.assert_close(draws.mean(0), 0.5 * observation.double(), atol=5 * (0.05 / 20_000) ** 0.5, rtol=0.0)
    torch.testing.assert_close(draws.var(0), torch.full((10,), 0.05).double(), rtol=0.06, atol=0.0)
    x, context = data.simulations(20_000, seeded())[:2]
    assert float(x.var()) == pytest.approx(0.1, rel=0.02) and float((context - x).var()) == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("data", [linear(), SLCPDataModule(), DarcyDataModule()], ids=lambda data: data.name)
def test_likelihoods_belong_to_the_simulator(data: SimulatorDataModule):
    """Over data of x, the likelihood of other parameters over that of x has mean 1, and its logarithm one below 0."""
    x = torch.tensor([[0.5, -1.0, 1.5, -1.2, 0.7, 0.3, -0.4, 0.2]], dtype=torch.float64)[:, : data.dim]
    near = x + (0.001 if isinstance(data, DarcyDataModule) else 0.02)
    context = data.simulate(x.expand(4000, -1), seeded())
    difference = data.log_likelihood(near, context) - data.log_likelihood(x, context)
    error = float(difference.exp().std()) / 4000**0.5
    assert float(difference.exp().mean()) == pytest.approx(1.0, abs=4.0 * error) and error < 0.01
    assert float(difference.mean()) < 0.0


def crescents(observation: Tensor, side: int = 800) -> tuple[Tensor, Tensor, float]:
    """Cells of the square, the posterior on them and their area."""
    axis = (torch.arange(side, dtype=torch.float64) + 0.5) / side * 2.0 - 1.0
    x = torch.cartesian_prod(axis, axis)
    return x, TwoMoonsPosteriorDataModule().log_posterior(x, observation[None]).exp(), (2.0 / side) ** 2


@pytest.mark.parametrize("observation", [(0.0, 0.0), (-0.6, 0.3), (0.3, 0.1), (-0.75, 0.35)])
def test_two_moons_posterior_integrates_to_one_and_is_drawn_exactly(observation: tuple[float, float]):
    """Also where one crescent, or a part of it, is cut off by the axis or an edge of the square."""
    data, where = TwoMoonsPosteriorDataModule(), torch.tensor(observation, dtype=torch.float64)
    x, density, area = crescents(where)
    assert float(density.sum() * area) == pytest.approx(1.0, abs=5e-3)
    draws = data.reference_draws(where, 4000, seed=2)
    assert data.inside(draws).all()
    means, spreads = (density @ x) * area, ((density @ x.square()) * area).sqrt()
    assert torch.all((draws.mean(0) - means).abs() < 4.0 * spreads / math.sqrt(4000) + 2e-3)
    own = data.log_posterior(draws, where[None])
    entropy = float(-(torch.xlogy(density, density)).sum() * area)
    assert float(-own.mean()) == pytest.approx(entropy, abs=4.0 * float(own.std()) / math.sqrt(4000) + 5e-3)


def test_two_moons_refuses_data_that_cannot_occur():
    data, far = TwoMoonsPosteriorDataModule(), torch.tensor([2.0, 0.0])
    with pytest.raises(ValueError, match="no parameters inside the square"):
        data.reference_draws(far, 10, seed=0)
    assert torch.isinf(data.log_prior(torch.tensor([[1.5, 0.0]]))).all()


def test_slcp_covariance_is_that_of_the_benchmark():
    data = SLCPDataModule()
    x, context = data.simulations(50, seeded())[:2]
    covariance = torch.zeros(50, 2, 2, dtype=torch.float64)
    covariance[:, 0, 0], covariance[:, 1, 1] = x[:, 2] ** 4 + 1e-6, x[:, 3] ** 4 + 1e-6
    covariance[:, 0, 1] = covariance[:, 1, 0] = x[:, 4].tanh() * x[:, 2] ** 2 * x[:, 3] ** 2
    exact = MultivariateNormal(x[:, None, :2], covariance[:, None]).log_prob(context.view(50, 4, 2)).sum(1)
    torch.testing.assert_close(data.log_likelihood(x, context), exact, rtol=1e-9, atol=1e-9)
    mirrored = x * torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    torch.testing.assert_close(data.log_likelihood(mirrored, context), exact, rtol=1e-9, atol=1e-9)


def test_darcy_solves_its_equation():
    sensors = torch.arange(1, 16, dtype=torch.float64) / 16.0
    x = torch.zeros(1, 8, dtype=torch.float64)
    torch.testing.assert_close(darcy.solve(x)[0], 0.5 * sensors * (1.0 - sensors))
    x[0, 0] = 1.3  # a constant log-permeability divides the solution
    constant = math.exp(float(darcy.log_permeability(x, sensors)[0, 0]))
    torch.testing.assert_close(darcy.solve(x)[0], 0.5 * sensors * (1.0 - sensors) / constant)


def test_darcy_agrees_with_finite_volumes():
    x, cells = torch.randn(1, 8, generator=seeded(1), dtype=torch.float64), 1024
    faces = darcy.log_permeability(x, (torch.arange(cells, dtype=torch.float64) + 0.5) / cells).exp()[0] * cells
    stiffness = torch.diag(faces[:-1] + faces[1:]) - torch.diag(faces[1:-1], 1) - torch.diag(faces[1:-1], -1)
    nodes = torch.linalg.solve(stiffness, torch.full((cells - 1,), 1.0 / cells, dtype=torch.float64))
    torch.testing.assert_close(darcy.solve(x)[0], nodes[63::64], rtol=2e-4, atol=0.0)


def test_darcy_modes_expand_the_stated_kernel():
    """The field's covariance is that of the kernel, less the modes that were cut off."""
    positions = torch.linspace(0.0, 1.0, 21, dtype=torch.float64)
    modes = darcy.log_permeability(torch.eye(8, dtype=torch.float64), positions)
    first, second = positions[:, None], positions
    images = torch.cosh(3.0 * (1.0 - (first - second).abs())) + torch.cosh(3.0 * (1.0 - first - second))
    rest = images / math.sinh(3.0) - modes.T @ modes
    order = math.pi * torch.arange(8, 20_000, dtype=torch.float64)
    tails = (2.0 * 6.0 / (9.0 + order.square()) * torch.cos(order * 0.5).square()).sum()
    assert float(rest[10, 10]) == pytest.approx(float(tails), rel=1e-3)
    assert float(torch.linalg.eigvalsh(rest)[0]) > -1e-9
