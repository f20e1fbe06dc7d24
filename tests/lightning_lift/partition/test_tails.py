import math

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.partition.grids import grid_points, log_integral
from lightning_lift.partition.region import Region
from lightning_lift.partition.tails import log_tail_in_plane, log_tail_on_line
from lightning_lift.potential import Potential
from tests.problems import Quadratic, potential_of

OPEN = torch.tensor([[-math.inf, -math.inf], [math.inf, math.inf]], dtype=torch.float64)


def plane_bound(potential: Potential, region: Region, centre: torch.Tensor, num_points: int = 65) -> float:
    edges = region.free_edges(num_points)
    energies = potential.value(edges.view(-1, 2)).detach().view(len(edges), num_points)
    log_area = float((region.window[1] - region.window[0]).log().sum())
    return log_tail_in_plane(energies, float(potential.value(centre.view(1, 2)).detach()), log_area)


def box(half: float, centre: float = 0.0) -> torch.Tensor:
    return centre + half * torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)


def test_line_bounds_are_exact_for_a_laplace_energy() -> None:
    """E = |x| has straight sides: the bound equals the mass e^-4 + e^-6 outside."""
    x = torch.linspace(-4.0, 6.0, 101, dtype=torch.float64)
    whole = torch.tensor([-math.inf, math.inf])
    assert log_tail_on_line(x, x.abs(), whole) == pytest.approx(math.log(math.exp(-4.0) + math.exp(-6.0)), abs=1e-9)
    assert log_tail_on_line(x, x.abs(), torch.tensor([-4.0, math.inf])) == pytest.approx(-6.0, abs=1e-9)
    assert log_tail_on_line(x, x.abs(), torch.tensor([-4.0, 6.0])) == -math.inf


def test_no_bound_where_the_energy_falls_outwards() -> None:
    x = torch.tensor([0.0, 1.0, 2.0])
    assert log_tail_on_line(x, x, torch.tensor([-math.inf, math.inf])) == math.inf
    level = torch.zeros(1, 8, dtype=torch.float64)
    assert log_tail_in_plane(level, 0.0, 0.0) == math.inf


@pytest.mark.parametrize("half", [3.0, 5.0, 7.0])
@pytest.mark.parametrize("shear", [0.0, 0.4])
def test_plane_bound_is_above_and_near_the_gaussian_tail(half: float, shear: float) -> None:
    potential = potential_of(Quadratic(2).double())
    region = Region(box(half), OPEN, torch.zeros(2), shear)
    large, size = box(12.0), 801
    points = grid_points(large, size)
    y = region.straightened(points)
    outside = (y.abs() > half).any(1)
    truth = float(log_integral(torch.where(outside, -potential.value(points).detach(), -torch.inf), large, size))
    # The bound takes the least energy of the edge for all of it.
    assert truth <= plane_bound(potential, region, torch.zeros(2, dtype=torch.float64)) <= truth + 3.0 + 6.0 * shear


@pytest.mark.parametrize("num_points", [7, 65])
def test_plane_bound_holds_for_an_icnn_however_few_points_its_edges_have(num_points: int) -> None:
    torch.manual_seed(0)
    potential = potential_of(ICNN(2, (32, 32), bias_std=1.0, strong_convexity=0.5).double())
    large, size = box(60.0), 601
    points = grid_points(large, size)
    energies = potential.value(points).detach()
    for half, shear in ((6.0, 0.0), (9.0, -0.7)):
        region = Region(box(half), OPEN, torch.zeros(2), shear)
        outside = (region.straightened(points).abs() > half).any(1)
        log_mass = float(log_integral(torch.where(outside, -energies, -torch.inf), large, size))
        inner = points[energies.argmin()]
        assert log_mass <= plane_bound(potential, region, inner, num_points) + 1e-3


def test_edges_on_walls_and_beyond_have_no_mass_outside() -> None:
    """A Gaussian of mean 0 on the quadrant x >= 0, seen in [-1, 3]^2: only the two far edges count."""
    support = torch.tensor([[0.0, 0.0], [math.inf, math.inf]], dtype=torch.float64)
    region = Region(box(2.0, 1.0), support, torch.zeros(2))
    edges = region.free_edges(9)
    assert edges.shape == (2, 9, 2)
    assert edges.min() == 0.0
    assert torch.equal(edges.amax((1, 2)), torch.tensor([3.0, 3.0], dtype=torch.float64))
    potential = potential_of(Quadratic(2).double())
    inside = (torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(3.0)) - 0.5) ** 2
    truth = math.log(2.0 * math.pi * (0.25 - float(inside)))
    assert truth <= plane_bound(potential, region, torch.zeros(2, dtype=torch.float64)) <= truth + 3.0
    whole = Region(box(2.0, 1.0), box(1.0, 1.0), torch.zeros(2))
    assert not len(whole.free_edges(9)), "a window beyond all walls"
