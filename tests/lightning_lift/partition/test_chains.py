import math

import pytest
import torch
from torch import Tensor

from lightning_lift.diagnostics.mcmc import effective_sample_size
from lightning_lift.partition.chains import (
    HAMILTONIAN_ACCEPTANCE,
    LANGEVIN_ACCEPTANCE,
    Ensemble,
    adapted,
    covariance_factor,
    quarter_turn,
    step,
)
from lightning_lift.partition.coordinates import Coordinates, Target
from tests.problems import CorrelatedQuadratic, LaplaceEnergy, SeparableGumbel, potential_of


def open_target(network: torch.nn.Module) -> Target:
    dim = network.dim
    support = torch.tensor([[-math.inf], [math.inf]]).expand(2, dim)
    return Target(potential_of(network), Coordinates(support))


def run(target: Target, points: Tensor, steps: int, num_leapfrog: int, factor: Tensor) -> tuple[Tensor, float, float]:
    generator = torch.Generator().manual_seed(1)
    chains, step_size = Ensemble.at(target, points), 0.5
    wanted = LANGEVIN_ACCEPTANCE if num_leapfrog == 1 else HAMILTONIAN_ACCEPTANCE
    history, acceptance = [], 0.0
    for index in range(steps):
        chains, accepted = step(target, chains, step_size, factor, generator, num_leapfrog)
        if index < steps // 2:
            step_size = adapted(step_size, accepted, wanted, gain=0.3)
        else:
            history.append(chains.points)
            acceptance += accepted / (steps - steps // 2)
    return torch.stack(history), step_size, acceptance


@pytest.mark.parametrize("num_leapfrog", [1, 4])
@pytest.mark.parametrize(
    ("energy", "mean", "variance"), [(SeparableGumbel, 0.57722, math.pi**2 / 6), (LaplaceEnergy, 0, 2)]
)
def test_chains_leave_the_density_alone(energy: type, mean: float, variance: float, num_leapfrog: int) -> None:
    target = open_target(energy(3))
    history, _, acceptance = run(target, torch.randn(512, 3) * 0.1, 300, num_leapfrog, torch.eye(3))
    assert acceptance == pytest.approx(LANGEVIN_ACCEPTANCE if num_leapfrog == 1 else HAMILTONIAN_ACCEPTANCE, abs=0.05)
    size = float(effective_sample_size(history).min())
    assert float(history.mean()) == pytest.approx(mean, abs=5.0 * math.sqrt(variance / size))
    assert float(history.var()) == pytest.approx(variance, rel=10.0 / math.sqrt(size))


def test_the_acceptance_ratio_is_that_of_metropolis_and_hastings() -> None:
    """One leapfrog step is a Langevin proposal: its energy change is the log ratio of both densities."""
    target = open_target(CorrelatedQuadratic(3).double())
    factor = torch.linalg.cholesky(torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 0.5]]).double())
    points = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = 0.4
    chains = Ensemble.at(target, points)
    _, acceptance = step(target, chains, h, factor, torch.Generator().manual_seed(5))
    noise = torch.randn(2000, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    metric = factor @ factor.T

    def log_proposal(start: Tensor, gradient: Tensor, end: Tensor) -> Tensor:
        drift = end - (start - 0.5 * h**2 * gradient @ metric)
        return -0.5 * (torch.linalg.solve(factor, drift.T).T / h).square().sum(1)

    end = points - 0.5 * h**2 * chains.gradients @ metric + h * noise @ factor.T
    energy, gradient = target(end)
    log_ratio = (
        chains.energies - energy + log_proposal(end, gradient, points) - log_proposal(points, chains.gradients, end)
    )
    assert acceptance == pytest.approx(float(log_ratio.clamp(max=0.0).exp().mean()), abs=1e-12)


def test_the_preconditioner_takes_the_condition_number_away() -> None:
    network = CorrelatedQuadratic(8, condition=1000.0)
    target = open_target(network)
    factor = torch.linalg.cholesky(torch.linalg.inv(network.precision))
    start = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    preconditioned, large, _ = run(target, start @ factor.T, 200, 1, factor)
    plain, small, _ = run(target, start @ factor.T, 200, 1, torch.eye(8))
    assert large > 10 * small
    assert float(effective_sample_size(preconditioned).min()) > 20 * float(effective_sample_size(plain).min())


def test_no_chain_goes_where_the_energy_is_infinite_or_undefined() -> None:
    def half_line(points: Tensor) -> tuple[Tensor, Tensor]:
        x = points[:, 0]
        energy = torch.where(x < 0, torch.nan, x)
        return torch.where(x > 3, torch.inf, energy), torch.ones_like(points)

    chains = Ensemble.at(half_line, torch.full((200, 1), 0.5))
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        chains, _ = step(half_line, chains, 0.5, torch.eye(1), generator)
    assert bool(((chains.points >= 0) & (chains.points <= 3)).all())
    stuck = Ensemble.at(half_line, torch.full((50, 1), -0.3))
    for _ in range(20):
        stuck, _ = step(half_line, stuck, 1.0, torch.eye(1), generator)
    assert int((stuck.points > 0).sum()) > 25, "a chain that stands there leaves it"


def test_step_sizes_stay_within_bounds() -> None:
    small = large = 1.0
    for _ in range(1000):
        small, large = adapted(small, 0.0, 0.5, 1.0), adapted(large, 1.0, 0.5, 1.0)
    assert 0 < small < 1e-3
    assert large == 2.0
    assert quarter_turn(large) == 1
    assert quarter_turn(0.5) == 3
    assert quarter_turn(small) < 20


@pytest.mark.parametrize("count", [4, 100, 20_000])
def test_covariance_factor_of_few_and_of_many_points(count: int) -> None:
    network = CorrelatedQuadratic(6)
    covariance = torch.linalg.inv(network.precision)
    points = torch.randn(count, 6, generator=torch.Generator().manual_seed(0)) @ torch.linalg.cholesky(covariance).T
    factor = covariance_factor(points)
    assert bool((factor.diagonal() > 0).all())
    if count == 20_000:
        torch.testing.assert_close(factor @ factor.T, covariance, rtol=0.1, atol=0.02)
