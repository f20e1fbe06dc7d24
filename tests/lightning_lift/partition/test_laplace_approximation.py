import functools
import math

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.partition.coordinates import Coordinates, Target
from lightning_lift.partition.laplace_approximation import Gaussian, find_mode
from lightning_lift.partition.pilot import find_start
from tests.problems import (
    CorrelatedQuadratic,
    ExponentialEnergy,
    GammaEnergy,
    LaplaceEnergy,
    SeparableGumbel,
    potential_of,
)


def make_target(network: torch.nn.Module, low: float = -math.inf) -> Target:
    support = torch.tensor([[low], [math.inf]]).expand(2, network.dim)
    return Target(potential_of(network), Coordinates(support))


@pytest.mark.parametrize("dim", [1, 2, 21])
def test_a_quadratic_energy_gives_its_own_gaussian(dim: int) -> None:
    network = CorrelatedQuadratic(dim, mean=3.0).double()
    mode = find_mode(make_target(network), torch.zeros(dim, dtype=torch.float64))
    torch.testing.assert_close(mode.point, torch.full((dim,), 3.0, dtype=torch.float64))
    covariance = torch.linalg.inv(network.precision)
    assert mode.laplace is not None
    for gaussian in (mode.laplace, mode.profile):
        torch.testing.assert_close(gaussian.factor @ gaussian.factor.T, covariance, rtol=1e-5, atol=1e-7)
    u = torch.randn(10, dim, dtype=torch.float64)
    values, gradients = mode.laplace.value_gradient(u)
    exact = torch.distributions.MultivariateNormal(mode.point, precision_matrix=network.precision)
    torch.testing.assert_close(values, -exact.log_prob(u), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradients, (u - mode.point) @ network.precision, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start", [-3.0, 0.5, 200.0])
def test_damped_newton_finds_the_mode_from_afar(start: float) -> None:
    """Energy z + e^-z: Newton's full steps would overshoot by e^3 from the left."""
    target = make_target(SeparableGumbel(4, mean=2.0, sd=0.5))
    mode = find_mode(target, torch.full((4,), start))
    torch.testing.assert_close(mode.point, torch.full((4,), 2.0), rtol=1e-3, atol=1e-3)
    assert mode.laplace is not None
    torch.testing.assert_close(mode.laplace.factor, 0.5 * torch.eye(4), rtol=1e-2, atol=1e-2)


def test_a_network_without_second_derivatives() -> None:
    torch.manual_seed(0)
    network = ICNN(5, [32, 32], activation="relu", strong_convexity=0.1)
    target = make_target(network)
    mode = find_mode(target, torch.full((5,), 2.0))
    assert mode.laplace is None
    near = mode.point + 0.3 * torch.randn(500, 5, generator=torch.Generator().manual_seed(0))
    assert float(target(mode.point.unsqueeze(0))[0]) <= float(target(near)[0].min()) + 1e-3


def test_a_kink_has_no_hessian_but_a_profile() -> None:
    """|z| has a second derivative of zero off the kink; two nats are reached at |z| = 2, as for sd 1."""
    mode = find_mode(make_target(LaplaceEnergy(3, sd=4.0)), torch.full((3,), 1.0))
    assert mode.laplace is None
    torch.testing.assert_close(mode.profile.factor.diagonal(), torch.full((3,), 4.0), rtol=0.2, atol=0.0)


@pytest.mark.parametrize(
    ("energy", "low", "mean", "variance"),
    [
        (CorrelatedQuadratic, -math.inf, 0.0, None),
        (SeparableGumbel, -math.inf, 0.57722, math.pi**2 / 6),
        (LaplaceEnergy, -math.inf, 0.0, 2.0),
        (GammaEnergy, 0.0, 2.0, 2.0),
        (ExponentialEnergy, 0.0, 1.0, 1.0),
        (functools.partial(SeparableGumbel, mean=100.0, sd=0.01), -math.inf, 100.0 + 0.0057722, 1e-4 * math.pi**2 / 6),
    ],
)
def test_the_pilot_ends_in_the_density(energy: type, low: float, mean: float, variance: float | None) -> None:
    network = energy(6)
    target = make_target(network, low)
    start = find_start(target, torch.full((6,), float(round(mean))), 512, torch.Generator().manual_seed(0))
    x = target.coordinates.to_support(start.chains.points)
    if variance is None:
        assert start.is_laplace
        variance = float(torch.linalg.inv(network.precision).diagonal().mean())
    error = math.sqrt(variance / 512)
    assert float(x.mean()) == pytest.approx(mean, abs=4.0 * error / math.sqrt(6) + 1e-5 * abs(mean))
    assert float(x.var(0).mean()) == pytest.approx(variance, rel=0.2)


def test_the_better_gaussian_is_taken() -> None:
    """At a Gumbel's mode the inverse Hessian says variance 1; the density has 1.64."""
    target = make_target(SeparableGumbel(8))
    start = find_start(target, torch.zeros(8), 512, torch.Generator().manual_seed(0))
    assert not start.is_laplace
    u = Gaussian(start.gaussian.mean, start.gaussian.factor).draw(4000, torch.Generator().manual_seed(1))
    assert float(u.var(0).mean()) == pytest.approx(math.pi**2 / 6, rel=0.1)


def test_an_energy_that_is_not_finite_is_an_error() -> None:
    network = SeparableGumbel(2)
    with torch.no_grad():
        network.stiffness.fill_(math.nan)
    with pytest.raises(ValueError, match="diverged"):
        find_start(make_target(network), torch.zeros(2), 64, torch.Generator())
