import math

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.partition.grids import grid_points, log_integral
from lightning_lift.partition.tails import log_tail_outside_ellipse, log_tails_from_grid
from tests.problems import Quadratic, potential_of


def test_line_bounds_are_exact_for_a_laplace_energy() -> None:
    """E = |x| has straight sides: the bound equals the mass e^-b outside."""
    x = torch.linspace(-4.0, 6.0, 101, dtype=torch.float64)
    left, right = log_tails_from_grid(x.abs(), 0.1)
    assert left == pytest.approx(-4.0, abs=1e-9)
    assert right == pytest.approx(-6.0, abs=1e-9)


def test_no_bound_where_the_energy_falls_outwards() -> None:
    assert log_tails_from_grid(torch.tensor([0.0, 1.0, 2.0]), 1.0)[0] == math.inf


def test_plane_bound_is_above_and_near_the_gaussian_tail() -> None:
    potential = potential_of(Quadratic(2).double())
    for radius in (3.0, 5.0, 7.0):
        window = torch.tensor([[-radius, -radius], [radius, radius]], dtype=torch.float64)
        truth = math.log(2.0 * math.pi) - radius**2 / 2
        bound = log_tail_outside_ellipse(potential, window)
        # A tangent plane is above the Gaussian's tail by a factor of 1 + O(1 / R^2), sectors by a little more.
        assert truth <= bound <= truth + 0.5


def test_plane_bound_holds_for_an_icnn() -> None:
    torch.manual_seed(0)
    potential = potential_of(ICNN(2, (32, 32), bias_std=1.0, strong_convexity=0.5).double())
    small, large = (torch.tensor([[-half, -half], [half, half]], dtype=torch.float64) for half in (6.0, 60.0))
    size = 601
    points = grid_points(large, size)
    energies = potential.value(points).detach()
    outside = (points / 6.0).square().sum(1) > 1.0
    log_mass = float(log_integral(torch.where(outside, -energies, -torch.inf), large, size))
    assert log_mass <= log_tail_outside_ellipse(potential, small) + 1e-3
