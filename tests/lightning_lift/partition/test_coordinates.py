import math

import pytest
import torch
from torch import Tensor

from lightning_lift.partition.coordinates import Coordinates, Target
from lightning_lift.partition.grids import log_integral
from tests.problems import GammaEnergy, SeparableGumbel, potential_of

SUPPORT = torch.tensor([[-math.inf, 1.0, -math.inf, -2.0], [math.inf, math.inf, 3.0, 5.0]])


def points(count: int = 50) -> Tensor:
    return 3.0 * torch.randn(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_points_go_into_the_support_and_come_back() -> None:
    coordinates = Coordinates(SUPPORT)
    u = points()
    x = coordinates.to_support(u)
    assert bool(((x > SUPPORT[0]) & (x < SUPPORT[1])).all())
    torch.testing.assert_close(coordinates.to_unconstrained(x), u, rtol=1e-4, atol=1e-4)
    assert torch.equal(x[:, 0], u[:, 0])


def test_the_slope_and_its_derivatives_are_those_of_the_map() -> None:
    coordinates = Coordinates(SUPPORT)
    u = points().requires_grad_()
    x = coordinates.to_support(u)
    (slope,) = torch.autograd.grad(x.sum(), u, create_graph=True)
    log_slope, first, second = coordinates.jacobian(u.detach())
    torch.testing.assert_close(log_slope, slope.log().detach())
    (found,) = torch.autograd.grad(slope.log().sum(), u, create_graph=True)
    torch.testing.assert_close(first, found.detach())
    (found,) = torch.autograd.grad(found.sum(), u)
    torch.testing.assert_close(second, found)


def test_gradient_and_hessian_of_the_energy_in_the_coordinates() -> None:
    potential = potential_of(SeparableGumbel(4).double())
    target = Target(potential, Coordinates(SUPPORT), chunk_size=7)
    u = points(20)

    def energy(row: Tensor) -> Tensor:
        x = target.coordinates.to_support(row.unsqueeze(0))
        return potential.value(x)[0] - target.coordinates.jacobian(row.unsqueeze(0))[0].sum()

    values, gradients = target(u)
    hessians = target.hessian(u)
    for row, value, gradient, hessian in zip(u, values, gradients, hessians, strict=True):
        torch.testing.assert_close(value, energy(row))
        torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(energy, row))
        torch.testing.assert_close(hessian, torch.autograd.functional.hessian(energy, row))


def test_the_integral_stays_the_same() -> None:
    network = GammaEnergy(1, mean=2.0, sd=3.0)
    target = Target(potential_of(network), Coordinates(torch.tensor([[2.0], [math.inf]])))
    window = torch.tensor([[-20.0], [80.0]])
    u = torch.linspace(-20.0, 80.0, 20001).unsqueeze(1)
    found = log_integral(-target(u)[0].double(), window.double(), len(u))
    assert float(found) == pytest.approx(network.log_partition, abs=1e-5)


def test_points_beyond_a_wall_are_taken_inside() -> None:
    coordinates = Coordinates(SUPPORT)
    u = coordinates.to_unconstrained(torch.tensor([[0.0, -5.0, 9.0, -2.0]]))
    assert bool(torch.isfinite(u).all())


def test_bad_supports_are_refused() -> None:
    with pytest.raises(ValueError, match="below the upper"):
        Coordinates(torch.tensor([[1.0], [1.0]]))
    with pytest.raises(ValueError, match="low and a high row"):
        Coordinates(torch.zeros(3))
